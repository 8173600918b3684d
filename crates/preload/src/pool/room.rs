//! Room for a request that the driver or the pool has refused: the memory that the pool holds and does not use.

use cuda_sys::*;

use super::handle::Pool;
use super::probe::ProbeResult;
use crate::bfc;
use crate::driver::real;
use crate::state::contexts;

impl Pool {
    /// Returns the pool's unused memory to a driver that is out of memory for a request of `bytes`, or of an
    /// unknown size (0). Returns whether the driver may serve it now. Waits for the device if the memory's work is pending:
    /// the driver's cudaFree would have waited. Does nothing if the request cannot be served in any case.
    #[cold]
    pub(crate) fn make_room(self, bytes: u64) -> bool {
        let Some(idle) = self.idle_for(bytes) else { return false };
        // If there is none, another thread may have returned it since the driver was called.
        if idle != 0 {
            if self.waits() {
                self.settle();
            }
            self.trim();
        }
        true
    }

    /// Returns memory like [`Pool::make_room`], but never waits.
    #[cold]
    pub(crate) fn make_room_at_once(self, bytes: u64) -> bool {
        let is_done = || self.probe_twice() == ProbeResult::Done;
        self.idle_for(bytes).is_some_and(|idle| idle != 0) && is_done() && self.make_room(bytes)
    }

    /// Returns whether a request to this pool might be served once all work has completed.
    pub(super) fn may_serve(self, bytes: u64) -> bool {
        let fits = |limit: u64, in_use: u64| limit.saturating_sub(in_use) >= bytes;
        self.stats().is_some_and(|stats| fits(stats.bytes_limit, stats.bytes_in_use))
            && self.idle_for(bytes).is_some_and(|idle| idle != 0)
    }

    /// Returns the bytes that the pool holds and does not use, if they might allow the driver to serve a request.
    fn idle_for(self, bytes: u64) -> Option<u64> {
        let idle = bfc::idle_bytes(&self.stats()?);
        let fits = || self.free_at_the_driver().is_none_or(|free| free.saturating_add(idle) >= bytes);
        (bytes <= idle || fits()).then_some(idle)
    }

    /// Returns the bytes that the driver has free on the pool's device, if it reports them.
    fn free_at_the_driver(self) -> Option<u64> {
        let (ask, context) = (real::cuMemGetInfo_v2()?, contexts::primary_of_device(self.device()?));
        if context.is_null() {
            return None;
        }
        let (mut free, mut total) = (0, 0);
        let places = (&raw mut free, &raw mut total);
        // SAFETY: the pointers are valid for writing.
        let code = contexts::run_in(context, || unsafe { ask(places.0, places.1) });
        (code == CUDA_SUCCESS).then_some(free as u64)
    }
}
