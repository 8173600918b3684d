//! Virtual memory management.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_ulonglong, c_void};

use cuda_sys::*;

use crate::abi::{Answer, get, get_all, put};
use crate::handles::Kind;
use crate::options::Choice;
use crate::sim::{self, Guard, Sim};
use crate::state::physical::Physical;
use crate::system::{self, Access, PAGE};

/// Returns the state, if the option gives devices this feature. cuda.h does not specify whether a capture permits these
/// calls. Because the capture cannot observe them, they count as potentially unsafe.
fn open() -> Answer<Guard> {
    let mut sim = sim::lock();
    if !sim.options.is_on(Choice::Vmm) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    sim.forbid_unsafe()?;
    Ok(sim)
}

impl Sim {
    fn granularity(&self) -> u64 {
        self.options.get(Choice::Granularity) as u64
    }

    /// Checks that addresses and sizes are whole granules.
    fn whole(&self, numbers: &[u64]) -> Answer {
        let granularity = self.granularity();
        match numbers.iter().all(|number| number.is_multiple_of(granularity)) {
            true => Ok(()),
            false => Err(CUDA_ERROR_INVALID_VALUE),
        }
    }

    fn known(&mut self, handle: u64) -> Answer<&mut Physical> {
        let is_known = self.physical.get(&handle).is_some_and(|physical| physical.is_referenced());
        if !is_known {
            self.stale(Kind::Physical, handle);
        }
        self.physical.get_mut(&handle).filter(|_| is_known).ok_or(CUDA_ERROR_INVALID_VALUE)
    }
}

/// Returns the contents of properties: the device, the handle types for export, and whether the memory is for GPUDirect
/// RDMA. Only pinned memory of a device is simulated. The flag for RDMA is refused unless attribute 110 reports that
/// the "Device supports specifying the GPUDirect RDMA flag with cuMemCreate".
fn wanted(sim: &mut Sim, properties: *const CUmemAllocationProp) -> Answer<(CUdevice, u32, bool)> {
    let properties = get(properties)?;
    let types = properties.requestedHandleTypes;
    let is_ours = properties.type_ == CU_MEM_ALLOCATION_TYPE_PINNED
        && properties.location.type_ == CU_MEM_LOCATION_TYPE_DEVICE;
    let is_for_rdma = properties.allocFlags.gpuDirectRDMACapable != 0;
    if !is_ours
        || types & !CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR != 0
        || is_for_rdma && !sim.has_rdma_flag()
    {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.device(properties.location.id)?;
    Ok((properties.location.id, types, is_for_rdma))
}

pub(crate) fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    properties: *const CUmemAllocationProp,
    option: CUmemAllocationGranularity_flags,
) -> Answer {
    let mut sim = sim::lock();
    if !sim.options.is_on(Choice::Vmm) {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    wanted(&mut sim, properties)?;
    match option {
        CU_MEM_ALLOC_GRANULARITY_MINIMUM | CU_MEM_ALLOC_GRANULARITY_RECOMMENDED => {
            put(granularity, sim.granularity() as usize)
        }
        _ => Err(CUDA_ERROR_INVALID_VALUE),
    }
}

/// cuda.h requires sizes and hints to be multiples of the host's page. Drivers are assumed to require whole granules.
pub(crate) fn cuMemAddressReserve(
    address: *mut CUdeviceptr,
    size: usize,
    alignment: usize,
    hint: CUdeviceptr,
    flags: c_ulonglong,
) -> Answer {
    let mut sim = open()?;
    let size = size as u64;
    sim.whole(&[size])?;
    let is_alignment = alignment == 0 || alignment.is_power_of_two();
    if address.is_null() || size == 0 || flags != 0 || !is_alignment || !hint.is_multiple_of(PAGE) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let alignment = (alignment as u64).max(sim.granularity());
    let at = sim.reserve(size, alignment, hint)?;
    put(address, at)
}

/// "The size must match what was given to memAddressReserve". Nothing may be mapped there any more.
pub(crate) fn cuMemAddressFree(address: CUdeviceptr, size: usize) -> Answer {
    let mut sim = open()?;
    let size = size as u64;
    if sim.reservations.get(&address).is_none_or(|reservation| reservation.bytes != size)
        || sim.is_any_mapped(address, size)
    {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.reservations.remove(&address);
    system::unreserve(address, size);
    Ok(())
}

pub(crate) fn cuMemCreate(
    handle: *mut CUmemGenericAllocationHandle,
    size: usize,
    properties: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> Answer {
    let mut sim = open()?;
    let (device, types, is_for_rdma) = wanted(&mut sim, properties)?;
    sim.whole(&[size as u64])?;
    if handle.is_null() || size == 0 || flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let created = sim.create_physical(device, size as u64, types, is_for_rdma)?;
    put(handle, created)
}

/// "The generic memory handle can be freed when there are still outstanding mappings made with this handle."
pub(crate) fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> Answer {
    let mut sim = open()?;
    sim.known(handle)?.release();
    sim.drop_physical(handle);
    Ok(())
}

/// "cuMemMap can only create mappings on VA range reservations that are not currently mapped". The offset "currently
/// must be zero".
pub(crate) fn cuMemMap(
    address: CUdeviceptr,
    size: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> Answer {
    let mut sim = open()?;
    let size = size as u64;
    sim.whole(&[address, size])?;
    let bytes = sim.known(handle)?.bytes();
    if size == 0 || offset != 0 || flags != 0 || size > bytes {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if sim.reservation_of(address, size).is_none() || sim.is_any_mapped(address, size) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.add_mapping(address, size, 0, handle)
}

/// "The range must be the entire contiguous address range that was mapped to. In other words, cuMemUnmap cannot unmap a
/// sub-range". Several whole adjacent mappings are accepted together, as drivers are assumed to do. Queued work is not
/// waited for: if it accesses the range later, that is a misuse and an illegal address.
pub(crate) fn cuMemUnmap(address: CUdeviceptr, size: usize) -> Answer {
    let mut sim = open()?;
    let mappings = sim.mappings_of(address, size as u64);
    let mappings = mappings.filter(|found| !found.is_empty()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    sim.check_host_free(address, size as u64, "unmapping");
    for at in mappings {
        sim.remove_mapping(at);
    }
    Ok(())
}

/// "The range must be a fully mapped address range containing all allocations created by cuMemMap".
pub(crate) fn cuMemSetAccess(
    address: CUdeviceptr,
    size: usize,
    descriptions: *const CUmemAccessDesc,
    count: usize,
) -> Answer {
    let mut sim = open()?;
    let mappings = sim.mappings_of(address, size as u64);
    let mappings = mappings.filter(|found| !found.is_empty()).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let mut settings = Vec::new();
    for description in get_all(descriptions, count)? {
        let access = match description.flags {
            CU_MEM_ACCESS_FLAGS_PROT_NONE => Access::None,
            CU_MEM_ACCESS_FLAGS_PROT_READ => Access::Read,
            CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Access::Write,
            _ => return Err(CUDA_ERROR_INVALID_VALUE),
        };
        if description.location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        sim.device(description.location.id)?;
        settings.push((description.location.id, access));
    }
    if settings.is_empty() || !can_reach(&sim, &mappings, &settings) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    for at in mappings {
        for (device, access) in &settings {
            if !sim.set_access(at, *device, *access) {
                return Err(CUDA_ERROR_OUT_OF_MEMORY);
            }
        }
    }
    Ok(())
}

/// Returns whether each device of the settings can access the mapped memory: its own, or that of a device that it can
/// access as a peer.
fn can_reach(sim: &Sim, mappings: &[u64], settings: &[(CUdevice, Access)]) -> bool {
    let owner = |at: &u64| {
        let handle = sim.mappings.get(at)?.handle();
        Some(sim.physical.get(&handle)?.device())
    };
    let owners: BTreeSet<CUdevice> = mappings.iter().filter_map(owner).collect();
    let reaches =
        |device: CUdevice| owners.iter().all(|owner| *owner == device || sim.can_access_peer(device, *owner));
    settings.iter().all(|(device, _)| reaches(*device))
}

pub(crate) fn cuMemGetAccess(
    flags: *mut c_ulonglong,
    location: *const CUmemLocation,
    address: CUdeviceptr,
) -> Answer {
    let sim = sim::lock();
    let location = get(location)?;
    let (_, mapping) = sim.mapping_at(address).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    put(
        flags,
        match mapping.access_of(location.id) {
            Access::None => CU_MEM_ACCESS_FLAGS_PROT_NONE,
            Access::Read => CU_MEM_ACCESS_FLAGS_PROT_READ,
            Access::Write => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
        .into(),
    )
}

pub(crate) fn cuMemGetAllocationPropertiesFromHandle(
    properties: *mut CUmemAllocationProp,
    handle: CUmemGenericAllocationHandle,
) -> Answer {
    let mut sim = sim::lock();
    let physical = sim.known(handle)?;
    let location = CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: physical.device() };
    let found = CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: physical.handle_types(),
        location,
        allocFlags: CUmemAllocationPropFlags {
            gpuDirectRDMACapable: physical.is_for_rdma().into(),
            ..CUmemAllocationPropFlags::default()
        },
        ..CUmemAllocationProp::default()
    };
    put(properties, found)
}

/// "The address addr, can be any address in a range previously mapped by cuMemMap".
pub(crate) fn cuMemRetainAllocationHandle(
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> Answer {
    let mut sim = open()?;
    let found = sim.mapping_at(address.addr() as u64).map(|(_, mapping)| mapping.handle());
    let found = found.ok_or(CUDA_ERROR_INVALID_VALUE)?;
    put(handle, found)?;
    let physical = sim.physical.get_mut(&found).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    physical.retain();
    Ok(())
}

pub(crate) fn cuMemExportToShareableHandle(
    shareable: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> Answer {
    let mut sim = open()?;
    let physical = sim.known(handle)?;
    if flags != 0 || kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || physical.handle_types() & kind == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let file = system::duplicate(physical.file()).ok_or(CUDA_ERROR_OPERATING_SYSTEM)?;
    put(shareable.cast::<c_int>(), file)
}

/// The file is passed as a pointer-sized number. The memory counts in the process that created it.
pub(crate) fn cuMemImportFromShareableHandle(
    handle: *mut CUmemGenericAllocationHandle,
    shareable: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> Answer {
    let mut sim = open()?;
    if handle.is_null() || kind != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let file = c_int::try_from(shareable.addr()).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    let bytes = system::size(file).filter(|bytes| *bytes > 0).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    let file = system::duplicate(file).ok_or(CUDA_ERROR_OPERATING_SYSTEM)?;
    // The file does not identify the device. Any simulated device is equivalent.
    let imported = sim.add_physical(Physical::imported(0, bytes, file, kind));
    put(handle, imported)
}
