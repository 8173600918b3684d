//! Ordering of device work: streams and stamps.

use super::ffi_result::{status, status_and};
use super::types::{bfc_status_t, bfc_stream_t};
use crate::device::Device;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Allocates memory in stream order. Work queued on the stream after the call may use the memory. With a single stream,
/// every address is the one that bfc_alloc would return, and no events are recorded.
///
/// Memory freed on the same stream is reusable at once, as in bfc_alloc. Memory freed on another stream is reusable
/// once the event recorded there at the free has completed. If nothing else fits and the pool cannot grow, this stream
/// is made to wait for such events (cuStreamWaitEvent), and the call itself returns without waiting. An event covers
/// only work queued before its free. A request waits for the events of the oldest frees that can serve it.
///
/// Memory without an event requires a synchronization of the context, which BFC_LOG=warn reports. For memory that was
/// freed without a stream (bfc_free of memory from bfc_alloc) this happens after growth and waiting, and before free
/// regions are released or granules are moved, which also waits for the device. For memory that was freed on a stream
/// while it was the only one, it is the last step before the request fails. A synchronization of the context does not
/// cover work of other contexts: finish such work before a free without a stream, or call bfc_record_stream.
///
/// While the stream is captured, the request is served from memory that the stream may use at once, or the pool grows.
/// No request, bfc_trim or bfc_destroy synchronizes a context while a capture is visible to the library. Announce
/// captures with bfc_pool_begin, which the memory of a graph needs anyway, or with bfc_capture_begin: the capture of a
/// non-blocking stream (CU_STREAM_NON_BLOCKING) that is not announced may not be visible, and may be invalidated. Once a
/// capture was seen it stays visible until its end, whatever becomes of its memory, even if the request was refused.
/// The library queries:
///
/// - the stream of the request
/// - the legacy default stream, which answers for all blocking streams
/// - the calling thread's default stream
/// - streams on which memory in use was allocated or recorded
/// - streams of requests that bfc_torch_begin_allocate_to_pool routes to a pool, until its end
/// - streams that were captured when last queried
///
/// Streams of other contexts and devices are supported, here and in bfc_free_async, bfc_record_stream and
/// bfc_forget_stream. Events are recorded in the stream's own context. The memory must be accessible there.
///
/// A default stream (NULL, 0x1, 0x2) is that of the context current at the call, if that is a context of the
/// allocator's device. Otherwise it is that of the device's primary context, and a free or a recorded use also covers
/// that of the current context, if there is one. The driver is asked for the current context (cuCtxGetCurrent) in each
/// call that names a default stream. Before CUDA 13, where a green context can be current to only one thread at a time,
/// use no default stream of a green context but streams of cuGreenCtxStreamCreate: to record an event on the default
/// stream the library makes the green context current to the thread that needs the event.
///
/// A stream must exist while memory that was allocated on it or recorded for it is in use, and during each call that
/// names it. Call bfc_forget_stream before it is destroyed, or before its green context is, which detaches it
/// (cuGreenCtxDestroy). If the allocator is used with streams of the device's primary context alone, this is not
/// necessary for a stream whose memory was all freed and which was synchronized after that, unless the last call that
/// named it was made while it was captured. With streams of other contexts it always is: a later stream may have the
/// same handle in another context, and would be taken for the former. A default stream ends with its context.
///
/// On backends without a device a stream is any token. Its work has completed when bfc_stream_synchronized declares it.
///
/// @param stream  NULL and 0x1 are the legacy default stream. 0x2 is the calling thread's own default stream, and so is
///                NULL in a translation unit with CUDA_API_PER_THREAD_DEFAULT_STREAM.
/// @return As for bfc_alloc; BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS.
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
    // SAFETY: the C caller names a stream that exists.
    let work = || Ok(unsafe { Device::new(device)?.alloc_on(bytes as u64, stream as u64)? } as *mut c_void);
    // SAFETY: by this function's contract.
    unsafe { status_and(out_ptr, null_mut(), work) }
}

/// Frees memory in stream order, whichever function allocated it. Work queued on the stream so far may still use the
/// memory. Work on other streams must not, unless bfc_record_stream was called for them. Never waits for device work,
/// except with BFC_DEBUG=guard.
///
/// bfc_free of memory from bfc_alloc_async is a free on the stream of the allocation.
///
/// Once the allocator was used with several streams, each such free records an event on the stream before it returns,
/// and one on each stream that was recorded for the memory. If the driver fails to record, and during a capture of the
/// stream, the free succeeds without an event. The memory then becomes reusable by other streams with a later event of
/// the stream, or with a synchronization of the context. An event on the legacy default stream is an operation between the
/// blocking streams of its context, like all work queued there.
///
/// In host functions (cuLaunchHostFunc, cuStreamAddCallback) NVIDIA forbids driver calls. If the driver refuses them, the
/// free succeeds there too, without an event. It need not refuse them, and NVIDIA does not say what happens then, so
/// prefer to free in another thread. A request in a host function may wait for the stream that runs the function.
///
/// @param ptr  NULL: BFC_OK, even if there is no allocator.
/// @return As for bfc_free; BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS; BFC_ERROR_OUT_OF_MEMORY if the stream is new to
///         the allocator and there is no host memory for it. A failing free changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_free_async(device: i32, ptr: *mut c_void, stream: bfc_stream_t) -> bfc_status_t {
    // SAFETY: the C caller gives the memory up.
    status(|| unsafe { Device::new(device)?.free_on(ptr as u64, stream as u64) })
}

/// Declares that a live allocation is also used on a stream. After its free it is not reusable until all work queued on
/// the stream by then has completed.
///
/// The event is recorded at the free. On the default stream of a thread (0x2) only that thread can record one. If
/// another thread frees the memory, the memory waits for a later event of that stream, or for a synchronization of the
/// context.
///
/// @return BFC_OK; BFC_ERROR_INVALID_POINTER if `ptr` is not the start of a live allocation; BFC_ERROR_UNSUPPORTED with
///         BFC_TIMESTAMPS; BFC_ERROR_OUT_OF_MEMORY (host memory); and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_record_stream(device: i32, ptr: *mut c_void, stream: bfc_stream_t) -> bfc_status_t {
    // SAFETY: the C caller names a stream that exists.
    status(|| unsafe { Device::new(device)?.record_stream(ptr as u64, stream as u64) })
}

/// Declares that a stream is about to be destroyed. Call it before the destruction, when all work is queued: it records
/// the last event there. Memory that was allocated on the stream and is still in use may be freed later with bfc_free
/// or on other streams. Afterwards another stream may have the handle. A stream that was never used with this allocator
/// is accepted.
///
/// For a stream of another context the library keeps no event of that context, so the context may be destroyed
/// afterwards too. A default stream is named with its context current. If the context of such a stream is destroyed or
/// reset without this call, memory that waits for the stream is not reused until bfc_stream_synchronized.
///
/// On backends without a device, the work of a forgotten stream has still completed only when bfc_stream_synchronized
/// declares it.
///
/// @return BFC_OK; BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS; BFC_ERROR_OUT_OF_MEMORY (host memory) or
///         BFC_ERROR_BACKEND_FAILED, after which memory that was freed on the stream without an event waits for a
///         synchronization of the context; and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_forget_stream(device: i32, stream: bfc_stream_t) -> bfc_status_t {
    // SAFETY: the C caller names a stream that exists.
    status(|| unsafe { Device::new(device)?.forget_stream(stream as u64) })
}

/// Declares that all work queued on the stream so far has completed. Memory freed there is then reusable by every
/// stream. The call itself synchronizes nothing. On backends without a device, NULL (the default stream) includes the
/// work of calls that name no stream.
///
/// @return BFC_OK; BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS; and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_stream_synchronized(device: i32, stream: bfc_stream_t) -> bfc_status_t {
    // SAFETY: the C caller names a stream that exists.
    status(|| unsafe { Device::new(device)?.stream_synchronized(stream as u64) })
}

/// Gets the last stamp given to a free. Stamps start at 1. 0: no stamp was given yet. Modelled on TensorFlow's
/// SharedCounter.
///
/// To declare frees safe: read the stamp, synchronize the device, and pass the stamp plus 1 to bfc_set_safe_frontier.
/// Everything freed before the read is then safe.
///
/// @return BFC_OK; BFC_ERROR_UNSUPPORTED without BFC_TIMESTAMPS; and the errors of every call.
///
/// # Safety
/// `out_count` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_timestamp(device: i32, out_count: *mut u64) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { status_and(out_count, 0, || Device::new(device)?.timestamp()) }
}

/// Declares stamps below `count` safe. Their chunks may be merged and, with BFC_QUARANTINE, handed out. A lower count
/// than before has no effect.
///
/// @return BFC_OK; BFC_ERROR_UNSUPPORTED without BFC_TIMESTAMPS; and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_set_safe_frontier(device: i32, count: u64) -> bfc_status_t {
    status(|| Device::new(device)?.set_safe_frontier(count))
}
