//! The hooks of contexts: creation, end, and synchronization.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use cuda_sys::*;

use super::fallback::{Source, with_room};
use crate::driver::real;
use crate::pool::{self, Pool, WaitingFrees, known_streams, pinned};
use crate::state::contexts::Current;
use crate::state::{captures, contexts, green_contexts, internal_streams, user_contexts};

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    let Some(synchronize) = real::cuCtxSynchronize() else { return CUDA_ERROR_NOT_INITIALIZED };
    let frees = WaitingFrees::of(contexts::current());
    // SAFETY: no preconditions.
    let code = unsafe { synchronize() };
    frees.into_iter().for_each(|frees| frees.settle(code));
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
    frees.into_iter().for_each(|frees| frees.settle(code));
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
    let counted = || {
        let _counting = contexts::lock_holds(device);
        // SAFETY: the caller's arguments.
        let code = unsafe { retain(context, device) };
        if code == CUDA_SUCCESS && !context.is_null() {
            // SAFETY: not NULL, so the caller's, and the driver has written it.
            contexts::note_retained(device, unsafe { *context });
        }
        code
    };
    with_room(|| (Source::Device(device), 0), counted)
}

/// Releases one of the program's references to a primary context, by calling the driver.
fn give_up_hold(device: CUdevice, call: impl FnOnce() -> CUresult) -> CUresult {
    let counting = contexts::lock_holds(device);
    let code = match contexts::holds(device) {
        2.. => call(),
        // A reference from before the first hook call was not counted.
        holds => give_up_last(device, holds == 1, call),
    };
    if code == CUDA_SUCCESS {
        contexts::note_released(device);
    }
    drop(counting);
    end_put_off();
    code
}

/// Ends a primary context by a call of the driver, unless it is held by calls that the interposer did not see. It has a
/// pool only if the program's references are known, and the pool ends with it.
fn give_up_last(device: CUdevice, is_known: bool, call: impl FnOnce() -> CUresult) -> CUresult {
    let context = contexts::primary_handle(device);
    let captured = captures::in_context(context);
    let paused = pool::pause_probes(context);
    // The pool holds the context too. If the pool remained, the program's last release would not end the context.
    // Captures of other contexts would not survive the pool's end.
    let is_put_off = is_known && !captured.are_all();
    if is_known {
        // If this device has no pool that holds the context, other pools may know its streams.
        known_streams::forget_context(context);
    }
    if let Some((number, pool)) = of_device(device).filter(|_| is_known && !is_put_off) {
        captured.disregarded(|| {
            pool.end();
            pinned::end_with(number);
        });
        internal_streams::forget_device(number);
        contexts::forget_primary(device);
    }
    let code = call();
    if code == CUDA_SUCCESS && is_put_off {
        contexts::put_off_end(device);
    }
    let has_ended = code == CUDA_SUCCESS && !contexts::is_active(device);
    paused.resume(has_ended);
    if has_ended {
        captured.ended();
    }
    code
}

/// Ends the contexts whose end was deferred during captures, unless the program holds them again.
pub(super) fn end_put_off() {
    if captures::any() {
        return;
    }
    for device in contexts::take_put_off() {
        let _counting = contexts::lock_holds(device);
        if contexts::holds(device) == 0 {
            give_up_last(device, true, || CUDA_SUCCESS);
        }
    }
}

macro_rules! releases {
    ($($symbol:ident)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(device: CUdevice) -> CUresult {
                let Some(release) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                // SAFETY: the caller's argument.
                give_up_hold(device, || unsafe { release(device) })
            }
        )*
    };
}

releases! {
    cuDevicePrimaryCtxRelease
    cuDevicePrimaryCtxRelease_v2
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGreenCtxCreate(
    place: *mut CUgreenCtx,
    descriptor: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> CUresult {
    let Some(create) = real::cuGreenCtxCreate() else { return CUDA_ERROR_NOT_INITIALIZED };
    let counted = || {
        let _counting = contexts::lock_holds(device);
        // SAFETY: the caller's arguments.
        let code = unsafe { create(place, descriptor, device, flags) };
        if code == CUDA_SUCCESS && !place.is_null() {
            // SAFETY: not NULL, so the caller's, and the driver has written it.
            green_contexts::note(unsafe { *place }, device);
        }
        code
    };
    with_room(|| (Source::Device(device), 0), counted)
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGreenCtxDestroy(green: CUgreenCtx) -> CUresult {
    let Some(destroy) = real::cuGreenCtxDestroy() else { return CUDA_ERROR_NOT_INITIALIZED };
    let Some(known) = green_contexts::forget(green) else {
        // SAFETY: the caller's argument.
        return unsafe { destroy(green) };
    };
    // NULL is none: the data of the primary context stays.
    let is_own = known.context != contexts::primary_handle(known.device);
    let context = if is_own { known.context } else { ptr::null_mut() };
    contexts::forget(context);
    known_streams::forget_context(context);
    let captured = captures::in_context(context);
    // SAFETY: the caller's argument.
    let code = give_up_hold(known.device, || unsafe { destroy(green) });
    if code == CUDA_SUCCESS {
        captured.ended();
        // Its own captures no longer defer the end of the primary context.
        end_put_off();
    } else {
        known.restore();
    }
    code
}

macro_rules! resets {
    ($($symbol:ident)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(device: CUdevice) -> CUresult {
                let Some(reset) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                let context = contexts::primary_handle(device);
                let captured = captures::in_context(context);
                let paused = pool::pause_probes(context);
                known_streams::forget_context(context);
                green_contexts::contexts_of(device).for_each(known_streams::forget_context);
                // SAFETY: the caller's argument.
                let code = unsafe { reset(device) };
                if code == CUDA_SUCCESS {
                    captured.ended();
                    green_contexts::forget_contexts(device);
                }
                if let Some((number, pool)) = of_device(device).filter(|_| code == CUDA_SUCCESS) {
                    contexts::forget_primary(device);
                    pool.mark_lost();
                    pinned::forget_device(number);
                    internal_streams::forget_device(number);
                }
                paused.resume(code == CUDA_SUCCESS);
                end_put_off();
                code
            }
        )*
    };
}

resets! {
    cuDevicePrimaryCtxReset
    cuDevicePrimaryCtxReset_v2
}

/// Ends a context that the program created, by calling the driver.
fn end_created(context: CUcontext, call: impl FnOnce() -> CUresult) -> CUresult {
    // Before the call, because afterwards another context may have the handle. Information that is forgotten needlessly is
    // queried again. The handle of a primary context is unique, and the driver does not destroy one.
    let is_primary = contexts::known_as(context) != Current::Other;
    if !is_primary {
        contexts::forget(context);
    }
    let ending = user_contexts::forget(context);
    let paused = pool::pause_probes(context);
    let captured = captures::in_context(context);
    known_streams::forget_context(context);
    let code = call();
    if code == CUDA_SUCCESS {
        if is_primary {
            contexts::forget(context);
        }
        captured.ended();
    }
    ending.end(code);
    paused.resume(code == CUDA_SUCCESS);
    end_put_off();
    code
}

macro_rules! destroys {
    ($($symbol:ident)*) => {
        $(
            /// # Safety
            /// The contract is that of the driver's function.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(context: CUcontext) -> CUresult {
                let Some(destroy) = real::$symbol() else { return CUDA_ERROR_NOT_INITIALIZED };
                // SAFETY: the caller's argument.
                end_created(context, || unsafe { destroy(context) })
            }
        )*
    };
}

destroys! {
    cuCtxDestroy
    cuCtxDestroy_v2
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxAttach(place: *mut CUcontext, flags: c_uint) -> CUresult {
    let Some(attach) = real::cuCtxAttach() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's arguments.
    let code = unsafe { attach(place, flags) };
    if code == CUDA_SUCCESS && !place.is_null() {
        // SAFETY: not NULL, so the caller's, and the driver has written it.
        user_contexts::note_attached(unsafe { *place });
    }
    code
}

/// "Decrements the usage count of the context ctx, and destroys the context if the usage count goes to 0" (cuda.h).
///
/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxDetach(context: CUcontext) -> CUresult {
    let Some(detach) = real::cuCtxDetach() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's argument.
    let call = || unsafe { detach(context) };
    if contexts::known_as(context) != Current::Other {
        return call();
    }
    if user_contexts::is_last_use(context) {
        return end_created(context, call);
    }
    let code = call();
    if code == CUDA_SUCCESS {
        user_contexts::note_detached(context);
    }
    code
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
                let code = with_room(|| (Source::Device($device), 0), || unsafe { create(place, $($argument),*) });
                if code == CUDA_SUCCESS && !place.is_null() {
                    // SAFETY: not NULL, so the caller's, and the driver has written it.
                    let context = unsafe { *place };
                    user_contexts::note(context, $device);
                }
                code
            }
        )*
    };
}

creates! {
    // Old programs are linked to this name, and some look it up without a version (ctypes).
    cuCtxCreate(flags: c_uint, device: CUdevice) of device;
    cuCtxCreate_v2(flags: c_uint, device: CUdevice) of device;
    cuCtxCreate_v3(affinity: *mut CUexecAffinityParam, count: c_int, flags: c_uint, device: CUdevice) of device;
    cuCtxCreate_v4(parameters: *mut CUctxCreateParams, flags: c_uint, device: CUdevice) of device;
    cuGLCtxCreate(flags: c_uint, device: CUdevice) of device;
    cuGLCtxCreate_v2(flags: c_uint, device: CUdevice) of device;
    cuVDPAUCtxCreate(flags: c_uint, device: CUdevice, vdpau: c_uint, find: *mut c_void) of device;
    cuVDPAUCtxCreate_v2(flags: c_uint, device: CUdevice, vdpau: c_uint, find: *mut c_void) of device;
}
