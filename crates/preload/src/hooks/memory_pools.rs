//! The hooks that record which of the driver's own memory pools a program makes current.

use cuda_sys::*;

use crate::driver::real;
use crate::state::memory_pools;

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> CUresult {
    let Some(set) = real::cuDeviceSetMemPool() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's arguments.
    let code = unsafe { set(device, pool) };
    if code == CUDA_SUCCESS {
        memory_pools::note_set(device);
    }
    code
}

/// # Safety
/// The contract is that of the driver's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetMemPool(
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> CUresult {
    let Some(set) = real::cuMemSetMemPool() else { return CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the caller's arguments.
    let code = unsafe { set(location, kind, pool) };
    if code == CUDA_SUCCESS && !location.is_null() {
        // SAFETY: not NULL, so the caller's, and the driver has read it.
        let CUmemLocation { type_, id } = unsafe { *location };
        if type_ == CU_MEM_LOCATION_TYPE_DEVICE {
            memory_pools::note_set(id);
        }
    }
    code
}
