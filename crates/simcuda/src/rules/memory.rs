//! Memory other than virtual memory, from `cuMemAlloc` and related functions.

use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, CUdevice};

use crate::abi::Answer;
use crate::options::{Choice, POISON_FILL};
use crate::sim::Sim;
use crate::state::arena::{ALIGNMENT, Arena};
use crate::state::memory::{Allocation, Origin};
use crate::system::{self, PAGE, round_up};

impl Sim {
    /// Returns the arena of a device, which is created at its first use.
    fn arena(&mut self, device: CUdevice) -> Answer<&mut Arena> {
        let index = device as usize;
        if self.arenas.len() <= index {
            self.arenas.resize_with(index + 1, || None);
        }
        let capacity = self.options.memory;
        let slot = &mut self.arenas[index];
        // A test may have configured a larger device since.
        if slot.as_ref().is_none_or(|arena| !arena.holds(capacity))
            && let Some(old) = slot.take()
        {
            old.end();
        }
        if slot.is_none() {
            *slot = Arena::new(index, capacity);
        }
        slot.as_mut().ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Allocates memory of a device.
    pub(crate) fn allocate(
        &mut self,
        device: CUdevice,
        context: u64,
        bytes: u64,
        origin: Origin,
    ) -> Answer<u64> {
        let (at, span) = self.take_device(device, bytes)?;
        self.add_allocation(at, device, context, bytes, origin, span);
        Ok(at)
    }

    /// Allocates addresses with memory of a device, which then counts as used. Returns the address and the
    /// pages.
    pub(crate) fn take_device(&mut self, device: CUdevice, bytes: u64) -> Answer<(u64, (u64, u64))> {
        let charge = round_up(bytes, ALIGNMENT);
        self.charge(device, charge)?;
        let taken = self.take_addresses(device, bytes);
        if taken.is_err() {
            self.device(device)?.uncharge(charge);
        }
        taken
    }

    /// Counts memory of a device as used, if there is enough.
    pub(crate) fn charge(&mut self, device: CUdevice, bytes: u64) -> Answer {
        let there = self.device(device)?;
        if there.free() < bytes {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        there.charge(bytes);
        Ok(())
    }

    /// Allocates addresses of a device's range, without counting memory.
    pub(crate) fn take_addresses(&mut self, device: CUdevice, bytes: u64) -> Answer<(u64, (u64, u64))> {
        let reuse = self.options.is_on(Choice::ReuseAddresses);
        self.arena(device)?.take(bytes, reuse).ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Frees memory of a device with its addresses.
    pub(crate) fn give_device_back(&mut self, device: CUdevice, bytes: u64, span: (u64, u64)) {
        if let Ok(there) = self.device(device) {
            there.uncharge(bytes);
        }
        self.give_addresses_back(device, span);
    }

    pub(crate) fn give_addresses_back(&mut self, device: CUdevice, span: (u64, u64)) {
        self.forget_touched(span.0, span.1);
        let fill = self.options.get(Choice::Poison) == POISON_FILL;
        if let Some(Some(arena)) = self.arenas.get_mut(device as usize) {
            arena.give_back(span, fill);
        }
    }

    pub(crate) fn add_allocation(
        &mut self,
        at: u64,
        device: CUdevice,
        context: u64,
        bytes: u64,
        origin: Origin,
        span: (u64, u64),
    ) -> u64 {
        let unique = self.number();
        let allocation =
            Allocation { bytes, origin, device, context, span, unique, is_ending: false, sync_memops: false };
        self.allocations.insert(at, allocation);
        unique
    }

    /// Allocates host memory that the device can access.
    pub(crate) fn allocate_host(&mut self, context: u64, bytes: u64, flags: u32) -> Answer<u64> {
        let device = self.contexts[&context].device();
        let pages = round_up(bytes, PAGE);
        let at = system::host_memory(pages).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.add_allocation(at, device, context, bytes, Origin::Host(flags), (at, pages));
        Ok(at)
    }

    /// Ends an allocation of any kind.
    pub(crate) fn release(&mut self, at: u64) {
        let Some(&Allocation { bytes, origin, device, span, .. }) = self.allocations.get(&at) else { return };
        match origin {
            Origin::Pool(_) => return self.return_to_pool(at, None),
            // The allocation belongs to its graph, which ends it.
            Origin::Graph => return,
            Origin::Host(_) | Origin::Imported { .. } => {
                self.forget_touched(span.0, span.1);
                system::unreserve(span.0, span.1)
            }
            Origin::Plain | Origin::Managed => {
                self.give_device_back(device, round_up(bytes, ALIGNMENT), span)
            }
            Origin::Registered(_) => self.forget_touched(at, bytes),
        }
        self.allocations.remove(&at);
    }

    /// Returns the allocation that contains an address, and its start.
    pub(crate) fn find(&self, at: u64) -> Option<(u64, &Allocation)> {
        let (start, allocation) = self.allocations.range(..=at).next_back()?;
        (at - start < allocation.bytes).then_some((*start, allocation))
    }

    /// Returns whether an address belongs to a device, allocated or not.
    pub(crate) fn is_device_address(&self, at: u64) -> bool {
        let in_arena = self.arenas.iter().flatten().any(|arena| arena.contains(at));
        let reserved = self.reservations.range(..=at).next_back();
        let imported = matches!(self.find(at), Some((_, Allocation { origin: Origin::Imported { .. }, .. })));
        in_arena || imported || reserved.is_some_and(|(start, range)| at - start < range.bytes)
    }
}
