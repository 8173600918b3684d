//! Regions: what the backend gave, in address order, and which chunk begins where.

use super::chunks::{ChunkId, Chunks, MAX_REGIONS, NIL};
use super::starts::Starts;
use super::units::UNIT;
use crate::sys::HostMemoryExhausted;
use std::cell::Cell;

pub(crate) struct Region {
    pub(crate) base: u64,
    /// What chunks tile: a multiple of 256.
    pub(crate) bytes: u64,
    /// What the backend said it gave and gets back: `bytes`, perhaps with a tail of less than a unit.
    pub(crate) given: u64,
    /// For each unit the chunk that begins there, plus 1.
    starts: Starts,
}

/// A region's place in address order.
struct Span {
    base: u64,
    end: u64,
    id: u32,
}

/// All regions of an arena.
pub(crate) struct Regions {
    slots: Vec<Option<Region>>,
    spans: Vec<Span>,
    /// The span that answered last: programs free where they just freed.
    last: Cell<usize>,
}

/// What lies at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookup {
    /// A chunk begins here, in use or free.
    Start(ChunkId),
    /// In a region, but no chunk begins here.
    Inside(u32),
    Foreign,
}

impl Regions {
    pub(super) fn new() -> Self {
        Regions { slots: Vec::new(), spans: Vec::new(), last: Cell::new(0) }
    }

    #[inline]
    pub(crate) fn find(&self, addr: u64) -> Option<u32> {
        let last = self.spans.get(self.last.get())?;
        if last.base <= addr && addr < last.end {
            return Some(last.id);
        }
        let place = self.spans.partition_point(|span| span.end <= addr);
        let span = self.spans.get(place)?;
        self.last.set(place);
        (span.base <= addr).then_some(span.id)
    }

    #[inline]
    pub(crate) fn lookup(&self, addr: u64) -> Lookup {
        let Some(id) = self.find(addr) else { return Lookup::Foreign };
        let region = self.get(id);
        if !addr.is_multiple_of(UNIT) {
            return Lookup::Inside(id);
        }
        match region.starts.get(unit(addr - region.base)) {
            0 => Lookup::Inside(id),
            entry => Lookup::Start(ChunkId(entry - 1)),
        }
    }

    /// The last chunk that begins at or before an address of a region, if the region's table can tell
    /// fast; else the first chunk of the region, from which a walk finds it.
    pub(super) fn chunk_before(&self, addr: u64) -> Option<ChunkId> {
        let id = self.find(addr)?;
        let region = self.get(id);
        let known = region.starts.last_at_or_before(unit(addr - region.base));
        Some(known.map_or_else(|| self.first_chunk(id), |entry| ChunkId(entry - 1)))
    }

    /// The first chunk of a region.
    pub(crate) fn first_chunk(&self, id: u32) -> ChunkId {
        ChunkId(self.get(id).starts.get(0).wrapping_sub(1))
    }

    /// Makes sure that `count` calls of `set_start` need no memory.
    #[inline]
    pub(super) fn reserve_starts(&mut self, id: u32, count: usize) -> Result<(), HostMemoryExhausted> {
        let region = self.get_mut(id);
        region.starts.reserve(count, unit(region.bytes))
    }

    #[inline]
    pub(super) fn set_start(&mut self, id: u32, addr: u64, chunk: ChunkId) {
        let region = self.get_mut(id);
        region.starts.set(unit(addr - region.base), chunk.0 + 1);
    }

    #[inline]
    pub(super) fn clear_start(&mut self, id: u32, addr: u64) {
        let region = self.get_mut(id);
        region.starts.clear(unit(addr - region.base));
    }

    #[inline]
    #[allow(clippy::expect_used)] // a chunk names a region that exists: I1
    pub(crate) fn get(&self, id: u32) -> &Region {
        self.slots[id as usize].as_ref().expect("a chunk's region exists")
    }

    #[inline]
    #[allow(clippy::expect_used)] // as above
    fn get_mut(&mut self, id: u32) -> &mut Region {
        self.slots[id as usize].as_mut().expect("a chunk's region exists")
    }

    pub(super) fn overlaps(&self, base: u64, bytes: u64) -> bool {
        let place = self.spans.partition_point(|span| span.end <= base);
        self.spans.get(place).is_some_and(|span| span.base < base.saturating_add(bytes))
    }

    /// The region that ends exactly where another would begin.
    pub(super) fn ending_at(&self, base: u64) -> Option<u32> {
        let place = self.spans.partition_point(|span| span.end < base);
        let id = self.spans.get(place).filter(|span| span.end == base)?.id;
        let region = self.get(id);
        (region.given == region.bytes).then_some(id)
    }

    /// Adds a region that overlaps no other. On failure nothing changed.
    pub(super) fn add(&mut self, base: u64, bytes: u64, given: u64) -> Result<u32, HostMemoryExhausted> {
        let free = self.slots.iter().position(Option::is_none);
        let slot = free.unwrap_or(self.slots.len());
        if slot >= MAX_REGIONS {
            return Err(HostMemoryExhausted);
        }
        self.spans.try_reserve(1)?;
        self.slots.try_reserve(1)?;
        let starts = Starts::new(unit(bytes))?;
        #[allow(clippy::cast_possible_truncation)] // below MAX_REGIONS
        let id = slot as u32;
        let region = Some(Region { base, bytes, given, starts });
        match free {
            Some(slot) => self.slots[slot] = region,
            None => self.slots.push(region),
        }
        let place = self.spans.partition_point(|span| span.end <= base);
        self.spans.insert(place, Span { base, end: base + bytes, id });
        Ok(id)
    }

    /// Makes a region longer at its end. On failure nothing changed.
    pub(super) fn extend(&mut self, id: u32, bytes: u64, given: u64) -> Result<(), HostMemoryExhausted> {
        let region = self.get_mut(id);
        region.starts.extend(unit(region.bytes + bytes))?;
        region.starts.reserve(1, unit(region.bytes + bytes))?;
        region.bytes += bytes;
        region.given += given;
        let end = region.base + region.bytes;
        let base = region.base;
        let place = self.spans.partition_point(|span| span.base < base);
        self.spans[place].end = end;
        Ok(())
    }

    #[allow(clippy::expect_used)] // callers name a region that exists
    pub(super) fn remove(&mut self, id: u32) -> Region {
        let region = self.slots[id as usize].take().expect("the region exists");
        self.spans.retain(|span| span.id != id);
        self.last.set(0);
        region
    }

    /// The regions in address order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, &Region)> + '_ {
        self.spans.iter().map(|span| (span.id, self.get(span.id)))
    }

    pub(crate) fn count(&self) -> usize {
        self.spans.len()
    }

    /// Shrinks the tables to what the chunks of today need.
    pub(super) fn rebuild_starts(&mut self, chunks: &Chunks) {
        for region in self.slots.iter_mut().flatten() {
            let first = ChunkId(region.starts.get(0).wrapping_sub(1));
            let following = |&id: &ChunkId| Some(chunks.next(id)).filter(|&next| next != NIL);
            let base = region.base;
            let all = std::iter::successors(Some(first), following);
            region.starts.rebuild(all.map(|id| (unit(chunks.addr(id) - base), id.0 + 1)));
        }
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        let lists = self.slots.capacity() * size_of::<Option<Region>>() + self.spans.capacity() * size_of::<Span>();
        lists as u64 + self.iter().map(|(_, region)| region.starts.resident_bytes()).sum::<u64>()
    }
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
fn unit(offset: u64) -> usize {
    (offset / UNIT) as usize
}
