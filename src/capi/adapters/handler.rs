//! The functions of cuTensorNet's and cuQuantum's memory handlers and of nvJPEG's asynchronous allocators.

use super::first_use::{SHAREABLE, served};
use crate::capi::ffi_result::{status, status_and};
use crate::capi::types::bfc_stream_t;
use crate::device::{ClientOrder, Device};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// For device_alloc of cutensornetDeviceMemHandler_t and related types, and dev_malloc of nvjpegDevAllocatorV2_t.
/// Allocates memory of the calling thread's current device in the order of a stream, like bfc_alloc_async.
///
/// @param ctx   Ignored.
/// @param ptr   Receives the address, a multiple of 512, or NULL on failure and for a size of 0.
/// @param size  The number of bytes.
/// @return 0, or a bfc_status_t whose message is in bfc_last_error.
///
/// # Safety
/// `ptr` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_handler_alloc(
    ctx: *mut c_void,
    ptr: *mut *mut c_void,
    size: usize,
    stream: bfc_stream_t,
) -> c_int {
    let _ = ctx;
    let work = || {
        if size == 0 {
            return Ok(null_mut());
        }
        let device = Device::current()?;
        served(device, SHAREABLE, || {
            Ok(device.alloc_in_order(size as u64, ClientOrder::Stream(stream as u64))? as *mut c_void)
        })
    };
    // SAFETY: by this function's contract.
    unsafe { status_and(ptr, null_mut(), work) }
}

/// For device_free and dev_free of the same types. Frees memory in the order of a stream, like bfc_free_async. The
/// address determines the device. `ctx` and `size` are ignored.
///
/// @param ptr  NULL returns 0.
/// @return 0, or a bfc_status_t whose message is in bfc_last_error.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_handler_free(
    ctx: *mut c_void,
    ptr: *mut c_void,
    size: usize,
    stream: bfc_stream_t,
) -> c_int {
    let _ = (ctx, size);
    status(|| match ptr.is_null() {
        true => Ok(()),
        // SAFETY: the caller gives the memory up.
        false => unsafe { Device::owner(ptr as u64)?.free_on(ptr as u64, stream as u64) },
    })
}
