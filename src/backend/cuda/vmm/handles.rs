//! The physical memory of a range as handles: mapped, kept for another place, or waiting to be released.

use super::notices::{Notice, Notices};
use crate::backend::cuda::Cuda;
use crate::backend::cuda::calls::{self, Failure};
use bfc_hostmem::HostMemoryExhausted;
use bfc_hostmem::LazyTable;
use cuda_sys::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OUT_OF_MEMORY,
    CUmemGenericAllocationHandle as Handle, Driver,
};

/// Handles of a granule's size. Each has a place of its own.
pub(super) struct Handles {
    /// For each granule of the range, the place of its handle plus 1.
    pub(super) places: LazyTable,
    handles: Vec<Handle>,
    /// Vacant places of `handles`.
    vacant: Vec<u32>,
    /// Places of handles that are not mapped and kept for `attach`.
    pub(super) kept: Vec<u32>,
    /// Places of handles that could not be released yet. New granules use these first.
    pub(super) unwanted: Vec<u32>,
    /// Set if the addresses belong to another owner by now, or contain a mapping that must not be unmapped.
    pub(super) is_range_lost: bool,
    /// Whether new memory has the flag for GPUDirect RDMA.
    pub(super) for_rdma: bool,
}

impl Handles {
    /// Creates the tables for `granules` granules.
    pub(super) fn new(granules: usize, for_rdma: bool) -> Result<Self, HostMemoryExhausted> {
        Ok(Self {
            places: LazyTable::new(granules)?,
            handles: Vec::new(),
            vacant: Vec::new(),
            kept: Vec::new(),
            unwanted: Vec::new(),
            is_range_lost: false,
            for_rdma,
        })
    }

    /// Returns the handle at a place.
    pub(super) fn at(&self, place: u32) -> Handle {
        self.handles[place as usize]
    }

    /// Returns how many handles are mapped.
    pub(super) fn mapped(&self) -> usize {
        self.handles.len() - self.vacant.len() - self.kept.len() - self.unwanted.len()
    }

    /// Returns whether there is no physical memory at all.
    fn is_empty(&self) -> bool {
        self.handles.len() == self.vacant.len()
    }

    /// Moves kept handles, from position `from` of the list on, to the unwanted ones.
    pub(super) fn give_up_kept(&mut self, from: usize) {
        // There is room for all places.
        self.unwanted.extend(self.kept.drain(from..));
    }

    /// Forgets all handles.
    pub(super) fn clear(&mut self) {
        self.places.clear();
        (self.handles, self.vacant) = (Vec::new(), Vec::new());
        (self.kept, self.unwanted) = (Vec::new(), Vec::new());
    }

    /// Makes room for `count` more handles in all lists.
    #[inline(never)]
    pub(super) fn reserve(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        let there = self.vacant.len() + self.unwanted.len();
        if there >= count {
            return Ok(());
        }
        let more = (self.handles.len() / 4).max(64).max(count - there);
        self.handles.try_reserve_exact(more)?;
        self.vacant.try_reserve_exact(self.handles.len() + more)?;
        self.unwanted.try_reserve_exact(self.handles.len() + more)?;
        let first = self.handles.len() as u32;
        self.handles.resize(self.handles.len() + more, 0);
        self.vacant.extend((first..first + more as u32).rev());
        Ok(())
    }
}

/// Returns whether the driver refused the flag itself. These are the codes other than out of memory that cuMemCreate
/// and cuMemGetAllocationGranularity can return for an unsupported flag.
pub(super) fn is_flag_refused(failure: Failure) -> bool {
    let codes = [CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED];
    codes.into_iter().any(|code| failure.is(code))
}

/// Obtains physical memory for one granule and returns the place of its handle. Memory that could not be released is
/// used first, because it is still held, and more memory would exceed the limit.
///
/// If the driver refuses the flag for GPUDirect RDMA at first, it is not requested again: memory that cannot be
/// registered with a network adapter is better than none. Once there is memory with the flag, a refusal is a failure
/// like any other, because "all the physical allocations backing the address range must [...] have identical allocation
/// properties" (cuMemGetHandleForAddressRange).
pub(super) fn create(
    cuda: &Cuda,
    granule: u64,
    driver: Driver,
    handles: &mut Handles,
    notices: &mut Notices,
) -> Result<u32, Failure> {
    if let Some(place) = handles.unwanted.pop() {
        return Ok(place);
    }
    // Without room to record it no handle is requested. The error reported is the driver's for out of memory.
    let exhausted = Failure::Refused { call: "cuMemCreate", code: CUDA_ERROR_OUT_OF_MEMORY };
    handles.reserve(1).map_err(|_| exhausted)?;
    let ordinal = cuda.ordinal.into();
    let handle = match calls::create(driver, granule, ordinal, handles.for_rdma) {
        Err(failure) if handles.for_rdma && handles.is_empty() && is_flag_refused(failure) => {
            let handle = calls::create(driver, granule, ordinal, false)?;
            handles.for_rdma = false;
            notices.add(Notice::NoRdma { failure });
            handle
        }
        handle => handle?,
    };
    let Some(place) = handles.vacant.pop() else {
        // This cannot happen, because room was reserved above.
        // SAFETY: the handle is known only here.
        let _ = unsafe { calls::release(driver, handle) };
        return Err(exhausted);
    };
    handles.handles[place as usize] = handle;
    Ok(place)
}

/// Releases a handle that is not mapped.
pub(super) fn release(driver: Driver, handles: &mut Handles, place: u32) -> Result<(), Failure> {
    // SAFETY: the handle is valid, is not mapped, and is not used again unless the driver refuses.
    unsafe { calls::release(driver, handles.at(place)) }?;
    // There is room for all places.
    handles.vacant.push(place);
    Ok(())
}

/// Releases a handle now, or later if the driver refuses.
pub(super) fn release_when_possible(driver: Driver, handles: &mut Handles, place: u32) {
    handles.unwanted.push(place);
    let _ = release_unwanted(driver, handles);
}

/// Tries to release all unwanted handles. Returns the last failure.
pub(super) fn release_unwanted(driver: Driver, handles: &mut Handles) -> Result<(), Failure> {
    let (mut refused, mut released) = (0, Ok(()));
    for nth in 0..handles.unwanted.len() {
        let place = handles.unwanted[nth];
        if let Err(failure) = release(driver, handles, place) {
            handles.unwanted[refused] = place;
            (refused, released) = (refused + 1, Err(failure));
        }
    }
    handles.unwanted.truncate(refused);
    released
}
