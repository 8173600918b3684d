//! Queries of allocations and allocators.

use super::ffi_result::{status, status_and};
use super::types::{bfc_idle_callback_t, bfc_stats_t, bfc_status_t};
use super::versioned;
use crate::device::Device;
use crate::error::{ErrorKind, fail};
use bfc_core::stats::Stats;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Gets the requested size of an allocation in bytes.
///
/// @return BFC_OK; BFC_ERROR_INVALID_POINTER if `ptr` is not the start of a live allocation; and the errors of every
///         call.
///
/// # Safety
/// `out` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_requested_size(
    device: i32,
    ptr: *const c_void,
    out: *mut usize,
) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { status_and(out, 0, || Ok(Device::new(device)?.requested_size(ptr as u64)? as usize)) }
}

/// Gets the usable size of an allocation in bytes: the size of its chunk, a multiple of 256. With BFC_DEBUG=guard in
/// the environment at creation it is the requested size, because the rest of the chunk holds guard bytes.
///
/// @return As for bfc_requested_size.
///
/// # Safety
/// `out` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_allocated_size(
    device: i32,
    ptr: *const c_void,
    out: *mut usize,
) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { status_and(out, 0, || Ok(Device::new(device)?.allocated_size(ptr as u64)? as usize)) }
}

/// Gets the number of an allocation, which is unique in its allocator. Numbers rise from 1.
///
/// @return As for bfc_requested_size.
///
/// # Safety
/// `out` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_allocation_id(device: i32, ptr: *const c_void, out: *mut i64) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { status_and(out, 0, || Ok(Device::new(device)?.allocation_id(ptr as u64)? as i64)) }
}

/// Gets the live chunk and the region that contain a pointer, which may be an interior one.
///
/// @param out_chunk, out_chunk_bytes    Receive the chunk's start and its size in bytes.
/// @param out_region, out_region_bytes  Receive the start of its region and the region's size in bytes. An IPC handle
///                                      names the region, and the difference of the starts is the chunk's offset in it.
/// @return BFC_OK; BFC_ERROR_INVALID_POINTER if the pointer is in no live allocation; and the errors of every call.
///
/// # Safety
/// Each out-pointer is NULL, which is BFC_ERROR_INVALID_ARGUMENT, or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_address_range(
    device: i32,
    ptr: *const c_void,
    out_chunk: *mut *mut c_void,
    out_chunk_bytes: *mut usize,
    out_region: *mut *mut c_void,
    out_region_bytes: *mut usize,
) -> bfc_status_t {
    let store = |(start, bytes): (u64, u64), out: *mut *mut c_void, out_bytes: *mut usize| {
        if !out.is_null() {
            // SAFETY: not NULL, so valid by this function's contract.
            unsafe { out.write(start as *mut c_void) };
        }
        if !out_bytes.is_null() {
            // SAFETY: as above.
            unsafe { out_bytes.write(bytes as usize) };
        }
    };
    store((0, 0), out_chunk, out_chunk_bytes);
    store((0, 0), out_region, out_region_bytes);
    status(|| {
        let starts = [out_chunk, out_region].contains(&null_mut());
        if starts || [out_chunk_bytes, out_region_bytes].contains(&null_mut()) {
            return Err(fail!(ErrorKind::InvalidArgument, "an out-pointer is NULL"));
        }
        let range = Device::new(device)?.address_range(ptr as u64)?;
        store(range.chunk, out_chunk, out_chunk_bytes);
        store(range.region, out_region, out_region_bytes);
        Ok(())
    })
}

/// Gets the device whose allocator holds the memory that contains a pointer, in use or free. Takes no lock, except for
/// an address in the reserved range of a BFC_BACKEND_HOST_VMM or BFC_BACKEND_CUDA_VMM allocator: then it waits for
/// calls on that device.
///
/// @param out_device  Receives the ordinal, or 0 on failure.
/// @return BFC_OK; BFC_ERROR_INVALID_POINTER if no allocator holds it; BFC_ERROR_INVALID_ARGUMENT; BFC_ERROR_BUSY in a
///         signal handler that interrupted a call of its thread on such a device.
///
/// # Safety
/// `out_device` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_owner(ptr: *const c_void, out_device: *mut i32) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { status_and(out_device, 0, || Ok(Device::owner(ptr as u64)?.ordinal())) }
}

/// Releases wholly free regions to the backend, the largest first, as long as at least `keep_bytes` bytes stay held.
/// Also frees the host memory of pointer tables that no chunk needs. Afterwards growth begins again with small regions.
///
/// On the host backend the pages of free chunks in regions that stay held are returned to the system as well, as long as
/// `keep_bytes` bytes stay. They still count as held (pool_bytes), not as released. Contents of freed memory are lost.
/// With a region callback (bfc_set_region_callback) the pages stay, because they may be registered. Host memory that was
/// freed on a stream is not released before bfc_stream_synchronized has declared the stream's work done.
///
/// With BFC_TRIM_AFTER=SECONDS in the environment at creation, a thread of the library trims an allocator in this way
/// once it has been idle for that time, and again when bfc_set_safe_frontier or bfc_stream_synchronized has made
/// memory reusable since. See also bfc_set_idle_callback.
///
/// @param out_released  Receives the number of bytes released. On CUDA backends this includes what other threads were
///         releasing, for which the call waits.
/// @return BFC_OK, even if nothing could be released; BFC_ERROR_BACKEND_FAILED if the driver did not accept everything
///         that was to be released, or if a stream is captured or about to be (bfc_pool_begin), which a release would
///         invalidate: the rest stays free memory; and the errors of every call.
///
/// # Safety
/// `out_released` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_trim(device: i32, keep_bytes: u64, out_released: *mut u64) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe { status_and(out_released, 0, || Device::new(device)?.trim(keep_bytes)) }
}

/// Sets a function that is called before free memory of an idle allocator is released (BFC_TRIM_AFTER). It can declare
/// which work has completed, with bfc_set_safe_frontier or bfc_stream_synchronized. If memory with unsafe timestamps is
/// left afterwards, or memory that waits for a stream, the function is called again after the same time.
///
/// @param callback   The function, or NULL to remove it. The previous one is not called after this call has returned.
/// @param user_data  Passed to the function. It must stay valid until the allocator was destroyed, or until another
///                   call of this function has returned BFC_OK. Destruction waits until the function has returned.
/// @return BFC_OK; BFC_ERROR_BUSY from the function itself; and the errors of every call.
///
/// # Safety
/// The function may be called with `user_data` from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_set_idle_callback(
    device: i32,
    callback: bfc_idle_callback_t,
    user_data: *mut c_void,
) -> bfc_status_t {
    status(|| {
        let device = Device::new(device)?;
        // SAFETY: by this function's contract.
        unsafe { device.set_idle_callback(callback, user_data) }
    })
}

/// Changes how many bytes an allocator may hold from its backend. Allocations stay valid and keep their contents.
///
/// If the allocator holds more than the new limit, it obtains no more memory. Wholly free memory is released as by
/// bfc_trim, until at most `bytes` are held or nothing more is free. Memory that cannot be released now, because it is
/// in use or a stream is captured, stays held. A later bfc_trim releases it once it is free. A region that another
/// thread is obtaining at this moment is still added to the pool.
///
/// If the limit rises, waiting requests (retry_timeout_ms) try again. Without BFC_ALLOW_GROWTH the next region is all
/// that the limit leaves. A fragmentation_fraction applies to the new limit.
///
/// @param bytes  The limit in bytes. Unlike in bfc_options_t, 0 is a limit of 0: nothing more is obtained, and free
///               memory is released. A limit above what the backend has is valid, and the backend then refuses. With
///               BFC_BACKEND_HOST_VMM and BFC_BACKEND_CUDA_VMM the limit is rounded down to whole granules, and is at
///               most the range of addresses that bfc_create reserved (256 or 64 times the first limit, within bounds).
///               bfc_stats reports the resulting limit in bytes_limit.
/// @return BFC_OK; BFC_ERROR_BACKEND_FAILED or BFC_ERROR_OUT_OF_MEMORY (host memory) if BFC_BACKEND_HOST_VMM cannot
///         prepare for a higher limit, and the limit does not change; and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_set_memory_limit(device: i32, bytes: u64) -> bfc_status_t {
    status(|| Device::new(device)?.set_memory_limit(bytes))
}

/// Gets the current statistics.
///
/// @param out_stats  Initialize it with BFC_STATS_INIT. Its struct_size tells the library the version of the struct. On
///                   failure all other fields are 0, unless struct_size is invalid.
/// @return BFC_OK, and the errors of every call.
///
/// # Safety
/// `out_stats` is NULL or points to a writable struct of `struct_size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_stats(device: i32, out_stats: *mut bfc_stats_t) -> bfc_status_t {
    if out_stats.is_null() {
        return fail!(ErrorKind::InvalidArgument, "an out-pointer is NULL").code();
    }
    status(|| {
        let nothing = bfc_stats_t::of(&Stats::default());
        // Written first, so that a failure also leaves a defined value.
        // SAFETY: not NULL, so valid by this function's contract.
        unsafe { versioned::write(out_stats, &nothing)? };
        let stats = bfc_stats_t::of(&Device::new(device)?.stats()?);
        // SAFETY: as above.
        unsafe { versioned::write(out_stats, &stats) }
    })
}

/// Resets the counts and largest_alloc_size to 0 and the peaks to the current values, like TensorFlow's ClearStats.
///
/// @return BFC_OK, and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_reset_stats(device: i32) -> bfc_status_t {
    status(|| Device::new(device)?.reset_stats())
}

/// Checks every invariant of the allocator metadata, for tests and bug reports. The time is proportional to the number
/// of chunks, with the allocator locked. Threads that already wait for the lock go first.
///
/// With BFC_DEBUG=guard this also checks the guard bytes of all live allocations. Damaged guard bytes are reported in
/// the log and counted in the memory map. They are not an error, because the metadata is intact.
///
/// @return BFC_OK; BFC_ERROR_INTERNAL if an invariant is broken, which poisons the allocator; with guard bytes also
///         BFC_ERROR_OUT_OF_MEMORY (host memory for the list of allocations to check); and the errors of every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_check(device: i32) -> bfc_status_t {
    status(|| Device::new(device)?.check())
}
