//! The order of device work: streams and stamps.

use super::answer::{status, status_and};
use super::types::{bfc_status_t, bfc_stream_t};
use crate::device::Device;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Allocates in the order of a stream: the memory may be used by work that is queued there from now on.
///
/// What was freed on the same stream is reusable at once, as with bfc_alloc. What was freed on another is used when
/// the work queued there before the free is done; if nothing else fits and the pool cannot grow any more, this
/// stream is made to wait for that work (cuStreamWaitEvent), and the call returns without waiting itself. Memory
/// freed without a stream (bfc_free of what bfc_alloc gave) comes to a stream only by a synchronisation of the
/// device, which is the last resort before regions are given back. On one stream alone every address is what
/// bfc_alloc would give.
///
/// While the stream is being captured, the library asks and synchronises nothing: the request is served from what
/// the stream may use, or the pool grows. Nor does any other call synchronise the device while a stream is captured
/// that the library can ask: a blocking one, or one that it was told of. A capture on a non-blocking stream
/// (CU_STREAM_NON_BLOCKING) that it was never told of it cannot see, and a call that waits for the device breaks that
/// capture: a request of another stream's, or of none, that nothing else could serve, bfc_trim, bfc_pool_begin of
/// another stream, the end of the allocator. So tell it of the stream before the capture begins, where other threads
/// or other parts of the program use the allocator meanwhile: by bfc_pool_begin with that stream, which is what a
/// graph's memory needs anyway, or by passing it to bfc_alloc_async, bfc_free_async or bfc_record_stream once.
/// bfc_forget_stream and bfc_device_lost undo that.
///
/// On backends without a device a stream is any token, and its work ends when bfc_stream_synchronized says so.
///
/// @param stream  NULL and 0x1 are the legacy default stream; 0x2 is the calling thread's own default stream, and so is
///                NULL in a unit with CUDA_API_PER_THREAD_DEFAULT_STREAM. It must be alive until bfc_forget_stream.
/// @return BFC_OK; as bfc_alloc, and BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS.
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
    let work = || Ok(Device::new(device)?.alloc_on(bytes as u64, stream as u64)? as *mut c_void);
    // SAFETY: by this function's contract.
    unsafe { status_and(out_ptr, null_mut(), work) }
}

/// Frees in the order of a stream: work queued there so far may go on touching the memory, work queued on others
/// may not, unless bfc_record_stream was called for it. Whatever call allocated it.
///
/// bfc_free of what bfc_alloc_async gave is a free on the stream of the allocation.
///
/// @param ptr  NULL: BFC_OK, also where nothing was created.
/// @return BFC_OK; as bfc_free, and BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS; BFC_ERROR_OUT_OF_MEMORY where the
///         stream is new to the allocator and there is no host memory for it. A failing free changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_free_async(device: i32, ptr: *mut c_void, stream: bfc_stream_t) -> bfc_status_t {
    status(|| Device::new(device)?.free_on(ptr as u64, stream as u64))
}

/// Says that a live allocation is also used on a stream: once it is freed, it is not reusable anywhere until the
/// work queued there by then is done. On the default stream of a thread (0x2) that is known only after a later free
/// on it by the same thread, or a synchronisation.
///
/// @return BFC_OK; BFC_ERROR_INVALID_POINTER if `ptr` is not the start of a live allocation;
///         BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS; BFC_ERROR_OUT_OF_MEMORY, of host memory; and the errors of
///         every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_record_stream(device: i32, ptr: *mut c_void, stream: bfc_stream_t) -> bfc_status_t {
    status(|| Device::new(device)?.record_stream(ptr as u64, stream as u64))
}

/// Says that a stream is about to be destroyed; call it before, with all work queued. What was allocated there and is
/// still live may be freed later by bfc_free or on other streams. Afterwards the handle may be another stream's. A
/// stream that was never used with this allocator is fine.
///
/// On backends without a device the work of a forgotten stream still ends by bfc_stream_synchronized only.
///
/// @return BFC_OK; BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS; BFC_ERROR_OUT_OF_MEMORY, of host memory, or
///         BFC_ERROR_BACKEND_FAILED: what was freed on the stream then waits for a synchronisation of the device;
///         and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_forget_stream(device: i32, stream: bfc_stream_t) -> bfc_status_t {
    status(|| Device::new(device)?.forget_stream(stream as u64))
}

/// Vouches that all work queued on a stream so far is done: what was freed there may be used by everybody. It
/// synchronises nothing itself. On backends without a device NULL, the default stream, includes the work of those who
/// name no stream.
///
/// @return BFC_OK; BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS; and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_stream_synchronized(device: i32, stream: bfc_stream_t) -> bfc_status_t {
    status(|| Device::new(device)?.stream_synchronized(stream as u64))
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
