//! Virtual memory management: physical memory behind handles, reserved addresses, and mappings of one at the
//! other.

use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, CUdevice};

use crate::abi::Answer;
use crate::handles::Kind;
use crate::options::{Choice, ENDS_MAPPINGS, ENDS_RANGES};
use crate::sim::Sim;
use crate::state::physical::{Mapping, Physical, Place, Reservation, Store};
use crate::system::{self, Access};

/// Reserved addresses are above all arenas.
const FIRST: u64 = 0x6000_0000_0000;

impl Sim {
    /// Returns attribute 110. SIMCUDA_VMM=2 is a device without it.
    pub(crate) fn has_rdma_flag(&self) -> bool {
        self.options.get(Choice::Vmm) == 1
    }

    /// Allocates physical memory, which then counts as used.
    pub(crate) fn create_physical(
        &mut self,
        device: CUdevice,
        bytes: u64,
        handle_types: u32,
        is_for_rdma: bool,
    ) -> Answer<u64> {
        if self.device(device)?.free() < bytes {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let place = if handle_types == 0 {
            self.store(device)?.take(bytes)
        } else {
            system::memory_file(bytes).map(Place::whole)
        };
        let place = place.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.device(device)?.charge(bytes);
        Ok(self.add_physical(Physical::new(device, bytes, place, handle_types, is_for_rdma)))
    }

    pub(crate) fn add_physical(&mut self, physical: Physical) -> u64 {
        let handle = self.handle(Kind::Physical);
        self.physical.insert(handle, physical);
        handle
    }

    fn store(&mut self, device: CUdevice) -> Answer<&mut Store> {
        let index = device as usize;
        if self.stores.len() <= index {
            self.stores.resize_with(index + 1, || None);
        }
        let slot = &mut self.stores[index];
        if slot.is_none() {
            *slot = Store::new();
        }
        slot.as_mut().ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Frees physical memory that is neither referenced nor mapped.
    pub(crate) fn drop_physical(&mut self, handle: u64) {
        if !self.physical.get(&handle).is_some_and(Physical::is_unused) {
            return;
        }
        let Some(physical) = self.physical.remove(&handle) else { return };
        self.retire(Kind::Physical, handle);
        if !physical.is_imported()
            && let Ok(device) = self.device(physical.device())
        {
            device.uncharge(physical.bytes());
        }
        let store = self.stores.get_mut(physical.device() as usize).and_then(Option::as_mut);
        physical.end(store);
    }

    /// Reserves addresses.
    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64, hint: u64) -> Answer<u64> {
        let taken = self.reservations.last_key_value();
        let behind = taken.map_or(FIRST, |(at, reservation)| at + reservation.bytes);
        let wish = if hint != 0 { hint } else { behind.max(FIRST) };
        let room = bytes.checked_add(alignment).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let got = system::reserve(system::round_up(wish, alignment), room).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        // The excess before and after is freed.
        let at = system::round_up(got, alignment);
        if at > got {
            system::unreserve(got, at - got);
        }
        let rest = got + room - (at + bytes);
        if rest > 0 {
            system::unreserve(at + bytes, rest);
        }
        self.reservations.insert(at, Reservation { bytes });
        Ok(at)
    }

    /// Returns the reservation that contains a range.
    pub(crate) fn reservation_of(&self, at: u64, bytes: u64) -> Option<u64> {
        let (start, reservation) = self.reservations.range(..=at).next_back()?;
        let end = at.checked_add(bytes)?;
        (end - start <= reservation.bytes).then_some(*start)
    }

    /// Returns the mapping that contains an address, and its start.
    pub(crate) fn mapping_at(&self, at: u64) -> Option<(u64, &Mapping)> {
        let (start, mapping) = self.mappings.range(..=at).next_back()?;
        (at - start < mapping.bytes()).then_some((*start, mapping))
    }

    /// Returns whether any mapping overlaps a range.
    pub(crate) fn is_any_mapped(&self, at: u64, bytes: u64) -> bool {
        let before = self.mappings.range(..at + bytes).next_back();
        before.is_some_and(|(start, mapping)| start + mapping.bytes() > at)
    }

    /// Returns the mappings that make up a range exactly, without gaps. None if they do not.
    pub(crate) fn mappings_of(&self, at: u64, bytes: u64) -> Option<Vec<u64>> {
        let mut found = Vec::new();
        let end = at.checked_add(bytes)?;
        let mut next = at;
        while next < end {
            let mapping = self.mappings.get(&next)?;
            found.push(next);
            next += mapping.bytes();
        }
        (next == end).then_some(found)
    }

    /// Maps physical memory, without access for any device.
    pub(crate) fn add_mapping(&mut self, at: u64, bytes: u64, offset: u64, handle: u64) -> Answer {
        let physical = self.physical.get_mut(&handle).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        if !physical.map(at, bytes, offset) {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        self.mappings.insert(at, Mapping::new(bytes, handle));
        Ok(())
    }

    /// Unmaps the mapping at an address, which becomes reserved again.
    pub(crate) fn remove_mapping(&mut self, at: u64) {
        let Some(mapping) = self.mappings.remove(&at) else { return };
        self.forget_touched(at, mapping.bytes());
        system::unmap_to_reserved(at, mapping.bytes());
        if let Some(physical) = self.physical.get_mut(&mapping.handle()) {
            physical.unmap();
        }
        self.drop_physical(mapping.handle());
    }

    /// Ends virtual memory with a device's primary context, if the option is set: the device's physical memory,
    /// wherever it is mapped, and the reserved ranges.
    pub(crate) fn end_virtual_memory(&mut self, device: CUdevice) {
        let ends = self.options.get(Choice::ResetEnds);
        if ends < ENDS_MAPPINGS {
            return;
        }
        let handles = self.physical.iter().filter(|(_, physical)| physical.device() == device);
        for handle in handles.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            let mapped = self.mappings.iter().filter(|(_, mapping)| mapping.handle() == handle);
            for at in mapped.map(|(at, _)| *at).collect::<Vec<_>>() {
                self.remove_mapping(at);
            }
            if let Some(physical) = self.physical.get_mut(&handle) {
                physical.forget_references();
            }
            self.drop_physical(handle);
        }
        if ends >= ENDS_RANGES {
            for (at, reservation) in std::mem::take(&mut self.reservations) {
                system::unreserve(at, reservation.bytes);
            }
        }
    }

    /// Sets the access of a device to a mapping. The host gets the widest access of all devices, because the simulated
    /// devices run on the host.
    pub(crate) fn set_access(&mut self, at: u64, device: CUdevice, access: Access) -> bool {
        let Some(mapping) = self.mappings.get_mut(&at) else { return false };
        let most = mapping.set_access(device, access);
        system::protect(at, mapping.bytes(), most)
    }

    /// Returns whether a range is virtual memory that a device may access. False if it begins in no mapping.
    pub(crate) fn is_mapped(
        &self,
        device: CUdevice,
        at: u64,
        end: u64,
        writes: bool,
    ) -> Result<bool, String> {
        let mut next = at;
        while next < end {
            let there = self.mappings.range(..=next).next_back();
            let Some((start, mapping)) = there.filter(|(start, mapping)| next - **start < mapping.bytes())
            else {
                return match next == at {
                    true => Ok(false),
                    false => Err(format!("{next:#x} is not mapped, {at:#x} is")),
                };
            };
            let access = mapping.access_of(device);
            if access == Access::None || (writes && access != Access::Write) {
                return Err(format!("device {device} has access {access:?} to what is mapped at {start:#x}"));
            }
            next = start + mapping.bytes();
        }
        Ok(true)
    }
}
