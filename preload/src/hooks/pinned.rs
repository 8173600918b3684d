//! The hooks of pinned host memory: pooled if the user says so.
//!
//! The pool is libbfc's for pinned memory, over the driver's own functions. It belongs to the device on which it was first
//! wanted, with whose context its memory dies; other devices' requests are passed through.

use std::ffi::{c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cuda_sys::*;

use crate::bfc::{self, Suballocator};
use crate::diagnostics::{check_log, report};
use crate::driver::real;
use crate::hooks::device::{self, without_context};
use crate::hooks::refusals::{self, Verdict};
use crate::pool::{Pool, Refused, State, pointer};
use crate::settings;
use crate::state::contexts::{self, Current};

static STATE: State = State::new();

/// The device whose context the pool's memory belongs to, counted from 1.
static HOME: AtomicUsize = AtomicUsize::new(0);

/// The memory is gone: nothing of it is given back.
static IS_LOST: AtomicBool = AtomicBool::new(false);

pub(crate) fn pool() -> Pool {
    Pool::new(bfc::PINNED, &STATE)
}

/// Without a limit, also where the environment has one, which is meant for devices.
const LIMIT: u64 = 1 << 46;

fn create() -> Result<(), Refused> {
    let functions = Suballocator {
        struct_size: size_of::<Suballocator>(),
        user_data: ptr::null_mut(),
        alloc: region,
        free: give_region,
        supports_coalescing: 0,
        reserved: 0,
    };
    let flags =
        bfc::ALLOW_GROWTH | bfc::GARBAGE_COLLECTION | bfc::SPLIT_ALWAYS | bfc::TIMESTAMPS | bfc::QUARANTINE;
    let mut options = bfc::Options::new(bfc::BACKEND_CUSTOM, flags, c"preload, pinned");
    options.memory_limit = LIMIT;
    options.suballocator = &functions;
    pool().create_as(&options)
}

unsafe extern "C" fn region(_: *mut c_void, _: usize, bytes: usize, received: *mut usize) -> *mut c_void {
    let mut memory = ptr::null_mut();
    // SAFETY: the pointer is valid for writing.
    let code = real::cuMemHostAlloc().map(|alloc| unsafe { alloc(&mut memory, bytes, 0) });
    if code != Some(CUDA_SUCCESS) {
        return ptr::null_mut();
    }
    // SAFETY: libbfc's for writing, by its contract.
    unsafe { *received = bytes };
    memory
}

unsafe extern "C" fn give_region(_: *mut c_void, memory: *mut c_void, _: usize) {
    if IS_LOST.load(Ordering::Relaxed) {
        return;
    }
    if let Some(free) = real::cuMemFreeHost() {
        // SAFETY: it was given by the function above, and libbfc gives it back once.
        unsafe { free(memory) };
    }
}

/// Serves a request, if it is for the pool.
fn serve(place: *mut *mut c_void, bytes: usize, flags: c_uint) -> Option<u64> {
    // With flags it may be another kind of memory.
    if !settings::serves_pinned() || place.is_null() || flags != 0 || !settings::pools(bytes) {
        return None;
    }
    let Current::Primary(device) = contexts::current() else { return None };
    let home = device + 1;
    let taken = HOME.compare_exchange(0, home, Ordering::Relaxed, Ordering::Relaxed);
    if taken.is_err_and(|other| other != home) {
        return None;
    }
    if !pool().is_known() {
        create().ok()?;
    }
    // The program's own may be of other memory, and what is freed does not wait in it.
    if !pool().is_ours() {
        return None;
    }
    let served = pool().alloc(bytes, None).ok();
    if served.is_some() {
        check_log::served(bytes);
        report::note(pool());
    }
    served
}

/// Calls the driver; where it has no memory the pool gives back what it can, and it is asked again.
fn with_trim(bytes: usize, call: impl Fn() -> CUresult) -> CUresult {
    let own = || Some(pool()).filter(|pool| pool.is_ours());
    let code = device::with_trim_of(own, call);
    if let Some(pool) = own() {
        refusals::note_of(pool, code, bytes, Verdict::Driver("the driver has no pinned memory for it"));
    }
    code
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    let Some(alloc) = real::cuMemHostAlloc() else { return CUDA_ERROR_NOT_INITIALIZED };
    match serve(place, bytes, flags) {
        Some(address) => {
            // SAFETY: not NULL, so the caller's for writing.
            unsafe { *place = pointer(address) };
            CUDA_SUCCESS
        }
        // SAFETY: the caller's arguments.
        None => with_trim(bytes, || unsafe { alloc(place, bytes, flags) }),
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(place: *mut *mut c_void, bytes: usize) -> CUresult {
    let Some(alloc) = real::cuMemAllocHost_v2() else { return CUDA_ERROR_NOT_INITIALIZED };
    match serve(place, bytes, 0) {
        Some(address) => {
            // SAFETY: not NULL, so the caller's for writing.
            unsafe { *place = pointer(address) };
            CUDA_SUCCESS
        }
        // SAFETY: the caller's arguments.
        None => with_trim(bytes, || unsafe { alloc(place, bytes) }),
    }
}

/// # Safety
/// As the driver's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(memory: *mut c_void) -> CUresult {
    let Some(free) = real::cuMemFreeHost() else { return CUDA_ERROR_NOT_INITIALIZED };
    if pool().is_ours() && !memory.is_null() && bfc::owner(memory.addr() as u64) == Some(bfc::PINNED) {
        if contexts::current() == Current::None {
            return without_context();
        }
        if let Some(code) = pool().free(memory.addr() as u64).code() {
            report::note(pool());
            return code;
        }
    }
    // SAFETY: the caller's argument, and no memory of the pool.
    unsafe { free(memory) }
}

/// A device's context is about to end: what it gave goes back to it.
pub(crate) fn end_with(device: usize) {
    if HOME.load(Ordering::Relaxed) == device + 1 {
        pool().end();
        HOME.store(0, Ordering::Relaxed);
    }
}

/// A device's context has ended, and what it gave is gone.
pub(crate) fn forget_device(device: usize) {
    IS_LOST.store(true, Ordering::Relaxed);
    end_with(device);
    IS_LOST.store(false, Ordering::Relaxed);
}
