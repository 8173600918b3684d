//! Requests and frees that need more than best fit: alignments and stamps.

use super::arena::{Arena, Want, splits};
use super::chunks::{ChunkId, Hot, NIL};
use super::steps;
use super::units::UNIT;
use crate::sys::HostMemoryExhausted;

impl Arena {
    /// As `take_plain`, for stamps and large alignments.
    #[inline(never)]
    pub(super) fn take_choosy(&mut self, want: &Want<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        // A prefix for the alignment and a remainder: at most two new chunks.
        self.chunks.reserve(2)?;
        if self.settings.timestamps {
            self.stamps.reserve(self.chunks.count() + 2)?;
            self.merge_safe();
        }
        let Some(mut id) = self.find_choosy(want) else { return Ok(None) };
        self.starts.reserve(&self.chunks.slab, &mut self.regions, 2)?;
        self.unindex(id);
        if want.alignment > UNIT {
            id = self.split_prefix(id, want.alignment);
        }
        let whole = self.chunks.size(id);
        let splits = splits(whole, want.size, self.max_slack);
        if splits {
            self.split_remainder(id, want.size);
        }
        self.chunks.slab[..][id].mark_in_use();
        self.chunks.set_stamp(id, 0);
        let size = if splits { want.size } else { whole };
        self.hand_out(id, size, want.requested);
        let addr = self.chunks.addr(id);
        self.regions.touch(self.chunks.region(id), addr + size);
        Ok(Some(addr))
    }

    /// The first chunk in (size, address) order that has a place at the alignment and an old enough stamp. Chunks that are
    /// too new are passed over one by one, as in the original. Of those without a place at the alignment only a few are: then
    /// the first follows which is so large that it has one wherever it begins, and the others only if the request is
    /// thorough.
    pub(super) fn find_choosy(&self, want: &Want<'_>) -> Option<ChunkId> {
        let found = self.find_old_enough(want, MOST_MISALIGNED);
        if found.is_none() && want.thorough { self.find_old_enough(want, u32::MAX) } else { found }
    }

    fn find_old_enough(&self, want: &Want<'_>, most_misaligned: u32) -> Option<ChunkId> {
        let slab = &self.chunks.slab[..];
        let mut found = self.index.best_fit(slab, want.size).map(|(id, _)| id);
        let mut misaligned = 0;
        while let Some(id) = found {
            steps::count();
            let key = slab[id].key();
            let fits = want.place_in(key).is_some();
            if fits && self.chunks.stamp(id) <= want.newest {
                break;
            }
            misaligned += u32::from(!fits);
            found = if !fits && misaligned == most_misaligned {
                self.index.first_of_size(slab, want.sure_size())
            } else {
                self.index.following(slab, key)
            };
        }
        found
    }

    /// Splits a free prefix off a chunk outside the index, so that the rest is aligned.
    fn split_prefix(&mut self, id: ChunkId, alignment: u64) -> ChunkId {
        let addr = self.chunks.addr(id);
        let prefix = addr.next_multiple_of(alignment) - addr;
        if prefix == 0 {
            return id;
        }
        let rest = self.add_after(id, prefix);
        // The prefix keeps the chunk's place in the queue of stamps, if it has one; the rest hands the
        // stamp on to its own remainder.
        let stamp = self.chunks.stamp(id);
        self.chunks.set_stamp(rest, stamp);
        self.counters.stamped_splits += u64::from(stamp != 0);
        self.index.insert(&mut self.chunks.slab, id, prefix);
        rest
    }

    /// Splits a chunk outside the index behind `wanted` bytes; the remainder is free.
    fn split_remainder(&mut self, id: ChunkId, wanted: u64) {
        let rest = self.add_after(id, wanted);
        let size = self.chunks.size(rest);
        self.index.insert(&mut self.chunks.slab, rest, size);
        // What was freed at some time was freed as a whole: the remainder waits as long as the chunk did.
        let stamp = self.chunks.stamp(id);
        self.chunks.set_stamp(rest, stamp);
        if stamp != 0 {
            self.stamps.insert(&self.chunks, stamp, rest);
            self.counters.stamped_splits += 1;
        }
    }

    /// Cuts a chunk at `at` bytes; what lies behind becomes a chunk.
    pub(super) fn add_after(&mut self, id: ChunkId, at: u64) -> ChunkId {
        let slab = &mut self.chunks.slab[..];
        let Hot { addr, next, .. } = slab[id];
        let (size, region) = (slab[id].size(), slab[id].region());
        let rest = self.chunks.vacant.fill(slab, Hot::new(addr + at, size - at, region, id, next));
        if next != NIL {
            slab[next].prev = rest;
        }
        slab[id].set_size(at);
        slab[id].next = rest;
        self.chunks.set_stamp(rest, 0);
        self.starts.set(&mut self.regions, addr + at, rest);
        rest
    }

    /// The contrary: ends the chunk behind one, which is in no tree and no list, and hands its bytes on.
    #[inline]
    pub(super) fn absorb_next(&mut self, id: ChunkId) {
        let Arena { chunks, regions, starts, .. } = self;
        let slab = &mut chunks.slab[..];
        let next = slab[id].next;
        let gone = slab[next];
        starts.clear(slab, regions, gone.addr, next);
        chunks.vacant.add(slab, next);
        let size = slab[id].size() + gone.size();
        slab[id].set_size(size);
        slab[id].next = gone.next;
        if gone.next != NIL {
            slab[gone.next].prev = id;
        }
    }
}

/// Chunks that a search may find to be large enough, but without a place at the alignment, before it takes one that surely has
/// it.
pub(super) const MOST_MISALIGNED: u32 = 32;
