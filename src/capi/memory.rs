//! Allocation and free.

use super::ffi_result::{status, status_and};
use super::types::{
    BFC_REQUEST_ATTEMPT, BFC_REQUEST_NO_GROWTH, BFC_REQUEST_ON_STREAM, BFC_REQUEST_SHORT_LIVED,
    BFC_REQUEST_SIZE_512, bfc_request_t, bfc_status_t,
};
use super::versioned;
use crate::device::{Device, Request};
use crate::error::{ErrorKind, fail};
use bfc_core::request::Request as ArenaRequest;
use std::ffi::c_void;
use std::ptr::null_mut;

fn pointer(addr: u64) -> *mut c_void {
    addr as *mut c_void
}

/// Allocates memory from the smallest free chunk that is large enough, and among equals from the one at the lowest
/// address.
///
/// Requests without a stream may reuse a freed chunk at once. The caller orders the device's work.
///
/// @param bytes    The number of bytes, rounded up to a multiple of 256. 0: BFC_OK and NULL.
/// @param out_ptr  Receives the address, a multiple of 256, or NULL on failure. The memory belongs to the caller until
///                 bfc_free. Its contents are undefined.
/// @return BFC_OK; BFC_ERROR_OUT_OF_MEMORY; BFC_ERROR_BACKEND_FAILED; BFC_ERROR_BUSY from a callback of this device's
///         allocator, or if waiting would deadlock with an allocator that takes its regions from this one; and the
///         errors of every call.
///
/// # Safety
/// `out_ptr` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_alloc(device: i32, bytes: usize, out_ptr: *mut *mut c_void) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { status_and(out_ptr, null_mut(), || Ok(pointer(Device::new(device)?.alloc(bytes as u64)?))) }
}

/// Allocates memory like bfc_alloc, at a multiple of `alignment`. The size is rounded up to a multiple of 256, as in
/// bfc_alloc. Memory before the aligned address stays free.
///
/// @param alignment  A power of two. One above the limit is BFC_ERROR_OUT_OF_MEMORY.
/// @return As for bfc_alloc; BFC_ERROR_INVALID_ARGUMENT if `alignment` is 0 or no power of two.
///
/// # Safety
/// `out_ptr` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_alloc_aligned(
    device: i32,
    bytes: usize,
    alignment: usize,
    out_ptr: *mut *mut c_void,
) -> bfc_status_t {
    let work = || {
        if alignment == 0 {
            return Err(fail!(ErrorKind::InvalidArgument, "alignment 0: it must be a power of two"));
        }
        Ok(pointer(Device::new(device)?.alloc_aligned(bytes as u64, alignment as u64)?))
    };
    // SAFETY: by this function's contract.
    unsafe { status_and(out_ptr, null_mut(), work) }
}

/// Allocates memory like bfc_alloc, with all optional parameters.
///
/// @param request  Must not be NULL. Initialize it with BFC_REQUEST_INIT.
/// @return As for bfc_alloc, or with BFC_REQUEST_ON_STREAM as for bfc_alloc_async; BFC_ERROR_UNSUPPORTED for
///         freed_before without BFC_TIMESTAMPS.
///
/// # Safety
/// `request` is NULL or points to a struct of `struct_size` bytes. `out_ptr` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_alloc_ex(
    device: i32,
    request: *const bfc_request_t,
    out_ptr: *mut *mut c_void,
) -> bfc_status_t {
    // SAFETY: by this function's contract.
    let given = || unsafe { read(request) };
    let work = || {
        let given = given()?;
        let device = Device::new(device)?;
        Ok(pointer(device.alloc_with(&request_of(device, &given)?)?))
    };
    // SAFETY: by this function's contract.
    unsafe { status_and(out_ptr, null_mut(), work) }
}

/// Counts a failed request that no call of this library has counted: all of its attempts used BFC_REQUEST_ATTEMPT or
/// BFC_REQUEST_NO_GROWTH, and the caller could not serve it in another way either. One failure, of the calling thread's
/// operation, is added to the statistics, history and metrics, with the backtrace of this call, and a report is written
/// if that is enabled. The error message of the thread does not change.
///
/// @param request  As for bfc_alloc_ex. Must not be NULL.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT; BFC_ERROR_OUT_OF_MEMORY (host memory for the operation's name); and the
///         errors of every call.
///
/// # Safety
/// `request` is NULL or points to a struct of `struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_alloc_failed(device: i32, request: *const bfc_request_t) -> bfc_status_t {
    status(|| {
        let device = Device::new(device)?;
        // SAFETY: by this function's contract.
        let given = unsafe { read(request)? };
        device.count_failed_attempt(&request_of(device, &given)?)
    })
}

/// # Safety
/// `request` is NULL or points to a struct of `struct_size` bytes.
#[inline]
unsafe fn read(request: *const bfc_request_t) -> Result<bfc_request_t, ErrorKind> {
    if request.is_null() {
        return Err(fail!(ErrorKind::InvalidArgument, "request is NULL: pass a bfc_request_t"));
    }
    // SAFETY: not NULL, so valid by this function's contract.
    let request = unsafe { versioned::read(request)? };
    const FLAGS: u32 = BFC_REQUEST_ON_STREAM
        | BFC_REQUEST_NO_GROWTH
        | BFC_REQUEST_SIZE_512
        | BFC_REQUEST_SHORT_LIVED
        | BFC_REQUEST_ATTEMPT;
    let (unknown, reserved) = (request.flags & !FLAGS, request.reserved);
    if unknown != 0 {
        return Err(fail!(
            ErrorKind::InvalidArgument,
            "unknown flags {unknown:#x} in bfc_request_t: use a newer libbfc, or leave them unset"
        ));
    }
    if reserved != 0 {
        return Err(fail!(
            ErrorKind::InvalidArgument,
            "the reserved field of bfc_request_t is {reserved}: it must be 0; begin with BFC_REQUEST_INIT"
        ));
    }
    Ok(request)
}

/// Returns the request that a caller's struct describes.
#[inline]
fn request_of(device: Device, given: &bfc_request_t) -> Result<ArenaRequest<'static>, ErrorKind> {
    let bfc_request_t { bytes, alignment, freed_before, flags, stream, .. } = *given;
    let request = Request::with_all(bytes as u64, alignment as u64, freed_before, flags);
    request.on(device, (flags & BFC_REQUEST_ON_STREAM != 0).then_some(stream as u64))
}

const _: () = assert!(
    Request::NO_GROWTH == BFC_REQUEST_NO_GROWTH
        && Request::IN_512 == BFC_REQUEST_SIZE_512
        && Request::SHORT_LIVED == BFC_REQUEST_SHORT_LIVED
        && Request::ATTEMPT == BFC_REQUEST_ATTEMPT
);

/// Allocates memory like bfc_alloc, but only from chunks whose free was stamped at most `freed_before`. 0 accepts any
/// chunk.
///
/// @return As for bfc_alloc; BFC_ERROR_UNSUPPORTED without BFC_TIMESTAMPS.
///
/// # Safety
/// `out_ptr` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_alloc_freed_before(
    device: i32,
    bytes: usize,
    freed_before: u64,
    out_ptr: *mut *mut c_void,
) -> bfc_status_t {
    let work = || Ok(pointer(Device::new(device)?.alloc_freed_before(bytes as u64, freed_before)?));
    // SAFETY: by this function's contract.
    unsafe { status_and(out_ptr, null_mut(), work) }
}

/// Frees an allocation of this device. The chunk is merged with its free neighbours.
///
/// @param ptr  NULL: BFC_OK, even if there is no allocator.
/// @return BFC_OK; BFC_ERROR_INVALID_POINTER (foreign, interior or stale); BFC_ERROR_DOUBLE_FREE; and the errors of
///         every call. A failing free changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_free(device: i32, ptr: *mut c_void) -> bfc_status_t {
    // SAFETY: the C caller gives the memory up.
    status(|| unsafe { Device::new(device)?.free(ptr as u64) })
}
