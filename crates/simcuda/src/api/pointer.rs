//! Pointer attributes.

use std::ffi::{c_int, c_uint, c_void};

use cuda_sys::*;

use crate::abi::{Answer, get, get_all, put};
use crate::sim::{self, Sim};
use crate::state::memory::Origin;
use crate::system::Access;

/// The data about an address, from whichever table it is in.
struct Facts {
    start: u64,
    bytes: u64,
    device: CUdevice,
    context: u64,
    is_host: bool,
    is_managed: bool,
    has_ipc: bool,
    unique: u64,
    pool: u64,
    sync_memops: bool,
    handle_types: u32,
    is_for_rdma: bool,
    /// The mapping of virtual memory. Otherwise the same as the start and the bytes.
    mapping: (u64, u64),
    access: CUmemAccess_flags,
}

fn facts(sim: &mut Sim, at: u64) -> Option<Facts> {
    // "Returns the access flags the device associated with the current context has on the corresponding memory".
    let current = sim.current().ok().map(|context| sim.agent(context));
    let access = match current.map_or(Access::None, |current| sim.access(current, at)) {
        Access::None => CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE,
        Access::Read => CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ,
        Access::Write => CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE,
    };
    if let Some((start, there)) = sim.find(at) {
        return Some(Facts {
            start,
            bytes: there.bytes,
            device: there.device,
            context: there.context,
            is_host: matches!(there.origin, Origin::Host(_) | Origin::Registered(_)),
            is_managed: there.origin == Origin::Managed,
            has_ipc: there.origin == Origin::Plain,
            unique: there.unique,
            pool: if let Origin::Pool(pool) = there.origin { pool } else { 0 },
            sync_memops: there.sync_memops,
            handle_types: 0,
            is_for_rdma: false,
            mapping: (start, there.bytes),
            access,
        });
    }
    let (start, mapping) = sim.mapping_at(at)?;
    let physical = sim.physical.get(&mapping.handle())?;
    // "Note that this is not necessarily the address of the mapped region, but the address of the mappable address
    // range".
    let (range, reservation) = sim.reservations.range(..=at).next_back()?;
    Some(Facts {
        start: *range,
        bytes: reservation.bytes,
        device: physical.device(),
        context: 0,
        is_host: false,
        is_managed: false,
        has_ipc: false,
        unique: mapping.handle(),
        pool: 0,
        sync_memops: false,
        handle_types: physical.handle_types(),
        is_for_rdma: physical.is_for_rdma(),
        mapping: (start, mapping.bytes()),
        access,
    })
}

pub(crate) fn cuPointerGetAttribute(
    data: *mut c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Answer {
    let mut sim = sim::lock();
    let facts = facts(&mut sim, address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    tell(&facts, data, attribute, address)
}

fn tell(facts: &Facts, data: *mut c_void, attribute: CUpointer_attribute, address: u64) -> Answer {
    let flag = |is: bool| put(data.cast(), c_uint::from(is));
    match attribute {
        CU_POINTER_ATTRIBUTE_CONTEXT => put(data.cast(), facts.context),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            put(data.cast(), if facts.is_host { CU_MEMORYTYPE_HOST } else { CU_MEMORYTYPE_DEVICE })
        }
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER => put(data.cast(), address),
        CU_POINTER_ATTRIBUTE_HOST_POINTER if facts.is_host || facts.is_managed => put(data.cast(), address),
        CU_POINTER_ATTRIBUTE_SYNC_MEMOPS => flag(facts.sync_memops),
        CU_POINTER_ATTRIBUTE_BUFFER_ID | CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
            put(data.cast(), facts.unique)
        }
        CU_POINTER_ATTRIBUTE_IS_MANAGED => flag(facts.is_managed),
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(data.cast(), facts.device),
        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => flag(facts.has_ipc),
        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put(data.cast(), facts.start),
        CU_POINTER_ATTRIBUTE_RANGE_SIZE => put(data.cast(), facts.bytes as usize),
        CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => put(data.cast(), facts.mapping.0),
        CU_POINTER_ATTRIBUTE_MAPPING_SIZE => put(data.cast(), facts.mapping.1 as usize),
        CU_POINTER_ATTRIBUTE_MAPPED => flag(true),
        CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => put(data.cast(), u64::from(facts.handle_types)),
        CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE => flag(facts.is_for_rdma),
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => put(data.cast(), facts.access),
        CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => put(data.cast(), facts.pool),
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// "Unlike cuPointerGetAttribute, this function will not return an error when the ptr encountered is not a valid
/// CUDA pointer. Instead, the attributes are assigned default NULL values and CUDA_SUCCESS is returned."
pub(crate) fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *mut CUpointer_attribute,
    data: *mut *mut c_void,
    address: CUdeviceptr,
) -> Answer {
    let mut sim = sim::lock();
    let facts = facts(&mut sim, address);
    let attributes = get_all(attributes.cast_const(), count as usize)?;
    for (attribute, place) in attributes.into_iter().zip(get_all(data.cast_const(), count as usize)?) {
        let told = facts.as_ref().map(|facts| tell(facts, place, attribute, address));
        if told != Some(Ok(())) {
            none(place, attribute)?;
        }
    }
    Ok(())
}

/// Writes the "default NULL values". -2 is the ordinal of no device.
fn none(place: *mut c_void, attribute: CUpointer_attribute) -> Answer {
    match attribute {
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(place.cast::<c_int>(), -2),
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        | CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | CU_POINTER_ATTRIBUTE_IS_MANAGED
        | CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | CU_POINTER_ATTRIBUTE_MAPPED
        | CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => put(place.cast::<c_uint>(), 0),
        _ => put(place.cast::<u64>(), 0),
    }
}

pub(crate) fn cuPointerSetAttribute(
    value: *const c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Answer {
    let mut sim = sim::lock();
    if attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let is_set = get(value.cast::<c_uint>())? != 0;
    let (start, _) = sim.find(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if let Some(there) = sim.allocations.get_mut(&start) {
        there.sync_memops = is_set;
    }
    Ok(())
}
