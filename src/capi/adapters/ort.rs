//! ONNX Runtime's CUDA provider: the options `gpu_external_alloc`, `gpu_external_free` and `gpu_external_empty_cache`.

use super::cuda_device::device_of;
use super::first_use::{MAPPED, served};
use crate::capi::ffi_result::or_log;
use crate::capi::types::bfc_stream_t;
use crate::device::{ClientOrder, Device};
use crate::error::ErrorKind;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// The private pool of requests that name no stream (bfc_ort_alloc, bfc_cupy_malloc) while a capture is visible to the
/// library. Memory freed in it is not reused, because the graph may be launched again, until bfc_pool_release with this
/// name declares that no such graph will be launched. Programs must not begin a pool of this name.
pub const BFC_POOL_OF_CAPTURES: u64 = 0xffff_ffff_ffff_ffff;

/// For ONNX Runtime's gpu_external_alloc. Allocates memory of the calling thread's current device that may be used on
/// any stream.
///
/// @param size  The number of bytes. 0 returns NULL, and there is nothing to free.
/// @return The address, a multiple of 512, or NULL on failure, which ONNX Runtime turns into an exception.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_ort_alloc(size: usize) -> *mut c_void {
    or_log("bfc_ort_alloc", null_mut(), || {
        if size == 0 {
            return Ok(null_mut());
        }
        let device = Device::current()?;
        let order = ClientOrder::Any { pool_of_captures: BFC_POOL_OF_CAPTURES };
        served(device, MAPPED, || Ok(device.alloc_in_order(size as u64, order)? as *mut c_void))
    })
}

/// For AllocOnStream of an OrtAllocator over device memory. Allocates memory like bfc_ort_alloc, on the given device.
/// The stream is queried, and if it is captured the memory is kept for the graph. See BFC_POOL_OF_CAPTURES.
///
/// @param stream  The stream to query. The memory may be used on any other too. It must exist only during the call. If it
///                is captured it is queried again until the capture has ended: call bfc_forget_stream before it is
///                destroyed.
/// @return As for bfc_ort_alloc.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_ort_alloc_on_stream(device: c_int, size: usize, stream: bfc_stream_t) -> *mut c_void {
    or_log("bfc_ort_alloc_on_stream", null_mut(), || {
        if size == 0 {
            return Ok(null_mut());
        }
        let device = device_of(device)?;
        let order = ClientOrder::AnyBeside { stream: stream as u64, pool_of_captures: BFC_POOL_OF_CAPTURES };
        served(device, MAPPED, || Ok(device.alloc_in_order(size as u64, order)? as *mut c_void))
    })
}

/// For gpu_external_free. Frees memory that work queued so far, on any stream, may still use. The address determines
/// the device.
///
/// @param ptr  NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_ort_free(ptr: *mut c_void) {
    or_log("bfc_ort_free", (), || match ptr.is_null() {
        true => Ok(()),
        false => Device::owner(ptr as u64)?.free_on_any(ptr as u64),
    });
}

/// For gpu_external_empty_cache. Releases wholly free memory of the current device to the driver, like bfc_trim.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_ort_empty_cache() {
    or_log("bfc_ort_empty_cache", (), || match Device::current()?.trim(0) {
        Ok(_) | Err(ErrorKind::NoAllocator) => Ok(()),
        Err(error) => Err(error),
    });
}
