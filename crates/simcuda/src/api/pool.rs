//! Memory pools and stream-ordered allocation. The rules are in `pools`.

use std::ffi::c_void;

use cuda_sys::*;

use crate::abi::{Answer, get, get_all, put};
use crate::handles::Kind;
use crate::options::Choice;
use crate::rules::streams;
use crate::sim::{self, Guard, Sim};
use crate::state::memory::Ending;
use crate::state::memory::Origin;
use crate::state::pool::{Level, Pool};
use crate::state::work::Work;

impl Sim {
    fn default_pool(&mut self, device: CUdevice) -> Answer<u64> {
        if !self.options.is_on(Choice::Pools) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        if let Some(known) = self.device(device)?.default_pool() {
            return Ok(known);
        }
        let handle = self.handle(Kind::Pool);
        let pool = Pool::new(device, true);
        self.pools.insert(handle, pool);
        self.device(device)?.set_default_pool(handle);
        Ok(handle)
    }

    fn pool(&mut self, handle: CUmemoryPool) -> Answer<&mut Pool> {
        let handle = handle.addr() as u64;
        let is_live = self.pools.get(&handle).is_some_and(|pool| !pool.is_destroyed());
        if !is_live {
            self.stale(Kind::Pool, handle);
        }
        self.pools.get_mut(&handle).filter(|_| is_live).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}

pub(crate) fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice) -> Answer {
    let handle = sim::lock().default_pool(device)?;
    put(pool, handle as CUmemoryPool)
}

pub(crate) fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice) -> Answer {
    let mut sim = sim::lock();
    sim.default_pool(device)?;
    put(pool, sim.device(device)?.current_pool() as CUmemoryPool)
}

pub(crate) fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> Answer {
    let mut sim = sim::lock();
    sim.default_pool(device)?;
    if sim.pool(pool)?.device() != device {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.device(device)?.set_current_pool(pool.addr() as u64);
    Ok(())
}

/// Returns the device of a location that has pools of device memory. No other is simulated.
fn device_at(location: *mut CUmemLocation, kind: CUmemAllocationType) -> Answer<CUdevice> {
    let location = get(location)?;
    match (location.type_, kind) {
        (CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ALLOCATION_TYPE_PINNED) => Ok(location.id),
        _ => Err(CUDA_ERROR_NOT_SUPPORTED),
    }
}

pub(crate) fn cuMemGetDefaultMemPool(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> Answer {
    cuDeviceGetDefaultMemPool(pool, device_at(location, kind)?)
}

pub(crate) fn cuMemGetMemPool(
    pool: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> Answer {
    cuDeviceGetMemPool(pool, device_at(location, kind)?)
}

pub(crate) fn cuMemSetMemPool(
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> Answer {
    cuDeviceSetMemPool(device_at(location, kind)?, pool)
}

pub(crate) fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> Answer {
    let mut sim = sim::lock();
    let properties = get(properties)?;
    if properties.allocType != CU_MEM_ALLOCATION_TYPE_PINNED
        || properties.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE
        || properties.handleTypes != CU_MEM_HANDLE_TYPE_NONE
    {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let device = properties.location.id;
    sim.default_pool(device)?;
    let handle = sim.handle(Kind::Pool);
    let new = Pool::new(device, false);
    sim.pools.insert(handle, new);
    put(pool, handle as CUmemoryPool)
}

/// "The resources associated with the pool will be released automatically once there are no more outstanding
/// allocations". The default pool cannot be destroyed.
pub(crate) fn cuMemPoolDestroy(pool: CUmemoryPool) -> Answer {
    let mut sim = sim::lock();
    let there = sim.pool(pool)?;
    if there.is_default() {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    there.destroy();
    let device = there.device();
    let handle = pool.addr() as u64;
    sim.end_if_empty(handle);
    if !sim.pools.contains_key(&handle) {
        sim.retire(Kind::Pool, handle);
    }
    sim.device(device)?.forget_pool(handle);
    Ok(())
}

/// "Otherwise the pool will be guaranteed to have at least minBytesToKeep bytes reserved after the operation." Memory
/// that was freed and not observed on the host counts as outstanding, which is permitted.
pub(crate) fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> Answer {
    let mut sim = sim::lock();
    sim.pool(pool)?;
    sim.release_areas(pool.addr() as u64, keep as u64, keep as u64);
    Ok(())
}

/// Returns the attributes that are a number of bytes and its peak.
fn level(pool: &mut Pool, attribute: CUmemPool_attribute) -> Answer<&mut Level> {
    match attribute {
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT | CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => Ok(pool.reserved()),
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT | CU_MEMPOOL_ATTR_USED_MEM_HIGH => Ok(pool.used()),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

// "cuMemPoolGetAttribute / cuMemPoolSetAttribute are "potentially unsafe" driver calls", which "fail with
// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidate the capture". The lookup of a default pool "is a pure query and
// is legal under capture" (NVIDIA, github.com/NVIDIA/cccl/pull/11360).

/// "High watermark can only be reset to zero."
pub(crate) fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> Answer {
    let mut sim = sim::lock();
    sim.forbid_unsafe()?;
    let pool = sim.pool(pool)?;
    if let Some(policy) = pool.policy(attribute) {
        *policy = get(value.cast())?;
        return Ok(());
    }
    let number = get(value.cast::<u64>())?;
    match attribute {
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.set_threshold(number),
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH if number == 0 => {
            level(pool, attribute)?.forget()
        }
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> Answer {
    let mut sim = sim::lock();
    sim.forbid_unsafe()?;
    let pool = sim.pool(pool)?;
    if let Some(policy) = pool.policy(attribute) {
        return put(value.cast(), *policy);
    }
    let number = match attribute {
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.threshold(),
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH | CU_MEMPOOL_ATTR_USED_MEM_HIGH => level(pool, attribute)?.high(),
        _ => level(pool, attribute)?.now(),
    };
    put(value.cast(), number)
}

/// "the accessing device must be peer capable with the memory pool's device. [...] If the peer capability is not
/// checked, the set access may fail with cudaErrorInvalidDevice". The access of the pool's own device "cannot be
/// revoked" (guide, Device Accessibility for Multi-GPU Support).
pub(crate) fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    descriptions: *const CUmemAccessDesc,
    count: usize,
) -> Answer {
    let mut sim = sim::lock();
    let device = sim.pool(pool)?.device();
    let mut settings = Vec::new();
    for CUmemAccessDesc { location, flags } in get_all(descriptions, count)? {
        let is_granted = match flags {
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE => true,
            CU_MEM_ACCESS_FLAGS_PROT_NONE if location.id != device => false,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        if location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        sim.device(location.id)?;
        if location.id != device && !sim.can_access_peer(location.id, device) {
            return Err(CUDA_ERROR_INVALID_DEVICE);
        }
        settings.push((location.id, is_granted));
    }
    let pool = sim.pool(pool)?;
    for (device, is_granted) in settings {
        pool.grant(device, is_granted);
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAccess(
    flags: *mut CUmemAccess_flags,
    pool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> Answer {
    let mut sim = sim::lock();
    let pool = sim.pool(pool)?;
    let device = get(location.cast_const())?.id;
    let may = device == pool.device() || pool.granted().contains(&device);
    put(flags, if may { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { CU_MEM_ACCESS_FLAGS_PROT_NONE })
}

pub(crate) fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    let device = sim.streams[&number].device();
    sim.default_pool(device)?;
    let pool = sim.device(device)?.current_pool();
    take(sim, address, bytes, pool, number)
}

pub(crate) fn cuMemAllocFromPoolAsync(
    address: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    sim.pool(pool)?;
    take(sim, address, bytes, pool.addr() as u64, number)
}

/// "During stream capture, this function results in the creation of an allocation node."
fn take(mut sim: Guard, address: *mut CUdeviceptr, bytes: usize, pool: u64, stream: u64) -> Answer {
    if address.is_null() || bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let there = sim.pools.get(&pool).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let (device, granted) = (there.device(), there.granted().clone());
    let bytes = bytes as u64;
    if let Some(capture) = sim.streams[&stream].capture() {
        let at = sim.note_allocation(capture, stream, device, granted, bytes)?;
        return put(address, at);
    }
    sim.forbid_implicit(stream, true)?;
    let (at, unique, after) = sim.take_from_pool(pool, bytes, stream)?;
    put(address, at)?;
    let work = Work::Alloc { at, bytes, unique, device, pool };
    streams::submit(sim, stream, work, after.into_iter().collect()).map(drop)
}

pub(crate) fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    if let Some(capture) = sim.streams[&number].capture() {
        return sim.note_free(capture, number, address);
    }
    sim.forbid_implicit(number, true)?;
    let allocation = sim.allocations.get_mut(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let (unique, bytes) = (allocation.unique, allocation.bytes);
    match allocation.origin {
        Origin::Pool(_) => {
            sim.ending.insert(address, Ending { bytes, unique });
            let point = sim.queue(number, Work::Free { at: address, unique }, Vec::new())?;
            sim.return_to_pool(address, Some(point));
            drop(streams::run_ready(sim));
            return Ok(());
        }
        Origin::Graph => drop(sim.take_back_from_graph(address)?),
        Origin::Plain if !allocation.is_ending => allocation.is_ending = true,
        _ => return Err(CUDA_ERROR_INVALID_VALUE),
    }
    streams::submit(sim, number, Work::Free { at: address, unique }, Vec::new()).map(drop)
}
