//! For adapters of the host's memory whose frameworks tell the size of what they free.

use super::first_use::served;
use crate::capi::ffi_result::{status, status_and};
use crate::capi::types::bfc_status_t;
use crate::device::Device;
use crate::error::Error;
use crate::options::BackendKind;
use std::ffi::c_void;
use std::ptr::null_mut;

/// Allocates memory like bfc_alloc, for a caller that frees it with bfc_cached_free. A block of at most 1 KiB comes from
/// what the calling thread has freed so, without the allocator's lock: many threads do not wait for each other.
///
/// A thread keeps at most 28 blocks of each of four sizes, 256 bytes to 1 KiB, and shares them with threads that have the
/// same hash (there are 64). To the allocator they are allocations: they are part of the peaks of bfc_stats, and of bytes
/// in use that bfc_set_region_callback and queries of single addresses see. Each other query (bfc_stats, bfc_report,
/// bfc_memory_map), bfc_trim, bfc_destroy, a fork and a request that finds no memory return them first. The requested size
/// and the number of a block (bfc_requested_size, bfc_allocation_id) are those of its first request.
///
/// Without the host's backend (BFC_BACKEND_HOST), with BFC_TIMESTAMPS, with several streams, in the debug mode, while a
/// history is recorded, and after any thread has called bfc_scope_begin, this is bfc_alloc.
///
/// @param device   The ordinal.
/// @param bytes    The number of bytes. 0: BFC_OK and NULL.
/// @param out_ptr  Receives the address, a multiple of 256, or NULL on failure. The memory belongs to the caller until
///                 bfc_cached_free or bfc_free. Its contents are undefined.
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
    let work = || {
        let device = Device::new(device)?;
        let addr = match device.alloc_cached(bytes as u64) {
            // Tried only now, because nearly always there is one.
            Err(Error::NoAllocator) => first(device, bytes as u64),
            done => done,
        };
        Ok(addr? as *mut c_void)
    };
    // SAFETY: by this function's contract.
    unsafe { status_and(out_ptr, null_mut(), work) }
}

#[cold]
fn first(device: Device, bytes: u64) -> Result<u64, Error> {
    served(device, BackendKind::Auto, || device.alloc_cached(bytes))
}

/// Frees memory from bfc_cached_alloc.
///
/// @param ptr    What bfc_cached_alloc has returned and nothing has freed since. Unlike bfc_free this function does not
///               detect every other address: freeing a block of at most 1 KiB twice, or another address within the allocator's memory, gives
///               the same memory to two callers later. NULL is accepted.
/// @param bytes  The number of bytes that was passed to bfc_cached_alloc.
/// @return As for bfc_free.
///
/// # Safety
/// `ptr` and `bytes` are as described.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_cached_free(device: i32, ptr: *mut c_void, bytes: usize) -> bfc_status_t {
    status(|| Device::new(device)?.free_cached(ptr as u64, bytes as u64))
}
