//! Physical memory, reserved addresses, and mappings of one at the other. A device's physical memory is a memory file,
//! and a mapping is a mapping of it, so remapping is real.

use std::collections::BTreeMap;
use std::ffi::c_int;

use cuda_sys::CUdevice;

use crate::system::{self, Access};

/// The physical memory of a device.
pub(crate) struct Store {
    file: c_int,
    /// The parts of the file in use: offset and bytes.
    parts: BTreeMap<u64, u64>,
}

impl Store {
    /// Creates an empty store. Returns None if the system refuses.
    pub(crate) fn new() -> Option<Self> {
        system::memory_file(0).map(|file| Self { file, parts: BTreeMap::new() })
    }

    pub(crate) fn take(&mut self, bytes: u64) -> Option<Place> {
        let mut offset = 0;
        for (start, part) in &self.parts {
            if start - offset >= bytes {
                break;
            }
            offset = start + part;
        }
        if system::size(self.file)? < offset + bytes && !system::resize(self.file, offset + bytes) {
            return None;
        }
        self.parts.insert(offset, bytes);
        Some(Place { file: self.file, offset })
    }

    fn give_back(&mut self, offset: u64, bytes: u64) {
        self.parts.remove(&offset);
        system::punch(self.file, offset, bytes);
    }
}

/// The location of physical memory: in the device's file, or in a file of its own if the memory can be exported.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    file: c_int,
    offset: u64,
}

impl Place {
    /// Returns the place that is a whole file.
    pub(crate) fn whole(file: c_int) -> Self {
        Self { file, offset: 0 }
    }
}

/// An allocation of physical memory. It counts until it is released and unmapped (cuMemRelease in cuda.h).
pub(crate) struct Physical {
    device: CUdevice,
    bytes: u64,
    place: Place,
    handle_types: u32,
    /// gpuDirectRDMACapable.
    is_for_rdma: bool,
    /// References of the program to the handle.
    references: u64,
    mappings: u64,
    /// Whether it is counted by another process.
    is_imported: bool,
}

impl Physical {
    /// Creates memory with the program's first reference to it.
    pub(crate) fn new(
        device: CUdevice,
        bytes: u64,
        place: Place,
        handle_types: u32,
        is_for_rdma: bool,
    ) -> Self {
        let (references, mappings, is_imported) = (1, 0, false);
        Self { device, bytes, place, handle_types, is_for_rdma, references, mappings, is_imported }
    }

    /// Creates memory imported from another process.
    pub(crate) fn imported(device: CUdevice, bytes: u64, file: c_int, handle_types: u32) -> Self {
        let own = Self::new(device, bytes, Place::whole(file), handle_types, false);
        Self { is_imported: true, ..own }
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn file(&self) -> c_int {
        self.place.file
    }

    pub(crate) fn handle_types(&self) -> u32 {
        self.handle_types
    }

    pub(crate) fn is_for_rdma(&self) -> bool {
        self.is_for_rdma
    }

    pub(crate) fn is_imported(&self) -> bool {
        self.is_imported
    }

    /// Returns whether the program holds the handle.
    pub(crate) fn is_referenced(&self) -> bool {
        self.references > 0
    }

    pub(crate) fn retain(&mut self) {
        self.references += 1;
    }

    pub(crate) fn release(&mut self) {
        self.references -= 1;
    }

    /// Drops all references at once.
    pub(crate) fn forget_references(&mut self) {
        self.references = 0;
    }

    /// Returns whether it is neither referenced nor mapped.
    pub(crate) fn is_unused(&self) -> bool {
        self.references == 0 && self.mappings == 0
    }

    /// Maps it at reserved addresses, starting at an offset. Returns false if the system refuses.
    pub(crate) fn map(&mut self, at: u64, bytes: u64, offset: u64) -> bool {
        let Place { file, offset: begin } = self.place;
        let is_mapped = system::map(at, bytes, file, begin + offset, Access::None).is_some();
        self.mappings += u64::from(is_mapped);
        is_mapped
    }

    /// Records that one of its mappings has ended.
    pub(crate) fn unmap(&mut self) {
        self.mappings -= 1;
    }

    /// Frees its memory, to the device's store if it is from there.
    pub(crate) fn end(self, store: Option<&mut Store>) {
        match store {
            Some(store) if store.file == self.place.file => store.give_back(self.place.offset, self.bytes),
            _ => system::close(self.place.file),
        }
    }
}

/// Addresses of cuMemAddressReserve.
pub(crate) struct Reservation {
    pub(crate) bytes: u64,
}

/// Physical memory at an address.
pub(crate) struct Mapping {
    bytes: u64,
    handle: u64,
    /// The access of each device. None at first.
    access: BTreeMap<CUdevice, Access>,
}

impl Mapping {
    pub(crate) fn new(bytes: u64, handle: u64) -> Self {
        Self { bytes, handle, access: BTreeMap::new() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the handle of the physical memory.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns the access of a device.
    pub(crate) fn access_of(&self, device: CUdevice) -> Access {
        self.access.get(&device).copied().unwrap_or(Access::None)
    }

    /// Sets the access of a device. Returns the widest access of all devices.
    pub(crate) fn set_access(&mut self, device: CUdevice, access: Access) -> Access {
        self.access.insert(device, access);
        let rank = |access: &Access| match access {
            Access::None => 0,
            Access::Read => 1,
            Access::Write => 2,
        };
        self.access.values().copied().max_by_key(rank).unwrap_or(Access::None)
    }
}
