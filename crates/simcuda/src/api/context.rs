//! Contexts: primary ones, created ones, and each thread's stack.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use cuda_sys::*;

use crate::abi::{Answer, put};
use crate::handles::Kind;
use crate::rules::blocking;
use crate::sim::{self, Sim};
use crate::state::context::primary;

/// Converts a handle for the program.
fn seen(handle: u64) -> CUcontext {
    handle as CUcontext
}

// Primary contexts.

pub(crate) fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> Answer {
    let mut sim = sim::lock();
    sim.device(device)?;
    put(context, seen(primary(device)))?;
    sim.retain_primary(device)
}

pub(crate) fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> Answer {
    sim::lock().release_primary(device)
}

pub(crate) fn cuDevicePrimaryCtxRelease(device: CUdevice) -> Answer {
    cuDevicePrimaryCtxRelease_v2(device)
}

/// "Resetting the primary context does not release it". It "destroys and cleans up all resources associated with the
/// current device in the current process". Whether this includes memory of cuMemCreate, which is "not associated with
/// any CUDA context", is an option.
pub(crate) fn cuDevicePrimaryCtxReset_v2(device: CUdevice) -> Answer {
    let mut sim = sim::lock();
    sim.device(device)?;
    sim.end_context(primary(device));
    sim.end_virtual_memory(device);
    Ok(())
}

pub(crate) fn cuDevicePrimaryCtxReset(device: CUdevice) -> Answer {
    cuDevicePrimaryCtxReset_v2(device)
}

pub(crate) fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int) -> Answer {
    let mut sim = sim::lock();
    let set = sim.device(device)?.flags();
    put(flags, set)?;
    put(active, c_int::from(sim.contexts.contains_key(&primary(device))))
}

pub(crate) fn cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint) -> Answer {
    sim::lock().device(device)?.set_flags(flags);
    Ok(())
}

/// Before CUDA 11 this was an error while the context was active.
pub(crate) fn cuDevicePrimaryCtxSetFlags(device: CUdevice, flags: c_uint) -> Answer {
    let mut sim = sim::lock();
    sim.device(device)?;
    if sim.contexts.contains_key(&primary(device)) {
        return Err(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
    }
    sim.device(device)?.set_flags(flags);
    Ok(())
}

// Created contexts.

pub(crate) fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) -> Answer {
    let mut sim = sim::lock();
    sim.device(device)?;
    let handle = sim.handle(Kind::Context);
    put(context, seen(handle))?;
    sim.make_context(handle, device, flags);
    sim.this_thread().push(handle);
    Ok(())
}

/// What old programs are linked to, and those look up that name no version (ctypes).
pub(crate) fn cuCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice) -> Answer {
    cuCtxCreate_v2(context, flags, device)
}

pub(crate) fn cuGLCtxCreate(context: *mut CUcontext, flags: c_uint, device: CUdevice) -> Answer {
    cuCtxCreate_v2(context, flags, device)
}

pub(crate) fn cuGLCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice) -> Answer {
    cuCtxCreate_v2(context, flags, device)
}

pub(crate) fn cuVDPAUCtxCreate(
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
    _: c_uint,
    _: *mut c_void,
) -> Answer {
    cuCtxCreate_v2(context, flags, device)
}

pub(crate) fn cuVDPAUCtxCreate_v2(
    context: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
    _: c_uint,
    _: *mut c_void,
) -> Answer {
    cuCtxCreate_v2(context, flags, device)
}

pub(crate) fn cuCtxCreate_v3(
    context: *mut CUcontext,
    _: *mut CUexecAffinityParam,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
) -> Answer {
    if count != 0 {
        return Err(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY);
    }
    cuCtxCreate_v2(context, flags, device)
}

pub(crate) fn cuCtxCreate_v4(
    context: *mut CUcontext,
    parameters: *mut CUctxCreateParams,
    flags: c_uint,
    device: CUdevice,
) -> Answer {
    if !parameters.is_null() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    cuCtxCreate_v2(context, flags, device)
}

/// Pops the context from the calling thread if it is current there. In other threads it stays current, destroyed.
pub(crate) fn cuCtxDestroy_v2(context: CUcontext) -> Answer {
    let mut sim = sim::lock();
    let handle = created(&mut sim, context)?;
    if sim.current_handle() == Some(handle) {
        sim.this_thread().pop();
    }
    sim.end_context(handle);
    sim.retire(Kind::Context, handle);
    Ok(())
}

/// Returns a context that the program created. "Destroying pContext via cuCtxDestroy is undefined behavior" for that of a
/// green context (cuCtxFromGreenCtx).
fn created(sim: &mut Sim, context: CUcontext) -> Answer<u64> {
    let handle = sim.context(context)?;
    if sim.root(handle) != handle {
        sim.record.misuse(format!("cuCtxDestroy or cuCtxDetach of green context {handle:#x}"));
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    if handle == primary(sim.contexts[&handle].device()) {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    Ok(handle)
}

/// "Increments the usage count of the context and passes back a context handle in *pctx that must be passed to
/// cuCtxDetach()". Here only for created contexts.
pub(crate) fn cuCtxAttach(context: *mut CUcontext, flags: c_uint) -> Answer {
    let mut sim = sim::lock();
    let handle = sim.current()?;
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    created(&mut sim, seen(handle))?;
    put(context, seen(handle))?;
    sim.contexts.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)?.attach();
    Ok(())
}

/// "Decrements the usage count of the context ctx, and destroys the context if the usage count goes to 0. The context
/// must be a handle that was passed back by cuCtxCreate() or cuCtxAttach(), and must be current to the calling thread."
pub(crate) fn cuCtxDetach(context: CUcontext) -> Answer {
    let mut sim = sim::lock();
    let handle = created(&mut sim, context)?;
    let is_current = sim.current_handle() == Some(handle);
    let there = sim.contexts.get_mut(&handle).filter(|_| is_current).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    let is_last = there.detach();
    drop(sim);
    if is_last { cuCtxDestroy_v2(context) } else { Ok(()) }
}

pub(crate) fn cuCtxDestroy(context: CUcontext) -> Answer {
    cuCtxDestroy_v2(context)
}

// The calling thread's stack. A context with a sticky error can be pushed and popped.

pub(crate) fn cuCtxPushCurrent_v2(context: CUcontext) -> Answer {
    let mut sim = sim::lock();
    let handle = sim.context(context)?;
    sim.may_enter(handle)?;
    sim.this_thread().push(handle);
    Ok(())
}

pub(crate) fn cuCtxPushCurrent(context: CUcontext) -> Answer {
    cuCtxPushCurrent_v2(context)
}

pub(crate) fn cuCtxPopCurrent_v2(context: *mut CUcontext) -> Answer {
    let handle = sim::lock().this_thread().pop().ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
    crate::abi::put_if(context, seen(handle));
    Ok(())
}

pub(crate) fn cuCtxPopCurrent(context: *mut CUcontext) -> Answer {
    cuCtxPopCurrent_v2(context)
}

/// Replaces the top of the stack; NULL pops it.
pub(crate) fn cuCtxSetCurrent(context: CUcontext) -> Answer {
    let mut sim = sim::lock();
    let handle = if context.is_null() { None } else { Some(sim.context(context)?) };
    if let Some(handle) = handle {
        sim.may_enter(handle)?;
    }
    let thread = sim.this_thread();
    thread.pop();
    if let Some(handle) = handle {
        thread.push(handle);
    }
    Ok(())
}

pub(crate) fn cuCtxGetCurrent(context: *mut CUcontext) -> Answer {
    let handle = sim::lock().current_handle();
    put(context, seen(handle.unwrap_or(0)))
}

// Queries of a context.

pub(crate) fn cuCtxGetDevice(device: *mut CUdevice) -> Answer {
    cuCtxGetDevice_v2(device, std::ptr::null_mut())
}

/// NULL is the current context.
pub(crate) fn cuCtxGetDevice_v2(device: *mut CUdevice, context: CUcontext) -> Answer {
    let mut sim = sim::lock();
    let handle = if context.is_null() { sim.current()? } else { sim.context(context)? };
    put(device, sim.contexts[&handle].device())
}

pub(crate) fn cuCtxGetFlags(flags: *mut c_uint) -> Answer {
    let mut sim = sim::lock();
    let handle = sim.current()?;
    put(flags, sim.contexts[&handle].flags())
}

pub(crate) fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong) -> Answer {
    let mut sim = sim::lock();
    let handle = if context.is_null() { sim.current()? } else { sim.context(context)? };
    put(id, sim.contexts[&handle].unique())
}

pub(crate) fn cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint) -> Answer {
    let mut sim = sim::lock();
    if !context.is_null() {
        sim.context(context)?;
    }
    put(version, 3020)
}

pub(crate) fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Answer {
    sim::lock().current()?;
    crate::abi::put_if(least, 0);
    crate::abi::put_if(greatest, -5);
    Ok(())
}

pub(crate) fn cuCtxGetLimit(value: *mut usize, limit: CUlimit) -> Answer {
    sim::lock().current()?;
    match limit {
        CU_LIMIT_STACK_SIZE => put(value, 1024),
        CU_LIMIT_PRINTF_FIFO_SIZE => put(value, 1 << 20),
        CU_LIMIT_MALLOC_HEAP_SIZE => put(value, 8 << 20),
        _ => Err(CUDA_ERROR_UNSUPPORTED_LIMIT),
    }
}

/// Accepted without any effect.
pub(crate) fn cuCtxSetLimit(limit: CUlimit, _: usize) -> Answer {
    let mut value = 0;
    cuCtxGetLimit(&raw mut value, limit)
}

pub(crate) fn cuCtxSynchronize() -> Answer {
    cuCtxSynchronize_v2(std::ptr::null_mut())
}

/// Fails while a stream of the context is captured (CUDA C++ Programming Guide, Prohibited and Unhandled Operations).
pub(crate) fn cuCtxSynchronize_v2(context: CUcontext) -> Answer {
    let mut sim = sim::lock();
    let handle = if context.is_null() { sim.current()? } else { sim.context(context)? };
    sim.forbid_captured_in(handle)?;
    sim.forbid_unsafe()?;
    let points = sim.all_of(|of, _| sim.covers(handle, of));
    let mut sim = blocking::finish(sim, &points)?;
    sim.observe();
    sim.healthy(handle)
}
