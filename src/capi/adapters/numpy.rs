//! NumPy: `PyDataMemAllocator` of NEP 49.

use super::first_use::served;
use crate::capi::ffi_result::or_log;
use crate::capi::types::BFC_HOST_DEVICE;
use crate::device::Device;
use crate::error::{ErrorKind, fail};
use crate::options::BackendKind;
use std::ffi::c_void;
use std::ptr::null_mut;

fn alloc(size: usize) -> Result<(Device, u64), ErrorKind> {
    let device = Device::new(BFC_HOST_DEVICE)?;
    // NumPy takes NULL for a failure.
    let allocate = || device.alloc(size.max(1) as u64);
    Ok((device, served(device, BackendKind::Auto, allocate)?))
}

/// For the malloc of NumPy's PyDataMemAllocator. Allocates host memory from the allocator of ordinal 256.
///
/// @param ctx   Ignored.
/// @param size  The number of bytes. 0 is taken for 1.
/// @return The address, a multiple of 256, or NULL on failure, which NumPy turns into a MemoryError.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_numpy_malloc(ctx: *mut c_void, size: usize) -> *mut c_void {
    let _ = ctx;
    or_log("bfc_numpy_malloc", null_mut(), || Ok(alloc(size)?.1 as *mut c_void))
}

/// For the calloc of NumPy's PyDataMemAllocator. Allocates zeroed host memory. Large memory is not written: its pages are
/// returned to the system, and the next touch of each brings in a zeroed one. So memory that is never touched is not
/// resident.
///
/// @param ctx     Ignored.
/// @param nelem   The number of elements.
/// @param elsize  The size of an element in bytes.
/// @return As for bfc_numpy_malloc.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_numpy_calloc(ctx: *mut c_void, nelem: usize, elsize: usize) -> *mut c_void {
    let _ = ctx;
    or_log("bfc_numpy_calloc", null_mut(), || {
        let Some(size) = nelem.checked_mul(elsize) else {
            return Err(fail!(
                ErrorKind::OutOfMemory,
                "{nelem} elements of {elsize} bytes are more than there are addresses"
            ));
        };
        let (device, addr) = alloc(size)?;
        // SAFETY: nothing else has this memory, and it is the host's: NumPy will write to it too.
        if let Err(error) = unsafe { device.zero(addr, size as u64) } {
            // SAFETY: nothing else has this memory.
            let _ = unsafe { device.free(addr) };
            return Err(error);
        }
        Ok(addr as *mut c_void)
    })
}

/// For the realloc of NumPy's PyDataMemAllocator. Changes the size of an allocation, which may move.
///
/// @param ctx       Ignored.
/// @param ptr       An allocation made with these functions. NULL allocates.
/// @param new_size  The number of bytes. 0 is taken for 1.
/// @return As for bfc_numpy_malloc. On failure the old allocation stays as it is.
///
/// # Safety
/// No other thread uses `ptr` during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_numpy_realloc(
    ctx: *mut c_void,
    ptr: *mut c_void,
    new_size: usize,
) -> *mut c_void {
    let _ = ctx;
    or_log("bfc_numpy_realloc", null_mut(), || {
        if ptr.is_null() {
            return Ok(alloc(new_size)?.1 as *mut c_void);
        }
        let device = Device::new(BFC_HOST_DEVICE)?;
        let old_size = device.requested_size(ptr as u64)? as usize;
        let new = alloc(new_size)?.1 as *mut c_void;
        // SAFETY: both are different allocations of at least that many bytes, and the caller uses neither.
        unsafe { new.cast::<u8>().copy_from_nonoverlapping(ptr.cast(), old_size.min(new_size)) };
        // SAFETY: the caller gives the memory up.
        unsafe { device.free(ptr as u64)? };
        Ok(new)
    })
}

/// For the free of NumPy's PyDataMemAllocator.
///
/// @param ctx   Ignored.
/// @param ptr   An allocation made with these functions. NULL does nothing. A wrong pointer is refused with a
///              message to the log, and nothing is freed.
/// @param size  Ignored.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_numpy_free(ctx: *mut c_void, ptr: *mut c_void, size: usize) {
    let _ = (ctx, size);
    if !ptr.is_null() {
        // SAFETY: the caller gives the memory up.
        or_log("bfc_numpy_free", (), || unsafe { Device::new(BFC_HOST_DEVICE)?.free(ptr as u64) });
    }
}
