//! The address ranges of a slot's memory, for lookups without its lock.
//!
//! A thread that changes the regions holds the lock, and publishes a new table before it opens the lock. Readers are
//! counted, so that a replaced table is freed only when no reader can be using it.

use bfc_core::arena::Arena;
use bfc_hostmem::try_box;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering::SeqCst};

/// What the published table says about an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Outside,
    Inside,
    /// The chunks must be searched with the lock held. The address is in a part of a reserved range that may not be
    /// mapped, or there was no host memory to publish a table.
    Unknown,
}

struct Table {
    /// The first and last address of each range, in address order.
    ranges: Vec<(u64, u64)>,
    /// Whether every address of a range is memory of the pool.
    solid: bool,
    /// The next replaced table that waits to be freed.
    retired: AtomicPtr<Table>,
}

/// Published if there is no host memory for a table. Never freed.
static NO_TABLE: Table = Table { ranges: Vec::new(), solid: false, retired: AtomicPtr::new(null_mut()) };

fn no_table() -> *mut Table {
    (&raw const NO_TABLE).cast_mut()
}

pub(super) struct Ranges {
    table: AtomicPtr<Table>,
    readers: AtomicU32,
}

/// The data that is accessed only with the slot's lock held.
pub(super) struct Published {
    /// The version of the regions in the published table; see [`version`].
    pub(super) version: u64,
    /// Replaced tables that readers may still be using.
    retired: *mut Table,
    bytes: usize,
}

impl Published {
    pub(super) const NOTHING: Self = Published { version: 0, retired: null_mut(), bytes: 0 };

    /// Returns the host memory that the published table occupies.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

/// Returns a number that changes whenever the regions do. It is never 0, which stands for no arena.
#[inline]
pub(super) fn version(arena: &Arena) -> u64 {
    1 + arena.regions().version()
}

impl Ranges {
    pub(super) const fn new() -> Self {
        Ranges { table: AtomicPtr::new(null_mut()), readers: AtomicU32::new(0) }
    }

    /// Looks an address up. Never waits, so it may be called from a signal handler.
    pub(super) fn place_of(&self, addr: u64) -> Place {
        self.readers.fetch_add(1, SeqCst);
        let table = self.table.load(SeqCst);
        let place = match listed(table) {
            Some(table) => table.place_of(addr),
            None if table.is_null() => Place::Outside,
            None => Place::Unknown,
        };
        self.readers.fetch_sub(1, SeqCst);
        place
    }

    /// Publishes the regions of an arena, or an empty table. The caller holds the slot's lock.
    pub(super) fn publish(&self, arena: Option<&Arena>, published: &mut Published) {
        let new = arena.map_or(null_mut(), Table::of);
        published.version = arena.map_or(0, version);
        published.bytes = listed(new).map_or(0, Table::bytes);
        let old = self.table.swap(new, SeqCst);
        if let Some(table) = listed(old) {
            table.retired.store(published.retired, SeqCst);
            published.retired = old;
        }
        // A reader that comes later finds the new table.
        if self.readers.load(SeqCst) == 0 {
            published.drop_retired();
        }
    }

    /// Resets the count of readers in a forked child, where the other threads do not exist.
    pub(super) fn forget_readers(&self) {
        if self.readers.load(SeqCst) != 0 {
            self.readers.store(0, SeqCst);
        }
    }

    /// Leaks the table in a forked child. A thread of the parent may have been in the middle of publishing.
    pub(super) fn abandon(&self) {
        if !self.table.load(SeqCst).is_null() {
            self.table.store(null_mut(), SeqCst);
        }
        self.forget_readers();
    }
}

/// Returns the table behind a pointer, unless it is NULL or [`NO_TABLE`]. It is not freed while the caller is counted
/// as a reader or holds the lock.
fn listed<'a>(table: *mut Table) -> Option<&'a Table> {
    if table == no_table() {
        return None;
    }
    // SAFETY: NULL or a table that is not freed yet.
    unsafe { table.as_ref() }
}

impl Published {
    fn drop_retired(&mut self) {
        while !self.retired.is_null() {
            // SAFETY: the table came from a box, was replaced, and no reader is using it.
            let table = unsafe { Box::from_raw(self.retired) };
            self.retired = table.retired.into_inner();
        }
    }
}

impl Table {
    fn of(arena: &Arena) -> *mut Self {
        let mut ranges = Vec::new();
        if ranges.try_reserve_exact(arena.regions().count()).is_err() {
            return no_table();
        }
        let regions = arena.regions().iter();
        ranges.extend(regions.map(|(_, region)| (region.base, region.base + (region.bytes - 1))));
        if ranges.is_empty() {
            return null_mut();
        }
        let table = Table { ranges, solid: arena.range().is_none(), retired: AtomicPtr::new(null_mut()) };
        try_box(table).map_or(no_table(), Box::into_raw)
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.ranges.capacity() * size_of::<(u64, u64)>()
    }

    fn place_of(&self, addr: u64) -> Place {
        let place = self.ranges.partition_point(|&(_, last)| last < addr);
        match self.ranges.get(place) {
            Some(&(first, _)) if first <= addr && self.solid => Place::Inside,
            Some(&(first, _)) if first <= addr => Place::Unknown,
            _ => Place::Outside,
        }
    }
}
