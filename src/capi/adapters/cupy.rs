//! CuPy: `cupy.cuda.memory.CFunctionAllocator`.

use super::cuda_device::device_of;
use super::first_use::{SHAREABLE, served};
use super::ort::BFC_POOL_OF_CAPTURES;
use crate::capi::ffi_result::or_log;
use crate::device::ClientOrder;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// For cupy.cuda.memory.CFunctionAllocator. Allocates memory that may be used on any stream.
///
/// @param param   Ignored.
/// @param size    The number of bytes. 0 returns NULL, and there is nothing to free.
/// @param device  The CUDA ordinal of the device.
/// @return The address, a multiple of 512, or NULL on failure. CuPy does not check this and takes NULL for an address.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_cupy_malloc(param: *mut c_void, size: usize, device: c_int) -> *mut c_void {
    let _ = param;
    or_log("bfc_cupy_malloc", null_mut(), || {
        if size == 0 {
            return Ok(null_mut());
        }
        let device = device_of(device)?;
        served(device, SHAREABLE, || {
            let order = ClientOrder::Any { pool_of_captures: BFC_POOL_OF_CAPTURES };
            Ok(device.alloc_in_order(size as u64, order)? as *mut c_void)
        })
    })
}

/// Frees memory that work queued so far, on any stream, may still use.
///
/// @param ptr  NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_cupy_free(param: *mut c_void, ptr: *mut c_void, device: c_int) {
    let _ = param;
    or_log("bfc_cupy_free", (), || device_of(device)?.free_on_any(ptr as u64));
}
