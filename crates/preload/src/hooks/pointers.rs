//! The hooks of pointer queries. For the driver a pooled allocation is part of a region. For the program it is an
//! allocation of its own, of the requested size.

use bfc_sys::BFC_OK;
use std::ffi::c_void;
use std::ptr;

use cuda_sys::*;

use crate::driver::real;
use crate::pool::{Pool, pointer};
use crate::{bfc, settings};

/// An address in a pool's memory.
struct Pooled {
    /// The allocation that contains it: start, requested size, and a number that is unique in the process. `None` if it
    /// is free.
    allocation: Option<(u64, usize, u64)>,
    /// The start of the region.
    region: u64,
}

/// An address that is in no allocation, which the driver treats like a freed pointer.
const NO_ALLOCATION: CUdeviceptr = 1;

/// Returns the pooled memory at an address, unless the program should see regions because it shares them. A client that
/// sends the handle of an allocation's start, and the offset to it, is then correct.
fn pooled(address: u64) -> Option<Pooled> {
    if settings::shares_regions() { None } else { located(address) }
}

fn located(address: u64) -> Option<Pooled> {
    let pool = match bfc::owner(address)? {
        bfc::PINNED => Some(Pool::pinned()).filter(|pool| pool.is_ours()),
        _ => Pool::owner(address),
    }?;
    let (mut chunk, mut region) = (ptr::null_mut(), ptr::null_mut());
    let (mut chunk_bytes, mut region_bytes) = (0, 0);
    // SAFETY: any address may be queried, and the pointers are valid for writing.
    let status = unsafe {
        bfc_sys::bfc_address_range(
            pool.ordinal(),
            pointer(address),
            &mut chunk,
            &mut chunk_bytes,
            &mut region,
            &mut region_bytes,
        )
    };
    if status != BFC_OK {
        return Some(Pooled { allocation: None, region: 0 });
    }
    let start = chunk.addr() as u64;
    // The padding after the requested size belongs to no allocation.
    let is_inside = |&(bytes, _): &(usize, u64)| address - start < bytes as u64;
    let allocation = facts(pool, chunk).filter(is_inside).filter(|_| !pool.has_deferred(start));
    Some(Pooled {
        allocation: allocation.map(|(bytes, unique)| (start, bytes, unique)),
        region: region.addr() as u64,
    })
}

/// Returns the requested size and the number of a live chunk.
fn facts(pool: Pool, chunk: *mut c_void) -> Option<(usize, u64)> {
    let (mut bytes, mut id) = (0, 0);
    // SAFETY: any address may be queried, and the pointer is valid for writing.
    if unsafe { bfc_sys::bfc_requested_size(pool.ordinal(), chunk, &mut bytes) } != BFC_OK {
        return None;
    }
    // SAFETY: as above.
    if unsafe { bfc_sys::bfc_allocation_id(pool.ordinal(), chunk, &mut id) } != BFC_OK {
        return None;
    }
    // The driver's own numbers are small, and each device's pool counts from 1.
    let unique = 1 << 63 | u64::from(pool.ordinal().unsigned_abs()) << 48 | id.unsigned_abs();
    Some((bytes, unique))
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    bytes: *mut usize,
    address: CUdeviceptr,
) -> CUresult {
    let Some(ask) = real::cuMemGetAddressRange_v2() else { return CUDA_ERROR_NOT_INITIALIZED };
    let Some(pooled) = pooled(address) else {
        // SAFETY: the caller's arguments.
        return unsafe { ask(base, bytes, address) };
    };
    // The driver's answer describes the region. If it fails, for example without a context, this call fails too.
    let about = if pooled.allocation.is_some() { address } else { NO_ALLOCATION };
    // SAFETY: the caller's arguments.
    let code = unsafe { ask(base, bytes, about) };
    let Some((start, size, _)) = pooled.allocation.filter(|_| code == CUDA_SUCCESS) else { return code };
    if !base.is_null() {
        // SAFETY: not NULL, so the caller's for writing.
        unsafe { *base = start };
    }
    if !bytes.is_null() {
        // SAFETY: not NULL, so the caller's for writing.
        unsafe { *bytes = size };
    }
    CUDA_SUCCESS
}

/// Writes an attribute of a pooled allocation, if the driver's answer describes the region.
///
/// # Safety
/// `data` is valid for writing a value of the attribute's type.
unsafe fn correct(data: *mut c_void, attribute: CUpointer_attribute, pooled: &Pooled) {
    let Some((start, bytes, unique)) = pooled.allocation.filter(|_| !data.is_null()) else { return };
    match attribute {
        // SAFETY: the attribute is an address.
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => unsafe {
            data.cast::<CUdeviceptr>().write(start);
        },
        // SAFETY: the attribute is a size.
        CU_POINTER_ATTRIBUTE_RANGE_SIZE | CU_POINTER_ATTRIBUTE_MAPPING_SIZE => unsafe {
            data.cast::<usize>().write(bytes);
        },
        // SAFETY: the attribute is a number of 64 bits.
        CU_POINTER_ATTRIBUTE_BUFFER_ID | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => unsafe {
            data.cast::<u64>().write(unique);
        },
        // SAFETY: the attribute is a bool, which the driver writes as one byte or four. The first byte is the same.
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE if start != pooled.region => unsafe {
            data.cast::<u8>().write(0);
        },
        _ => {}
    }
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> CUresult {
    let Some(ask) = real::cuPointerGetAttribute() else { return CUDA_ERROR_NOT_INITIALIZED };
    let pooled = pooled(address);
    let is_free = pooled.as_ref().is_some_and(|pooled| pooled.allocation.is_none());
    // SAFETY: the caller's arguments.
    let code = unsafe { ask(data, attribute, if is_free { NO_ALLOCATION } else { address }) };
    if let Some(pooled) = pooled.filter(|_| code == CUDA_SUCCESS) {
        // SAFETY: the driver has written it.
        unsafe { correct(data, attribute, &pooled) };
    }
    code
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttributes(
    count: u32,
    attributes: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> CUresult {
    let Some(ask) = real::cuPointerGetAttributes() else { return CUDA_ERROR_NOT_INITIALIZED };
    let pooled = pooled(address);
    let is_free = pooled.as_ref().is_some_and(|pooled| pooled.allocation.is_none());
    // SAFETY: the caller's arguments.
    let code = unsafe { ask(count, attributes, data, if is_free { NO_ALLOCATION } else { address }) };
    if let Some(pooled) = pooled.filter(|_| code == CUDA_SUCCESS && count != 0) {
        // SAFETY: the driver has read that many attributes and written to that many places.
        let asked = unsafe { std::slice::from_raw_parts(attributes, count as usize) };
        // SAFETY: as above.
        let places = unsafe { std::slice::from_raw_parts(data, count as usize) };
        for (&attribute, &place) in asked.iter().zip(places) {
            // SAFETY: the driver has written it.
            unsafe { correct(place, attribute, &pooled) };
        }
    }
    code
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr) -> CUresult {
    let Some(ask) = real::cuIpcGetMemHandle() else { return CUDA_ERROR_NOT_INITIALIZED };
    if settings::shares_regions() && bfc::owner(address).is_some() {
        // The base of the region, even if it is free now, because the offsets of other allocations are relative to it.
        return match begins_allocation(address) {
            // SAFETY: the caller's arguments.
            true => unsafe { ask(handle, address) },
            false => CUDA_ERROR_INVALID_VALUE,
        };
    }
    match located(address) {
        // The handle would name the region, and the receiver would see the memory at its base.
        Some(pooled) if pooled.allocation.is_none_or(|(start, ..)| start != pooled.region) => {
            CUDA_ERROR_INVALID_VALUE
        }
        // SAFETY: the caller's arguments.
        _ => unsafe { ask(handle, address) },
    }
}

/// Returns whether an allocation of the driver begins at an address.
fn begins_allocation(address: u64) -> bool {
    let mut base = 0;
    // SAFETY: any address may be queried, and the pointer is valid for writing. The size is not requested.
    let code = real::cuMemGetAddressRange_v2().map(|ask| unsafe { ask(&mut base, ptr::null_mut(), address) });
    code == Some(CUDA_SUCCESS) && base == address
}
