//! The order of device work: streams and stamps.

use super::answer::{status, status_and};
use super::types::{bfc_status_t, bfc_stream_t};
use crate::device::Device;
use crate::error::Error;
use std::ffi::c_void;
use std::ptr::null_mut;

fn no_streams(device: i32, what: &str) -> Result<(), Error> {
    Device::new(device)?.unsupported(what)
}

/// Allocates in the order of a stream. Not in this version: BFC_ERROR_UNSUPPORTED.
///
/// # Safety
/// `out_ptr` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_alloc_async(
    device: i32,
    bytes: usize,
    stream: bfc_stream_t,
    out_ptr: *mut *mut c_void,
) -> bfc_status_t {
    let _ = (bytes, stream);
    let work = || no_streams(device, "bfc_alloc_async").map(|()| null_mut());
    // SAFETY: by this function's contract.
    unsafe { status_and(out_ptr, null_mut(), work) }
}

/// Frees in the order of a stream. Not in this version: BFC_ERROR_UNSUPPORTED, and nothing is freed.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_free_async(device: i32, ptr: *mut c_void, stream: bfc_stream_t) -> bfc_status_t {
    let _ = (ptr, stream);
    status(|| no_streams(device, "bfc_free_async"))
}

/// Says that a chunk is also used on another stream. Not in this version: BFC_ERROR_UNSUPPORTED.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_record_stream(device: i32, ptr: *mut c_void, stream: bfc_stream_t) -> bfc_status_t {
    let _ = (ptr, stream);
    status(|| no_streams(device, "bfc_record_stream"))
}

/// Says that a stream is about to be destroyed. Not in this version: BFC_ERROR_UNSUPPORTED.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_forget_stream(device: i32, stream: bfc_stream_t) -> bfc_status_t {
    let _ = stream;
    status(|| no_streams(device, "bfc_forget_stream"))
}

/// Vouches that all work queued on a stream so far is done. Not in this version: BFC_ERROR_UNSUPPORTED.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_stream_synchronized(device: i32, stream: bfc_stream_t) -> bfc_status_t {
    let _ = stream;
    status(|| no_streams(device, "bfc_stream_synchronized"))
}

/// Gets the last stamp given to a free; stamps start at 1, 0 is none yet. Read it, synchronise the
/// device, and pass it plus 1 to bfc_set_safe_frontier: then everything freed before is safe.
/// After TensorFlow's SharedCounter.
///
/// @return BFC_OK; BFC_ERROR_UNSUPPORTED without BFC_TIMESTAMPS, and the errors of every call.
///
/// # Safety
/// `out_count` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_timestamp(device: i32, out_count: *mut u64) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { status_and(out_count, 0, || Device::new(device)?.timestamp()) }
}

/// Makes stamps below `count` safe: their chunks may merge and, with BFC_QUARANTINE, be handed out. The
/// frontier only rises; a lower count changes nothing.
///
/// @return BFC_OK; BFC_ERROR_UNSUPPORTED without BFC_TIMESTAMPS, and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_set_safe_frontier(device: i32, count: u64) -> bfc_status_t {
    status(|| Device::new(device)?.set_safe_frontier(count))
}
