//! Memory pools and stream-ordered allocation, in a simple form: an allocation is charged to the device at the
//! call, and given back when the turn of its free comes; nothing is kept, whatever the release threshold.

use std::ffi::{c_int, c_void};

use cuda_sys::*;

use crate::abi::{Answer, get, get_all, put};
use crate::handles::Kind;
use crate::memory::{Origin, Pool};
use crate::options::Choice;
use crate::sim::{self, Guard, Sim};
use crate::streams;
use crate::work::Work;

// Attributes of a pool in cuda.h beside the first, which cuda-sys has.
const REUSE_LAST: CUmemPool_attribute = 3;
const RELEASE_THRESHOLD: CUmemPool_attribute = 4;
const RESERVED_CURRENT: CUmemPool_attribute = 5;
const RESERVED_HIGH: CUmemPool_attribute = 6;
const USED_CURRENT: CUmemPool_attribute = 7;
const USED_HIGH: CUmemPool_attribute = 8;

impl Sim {
    fn default_pool(&mut self, device: CUdevice) -> Answer<u64> {
        if !self.options.is_on(Choice::Pools) {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let known = self.device(device)?.default_pool;
        if known != 0 {
            return Ok(known);
        }
        let handle = self.handle(Kind::Pool);
        let pool = Pool { device, is_default: true, reuse: [1; 3], ..Pool::default() };
        self.pools.insert(handle, pool);
        let there = self.device(device)?;
        (there.default_pool, there.current_pool) = (handle, handle);
        Ok(handle)
    }

    fn pool(&mut self, handle: CUmemoryPool) -> Answer<&mut Pool> {
        let handle = handle.addr() as u64;
        let is_live = self.pools.get(&handle).is_some_and(|pool| !pool.is_destroyed);
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
    put(pool, sim.device(device)?.current_pool as CUmemoryPool)
}

pub(crate) fn cuDeviceSetMemPool(device: CUdevice, pool: CUmemoryPool) -> Answer {
    let mut sim = sim::lock();
    sim.default_pool(device)?;
    if sim.pool(pool)?.device != device {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.device(device)?.current_pool = pool.addr() as u64;
    Ok(())
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
    let new = Pool { device, reuse: [1; 3], ..Pool::default() };
    sim.pools.insert(handle, new);
    put(pool, handle as CUmemoryPool)
}

/// "The resources associated with the pool will be released automatically once there are no more outstanding
/// allocations"; the default pool cannot be destroyed.
pub(crate) fn cuMemPoolDestroy(pool: CUmemoryPool) -> Answer {
    let mut sim = sim::lock();
    let there = sim.pool(pool)?;
    if there.is_default {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    there.is_destroyed = true;
    let (device, is_empty) = (there.device, there.used == 0);
    let handle = pool.addr() as u64;
    if is_empty {
        sim.pools.remove(&handle);
        sim.retire(Kind::Pool, handle);
    }
    let device = sim.device(device)?;
    if device.current_pool == handle {
        device.current_pool = device.default_pool;
    }
    Ok(())
}

pub(crate) fn cuMemPoolTrimTo(pool: CUmemoryPool, _: usize) -> Answer {
    // Nothing is ever kept.
    sim::lock().pool(pool).map(drop)
}

pub(crate) fn cuMemPoolSetAttribute(
    pool: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> Answer {
    let mut sim = sim::lock();
    let pool = sim.pool(pool)?;
    match attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_LAST => {
            pool.reuse[attribute as usize - 1] = get(value.cast::<c_int>())?;
        }
        RELEASE_THRESHOLD => pool.threshold = get(value.cast::<u64>())?,
        RESERVED_HIGH | USED_HIGH if get(value.cast::<u64>())? == 0 => pool.high = pool.used,
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
    let pool = sim.pool(pool)?;
    match attribute {
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES..=REUSE_LAST => {
            put(value.cast(), pool.reuse[attribute as usize - 1])
        }
        RELEASE_THRESHOLD => put(value.cast(), pool.threshold),
        RESERVED_CURRENT | USED_CURRENT => put(value.cast(), pool.used),
        RESERVED_HIGH | USED_HIGH => put(value.cast(), pool.high),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// Devices that are peers may touch a pool's memory once they are peers; nothing more is simulated.
pub(crate) fn cuMemPoolSetAccess(
    pool: CUmemoryPool,
    descriptions: *const CUmemAccessDesc,
    count: usize,
) -> Answer {
    let mut sim = sim::lock();
    let device = sim.pool(pool)?.device;
    let own = |description: &CUmemAccessDesc| {
        description.location.id == device && description.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    };
    match get_all(descriptions, count)?.iter().all(own) {
        true => Ok(()),
        false => Err(CUDA_ERROR_NOT_SUPPORTED),
    }
}

pub(crate) fn cuMemPoolGetAccess(
    flags: *mut CUmemAccess_flags,
    pool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> Answer {
    let mut sim = sim::lock();
    let device = sim.pool(pool)?.device;
    let own = get(location.cast_const())?.id == device;
    put(flags, if own { CU_MEM_ACCESS_FLAGS_PROT_READWRITE } else { CU_MEM_ACCESS_FLAGS_PROT_NONE })
}

pub(crate) fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    let device = sim.streams[&number].device;
    sim.default_pool(device)?;
    let pool = sim.device(device)?.current_pool;
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

/// During capture that would be a node of the graph, which is not simulated.
fn take(mut sim: Guard, address: *mut CUdeviceptr, bytes: usize, pool: u64, stream: u64) -> Answer {
    if address.is_null() || bytes == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if let Some(capture) = sim.streams[&stream].capture {
        sim.invalidate(capture);
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    sim.forbid_implicit(stream, true)?;
    let device = sim.pools.get(&pool).map(|pool| pool.device).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let bytes = bytes as u64;
    let mut got = sim.allocate(device, 0, bytes, Origin::Pool(pool));
    if got == Err(CUDA_ERROR_OUT_OF_MEMORY) {
        // What was freed and whose turn has not come is waited for; a driver may "insert new stream dependencies"
        // for that (CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES in cuda.h).
        let points = sim.pending_frees(device);
        sim = streams::finish(sim, &points)?;
        got = sim.allocate(device, 0, bytes, Origin::Pool(pool));
    }
    let at = got?;
    if let Some(pool) = sim.pools.get_mut(&pool) {
        pool.used += bytes;
        pool.high = pool.high.max(pool.used);
    }
    put(address, at)?;
    streams::submit(sim, stream, Work::Nothing, Vec::new()).map(drop)
}

pub(crate) fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    if let Some(capture) = sim.streams[&number].capture {
        sim.invalidate(capture);
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    sim.forbid_implicit(number, true)?;
    let allocation = sim.allocations.get_mut(&address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let is_freeable = matches!(allocation.origin, Origin::Pool(_) | Origin::Plain);
    if allocation.is_ending || !is_freeable {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    allocation.is_ending = true;
    let unique = allocation.unique;
    streams::submit(sim, number, Work::Free { at: address, unique }, Vec::new()).map(drop)
}
