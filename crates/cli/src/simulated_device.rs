//! A device with addresses and a capacity, but without memory.
//!
//! Replaying a 25 GiB trace needs no 25 GiB: the allocator only ever computes with addresses. The rule
//! for them is the one under which `golden.tsv` was recorded, so that the hashes can be compared: the first region is
//! at 2^40, and each further one at the previous base plus its bytes rounded up to 2 MiB plus another 2 MiB. Regions
//! therefore never touch, and an address is never handed out twice.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bfc_sys::bfc_suballocator_t;

const FIRST_BASE: u64 = 1 << 40;
const GRANULE: u64 = 2 << 20;

/// The simulated device; the library calls it through [`SimulatedDevice::suballocator`].
pub struct SimulatedDevice {
    state: Mutex<State>,
}

/// A region of a recorded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub base: u64,
    pub bytes: u64,
}

struct State {
    capacity: u64,
    bytes_out: u64,
    next_base: u64,
    /// The regions that a recorded program obtained, starting with the next one. Empty once one differs.
    recorded: VecDeque<Region>,
    /// Base and bytes of the regions in use. A returned region must be one of them.
    regions: BTreeMap<u64, u64>,
    /// The library's first mistake. A callback cannot return it, so it is kept for the end.
    fault: Option<String>,
}

impl SimulatedDevice {
    /// A device of `capacity` bytes, all free.
    pub fn new(capacity: u64) -> Self {
        Self::with_regions(capacity, &[])
    }

    /// A device like [`Self::new`], with the regions of a recorded program: as long as the same sizes are requested,
    /// regions have the same addresses. Placements depend on the order of the addresses.
    pub fn with_regions(capacity: u64, recorded: &[Region]) -> Self {
        let end = recorded.iter().map(|region| region.base.saturating_add(region.bytes)).max().unwrap_or(0);
        let state = State {
            capacity,
            bytes_out: 0,
            next_base: end.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX).max(FIRST_BASE),
            recorded: recorded.iter().copied().collect(),
            regions: BTreeMap::new(),
            fault: None,
        };
        Self { state: Mutex::new(state) }
    }

    /// The C view of this device. It points at `self`, which must outlive the pool that is given it.
    pub fn suballocator(&self) -> bfc_suballocator_t {
        bfc_suballocator_t {
            struct_size: size_of::<bfc_suballocator_t>(),
            user_data: ptr::from_ref(self).cast_mut().cast(),
            alloc: Some(alloc_region),
            free: Some(free_region),
            supports_coalescing: 0,
            reserved: 0,
        }
    }

    /// The library's mistake, if any. To be called once its pool is destroyed, when every region must have been
    /// returned.
    pub fn finish(&self) -> Result<(), String> {
        let mut state = self.state();
        if let Some(fault) = state.fault.take() {
            return Err(fault);
        }
        match state.regions.len() {
            0 => Ok(()),
            1 => Err("1 region was not returned to the simulated device".to_owned()),
            count => Err(format!("{count} regions were not returned to the simulated device")),
        }
    }

    fn alloc(&self, alignment: u64, bytes: u64) -> Option<u64> {
        let mut state = self.state();
        let bytes_out = state.bytes_out.checked_add(bytes)?;
        if bytes == 0 || bytes_out > state.capacity {
            return None;
        }
        if let Some(base) = state.recorded_base(alignment, bytes) {
            state.bytes_out = bytes_out;
            state.regions.insert(base, bytes);
            return Some(base);
        }
        // Every base is a multiple of 2 MiB already. Only a larger alignment moves it.
        let base = state.next_base.checked_next_multiple_of(alignment.max(1))?;
        state.next_base = base.checked_add(bytes.checked_next_multiple_of(GRANULE)?)?.checked_add(GRANULE)?;
        state.bytes_out = bytes_out;
        state.regions.insert(base, bytes);
        Some(base)
    }

    fn free(&self, base: u64, bytes: u64) {
        let mut state = self.state();
        match state.regions.get(&base).copied() {
            Some(size) if size == bytes => {
                state.regions.remove(&base);
                state.bytes_out -= bytes;
            }
            held => {
                let held = held.map_or("no region".to_owned(), |size| format!("a region of {size} bytes"));
                let fault = format!("the library returned {bytes} bytes at {base:#x}, where it had {held}");
                state.fault.get_or_insert(fault);
            }
        }
    }

    /// Nothing that runs under the lock can panic half-way, so the state behind a poisoned lock is consistent. A panic
    /// here would unwind into C.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Where the recorded program obtained its next region, if it had the same size.
    fn recorded_base(&mut self, alignment: u64, bytes: u64) -> Option<u64> {
        let region = self.recorded.pop_front()?;
        let end = region.base.checked_add(region.bytes);
        let below = end.and_then(|end| self.regions.range(..end).next_back());
        let is_free = below.is_none_or(|(base, bytes)| base + bytes <= region.base);
        let is_fit = region.bytes == bytes && region.base.is_multiple_of(alignment.max(1));
        if end.is_none() || region.base == 0 || !is_free || !is_fit {
            self.recorded.clear();
            return None;
        }
        Some(region.base)
    }
}

unsafe extern "C" fn alloc_region(
    user_data: *mut c_void,
    alignment: usize,
    bytes: usize,
    bytes_received: *mut usize,
) -> *mut c_void {
    // SAFETY: user_data is the SimulatedDevice of `suballocator`, which outlives the pool and is only
    // ever shared, never borrowed mutably.
    let device = unsafe { &*user_data.cast::<SimulatedDevice>() };
    let base = device.alloc(alignment as u64, bytes as u64);
    if !bytes_received.is_null() {
        let received = if base.is_some() { bytes } else { 0 };
        // SAFETY: the contract's out-parameter, not NULL, valid for one write during this call.
        unsafe { bytes_received.write(received) };
    }
    base.map_or(ptr::null_mut(), |base| ptr::without_provenance_mut(base as usize))
}

unsafe extern "C" fn free_region(user_data: *mut c_void, region: *mut c_void, bytes: usize) {
    // SAFETY: as in `alloc_region`.
    let device = unsafe { &*user_data.cast::<SimulatedDevice>() };
    device.free(region.addr() as u64, bytes as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_follow_the_rule_of_the_golden_file() {
        let device = SimulatedDevice::new(1 << 30);
        assert_eq!(device.alloc(256, 1), Some(1 << 40));
        assert_eq!(device.alloc(256, GRANULE), Some((1 << 40) + 2 * GRANULE));
        assert_eq!(device.alloc(256, GRANULE + 256), Some((1 << 40) + 4 * GRANULE));
        assert_eq!(device.alloc(256, 512), Some((1 << 40) + 7 * GRANULE));
    }

    #[test]
    fn a_failed_request_moves_nothing() {
        let device = SimulatedDevice::new(1024);
        assert_eq!(device.alloc(256, 1025), None);
        assert_eq!(device.alloc(256, 0), None);
        assert_eq!(device.alloc(256, u64::MAX), None);
        assert_eq!(device.alloc(256, 1024), Some(FIRST_BASE));
        assert_eq!(device.alloc(256, 1), None);
    }

    #[test]
    fn what_is_given_back_can_be_had_again_elsewhere() {
        let device = SimulatedDevice::new(1024);
        let base = device.alloc(256, 1024).expect("fits");
        device.free(base, 1024);
        assert_eq!(device.alloc(256, 1024), Some(FIRST_BASE + 2 * GRANULE));
    }

    #[test]
    fn a_stricter_alignment_is_honoured() {
        let device = SimulatedDevice::new(1 << 30);
        device.alloc(256, 256).expect("fits");
        assert_eq!(device.alloc(1 << 24, 256), Some(FIRST_BASE + (1 << 24)));
    }

    #[test]
    fn recorded_regions_lie_where_they_lay_until_one_differs() {
        let regions = [(GRANULE, 4096), (2 * GRANULE, 256), (GRANULE, 512), (GRANULE + 256, 256)];
        let regions = regions.map(|(base, bytes)| Region { base, bytes });
        let device = SimulatedDevice::with_regions(1 << 30, &regions);
        assert_eq!(device.alloc(256, 4096), Some(GRANULE));
        assert_eq!(device.alloc(256, 256), Some(2 * GRANULE));
        device.free(GRANULE, 4096);
        assert_eq!(device.alloc(256, 512), Some(GRANULE), "the place of one that was given back");
        assert_eq!(device.alloc(256, 256), Some(FIRST_BASE), "the next one overlaps");
        assert_eq!(device.alloc(256, 256), Some(FIRST_BASE + 2 * GRANULE));

        let high = [Region { base: 1 << 46, bytes: 512 }];
        let device = SimulatedDevice::with_regions(1 << 30, &high);
        assert_eq!(device.alloc(256, 256), Some((1 << 46) + GRANULE), "another size lies above all");
    }

    #[test]
    fn wrong_frees_and_leaks_are_told_at_the_end() {
        let device = SimulatedDevice::new(4096);
        let base = device.alloc(256, 1024).expect("fits");
        assert_eq!(device.finish(), Err("1 region was not returned to the simulated device".into()));
        device.free(base, 512);
        device.free(base + 256, 256);
        device.free(base, 1024);
        let fault = device.finish().expect_err("512 of 1024 bytes");
        assert!(fault.contains("512 bytes at 0x10000000000, where it had a region of 1024"), "{fault}");
        assert_eq!(device.finish(), Ok(()));
    }

    #[test]
    fn the_callbacks_are_the_same_device() {
        let device = SimulatedDevice::new(4096);
        let view = device.suballocator();
        let (alloc, free) = (view.alloc.expect("set"), view.free.expect("set"));
        let mut received = 7;
        // SAFETY: the view's own user_data, and a valid out-parameter.
        let region = unsafe { alloc(view.user_data, 256, 4096, &raw mut received) };
        assert_eq!((region.addr() as u64, received), (FIRST_BASE, 4096));
        // SAFETY: as above.
        let none = unsafe { alloc(view.user_data, 256, 1, &raw mut received) };
        assert_eq!((none.is_null(), received), (true, 0));
        // SAFETY: as above; the region is out.
        unsafe { free(view.user_data, region, 4096) };
        assert_eq!(device.finish(), Ok(()));
    }
}
