//! Initialization, versions and errors.

use std::ffi::{c_char, c_int, c_uint};

use cuda_sys::*;

use crate::abi::{Answer, put};
use crate::options::Choice;
use crate::{sim, system};

pub(crate) fn cuInit(flags: c_uint) -> Answer {
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut sim = sim::lock();
    if sim.devices.is_empty() {
        return Err(CUDA_ERROR_NO_DEVICE);
    }
    sim.is_initialised = true;
    system::watch_forks();
    Ok(())
}

pub(crate) fn cuDriverGetVersion(version: *mut c_int) -> Answer {
    put(version, sim::lock().options.get(Choice::DriverVersion) as c_int)
}

pub(crate) fn cuGetErrorName(error: CUresult, name: *mut *const c_char) -> Answer {
    let known = name_of(error);
    put(name, known.map_or(std::ptr::null(), |name| name.as_ptr()))?;
    known.map(|_| ()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

pub(crate) fn cuGetErrorString(error: CUresult, words: *mut *const c_char) -> Answer {
    // The names are sufficient for a simulation.
    cuGetErrorName(error, words)
}

macro_rules! names {
    ($($name:ident)*) => {
        fn name_of(error: CUresult) -> Option<&'static std::ffi::CStr> {
            $(if error == $name {
                return std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).ok();
            })*
            None
        }
    };
}

names! {
    CUDA_SUCCESS CUDA_ERROR_INVALID_VALUE CUDA_ERROR_OUT_OF_MEMORY CUDA_ERROR_NOT_INITIALIZED
    CUDA_ERROR_DEINITIALIZED CUDA_ERROR_NO_DEVICE CUDA_ERROR_INVALID_DEVICE CUDA_ERROR_INVALID_CONTEXT
    CUDA_ERROR_MAP_FAILED CUDA_ERROR_UNMAP_FAILED CUDA_ERROR_ALREADY_MAPPED CUDA_ERROR_NOT_MAPPED
    CUDA_ERROR_ECC_UNCORRECTABLE CUDA_ERROR_PEER_ACCESS_UNSUPPORTED CUDA_ERROR_OPERATING_SYSTEM
    CUDA_ERROR_INVALID_HANDLE CUDA_ERROR_ILLEGAL_STATE CUDA_ERROR_NOT_FOUND CUDA_ERROR_NOT_READY
    CUDA_ERROR_ILLEGAL_ADDRESS CUDA_ERROR_LAUNCH_TIMEOUT CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE CUDA_ERROR_CONTEXT_IS_DESTROYED
    CUDA_ERROR_ASSERT CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
    CUDA_ERROR_LAUNCH_FAILED CUDA_ERROR_NOT_PERMITTED CUDA_ERROR_NOT_SUPPORTED
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    CUDA_ERROR_STREAM_CAPTURE_MERGE CUDA_ERROR_STREAM_CAPTURE_UNMATCHED CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION CUDA_ERROR_STREAM_CAPTURE_IMPLICIT CUDA_ERROR_CAPTURED_EVENT
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD CUDA_ERROR_UNKNOWN
}
