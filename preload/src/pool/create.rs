//! The creation and the end of a pool.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering;

use cuda_sys::*;

use super::handle::{MUTATED, NO_POOL, OF_THE_PROGRAM, OURS, Pool, Refused, State};
use crate::diagnostics::check_log::PassReason;
use crate::driver;
use crate::sys::lock::{SHORT, this_thread, wait_for};
use crate::{bfc, settings};

impl Pool {
    #[cold]
    #[inline(never)]
    pub(super) fn create(self) -> Result<(), Refused> {
        // Its own hooks create it, and it ends only with its device's context.
        if self.ordinal == bfc::PINNED {
            return self.await_creation();
        }
        let mut flags = bfc::ALLOW_GROWTH | bfc::GARBAGE_COLLECTION | bfc::SPLIT_ALWAYS;
        if !settings::serves_async() && !MUTATED {
            flags |= bfc::TIMESTAMPS | bfc::QUARANTINE;
        }
        // Regions by cuMemAlloc, unless the user prefers granules, which have no IPC handles.
        let backend = if settings::wants_granules() { bfc::BACKEND_CUDA_VMM } else { bfc::BACKEND_CUDA };
        let mut options = bfc::Options::new(backend, flags, c"preload");
        if !settings::is_limited() {
            // All memory, as without a pool. What other allocations need of it is returned to the driver on demand.
            options.memory_limit = total_memory(self.ordinal);
        }
        self.create_as(&options)
    }

    /// Creates the pool, unless another thread or the program itself does. A pool of the program's may lack the
    /// quarantine that keeps cudaFree's promise.
    #[inline(always)] // Two callers, and one frame instead of two above what libbfc needs.
    pub(crate) fn create_as(self, options: &bfc::Options) -> Result<(), Refused> {
        let origin = &self.state.origin;
        let before = origin.load(Ordering::Acquire);
        if before > OF_THE_PROGRAM {
            return self.await_creation();
        }
        // Another thread may have just created it. Otherwise it existed and has ended, and nothing in it is the
        // interposer's any more.
        if before != NO_POOL && bfc::stats(self.ordinal).is_some() {
            return Ok(());
        }
        if origin.compare_exchange(before, this_thread(), Ordering::Acquire, Ordering::Relaxed).is_err() {
            return self.await_creation();
        }
        // SAFETY: the struct is as large as it says, and what it points to lives until the call returns.
        let status = unsafe { bfc::bfc_create(self.ordinal, options) };
        let whose = match status {
            bfc::OK => OURS,
            // Another thread of the interposer was faster.
            bfc::ALREADY_EXISTS if before == OURS => OURS,
            bfc::ALREADY_EXISTS => OF_THE_PROGRAM,
            _ => NO_POOL,
        };
        if status != bfc::OK {
            origin.store(whose, Ordering::Release);
            return if whose == NO_POOL { Err(Refused::Pass(PassReason::Pool)) } else { Ok(()) };
        }
        let user_data = ptr::from_ref(self.state).cast_mut().cast();
        // SAFETY: the function may be called with it from any thread, at any time: it is static. Should the pool have
        // memory already, allocated by a thread of the program, that is not counted.
        unsafe { bfc::bfc_set_region_callback(self.ordinal, Some(count_region), user_data) };
        origin.store(OURS, Ordering::Release);
        Ok(())
    }

    /// Waits for another thread to create the pool, which takes less than a millisecond. A thread that takes longer, in
    /// the child of a fork for example, is not waited for; nor is this thread, if a signal handler has interrupted it.
    fn await_creation(self) -> Result<(), Refused> {
        let origin = || self.state.origin.load(Ordering::Acquire);
        if origin() == this_thread() {
            return Err(Refused::Pass(PassReason::Pool));
        }
        wait_for(SHORT, || (origin() <= OF_THE_PROGRAM).then_some(())).ok_or(Refused::Pass(PassReason::Pool))
    }

    /// Ends the pool before its context ends, and its memory with it.
    pub(crate) fn end(self) {
        // A pool of the program's ends when the program wants it, and holds the context.
        if self.is_ours() && bfc::bfc_destroy_forced(self.ordinal) == bfc::OK {
            self.state.origin.store(NO_POOL, Ordering::Relaxed);
            self.forget_deferred_frees();
        }
    }

    /// Tells libbfc that the memory is gone because the context was reset.
    pub(crate) fn mark_lost(self) {
        if self.is_there() {
            bfc::bfc_device_lost(self.ordinal);
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
    // SAFETY: it was made from a static one.
    let state = unsafe { &*state.cast::<State>() };
    let count = if event == bfc::REGION_OBTAINED { &state.obtained } else { &state.returned };
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
