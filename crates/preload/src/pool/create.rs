//! The creation and the end of a pool.

use bfc_sys::interposer::{DEVICE_POOL, Order, pool_flags};
use bfc_sys::{
    BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM, BFC_ERROR_ALREADY_EXISTS, BFC_OK, BFC_REGION_OBTAINED,
    bfc_options_t,
};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering;

use cuda_sys::*;

use super::handle::{MUTATED, NO_POOL, OF_THE_PROGRAM, OURS, Pool, Refused, State};
use super::idle;
use crate::diagnostics::check_log::PassReason;
use crate::driver;
use crate::sys::lock::{SHORT, this_thread, wait_for};
use crate::{bfc, settings};

impl Pool {
    #[cold]
    #[inline(never)]
    pub(super) fn create(self) -> Result<(), Refused> {
        // The pinned pool is created by its own hooks, and ends only with its device's context.
        if self.ordinal == bfc::PINNED {
            return self.await_creation();
        }
        let order = if settings::serves_async() || MUTATED { Order::Streams } else { Order::Stamps };
        // Regions from cuMemAlloc, unless the user prefers granules, which have no IPC handles.
        let backend = if settings::wants_granules() { BFC_BACKEND_CUDA_VMM } else { BFC_BACKEND_CUDA };
        let mut options = bfc::options(backend, pool_flags(order), DEVICE_POOL);
        if !settings::is_limited() {
            // All memory, as without a pool. Memory that other allocations need is returned to the driver on demand.
            options.memory_limit = total_memory(self.ordinal);
        }
        self.create_as(&options)
    }

    /// Creates the pool, unless another thread or the program itself does. A pool created by the program may lack the
    /// quarantine that keeps cudaFree's guarantee.
    #[inline(always)] // Two callers, and one frame instead of two above libbfc's own.
    pub(crate) fn create_as(self, options: &bfc_options_t) -> Result<(), Refused> {
        let origin = &self.state.origin;
        let before = origin.load(Ordering::Acquire);
        if before > OF_THE_PROGRAM {
            return self.await_creation();
        }
        // Another thread may have just created it. Otherwise it existed and has ended, and nothing in it belongs to the
        // interposer.
        if before != NO_POOL && bfc::stats(self.ordinal).is_some() {
            return Ok(());
        }
        if origin.compare_exchange(before, this_thread(), Ordering::Acquire, Ordering::Relaxed).is_err() {
            return self.await_creation();
        }
        // SAFETY: the struct has the size that it states, and its pointers are valid until the call returns.
        let status = unsafe { bfc_sys::bfc_create(self.ordinal, options) };
        let whose = match status {
            BFC_OK => OURS,
            // Another thread of the interposer was faster.
            BFC_ERROR_ALREADY_EXISTS if before == OURS => OURS,
            BFC_ERROR_ALREADY_EXISTS => OF_THE_PROGRAM,
            _ => NO_POOL,
        };
        if status != BFC_OK {
            origin.store(whose, Ordering::Release);
            return if whose == NO_POOL { Err(Refused::Pass(PassReason::Pool)) } else { Ok(()) };
        }
        let user_data = ptr::from_ref(self.state).cast_mut().cast();
        // SAFETY: the function may be called with it from any thread at any time, because it is static. If a thread of
        // the program has already allocated memory in the pool, that memory is not counted.
        unsafe { bfc_sys::bfc_set_region_callback(self.ordinal, Some(count_region), user_data) };
        // SAFETY: the function may be called from any thread at any time.
        unsafe { bfc_sys::bfc_set_idle_callback(self.ordinal, Some(idle::settle), ptr::null_mut()) };
        origin.store(OURS, Ordering::Release);
        Ok(())
    }

    /// Waits for another thread to create the pool, which takes less than a millisecond. The wait is limited, because
    /// the other thread may not exist in the child of a fork, or this thread may be a signal handler that interrupted
    /// the creation.
    fn await_creation(self) -> Result<(), Refused> {
        let origin = || self.state.origin.load(Ordering::Acquire);
        if origin() == this_thread() {
            return Err(Refused::Pass(PassReason::Pool));
        }
        wait_for(SHORT, || (origin() <= OF_THE_PROGRAM).then_some(())).ok_or(Refused::Pass(PassReason::Pool))
    }

    /// Ends the pool and its memory before its context ends.
    pub(crate) fn end(self) {
        // A pool created by the program ends when the program destroys it, and holds the context until then.
        if self.is_ours() && bfc::destroy_forced(self.ordinal) == BFC_OK {
            self.state.ended.fetch_add(1, Ordering::AcqRel);
            self.state.origin.store(NO_POOL, Ordering::Relaxed);
            self.forget_streams();
            self.forget_deferred_frees();
        }
    }

    /// Notifies libbfc that the memory is lost because the context was reset.
    pub(crate) fn mark_lost(self) {
        if self.is_there() {
            bfc::device_lost(self.ordinal);
            self.state.ended.fetch_add(1, Ordering::AcqRel);
            self.forget_streams();
            self.forget_deferred_frees();
            self.state.settled.store(self.state.freed.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

unsafe extern "C" fn count_region(
    state: *mut c_void,
    _device: i32,
    _base: *mut c_void,
    _bytes: usize,
    event: i32,
) {
    // SAFETY: it was made from a reference to a static.
    let state = unsafe { &*state.cast::<State>() };
    let count = if event == BFC_REGION_OBTAINED { &state.obtained } else { &state.returned };
    count.fetch_add(1, Ordering::Relaxed);
}

fn total_memory(device: i32) -> u64 {
    let mut bytes = 0;
    match driver::load().map(|driver| driver.cuDeviceTotalMem_v2()) {
        // SAFETY: the pointer is valid for writing.
        Some(Ok(total)) if unsafe { total(&mut bytes, device) } == CUDA_SUCCESS => bytes as u64,
        // libbfc's default applies.
        _ => 0,
    }
}
