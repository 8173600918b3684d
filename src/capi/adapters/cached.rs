//! For adapters of the host's memory, where many threads have small blocks.

use crate::capi::ffi_result::{status, status_and};
use crate::capi::types::bfc_status_t;
use crate::device::Device;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Allocates memory like bfc_alloc, which bfc_cached_free must free. A block of at most 1 KiB comes from
/// what the calling thread has freed so, without the allocator's lock: many threads do not wait for each other.
///
/// A thread keeps at most 28 blocks of each of four sizes, 256 bytes to 1 KiB, and shares them with threads of the same
/// hash (there are 64 hashes). To the allocator they are allocations, and count in the peaks of bfc_stats. Queries of the
/// whole (bfc_stats, bfc_report, bfc_memory_map, bfc_check), bfc_trim, bfc_destroy, a fork, a request that finds no memory,
/// and a call that names a stream return them first, but for those of a thread that was interrupted for long in one of
/// these two functions. Requested sizes (bytes_requested, bfc_requested_size) and bfc_allocation_id of a block are those of
/// its first request.
///
/// Without the host's backend (BFC_BACKEND_HOST), with BFC_TIMESTAMPS, with several streams, in the debug mode, while a
/// history is recorded, and after a scope or a history with backtraces has begun, this is bfc_alloc.
///
/// Unlike the other functions here it does not create the allocator.
///
/// @param device   The ordinal.
/// @param bytes    The number of bytes. 0: BFC_OK and NULL.
/// @param out_ptr  Receives the address, a multiple of 256, or NULL on failure. The memory belongs to the caller until
///                 bfc_cached_free. Its contents are undefined.
/// @return As for bfc_alloc.
///
/// # Safety
/// `out_ptr` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_cached_alloc(
    device: i32,
    bytes: usize,
    out_ptr: *mut *mut c_void,
) -> bfc_status_t {
    // SAFETY: by this function's contract.
    unsafe {
        status_and(
            out_ptr,
            null_mut(),
            || Ok(Device::new(device)?.alloc_cached(bytes as u64)? as *mut c_void),
        )
    }
}

/// Frees memory from bfc_cached_alloc.
///
/// @param ptr  What bfc_cached_alloc has returned, or NULL, which does nothing. Free this memory only here, and no other
///             memory: bfc_free does not notice that a block of at most 1 KiB was freed here before, and the same memory
///             is then given to two callers.
/// @return As for bfc_free. A second free is BFC_ERROR_DOUBLE_FREE from any thread, until the block is given out again.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_cached_free(device: i32, ptr: *mut c_void) -> bfc_status_t {
    status(|| Device::new(device)?.free_cached(ptr as u64))
}
