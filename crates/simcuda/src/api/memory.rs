//! Device memory, and host memory that the device can access.

use std::ffi::{c_uint, c_void};

use cuda_sys::*;

use crate::abi::{Answer, put, put_if};
use crate::options::Choice;
use crate::rules::blocking;
use crate::sim;
use crate::state::memory::{Allocation, Origin};
use crate::system::round_up;

pub(crate) fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Answer {
    let mut sim = sim::lock();
    let device = sim.current_device()?;
    let device = sim.device(device)?;
    put_if(free, device.free() as usize);
    put_if(total, device.capacity() as usize);
    Ok(())
}

/// "If bytesize is 0, cuMemAlloc() returns CUDA_ERROR_INVALID_VALUE."
pub(crate) fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize) -> Answer {
    take(address, bytes, Origin::Plain)
}

fn take(address: *mut CUdeviceptr, bytes: usize, origin: Origin) -> Answer {
    let mut sim = sim::lock();
    let context = sim.owner()?;
    if address.is_null() || bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.forbid_unsafe()?;
    let device = sim.contexts[&context].device();
    let at = sim.allocate(device, context, bytes as u64, origin)?;
    put(address, at)
}

/// Rows begin at multiples of 512 bytes.
pub(crate) fn cuMemAllocPitch_v2(
    address: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Answer {
    if pitch.is_null() || !matches!(element, 4 | 8 | 16) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let row = round_up(width as u64, 512) as usize;
    let bytes = row.checked_mul(height).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    take(address, bytes, Origin::Plain)?;
    put(pitch, row)
}

pub(crate) fn cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: c_uint) -> Answer {
    match flags {
        CU_MEM_ATTACH_GLOBAL | CU_MEM_ATTACH_HOST => take(address, bytes, Origin::Managed),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// "This API will not perform any implict synchronization when the pointer was allocated with cuMemAllocAsync [...].
/// For all other pointers, this API may perform implicit synchronization". It waits for all work on the device, unless
/// a test disables this (`Choice::FreeSynchronizes`).
pub(crate) fn cuMemFree_v2(address: CUdeviceptr) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    sim.forbid_unsafe()?;
    if address == 0 {
        return Ok(());
    }
    let allocation = sim.allocations.get(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let &Allocation { origin, device, unique, bytes, .. } = allocation;
    match origin {
        _ if allocation.is_ending => return Err(CUDA_ERROR_INVALID_VALUE),
        Origin::Host(_) | Origin::Registered(_) | Origin::Imported { .. } => {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        Origin::Plain | Origin::Managed if sim.options.is_on(Choice::FreeSynchronizes) => {
            let points = sim.all_of(|_, of| of == device);
            sim = blocking::finish(sim, &points)?;
        }
        Origin::Graph => {
            sim.free_graph_memory(address)?;
            sim.check_host_free(address, bytes, "free");
            return Ok(());
        }
        _ => (),
    }
    // Another thread may have freed it while this one waited.
    if sim.allocations.get(&address).is_none_or(|allocation| allocation.unique != unique) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.check_host_free(address, bytes, "free");
    sim.release(address);
    Ok(())
}

/// Base and size of the allocation "that contains the input pointer".
pub(crate) fn cuMemGetAddressRange_v2(
    base: *mut CUdeviceptr,
    size: *mut usize,
    address: CUdeviceptr,
) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    let found = sim.find(address).map(|(start, allocation)| (start, allocation.bytes));
    let mapped = sim.mapping_at(address).map(|(start, mapping)| (start, mapping.bytes()));
    let (start, bytes) = found.or(mapped).ok_or(CUDA_ERROR_NOT_FOUND)?;
    put_if(base, start);
    put_if(size, bytes as usize);
    Ok(())
}

// Host memory.

pub(crate) fn cuMemAllocHost_v2(memory: *mut *mut c_void, bytes: usize) -> Answer {
    cuMemHostAlloc(memory, bytes, 0)
}

pub(crate) fn cuMemHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint) -> Answer {
    let mut sim = sim::lock();
    let context = sim.owner()?;
    if memory.is_null() || bytes == 0 || flags > 7 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.forbid_unsafe()?;
    let at = sim.allocate_host(context, bytes as u64, flags)?;
    put(memory, at as *mut c_void)
}

pub(crate) fn cuMemFreeHost(memory: *mut c_void) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    sim.forbid_unsafe()?;
    let at = memory.addr() as u64;
    match sim.allocations.get(&at) {
        Some(allocation) if matches!(allocation.origin, Origin::Host(_)) => {
            let device = allocation.device;
            let points = sim.all_of(|_, of| of == device);
            let mut sim = blocking::finish(sim, &points)?;
            sim.release(at);
            Ok(())
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuMemHostRegister_v2(memory: *mut c_void, bytes: usize, flags: c_uint) -> Answer {
    let mut sim = sim::lock();
    let context = sim.owner()?;
    if memory.is_null() || bytes == 0 || flags > 15 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.forbid_unsafe()?;
    let at = memory.addr() as u64;
    let before = sim.allocations.range(..at.saturating_add(bytes as u64)).next_back();
    if before.is_some_and(|(start, allocation)| start + allocation.bytes > at) {
        return Err(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    let device = sim.contexts[&context].device();
    sim.add_allocation(at, device, context, bytes as u64, Origin::Registered(flags), (at, 0));
    Ok(())
}

pub(crate) fn cuMemHostUnregister(memory: *mut c_void) -> Answer {
    let mut sim = sim::lock();
    sim.current()?;
    sim.forbid_unsafe()?;
    let at = memory.addr() as u64;
    match sim.allocations.get(&at) {
        Some(allocation) if matches!(allocation.origin, Origin::Registered(_)) => {
            sim.release(at);
            Ok(())
        }
        _ => Err(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
    }
}

/// Addresses are unified: the device's address equals the host's.
pub(crate) fn cuMemHostGetDevicePointer_v2(
    address: *mut CUdeviceptr,
    memory: *mut c_void,
    flags: c_uint,
) -> Answer {
    let sim = sim::lock();
    let at = memory.addr() as u64;
    match sim.find(at) {
        Some((_, there)) if flags == 0 && matches!(there.origin, Origin::Host(_) | Origin::Registered(_)) => {
            put(address, at)
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

pub(crate) fn cuMemHostGetFlags(flags: *mut c_uint, memory: *mut c_void) -> Answer {
    let sim = sim::lock();
    match sim.find(memory.addr() as u64).map(|(_, there)| there.origin) {
        Some(Origin::Host(set)) => put(flags, set | CU_MEMHOSTALLOC_DEVICEMAP),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}
