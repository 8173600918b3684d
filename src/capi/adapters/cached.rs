//! The names of the plain pair that adapters of the host's memory were written against.

use crate::capi::memory::{bfc_alloc, bfc_free};
use crate::capi::types::bfc_status_t;
use std::ffi::c_void;

/// Allocates memory: another name of bfc_alloc, which new programs call.
///
/// @param device   The ordinal.
/// @param bytes    The number of bytes. 0: BFC_OK and NULL.
/// @param out_ptr  As for bfc_alloc. Either name of the free function accepts it.
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
    // SAFETY: by this function's contract, which is that of bfc_alloc.
    unsafe { bfc_alloc(device, bytes, out_ptr) }
}

/// Frees memory: another name of bfc_free, which new programs call.
///
/// @param ptr  As for bfc_free. NULL does nothing.
/// @return As for bfc_free.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_cached_free(device: i32, ptr: *mut c_void) -> bfc_status_t {
    bfc_free(device, ptr)
}
