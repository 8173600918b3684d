//! A copy of a pool, from which reports are written with the lock open.

use super::pool::Pool;
use super::slot::{Guard, Slot};
use crate::error::ErrorKind;
use crate::report::{Guarding, Subject};
use bfc_core::arena::{Room, Snapshot};
use bfc_core::stats::Stats;
use bfc_hostmem::{HostMemoryExhausted, try_box};

/// The data of a pool that reports need, as of one moment.
pub(crate) struct PoolSnapshot {
    device: i32,
    backend: &'static str,
    name: String,
    stats: Stats,
    /// The numbers of damaged guards and of unchecked frees, if the debug mode is on.
    guards: Option<(u64, u64)>,
    /// The debug mode's last message.
    last: String,
    arena: Snapshot,
}

/// Writes a report about a pool, from a copy with the lock open. Without host memory for a copy, it writes the report
/// with the lock held.
pub(crate) fn report<T>(slot: &Slot, write: impl FnOnce(&Subject<'_>) -> T) -> Result<T, ErrorKind> {
    // The pool may outgrow the memory for its copy in the meantime. Each attempt reserves a sixteenth more than needed.
    const ATTEMPTS: u32 = 8;
    let mut snapshot = PoolSnapshot::new();
    let mut has_room = true;
    for _ in 0..ATTEMPTS {
        let guard = slot.enter_for_long()?;
        if snapshot.copy(&guard) {
            drop(guard);
            return Ok(write(&snapshot.subject()));
        }
        if !has_room {
            break;
        }
        let room = guard.snapshot_room();
        drop(guard);
        has_room = snapshot.make_room(&room).is_ok();
    }
    let guard = slot.enter_for_long()?;
    Ok(write(&guard.subject()))
}

/// Copies what names a pool: its name and its backend.
pub(crate) fn identity(pool: &Pool) -> Result<(String, &'static str), HostMemoryExhausted> {
    let mut name = String::new();
    name.try_reserve_exact(pool.name.len())?;
    name.push_str(&pool.name);
    Ok((name, pool.backend.get().name()))
}

/// The amounts of memory that a copy needs.
pub(super) struct PoolRoom {
    name: usize,
    last: usize,
    arena: Room,
}

impl Guard<'_> {
    /// Returns the current statistics. Their metadata includes what the allocator has beside the arena.
    pub(crate) fn stats(&self) -> Stats {
        let mut stats = self.arena.stats();
        let beside = size_of::<Slot>() + size_of::<Pool>() - size_of_val(&self.arena);
        stats.metadata_bytes += beside as u64 + self.metadata_bytes();
        stats
    }

    /// Returns the data that reports are written from.
    pub(crate) fn subject(&self) -> Subject<'_> {
        let guards = self.guards.as_ref().map(|guards| guards.summary());
        let (device, name, backend) = (self.device, &*self.name, self.backend.get().name());
        Subject { device, name, backend, stats: self.stats(), view: self.arena.view(), guards }
    }
}

impl Pool {
    pub(super) fn snapshot_room(&self) -> PoolRoom {
        let last = self.guards.as_ref().map_or(0, |guards| guards.summary().last.len());
        PoolRoom { name: self.name.len(), last, arena: self.arena.room() }
    }
}

impl PoolSnapshot {
    fn new() -> Self {
        let (name, last, arena) = (String::new(), String::new(), Snapshot::new());
        PoolSnapshot { device: 0, backend: "", name, stats: Stats::default(), guards: None, last, arena }
    }

    /// Returns a copy of a locked pool, for a report about this moment. Its memory is obtained with the lock held too.
    /// The copy is on the heap, because a failing request has used some of the stack already.
    #[inline(never)]
    pub(super) fn of(guard: &Guard<'_>) -> Result<Box<Self>, HostMemoryExhausted> {
        let mut snapshot = try_box(PoolSnapshot::new())?;
        snapshot.make_room(&guard.snapshot_room())?;
        if snapshot.copy(guard) { Ok(snapshot) } else { Err(HostMemoryExhausted) }
    }

    fn make_room(&mut self, room: &PoolRoom) -> Result<(), HostMemoryExhausted> {
        self.name.try_reserve(room.name)?;
        self.last.try_reserve(room.last)?;
        self.arena.make_room(&room.arena)
    }

    /// Copies a pool. Returns false if the reserved memory is not enough.
    fn copy(&mut self, pool: &Guard<'_>) -> bool {
        let guards = pool.guards.as_ref().map(|guards| guards.summary());
        let (name, last) = (&*pool.name, guards.map_or("", |guards| guards.last));
        let fits = name.len() <= self.name.capacity() && last.len() <= self.last.capacity();
        if !fits || !self.arena.copy(&pool.arena) {
            return false;
        }
        (self.device, self.backend) = (pool.device, pool.backend.get().name());
        self.stats = pool.stats();
        self.guards = guards.map(|guards| (guards.violations, guards.unchecked));
        self.name.clear();
        self.name.push_str(name);
        self.last.clear();
        self.last.push_str(last);
        true
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        let last = self.last.as_str();
        let guards = self.guards.map(|(violations, unchecked)| Guarding { violations, unchecked, last });
        let PoolSnapshot { device, backend, name, stats, arena, .. } = self;
        Subject { device: *device, name, backend, stats: *stats, view: arena.view(), guards }
    }
}
