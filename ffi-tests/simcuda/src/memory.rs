//! Memory that is no virtual memory: what `cuMemAlloc` and its relatives gave.

use std::ffi::c_int;

use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, CUdevice};

use crate::abi::Answer;
use crate::arena::{ALIGNMENT, Arena};
use crate::options::{Choice, POISON_FILL};
use crate::sim::Sim;
use crate::system::{self, PAGE, round_up};

/// How memory came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// `cuMemAlloc`, `cuMemAllocPitch`.
    Plain,
    Managed,
    /// `cuMemAllocAsync`, from a pool.
    Pool(u64),
    /// `cuMemAllocHost`, `cuMemHostAlloc`, with its flags.
    Host(u32),
    /// `cuMemHostRegister`: the program's own memory.
    Registered(u32),
    /// Another process's, opened that often.
    Imported {
        opened: u64,
        key: [u64; 3],
    },
}

/// A live allocation.
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    pub(crate) origin: Origin,
    pub(crate) device: CUdevice,
    /// The context that it ends with; 0 for memory that belongs to none.
    pub(crate) context: u64,
    /// The pages it lies in.
    pub(crate) span: (u64, u64),
    /// Unique in this process (CU_POINTER_ATTRIBUTE_BUFFER_ID).
    pub(crate) unique: u64,
    /// cuMemFreeAsync was called and its turn has not come.
    pub(crate) is_ending: bool,
    pub(crate) sync_memops: bool,
}

/// A memory pool. Kept simple: memory goes back to the device as soon as its free's turn has come, whatever the
/// release threshold.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) device: CUdevice,
    pub(crate) is_default: bool,
    pub(crate) is_destroyed: bool,
    pub(crate) threshold: u64,
    pub(crate) reuse: [c_int; 3],
    pub(crate) used: u64,
    pub(crate) high: u64,
}

impl Sim {
    /// The arena of a device, made at its first use.
    fn arena(&mut self, device: CUdevice) -> Answer<&mut Arena> {
        let index = device as usize;
        if self.arenas.len() <= index {
            self.arenas.resize_with(index + 1, || None);
        }
        let capacity = self.options.memory;
        let slot = &mut self.arenas[index];
        // A test may have configured a larger device since.
        if slot.as_ref().is_none_or(|arena| arena.bytes < capacity + PAGE)
            && let Some(old) = slot.take()
        {
            system::unreserve(old.base, old.bytes);
            system::close(old.file);
        }
        if slot.is_none() {
            *slot = Arena::new(index, capacity);
        }
        slot.as_mut().ok_or(CUDA_ERROR_OUT_OF_MEMORY)
    }

    /// Takes memory of a device.
    pub(crate) fn allocate(
        &mut self,
        device: CUdevice,
        context: u64,
        bytes: u64,
        origin: Origin,
    ) -> Answer<u64> {
        let charge = round_up(bytes, ALIGNMENT);
        let there = self.device(device)?;
        if there.capacity.saturating_sub(there.used) < charge {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let reuse = self.options.is_on(Choice::ReuseAddresses);
        let taken = self.arena(device)?.take(bytes, reuse);
        let (at, span) = taken.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.device(device)?.used += charge;
        self.add_allocation(at, device, context, bytes, origin, span);
        Ok(at)
    }

    pub(crate) fn add_allocation(
        &mut self,
        at: u64,
        device: CUdevice,
        context: u64,
        bytes: u64,
        origin: Origin,
        span: (u64, u64),
    ) {
        let unique = self.number();
        let allocation =
            Allocation { bytes, origin, device, context, span, unique, is_ending: false, sync_memops: false };
        self.allocations.insert(at, allocation);
    }

    /// Takes memory of the host that the device can reach.
    pub(crate) fn allocate_host(&mut self, context: u64, bytes: u64, flags: u32) -> Answer<u64> {
        let device = self.contexts[&context].device;
        let pages = round_up(bytes, PAGE);
        let at = system::host_memory(pages).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.add_allocation(at, device, context, bytes, Origin::Host(flags), (at, pages));
        Ok(at)
    }

    /// Ends an allocation, whatever its kind.
    pub(crate) fn release(&mut self, at: u64) {
        let Some(allocation) = self.allocations.remove(&at) else { return };
        let charge = round_up(allocation.bytes, ALIGNMENT);
        match allocation.origin {
            Origin::Registered(_) => return,
            Origin::Host(_) | Origin::Imported { .. } => {
                return system::unreserve(allocation.span.0, allocation.span.1);
            }
            Origin::Pool(pool) => self.leave_pool(pool, allocation.bytes),
            Origin::Plain | Origin::Managed => (),
        }
        let fill = self.options.get(Choice::Poison) == POISON_FILL;
        if let Ok(device) = self.device(allocation.device) {
            device.used -= charge;
        }
        if let Some(Some(arena)) = self.arenas.get_mut(allocation.device as usize) {
            arena.give_back(allocation.span, fill);
        }
    }

    fn leave_pool(&mut self, handle: u64, bytes: u64) {
        let Some(pool) = self.pools.get_mut(&handle) else { return };
        pool.used -= bytes;
        if pool.is_destroyed && pool.used == 0 {
            self.pools.remove(&handle);
        }
    }

    /// The allocation that an address lies in, and its start.
    pub(crate) fn find(&self, at: u64) -> Option<(u64, &Allocation)> {
        let (start, allocation) = self.allocations.range(..=at).next_back()?;
        (at - start < allocation.bytes).then_some((*start, allocation))
    }

    /// Whether an address belongs to a device, allocated or not.
    pub(crate) fn is_device_address(&self, at: u64) -> bool {
        let in_arena = self.arenas.iter().flatten().any(|arena| arena.contains(at));
        let reserved = self.reservations.range(..=at).next_back();
        let imported = matches!(self.find(at), Some((_, Allocation { origin: Origin::Imported { .. }, .. })));
        in_arena || imported || reserved.is_some_and(|(start, range)| at - start < range.bytes)
    }

    /// Whether work on a device may touch a range; if not, why. An address that is no device's is the host's,
    /// and taken on trust where `host` says that the host's memory will do.
    pub(crate) fn may_access(
        &self,
        device: CUdevice,
        at: u64,
        bytes: u64,
        writes: bool,
        host: bool,
    ) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        let end = at.checked_add(bytes).ok_or_else(|| format!("{at:#x} and {bytes} bytes overflow"))?;
        if let Some((start, allocation)) = self.find(at) {
            if end - start > allocation.bytes {
                return Err(format!("{at:#x} and {bytes} bytes go beyond the end of {start:#x}"));
            }
            let is_devices = matches!(allocation.origin, Origin::Plain | Origin::Pool(_));
            if is_devices && !self.may_touch(device, allocation.device) {
                return Err(format!("{at:#x} is of device {}, no peer of {device}", allocation.device));
            }
            return Ok(());
        }
        match self.is_mapped(device, at, end, writes) {
            Ok(true) => Ok(()),
            Err(why) => Err(why),
            Ok(false) if self.is_device_address(at) || !host => Err(format!("{at:#x} is not allocated")),
            Ok(false) => Ok(()),
        }
    }
}
