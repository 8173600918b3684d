//! What reports read: an arena in place, or a copy of it, which is read with the lock open.
//!
//! A copy is that of one moment. What takes time is done outside of it: memory for the copy is obtained, and touched,
//! before ([`Snapshot::make_room`]), so that under the lock a few tables are copied as they are.

use super::arena::Arena;
use crate::core::heap::{Chunks, Region, Regions, State};
use crate::core::ids::{ChunkId, NIL};
use crate::core::op_names::Names;
use crate::core::stats::{Counters, Stats};
use crate::core::streams::{Mark, Order, StreamHeap};
use crate::core::tables::{room_for, with_margin};
use crate::sys::HostMemoryExhausted;

/// Numbers about the whole arena.
#[derive(Clone, Copy, Default)]
struct Totals {
    stats: Stats,
    counters: Counters,
    usable_bytes: u64,
    /// Where there is a reserved range.
    unmapped_bytes: Option<u64>,
    /// The unmapped chunk at the end of the range.
    tail_bytes: u64,
    collects: bool,
}

/// A copy of what reports tell.
pub(crate) struct Snapshot {
    totals: Totals,
    chunks: Chunks,
    regions: Regions,
    names: Names,
    /// For each place of the slab, where queues are told apart.
    marks: Vec<Mark>,
    queues: Vec<Order>,
}

/// How much a copy needs.
#[derive(Clone, Copy)]
pub(crate) struct Room {
    chunks: [usize; 3],
    regions: usize,
    names: [usize; 2],
    marks: usize,
    queues: usize,
}

/// What reports read.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    totals: Totals,
    pub(crate) chunks: &'a Chunks,
    pub(crate) regions: &'a Regions,
    pub(crate) names: &'a Names,
    orders: Orders<'a>,
}

#[derive(Clone, Copy)]
enum Orders<'a> {
    InPlace(&'a StreamHeap),
    Copied(&'a [Mark], &'a [Order]),
}

impl Arena {
    /// The arena in place.
    pub(crate) fn view(&self) -> View<'_> {
        let (chunks, regions, names) = (self.chunks(), self.regions(), &self.names);
        View { totals: self.totals(), chunks, regions, names, orders: Orders::InPlace(&self.streams) }
    }

    /// How much a copy needs.
    pub(crate) fn room(&self) -> Room {
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
            stats: self.stats(),
            counters: *self.counters(),
            usable_bytes: self.usable_bytes(),
            unmapped_bytes: self.range().map(|_| self.unmapped_bytes()),
            tail_bytes: self.vm.tail(self.heap()),
            collects: self.settings().garbage_collection,
        }
    }
}

impl Snapshot {
    pub(crate) fn new() -> Self {
        Snapshot {
            totals: Totals::default(),
            chunks: Chunks::new(false),
            regions: Regions::new(),
            names: Names::default(),
            marks: Vec::new(),
            queues: Vec::new(),
        }
    }

    /// Obtains memory for a copy, and a sixteenth more, as the arena goes on while this is done.
    pub(crate) fn make_room(&mut self, room: &Room) -> Result<(), HostMemoryExhausted> {
        self.chunks.make_room(room.chunks)?;
        self.regions.make_room(room.regions)?;
        self.names.make_room(room.names)?;
        room_for(&mut self.marks, room.marks, Mark::NONE)?;
        self.queues.clear();
        Ok(self.queues.try_reserve_exact(with_margin(room.queues))?)
    }

    /// Copies an arena; false if that takes more room.
    pub(crate) fn copy(&mut self, arena: &Arena) -> bool {
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

    pub(crate) fn view(&self) -> View<'_> {
        let Snapshot { totals, chunks, regions, names, .. } = self;
        View { totals: *totals, chunks, regions, names, orders: Orders::Copied(&self.marks, &self.queues) }
    }
}

impl View<'_> {
    pub(crate) fn stats(&self) -> &Stats {
        &self.totals.stats
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.totals.counters
    }

    /// What the chunks tile, but for unmapped chunks.
    pub(crate) fn usable_bytes(&self) -> u64 {
        self.totals.usable_bytes
    }

    /// Bytes of a reserved range that no memory is mapped to, but for its end; `None` without a range.
    pub(crate) fn unmapped_bytes(&self) -> Option<u64> {
        self.totals.unmapped_bytes
    }

    /// The bytes of a region as far as it was ever used.
    pub(crate) fn extent(&self, region: &Region) -> u64 {
        region.bytes - self.totals.tail_bytes
    }

    /// Whether free regions make room for others.
    pub(crate) fn collects_garbage(&self) -> bool {
        self.totals.collects
    }

    /// Whether a chunk is an unmapped chunk.
    pub(crate) fn is_unmapped(&self, id: ChunkId) -> bool {
        matches!(self.chunks.state(id), State::Unmapped | State::BeingMapped)
    }

    /// Whether a chunk is an unmapped chunk at the end of a reserved range.
    pub(crate) fn is_tail(&self, id: ChunkId) -> bool {
        self.chunks.next(id) == NIL && self.chunks.state(id) == State::Unmapped
    }

    /// In whose order a chunk was allocated, or is free; `None` if every stream may have it, or
    /// streams are not told apart.
    pub(crate) fn order(&self, id: ChunkId) -> Option<Order> {
        self.order_and_wait(id).map(|(order, _)| order)
    }

    /// Whether a chunk is free, but only in its own order.
    pub(crate) fn is_own(&self, id: ChunkId) -> bool {
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
