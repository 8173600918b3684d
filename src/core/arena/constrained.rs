//! Requests and frees that need more than best fit: alignments and stamps.

use crate::core::arena::{Arena, Want, splits};
use crate::core::heap::chunks::Hot;
use crate::core::ids::{ChunkId, NIL};
use crate::core::steps;
use crate::core::units::UNIT;
use crate::sys::HostMemoryExhausted;

impl Arena {
    /// As `take_plain`, for stamps and large alignments. Finds nothing while [`Self::is_merging`].
    #[inline(never)]
    pub(in crate::core) fn take_choosy(
        &mut self,
        want: &Want<'_>,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        // A prefix for the alignment and a remainder: at most two new chunks.
        self.reserve_chunks(2)?;
        if self.is_merging() && self.merge_safe_some(MERGED_AT_ONCE) {
            // What is the best fit is not known before all is merged that may be.
            return Ok(None);
        }
        let Some(mut id) = self.find_choosy(want) else { return Ok(None) };
        self.starts.reserve(&self.chunks.slab, &mut self.regions, 2)?;
        let stamp = self.remove_free(id);
        if want.alignment > UNIT {
            id = self.split_prefix(id, want.alignment, stamp);
        }
        let whole = self.chunks.size(id);
        let splits = splits(whole, want.size, self.max_slack);
        if splits {
            self.split_remainder(id, want.size, stamp);
        }
        self.chunks.slab[..][id].mark_in_use();
        let size = if splits { want.size } else { whole };
        self.hand_out(id, size, want.requested);
        let addr = self.chunks.addr(id);
        self.regions.touch(self.chunks.region(id), addr + size);
        Ok(Some(addr))
    }

    /// The first chunk in (size, address) order that has a place at the alignment and an old enough stamp. Of those without a
    /// place at the alignment only a few are passed over one by one: then the first follows which is so large that it has one
    /// wherever it begins, and the others only if the request is thorough.
    pub(in crate::core) fn find_choosy(&self, want: &Want<'_>) -> Option<ChunkId> {
        let found = self.find_old_enough(want, MOST_MISALIGNED);
        if found.is_none() && want.thorough { self.find_old_enough(want, u32::MAX) } else { found }
    }

    fn find_old_enough(&self, want: &Want<'_>, most_misaligned: u32) -> Option<ChunkId> {
        let mut found = self.first_old_enough((want.size, 0), want.newest);
        let mut misaligned = 0;
        while let Some(id) = found {
            steps::count();
            let key = self.chunks.slab[..][id].key();
            if want.place_in(key).is_some() {
                break;
            }
            misaligned += 1;
            let next =
                if misaligned == most_misaligned { (want.sure_size(), 0) } else { want.next_with_place(key) };
            found = self.first_old_enough(next, want.newest);
        }
        found
    }

    /// The first chunk that is not below a size and an address, and was freed early enough.
    #[inline]
    pub(in crate::core) fn first_old_enough(&self, key: (u64, u64), newest: u64) -> Option<ChunkId> {
        let slab = &self.chunks.slab[..];
        let unstamped = self.index.first_from(slab, key);
        let Some(stamped) = self.stamps.index.first_from(&self.chunks, key, newest) else { return unstamped };
        let is_first = unstamped.is_none_or(|other| slab[stamped].key() < slab[other].key());
        if is_first { Some(stamped) } else { unstamped }
    }

    /// Splits a free prefix off a chunk that was removed, so that the rest is aligned. What was freed at some time was freed as
    /// a whole: the prefix waits as long as the chunk did.
    fn split_prefix(&mut self, id: ChunkId, alignment: u64, stamp: u64) -> ChunkId {
        let addr = self.chunks.addr(id);
        let prefix = addr.next_multiple_of(alignment) - addr;
        if prefix == 0 {
            return id;
        }
        let rest = self.add_after(id, prefix);
        self.counters.stamped_splits += u64::from(stamp != 0);
        self.insert_free(id, stamp);
        rest
    }

    /// Splits a chunk that was removed behind `wanted` bytes; the remainder is free, and waits as the prefix does.
    fn split_remainder(&mut self, id: ChunkId, wanted: u64, stamp: u64) {
        let rest = self.add_after(id, wanted);
        self.counters.stamped_splits += u64::from(stamp != 0);
        self.insert_free(rest, stamp);
    }

    /// Cuts a chunk at `at` bytes; what lies behind becomes a chunk.
    pub(in crate::core) fn add_after(&mut self, id: ChunkId, at: u64) -> ChunkId {
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
    pub(in crate::core) fn absorb_next(&mut self, id: ChunkId) {
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

/// Chunks whose stamps have become safe that a request merges by itself. More are merged before it, with the lock opened
/// meanwhile.
const MERGED_AT_ONCE: usize = 8;
/// Chunks that a search may find to be large enough, but without a place at the alignment, before it takes one that surely has
/// it.
pub(in crate::core) const MOST_MISALIGNED: u32 = 32;
