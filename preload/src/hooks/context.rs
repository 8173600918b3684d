//! The hooks of contexts: creation, end, and synchronization.

use std::ffi::{c_int, c_uint};

use cuda_sys::*;

use crate::driver::real;
use crate::pool::{self, Pool, WaitingFrees, known_streams, pinned};
use crate::state::{captures, contexts, internal_streams, relations, user_contexts};

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    let Some(synchronize) = real::cuCtxSynchronize() else { return CUDA_ERROR_NOT_INITIALIZED };
    let frees = WaitingFrees::of(contexts::current());
    // SAFETY: no preconditions.
    let code = unsafe { synchronize() };
    frees.settle(code);
    code
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize_v2(context: CUcontext) -> CUresult {
    let Some(synchronize) = real::cuCtxSynchronize_v2() else { return CUDA_ERROR_NOT_INITIALIZED };
    let frees = WaitingFrees::of(contexts::known_as(context));
    // SAFETY: the caller's argument.
    let code = unsafe { synchronize(context) };
    frees.settle(code);
    code
}

fn of_device(device: CUdevice) -> Option<(usize, Pool)> {
    let device = usize::try_from(device).ok()?;
    Some((device, Pool::of_device(device)?))
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult {
    let Some(retain) = real::cuDevicePrimaryCtxRetain() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's arguments.
    let code = unsafe { retain(context, device) };
    if code == CUDA_SUCCESS && !context.is_null() {
        // SAFETY: not NULL, so the caller's, and the driver has written it.
        contexts::note_retained(device, unsafe { *context });
    }
    code
}

macro_rules! releases {
    ($($symbol:ident)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(device: CUdevice) -> CUresult {
                let Some(release) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                let captured = captures::in_context(contexts::primary_handle(device));
                // The pool holds the context too. If the pool remained, the program's last release would not end the
                // context. Captures of other contexts would not survive the pool's end.
                let is_last = contexts::is_last_hold(device) && captured.are_all();
                let pooled = of_device(device).filter(|_| is_last);
                if is_last {
                    pool::note_context_end();
                }
                if contexts::is_last_hold(device) {
                    // If this device has no pool that holds the context, other pools may know its streams.
                    known_streams::forget_context(contexts::primary_handle(device));
                }
                if let Some((number, pool)) = pooled {
                    captured.disregarded(|| {
                        pool.end();
                        pinned::end_with(number);
                    });
                    internal_streams::forget_device(number);
                    contexts::forget_primary(device);
                }
                // SAFETY: the caller's argument.
                let code = unsafe { release(device) };
                if code == CUDA_SUCCESS {
                    contexts::note_released(device);
                    if (captured.are_any() || contexts::are_several()) && !contexts::is_active(device) {
                        // Called even if the context is still held by calls that the interposer did not see.
                        pool::note_context_end();
                        captured.ended();
                    }
                }
                code
            }
        )*
    };
}

releases! {
    cuDevicePrimaryCtxRelease
    cuDevicePrimaryCtxRelease_v2
}

macro_rules! resets {
    ($($symbol:ident)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(device: CUdevice) -> CUresult {
                let Some(reset) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                let captured = captures::in_context(contexts::primary_handle(device));
                pool::note_context_end();
                known_streams::forget_context(contexts::primary_handle(device));
                // SAFETY: the caller's argument.
                let code = unsafe { reset(device) };
                if code == CUDA_SUCCESS {
                    captured.ended();
                }
                if let Some((number, pool)) = of_device(device).filter(|_| code == CUDA_SUCCESS) {
                    contexts::forget_primary(device);
                    pool.mark_lost();
                    pinned::forget_device(number);
                    internal_streams::forget_device(number);
                }
                code
            }
        )*
    };
}

resets! {
    cuDevicePrimaryCtxReset
    cuDevicePrimaryCtxReset_v2
}

macro_rules! destroys {
    ($($symbol:ident)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(context: CUcontext) -> CUresult {
                let Some(destroy) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                // Before the call, because afterwards another context may have the handle. Information that is
                // forgotten needlessly is queried again.
                contexts::forget(context);
                user_contexts::forget(context);
                pool::note_context_end();
                let captured = captures::in_context(context);
                known_streams::forget_context(context);
                // SAFETY: the caller's argument.
                let code = unsafe { destroy(context) };
                if code == CUDA_SUCCESS {
                    captured.ended();
                }
                code
            }
        )*
    };
}

destroys! {
    cuCtxDestroy
    cuCtxDestroy_v2
}

macro_rules! creates {
    ($($symbol:ident($($argument:ident: $type:ty),*) of $device:ident;)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(place: *mut CUcontext, $($argument: $type),*) -> CUresult {
                let Some(create) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                // SAFETY: the caller's arguments.
                let code = unsafe { create(place, $($argument),*) };
                if code == CUDA_SUCCESS && !place.is_null() {
                    // SAFETY: not NULL, so the caller's, and the driver has written it.
                    let context = unsafe { *place };
                    user_contexts::note(context, $device, relations::forget_user_context);
                }
                code
            }
        )*
    };
}

creates! {
    cuCtxCreate_v2(flags: c_uint, device: CUdevice) of device;
    cuCtxCreate_v3(affinity: *mut CUexecAffinityParam, count: c_int, flags: c_uint, device: CUdevice) of device;
    cuCtxCreate_v4(parameters: *mut CUctxCreateParams, flags: c_uint, device: CUdevice) of device;
}
