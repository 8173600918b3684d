//! Waiting for the device: when it is worthwhile, and what it makes reusable.

use std::ptr;
use std::sync::atomic::Ordering;

use bfc_sys::interposer::{MIN_WAITING_FREES, Waiting};
use cuda_sys::*;

use super::deferred_frees;
use super::handle::Pool;
use super::probe::ProbeResult;
use super::waiting_frees::WaitingFrees;
use crate::driver::real;
use crate::state::captures;
use crate::state::contexts::{self, Current};

impl Pool {
    /// Makes waiting frees reusable whose work has completed, if a query is worthwhile: for a request of `bytes` that
    /// found no memory, or because many frees are waiting (`u64::MAX`). Returns whether any have become reusable.
    ///
    /// Work may end only by the calling thread's next action, and the driver's cudaMalloc waits for none. So the work is
    /// probed, and the pool grows if it is pending. Waiting is the last resort, when the pool cannot grow.
    pub(super) fn reuse_done_frees(self, bytes: u64) -> bool {
        let is_worth_it = || bytes == u64::MAX || self.is_worth_a_synchronization(bytes);
        let (is_pinned, is_shared) = (self.device().is_none(), self.is_shared());
        // Pinned memory is slow to allocate, and work of several devices is often pending.
        if !is_pinned && !is_shared && !is_worth_it() {
            return false;
        }
        match self.probe_twice() {
            ProbeResult::Done => true,
            ProbeResult::Pending => false,
            // An old driver. Pinned memory has no limit that would make it wait for other devices.
            ProbeResult::Unsupported => {
                (is_pinned || !is_shared) && is_worth_it() && self.synchronize() == CUDA_SUCCESS
            }
        }
    }

    /// Makes frees reusable because many are waiting: they take host memory and keep others from merging. While their work
    /// is pending, it is probed again only after some more frees.
    #[cold]
    pub(super) fn reuse_many_frees(self) {
        if captures::any() {
            return;
        }
        let freed = self.state.freed.load(Ordering::Relaxed);
        if freed.saturating_sub(self.state.probed.load(Ordering::Relaxed)) >= MIN_WAITING_FREES {
            self.state.probed.store(freed, Ordering::Relaxed);
            self.reuse_done_frees(u64::MAX);
        }
    }

    /// Makes all waiting frees reusable. Waits for the device only if their work is pending.
    pub(super) fn settle(self) -> bool {
        self.probe_twice();
        !self.waits() || self.synchronize() == CUDA_SUCCESS
    }

    /// Returns whether a request that found no memory should look for reusable frees instead of letting the pool grow.
    fn is_worth_a_synchronization(self, bytes: u64) -> bool {
        let frees = self.waiting();
        self.stats().is_some_and(|stats| {
            let (in_use, peak_in_use) = (stats.bytes_in_use, stats.peak_bytes_in_use);
            let (held, limit) = (stats.pool_bytes, stats.bytes_limit);
            Waiting { frees, in_use, peak_in_use, held, limit }.is_worth_a_probe(bytes)
        })
    }

    /// Waits for all work that may use this pool's memory. Fails while any stream is captured.
    pub(super) fn wait(self) -> CUresult {
        let Some(synchronize) = real::cuCtxSynchronize() else { return CUDA_ERROR_NOT_INITIALIZED };
        let code = self.in_each_user(|| {
            // SAFETY: no preconditions.
            captures::unless_capturing(|| unsafe { synchronize() })
        });
        if code == CUDA_SUCCESS {
            self.state.synchronizations.fetch_add(1, Ordering::Relaxed);
        }
        code
    }

    /// Makes waiting frees reusable whose work has completed, before a capture begins in which nothing can be queried.
    pub(crate) fn settle_before_capture(self) {
        if self.waits() && !captures::any() {
            self.probe_twice();
        }
    }

    /// Frees the deferred chunks whose work has completed, if queries are allowed by now.
    #[inline]
    pub(super) fn flush_deferred_frees(self) {
        if deferred_frees::are_any() && !captures::any() {
            self.flush_all_deferred();
        }
    }

    #[cold]
    fn flush_all_deferred(self) {
        if self.has_any_deferred() && self.probe_twice() == ProbeResult::Unsupported {
            self.synchronize();
        }
    }

    /// Returns whether waiting frees cannot become reusable because a thread has ended in a capture of the device's
    /// context. "It is also invalid to [...] synchronize a broader handle which encompasses an active stream capture, such
    /// as a device or context handle" (CUDA C++ Programming Guide, Prohibited and Unhandled Operations).
    pub(super) fn can_never_settle(self) -> bool {
        self.device().is_some_and(|owner| captures::is_abandoned_in(contexts::primary_of_device(owner)))
    }

    /// Waits for the device's own context only, like the driver's cudaFree: work of other contexts may itself wait for
    /// this thread's next action. Makes the frees that this covers reusable.
    pub(super) fn synchronize_own(self) -> CUresult {
        // Pinned memory may belong to any context.
        let device = self.device().or_else(contexts::current_device);
        let context = device.map_or(ptr::null_mut(), contexts::primary_of_device);
        let (Some(device), false) = (device, context.is_null()) else { return self.synchronize() };
        let Some(synchronize) = real::cuCtxSynchronize() else { return CUDA_ERROR_NOT_INITIALIZED };
        let frees = WaitingFrees::of(Current::Primary(device));
        let code = contexts::run_in(context, || {
            // SAFETY: no preconditions.
            captures::unless_capturing(|| unsafe { synchronize() })
        });
        if code == CUDA_SUCCESS {
            self.state.synchronizations.fetch_add(1, Ordering::Relaxed);
        }
        frees.into_iter().for_each(|frees| frees.settle(code));
        code
    }

    /// Waits for the device, and makes all frees until now reusable.
    pub(crate) fn synchronize(self) -> CUresult {
        if captures::any() {
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        let frees = WaitingFrees::waiting_in(self);
        let code = self.wait();
        frees.settle(code);
        code
    }
}
