//! The data that reports read: an arena in place, or a copy of it that is read with the lock open.
//!
//! A copy shows the arena at one moment. Slow steps are done before: memory for the copy is obtained and touched
//! without the lock ([`Snapshot::make_room`]). So only a few tables are copied, unchanged, while the lock is held.

use super::arena::Arena;
use crate::heap::{Chunks, Region, RegionGrowth, Regions, State};
use crate::ids::{ChunkId, NIL};
use crate::op_names::Names;
use crate::stats::Counters;
use crate::streams::{Mark, Order, StreamHeap};
use crate::tables::{room_for, with_margin};
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// Totals of the whole arena.
#[derive(Clone, Copy, Default)]
struct Totals {
    counters: Counters,
    usable_bytes: u64,
    /// `None` without a reserved range.
    unmapped_bytes: Option<u64>,
    /// The bytes of the unmapped chunk at the end of the range.
    tail_bytes: u64,
    growth: RegionGrowth,
    splits_always: bool,
}

/// A copy of the data for reports.
pub struct Snapshot {
    totals: Totals,
    chunks: Chunks,
    regions: Regions,
    names: Names,
    /// One mark for each place of the slab, if queues are told apart.
    marks: Vec<Mark>,
    queues: Vec<Order>,
}

/// How much room a copy needs.
#[derive(Clone, Copy)]
pub struct Room {
    chunks: [usize; 3],
    regions: usize,
    names: [usize; 2],
    marks: usize,
    queues: usize,
}

/// The data that reports read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    totals: Totals,
    /// The chunks of all regions.
    pub chunks: &'a Chunks,
    /// The regions.
    pub regions: &'a Regions,
    /// The names of operations.
    pub names: &'a Names,
    orders: Orders<'a>,
}

#[derive(Clone, Copy)]
enum Orders<'a> {
    InPlace(&'a StreamHeap),
    Copied(&'a [Mark], &'a [Order]),
}

impl Arena {
    /// Returns a view of the arena in place.
    pub fn view(&self) -> View<'_> {
        let (chunks, regions, names) = (self.chunks(), self.regions(), &self.names);
        View { totals: self.totals(), chunks, regions, names, orders: Orders::InPlace(&self.streams) }
    }

    /// Returns how much room a copy needs.
    pub fn room(&self) -> Room {
        let is_multi = self.streams.is_multi();
        Room {
            chunks: self.chunks().lengths(),
            regions: self.regions().slots(),
            names: self.names.lengths(),
            marks: if is_multi { self.chunks().places() } else { 0 },
            queues: if is_multi { self.streams.queue_count() } else { 0 },
        }
    }

    fn totals(&self) -> Totals {
        Totals {
            counters: *self.counters(),
            usable_bytes: self.usable_bytes(),
            unmapped_bytes: self.range().map(|_| self.unmapped_bytes()),
            tail_bytes: self.vm.tail(self.heap()),
            growth: self.settings().growth,
            splits_always: self.settings().split_always,
        }
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new()
    }
}

impl Snapshot {
    /// Creates a snapshot without room.
    pub fn new() -> Self {
        Snapshot {
            totals: Totals::default(),
            chunks: Chunks::new(false),
            regions: Regions::new(),
            names: Names::default(),
            marks: Vec::new(),
            queues: Vec::new(),
        }
    }

    /// Obtains memory for a copy, plus a sixteenth, because the arena may grow meanwhile.
    pub fn make_room(&mut self, room: &Room) -> Result<(), HostMemoryExhausted> {
        self.chunks.make_room(room.chunks)?;
        self.regions.make_room(room.regions)?;
        self.names.make_room(room.names)?;
        room_for(&mut self.marks, room.marks, Mark::NONE)?;
        self.queues.clear();
        Ok(self.queues.try_reserve_exact(with_margin(room.queues))?)
    }

    /// Copies an arena. Returns false if the copy needs more room.
    pub fn copy(&mut self, arena: &Arena) -> bool {
        let Room { marks, queues, .. } = arena.room();
        let fits = self.marks.capacity() >= marks && self.queues.capacity() >= queues;
        if !fits
            || !self.chunks.copy_from(arena.chunks())
            || !self.regions.copy_from(arena.regions())
            || !self.names.copy_from(&arena.names)
        {
            return false;
        }
        self.marks.clear();
        self.marks.extend((0..marks).map(|place| arena.streams.mark(arena.chunks().place(place))));
        self.queues.clear();
        self.queues.extend(arena.streams.orders().take(queues));
        self.totals = arena.totals();
        true
    }

    /// Returns what reports read.
    pub fn view(&self) -> View<'_> {
        let Snapshot { totals, chunks, regions, names, .. } = self;
        View { totals: *totals, chunks, regions, names, orders: Orders::Copied(&self.marks, &self.queues) }
    }
}

impl View<'_> {
    /// Returns the counters at that moment.
    pub fn counters(&self) -> &Counters {
        &self.totals.counters
    }

    /// Returns the bytes that the chunks tile, without unmapped chunks.
    pub fn usable_bytes(&self) -> u64 {
        self.totals.usable_bytes
    }

    /// Returns the bytes of a reserved range that no memory is mapped to, except at its end; `None` without a range.
    pub fn unmapped_bytes(&self) -> Option<u64> {
        self.totals.unmapped_bytes
    }

    /// Returns the bytes of a region. In a range, the unmapped chunk at the end is left out.
    pub fn extent(&self, region: &Region) -> u64 {
        region.bytes - self.totals.tail_bytes
    }

    /// Returns how regions are chosen.
    pub fn growth(&self) -> RegionGrowth {
        self.totals.growth
    }

    /// Returns whether every remainder is split off.
    pub fn splits_always(&self) -> bool {
        self.totals.splits_always
    }

    /// Returns the bytes at the ends of the regions that nothing was ever handed out of. 0 in a reserved range, whose used
    /// part is not tracked.
    pub fn never_used_bytes(&self) -> u64 {
        self.regions.iter().map(|(_, region)| region.base + region.bytes - region.touched).sum()
    }

    /// Returns whether a chunk is unmapped.
    pub fn is_unmapped(&self, id: ChunkId) -> bool {
        matches!(self.chunks.state(id), State::Unmapped | State::BeingMapped)
    }

    /// Returns whether a chunk is the unmapped chunk at the end of a reserved range.
    pub fn is_tail(&self, id: ChunkId) -> bool {
        self.chunks.next(id) == NIL && self.chunks.state(id) == State::Unmapped
    }

    /// Returns the order that a chunk was allocated in, or is free in. Returns `None` if every stream may use the
    /// chunk, or if streams are not told apart.
    pub fn order(&self, id: ChunkId) -> Option<Order> {
        self.order_and_wait(id).map(|(order, _)| order)
    }

    /// Returns whether a chunk is free, but only in its own order.
    pub fn is_own(&self, id: ChunkId) -> bool {
        let held = self.chunks.state(id) == State::Held;
        held && self.order_and_wait(id).is_some_and(|(order, waits)| order.is_current && !waits)
    }

    fn order_and_wait(&self, id: ChunkId) -> Option<(Order, bool)> {
        let (order, mark) = match self.orders {
            Orders::InPlace(streams) => {
                let mark = streams.mark(id);
                (streams.orders().nth(mark.queue as usize)?, mark)
            }
            Orders::Copied(marks, queues) => {
                let mark = *marks.get(id.index())?;
                (*queues.get(mark.queue as usize)?, mark)
            }
        };
        Some((order, mark.waits))
    }
}
