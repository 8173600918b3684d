//! Frees with a stamp, and merges of what waits under one: those that have become safe, and those by force.

use super::arena::Arena;
use super::chunks::{ChunkId, NIL, State};

impl Arena {
    #[inline(never)]
    pub(super) fn free_stamped(&mut self, id: ChunkId) {
        let stamp = self.stamps.next();
        let hot = &mut self.chunks.slab[..][id];
        let size = hot.size();
        hot.mark_held();
        self.chunks.set_stamp(id, stamp);
        self.stamps.push(&self.chunks, stamp, id);
        if !self.settings.quarantine {
            self.index.insert(&mut self.chunks.slab, id, size);
        }
    }

    /// Clears the stamps that the frontier has passed and merges their chunks.
    pub(crate) fn merge_safe(&mut self) {
        while let Some(id) = self.stamps.pop_safe(&self.chunks) {
            if self.chunks.state(id) == State::Free {
                self.unindex(id);
            }
            self.chunks.set_stamp(id, 0);
            self.release::<true>(id, false);
        }
    }

    /// Merges waiting chunks in spite of their stamps, oldest first, until one of `size` bytes exists.
    /// Never with quarantine, where it would hand out what is not safe.
    pub(crate) fn merge_forced(&mut self, size: u64) -> bool {
        if self.settings.quarantine {
            return false;
        }
        self.stamps.drop_outdated(&self.chunks);
        let mut found = false;
        for place in 0..self.stamps.len() {
            // An earlier merge may have given the chunk a later stamp, or ended it.
            let id = self.stamps.chunk_at(place);
            if self.chunks.state(id) != State::Free {
                continue;
            }
            self.unindex(id);
            let prev = self.chunks.prev(id);
            let own = self.chunks.stamp(id);
            let of_prev = if prev == NIL { 0 } else { self.chunks.stamp(prev) };
            let merged = self.release::<true>(id, true);
            self.counters.forced_merges += 1;
            // Still stamped, so still queued: the original forgets some of these. Under a stamp that it had
            // before it has its place already, and one is enough.
            let stamp = self.chunks.stamp(merged);
            if stamp != if merged == id { own } else { of_prev } {
                self.stamps.replace(place, stamp, merged);
            }
            found = self.chunks.size(merged) >= size;
            if found {
                break;
            }
        }
        self.stamps.restore_order(&self.chunks);
        found
    }
}
