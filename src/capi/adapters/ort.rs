//! ONNX Runtime's CUDA provider: the options `gpu_external_alloc`, `gpu_external_free` and `gpu_external_empty_cache`.

use super::first_use::served;
use crate::capi::answer::or_log;
use crate::device::Device;
use crate::error::Error;
use std::ffi::c_void;
use std::ptr::null_mut;

/// For ONNX Runtime's gpu_external_alloc: allocates memory of the calling thread's current device that may be used on
/// any stream.
///
/// @param size  Bytes; 0 gives NULL, and there is nothing to free.
/// @return The address, a multiple of 512; NULL on failure, which ONNX Runtime turns into an exception.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_ort_alloc(size: usize) -> *mut c_void {
    or_log("bfc_ort_alloc", null_mut(), || {
        if size == 0 {
            return Ok(null_mut());
        }
        let device = Device::current()?;
        served(device, || Ok(device.alloc_on_any(size as u64)? as *mut c_void))
    })
}

/// For gpu_external_free: frees what work that is queued by now, on whatever stream, may still touch. The address says
/// which device it is of.
///
/// @param ptr  NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_ort_free(ptr: *mut c_void) {
    or_log("bfc_ort_free", (), || match ptr.is_null() {
        true => Ok(()),
        false => Device::owner(ptr as u64)?.free_on_any(ptr as u64),
    });
}

/// For gpu_external_empty_cache: gives what is wholly free of the current device back to the driver, as bfc_trim.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_ort_empty_cache() {
    or_log("bfc_ort_empty_cache", (), || match Device::current()?.trim(0) {
        Ok(_) | Err(Error::NoAllocator) => Ok(()),
        Err(error) => Err(error),
    });
}
