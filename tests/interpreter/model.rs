//! The conditions on one allocator.

use super::grants::Grants;
use super::order::Order;
use super::stamps::Freed;
use crate::common::spans::Spans;
use crate::common::*;

/// The source of its memory.
pub(crate) enum Kind {
    Host,
    Custom(Box<Grants>),
}

/// A live allocation.
#[derive(Clone, Copy)]
pub(crate) struct Live {
    pub(crate) requested: u64,
    pub(crate) id: u64,
}

pub(crate) struct Model {
    pub(crate) kind: Kind,
    pub(crate) flags: u32,
    pub(crate) live: Spans<Live>,
    pub(crate) freed: Freed,
    pub(crate) order: Order,
    /// The stream of the next request. By default none is named.
    pub(crate) asks: Option<u64>,
    pub(crate) last_id: u64,
    pub(crate) last_stamp: u64,
    pub(crate) frontier: u64,
    /// Since the statistics were reset.
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
}

impl Model {
    pub(crate) fn new(kind: Kind, flags: u32) -> Model {
        Model {
            kind,
            flags,
            live: Spans::default(),
            freed: Freed::default(),
            order: Order::default(),
            asks: None,
            last_id: 0,
            last_stamp: 0,
            frontier: 0,
            allocs: 0,
            frees: 0,
        }
    }

    pub(crate) fn stamps(&self) -> bool {
        self.flags & BFC_TIMESTAMPS != 0
    }

    pub(crate) fn requested_bytes(&self) -> u64 {
        self.live.iter().map(|(_, _, live)| live.requested).sum()
    }

    /// Checks a served allocation
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn served(
        &mut self,
        device: i32,
        address: u64,
        requested: u64,
        alignment: u64,
        newest: u64,
        name: u64,
    ) {
        assert!(
            address != 0 && address.is_multiple_of(alignment.max(256)),
            "{address:#x} for alignment {alignment}"
        );
        let allocated =
            allocated_size(device, address).unwrap_or_else(|status| panic!("{status}: {}", last_error()));
        assert!(allocated >= requested && allocated.is_multiple_of(256), "{allocated} bytes for {requested}");
        self.last_id += 1;
        self.live.insert(address, allocated, Live { requested, id: self.last_id });
        if let Kind::Custom(grants) = &self.kind {
            assert!(grants.covers(address, allocated), "{address:#x} + {allocated:#x} is in no grant");
        }
        let latest = self.freed.latest(address, allocated);
        let safe = latest < self.frontier;
        assert!(safe || latest <= newest, "freed at {latest}, asked for at most {newest}");
        let quarantined = self.flags & BFC_QUARANTINE != 0;
        assert!(safe || latest == 0 || !quarantined, "freed at {latest}, the frontier is {}", self.frontier);
        self.freed.clear(address, allocated);
        if self.flags & BFC_GARBAGE_COLLECTION != 0 {
            // Regions may have been released, and others obtained at their addresses.
            self.order.regions_went();
        }
        self.order.served(name, address, allocated);
        self.allocs += 1;
        self.write_contents(address);
    }

    /// Records the free of a live allocation.
    pub(crate) fn released(&mut self, address: u64) {
        self.released_on(address, None);
    }

    /// Records a free in the order of a stream.
    pub(crate) fn released_on(&mut self, address: u64, name: Option<u64>) {
        let (allocated, _) = self.live.remove(address).expect("a live allocation");
        self.frees += 1;
        self.order.released(address, allocated, name);
        if self.stamps() {
            self.last_stamp += 1;
            self.freed.set(address, allocated, self.last_stamp);
        }
    }

    /// Returns the first and last bytes of the requested memory, if it is host memory: address, length, and
    /// contents.
    fn ends(&self, address: u64) -> impl Iterator<Item = (u64, usize, u8)> {
        let live = self.live.get(address).filter(|_| matches!(self.kind, Kind::Host));
        live.into_iter().flat_map(move |(_, live)| {
            let length = (live.requested / 2).min(24);
            let ends = [address, address + live.requested - length];
            ends.map(|end| (end, length as usize, live.id as u8 | 1))
        })
    }

    fn write_contents(&self, address: u64) {
        for (end, length, mark) in self.ends(address) {
            // SAFETY: within a live allocation of host memory, which only this thread uses.
            unsafe { (end as *mut u8).write_bytes(mark, length) };
        }
    }

    /// Checks that nothing wrote into the allocation.
    pub(crate) fn verify_contents_of(&self, address: u64) {
        for (end, length, mark) in self.ends(address) {
            // SAFETY: as above, written when it was allocated.
            let contents = unsafe { std::slice::from_raw_parts(end as *const u8, length) };
            assert!(contents.iter().all(|&byte| byte == mark), "something wrote to {end:#x}");
        }
    }

    pub(crate) fn verify_contents(&self) {
        self.live.iter().for_each(|(address, ..)| self.verify_contents_of(address));
    }

    /// Compares everything.
    pub(crate) fn verify(&self, device: i32) {
        assert_eq!(bfc_check(device), BFC_OK, "{}", last_error());
        self.verify_contents();
        let stats = read_stats(device);
        assert_eq!((stats.bytes_in_use, stats.bytes_requested), (self.live.bytes(), self.requested_bytes()));
        assert_eq!((stats.num_allocs, stats.num_frees), (self.allocs, self.frees));
        assert_eq!(stats.num_chunks - stats.num_free_chunks, self.live.len() as u64);
        assert!(stats.peak_bytes_in_use >= stats.bytes_in_use && stats.peak_pool_bytes >= stats.pool_bytes);
        if let Kind::Custom(grants) = &self.kind {
            grants.verify(false);
            assert_eq!(stats.pool_bytes, grants.held(), "held from the sub-allocator");
        }
        for (address, bytes, live) in self.live.iter() {
            assert_eq!(allocated_size(device, address), Ok(bytes));
            assert_eq!(requested_size(device, address), Ok(live.requested));
            assert_eq!(allocation_id(device, address), Ok(live.id));
        }
    }
}

pub(crate) fn read_stats(device: i32) -> bfc_stats_t {
    let mut out = stats();
    // SAFETY: a whole struct, writable.
    let status = unsafe { bfc_stats(device, &mut out) };
    assert_eq!(status, BFC_OK, "{}", last_error());
    out
}

fn answered<T: Default + PartialEq + std::fmt::Debug>(
    status: Status,
    out: T,
) -> std::result::Result<T, Status> {
    if status == BFC_OK {
        return Ok(out);
    }
    assert_eq!(out, T::default(), "0 on failure");
    Err(status)
}

pub(crate) fn allocated_size(device: i32, address: u64) -> std::result::Result<u64, Status> {
    let mut out = usize::MAX;
    // SAFETY: the out-pointer is valid for writing.
    let status = unsafe { bfc_allocated_size(device, pointer(address), &mut out) };
    answered(status, out as u64)
}

pub(crate) fn requested_size(device: i32, address: u64) -> std::result::Result<u64, Status> {
    let mut out = usize::MAX;
    // SAFETY: the out-pointer is valid for writing.
    let status = unsafe { bfc_requested_size(device, pointer(address), &mut out) };
    answered(status, out as u64)
}

pub(crate) fn allocation_id(device: i32, address: u64) -> std::result::Result<u64, Status> {
    let mut out = i64::MAX;
    // SAFETY: the out-pointer is valid for writing.
    let status = unsafe { bfc_allocation_id(device, pointer(address), &mut out) };
    answered(status, out as u64)
}
