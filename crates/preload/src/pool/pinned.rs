//! The pool of pinned host memory, whose regions are allocated by the driver's own functions. It belongs to the device
//! on which it was first used, and its memory ends with that device's context. Requests on other devices are left to
//! the driver.

use bfc_sys::interposer::{Order, PINNED_POOL, pool_flags};
use bfc_sys::{BFC_BACKEND_CUSTOM, bfc_suballocator_t};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cuda_sys::*;

use super::handle::{Pool, Refused};
use crate::bfc;
use crate::driver::real;
use crate::state::contexts;

/// The device whose context owns the pool's memory, plus 1.
static HOME: AtomicUsize = AtomicUsize::new(0);

/// Set if the memory is lost, so that its regions must not be freed.
static IS_LOST: AtomicBool = AtomicBool::new(false);

/// Practically unlimited, because a limit in the environment applies to devices.
const LIMIT: u64 = 1 << 46;

fn create() -> Result<(), Refused> {
    let functions = bfc_suballocator_t {
        struct_size: size_of::<bfc_suballocator_t>(),
        user_data: ptr::null_mut(),
        alloc: Some(alloc_region),
        free: Some(free_region),
        supports_coalescing: 0,
        reserved: 0,
    };
    let mut options = bfc::options(BFC_BACKEND_CUSTOM, pool_flags(Order::Stamps), PINNED_POOL);
    options.memory_limit = LIMIT;
    options.suballocator = &functions;
    Pool::pinned().create_as(&options)
}

unsafe extern "C" fn alloc_region(
    _: *mut c_void,
    _: usize,
    bytes: usize,
    received: *mut usize,
) -> *mut c_void {
    let mut memory = ptr::null_mut();
    // SAFETY: the pointer is valid for writing.
    let code = real::cuMemHostAlloc().map(|alloc| unsafe { alloc(&mut memory, bytes, 0) });
    if code != Some(CUDA_SUCCESS) {
        return ptr::null_mut();
    }
    // SAFETY: valid for writing, by libbfc's contract.
    unsafe { *received = bytes };
    memory
}

unsafe extern "C" fn free_region(_: *mut c_void, memory: *mut c_void, _: usize) {
    if IS_LOST.load(Ordering::Relaxed) {
        return;
    }
    let Some(free) = real::cuMemFreeHost() else { return };
    // SAFETY: it was allocated by the function above, and libbfc frees it once.
    let give_back = || unsafe { free(memory) };
    let home = HOME.load(Ordering::Relaxed).wrapping_sub(1);
    match contexts::primary_of_device(home) {
        context if context.is_null() => give_back(),
        // libbfc's own thread has no context.
        context => contexts::run_in(context, give_back),
    };
}

/// Serves a request in the primary context of a device, if the pool belongs to it.
pub(crate) fn alloc(device: usize, bytes: usize) -> Option<u64> {
    let home = device + 1;
    let taken = HOME.compare_exchange(0, home, Ordering::Relaxed, Ordering::Relaxed);
    if taken.is_err_and(|other| other != home) {
        return None;
    }
    let pool = Pool::pinned();
    if !pool.is_known() {
        create().ok()?;
    }
    // A pool created by the program may have another kind of memory, and no quarantine.
    if !pool.is_ours() {
        return None;
    }
    pool.alloc(bytes, None).ok()
}

/// Ends the pool if it belongs to a device whose context is about to end: its regions are freed.
pub(crate) fn end_with(device: usize) {
    if HOME.load(Ordering::Relaxed) == device + 1 {
        Pool::pinned().end();
        HOME.store(0, Ordering::Relaxed);
    }
}

/// Ends the pool and its memory if it belongs to a device whose context has ended.
pub(crate) fn forget_device(device: usize) {
    IS_LOST.store(true, Ordering::Relaxed);
    end_with(device);
    IS_LOST.store(false, Ordering::Relaxed);
}
