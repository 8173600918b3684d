//! The hooks of pinned host memory, which is pooled on request.

use std::ffi::{c_uint, c_void};

use cuda_sys::*;

use super::fallback::{self, Source};
use super::refusals::{self, Verdict};
use crate::diagnostics::{check_log, report};
use crate::driver::real;
use crate::pool::{Pool, pinned, pointer};
use crate::state::contexts::{self, Current};
use crate::{bfc, settings};

/// Serves a request from the pool, if it should be pooled.
fn serve(place: *mut *mut c_void, bytes: usize, flags: c_uint) -> Option<u64> {
    // Flags may request another kind of memory.
    if !settings::serves_pinned() || place.is_null() || flags != 0 || !settings::pools(bytes) {
        return None;
    }
    let Current::Primary(device) = contexts::current() else { return None };
    let served = pinned::alloc(device, bytes);
    if served.is_some() {
        check_log::served(bytes);
        report::note(Pool::pinned());
    }
    served
}

/// Calls the driver, if necessary after the pool has returned memory.
fn with_room(bytes: usize, call: impl Fn() -> CUresult) -> CUresult {
    let code = fallback::with_room(|| (Source::Pinned, bytes), call);
    let pool = Pool::pinned();
    if pool.is_ours() {
        refusals::note_of(pool, code, bytes, Verdict::Driver("the driver has no pinned memory for it"));
    }
    code
}

/// # Safety
/// The contract is that of the driver's function.
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
        None => with_room(bytes, || unsafe { alloc(place, bytes, flags) }),
    }
}

/// # Safety
/// The contract is that of the driver's function.
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
        None => with_room(bytes, || unsafe { alloc(place, bytes) }),
    }
}

/// The call needs page tables of the device, and host memory that stays in place, like the pool's.
///
/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostRegister_v2(memory: *mut c_void, bytes: usize, flags: c_uint) -> CUresult {
    let Some(register) = real::cuMemHostRegister_v2() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's arguments.
    let call = || unsafe { register(memory, bytes, flags) };
    fallback::with_room(|| (Source::Pinned, bytes), || fallback::with_room(|| (Source::Current, 0), call))
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(memory: *mut c_void) -> CUresult {
    let Some(free) = real::cuMemFreeHost() else { return CUDA_ERROR_NOT_INITIALIZED };
    let pool = Pool::pinned();
    if pool.is_ours() && !memory.is_null() && bfc::owner(memory.addr() as u64) == Some(bfc::PINNED) {
        if contexts::current() == Current::None {
            return fallback::no_context_error();
        }
        if let Some(code) = pool.free(memory.addr() as u64).code() {
            report::note(pool);
            return code;
        }
    }
    // SAFETY: the caller's argument, and no memory of the pool.
    unsafe { free(memory) }
}
