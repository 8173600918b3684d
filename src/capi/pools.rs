//! Private pools: memory that a captured graph uses.

use super::ffi_result::status;
use super::types::{bfc_status_t, bfc_stream_t};
use crate::device::Device;
use crate::error::{Error, fail};
use crate::pool::captures;

/// Routes subsequent allocations on a stream to a private pool: for memory that a captured graph uses at each launch. Call it
/// before the capture begins. Memory that is freed in a private pool is reusable at once by requests for the same pool on
/// the same stream, and by no others until bfc_pool_release, also when its work is done: the addresses stay the graph's.
/// Several streams may use one pool.
///
/// Before it returns it queries the events of other streams, so that memory whose work is done can be used in the capture,
/// during which nothing can be queried. It waits for no device work.
///
/// It also announces the capture. When it has returned, and until bfc_pool_end, which is to come after the end of the
/// capture, the library queues nothing on the stream or on the legacy default stream, which waits for others. It neither
/// synchronizes the context nor gives memory back, except for requests of that very stream. A capture that is not announced
/// may be invalidated by a call of another thread that is under way when the capture begins; see also bfc_alloc_async and
/// bfc_capture_begin.
///
/// @param pool  The caller's name for it; it begins to exist with the first call.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if the stream's requests are for a private pool already;
///         BFC_ERROR_UNSUPPORTED with BFC_TIMESTAMPS; BFC_ERROR_OUT_OF_MEMORY, of host memory; and the errors of
///         every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_pool_begin(device: i32, pool: u64, stream: bfc_stream_t) -> bfc_status_t {
    status(|| Device::new(device)?.pool_begin(pool, stream as u64))
}

/// Routes subsequent allocations on a stream to common memory again: call it after the end of the capture. The private pool
/// keeps what it has.
///
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if they were not for that pool; and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_pool_end(device: i32, pool: u64, stream: bfc_stream_t) -> bfc_status_t {
    status(|| Device::new(device)?.pool_end(pool, stream as u64))
}

/// Declares that no graph uses a private pool any more. Live allocations in it stay so and are freed as usual. Free memory
/// becomes common memory once the context was synchronized, which the library does when it needs the memory, or
/// in bfc_trim. On backends without a device bfc_stream_synchronized of NULL says so. The name may be used again.
///
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT if there is no such pool; BFC_ERROR_BUSY if a stream's requests are
///         still for it; BFC_ERROR_OUT_OF_MEMORY, of host memory, and nothing has changed; and the errors of every
///         call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_pool_release(device: i32, pool: u64) -> bfc_status_t {
    status(|| Device::new(device)?.pool_release(pool))
}

/// Announces that a stream capture is about to begin, of whatever stream and device. Call it before
/// cuStreamBeginCapture, and bfc_capture_end after the end of the capture. Announcements are counted and hold for the
/// whole process.
///
/// Until the announcement ends no call of this library synchronizes a device or a context, or gives device memory back:
/// either would invalidate the capture. Requests are served from free memory that is reusable and by growth, and fail with
/// BFC_ERROR_OUT_OF_MEMORY where only synchronization or giving memory back would serve them. bfc_trim and bfc_destroy
/// return BFC_ERROR_BACKEND_FAILED if they had memory to give back. Allocators on host memory go on as usual.
///
/// bfc_pool_begin announces the capture of one stream to one allocator, and lets requests of that stream through. This
/// function is for programs that intercept captures, and for allocators with BFC_TIMESTAMPS.
///
/// If another thread is in a call that synchronizes, this function waits until that call is inside the driver, for a second
/// at most: a synchronization that has begun before a capture does not invalidate it.
///
/// @return BFC_OK. It does not fail.
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
        false => {
            Err(fail!(Error::InvalidArgument, "no capture is announced: bfc_capture_begin was not called"))
        }
    })
}
