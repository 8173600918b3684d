//! The beginning and the end of a pool, and whose it is.

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
        // Regions by cuMemAlloc, unless the user prefers granules: for them there are no IPC handles.
        let backend = if settings::wants_granules() { bfc::BACKEND_CUDA_VMM } else { bfc::BACKEND_CUDA };
        let mut options = bfc::Options::new(backend, flags, c"preload");
        if !settings::is_limited() {
            // All there is, as it is without a pool. What others need of it goes back to the driver on demand.
            options.memory_limit = total_memory(self.ordinal);
        }
        self.create_as(&options)
    }

    /// Creates it, unless another thread or the program itself does. Somebody else's may lack what keeps cudaFree's
    /// promise.
    #[inline(always)] // Two callers, and one frame instead of two above what libbfc needs.
    pub(crate) fn create_as(self, options: &bfc::Options) -> Result<(), Refused> {
        let origin = &self.state.origin;
        let before = origin.load(Ordering::Acquire);
        if before > OF_THE_PROGRAM {
            return self.await_creation();
        }
        // Another thread may just have created it. Else it was there and has ended: nothing of it is ours any more.
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
            // Ours, if another thread was quicker after all.
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
        // memory already, by a thread of the program's own calls, that is not counted.
        unsafe { bfc::bfc_set_region_callback(self.ordinal, Some(count_region), user_data) };
        origin.store(OURS, Ordering::Release);
        Ok(())
    }

    /// Another thread is about to create it, which takes it less than a millisecond. One that is not through by then, in
    /// the child of a fork say, is not waited for; nor is this one, which a signal handler has interrupted.
    fn await_creation(self) -> Result<(), Refused> {
        let origin = || self.state.origin.load(Ordering::Acquire);
        if origin() == this_thread() {
            return Err(Refused::Pass(PassReason::Pool));
        }
        wait_for(SHORT, || (origin() <= OF_THE_PROGRAM).then_some(())).ok_or(Refused::Pass(PassReason::Pool))
    }

    /// The context is about to end, and the memory with it.
    pub(crate) fn end(self) {
        // The program's own lives as long as the program wants, and holds the context.
        if self.is_ours() && bfc::bfc_destroy_forced(self.ordinal) == bfc::OK {
            self.state.origin.store(NO_POOL, Ordering::Relaxed);
            self.forget_deferred_frees();
        }
    }

    /// The context was reset: the memory is gone.
    pub(crate) fn lose(self) {
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
        // Then libbfc's default counts.
        _ => 0,
    }
}
