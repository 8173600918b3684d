//! Private pools: memory that a captured graph uses.

use super::ffi_result::status;
use super::types::{bfc_status_t, bfc_stream_t};
use crate::device::Device;
use crate::error::{ErrorKind, fail};
use crate::pool::captures;

/// Routes subsequent allocations on `stream` to private pool `pool`, for memory that a captured graph uses at each
/// launch. Call it before the capture begins.
///
/// Memory freed in a private pool is reusable at once by requests for the same pool on the same stream. Other requests
/// cannot reuse it until bfc_pool_release, even when its work has completed, because the graph keeps using its
/// addresses. Several streams may use one pool.
///
/// The call queries the events of other streams, so that memory whose work has completed can be used in the capture,
/// during which nothing can be queried. It never waits for device work. If another thread is in a call that synchronizes,
/// it waits until that call is inside the driver, for at most one second (see bfc_capture_begin).
///
/// The call also announces the capture. From its return until bfc_pool_end, the library queues nothing on the stream or
/// on the legacy default stream. It neither synchronizes the context nor releases memory, except for requests of that
/// stream itself. A capture that is not announced may be invalidated by a call of another thread that is in progress
/// when the capture begins. See also bfc_alloc_async and bfc_capture_begin.
///
/// @param pool  The caller's name for the pool, which is created by the first call.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if the stream's requests are already routed to a private pool;
///         BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS; BFC_ERROR_OUT_OF_MEMORY (host memory); and the errors of every
///         call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_pool_begin(device: i32, pool: u64, stream: bfc_stream_t) -> bfc_status_t {
    // SAFETY: the C caller names a stream that exists.
    status(|| unsafe { Device::new(device)?.pool_begin(pool, stream as u64) })
}

/// Routes subsequent allocations on `stream` to common memory again. Call it after the end of the capture. The private
/// pool keeps its memory.
///
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if they were not routed to that pool; and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_pool_end(device: i32, pool: u64, stream: bfc_stream_t) -> bfc_status_t {
    // SAFETY: the C caller names a stream that exists.
    status(|| unsafe { Device::new(device)?.pool_end(pool, stream as u64) })
}

/// Declares that no graph that uses a private pool will be launched again. Live allocations in it remain valid and
/// are freed as usual. Free memory, now and later, becomes common memory once the context was synchronized, because the
/// last launch may still use it. The library synchronizes when it needs the memory, and in bfc_trim. On backends
/// without a device, bfc_stream_synchronized with NULL has this effect. The name may be used again.
///
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if there is no such pool; BFC_ERROR_BUSY if a stream's requests are still
///         routed to it; BFC_ERROR_OUT_OF_MEMORY (host memory), and nothing has changed; and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_pool_release(device: i32, pool: u64) -> bfc_status_t {
    // SAFETY: the C caller launches no graph of it again.
    status(|| unsafe { Device::new(device)?.pool_release(pool) })
}

/// Announces that a stream capture is about to begin, on any stream and device. Call it before cuStreamBeginCapture,
/// and bfc_capture_end after the end of the capture. Announcements are counted and hold for the whole process.
///
/// Until the announcement ends, no call of this library synchronizes a device or a context, or releases device memory,
/// because either would invalidate the capture. Requests are served from reusable free memory and by growth. They fail
/// with BFC_ERROR_OUT_OF_MEMORY if only synchronization or a release of memory could serve them. bfc_trim and
/// bfc_destroy return BFC_ERROR_BACKEND_FAILED if they had memory to release. Allocators on host memory are not
/// affected.
///
/// bfc_pool_begin announces the capture of one stream to one allocator, and does not restrict requests of that stream.
/// This function is for programs that intercept captures, and for allocators with BFC_TIMESTAMPS.
///
/// If another thread is in a call that synchronizes, this function waits until that call is inside the driver, for at
/// most one second. A synchronization that has begun before a capture does not invalidate it.
///
/// @return BFC_OK. The call cannot fail.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_capture_begin() -> bfc_status_t {
    status(|| {
        captures::begin();
        Ok(())
    })
}

/// Ends one announcement of bfc_capture_begin.
///
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if no capture is announced.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_capture_end() -> bfc_status_t {
    status(|| match captures::end() {
        true => Ok(()),
        false => Err(fail!(
            ErrorKind::InvalidArgument,
            "no capture is announced: bfc_capture_begin was not called"
        )),
    })
}
