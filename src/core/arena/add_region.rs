//! Taking in what the backend gives: the counterpart of `release`.

use crate::core::arena::Arena;
use crate::core::arena::reclaim::Detached;
use crate::core::heap::chunks::Hot;
use crate::core::heap::region_growth::Extension;
use crate::core::ids::{ChunkId, NIL};
use crate::core::units::{MAX_CHUNK, round_down};
use crate::sys::HostMemoryExhausted;

impl Arena {
    pub(crate) fn plan_extension(&mut self, least: u64) -> Option<Extension> {
        self.growth.plan(least)
    }

    /// Plans a region of exactly `least` bytes.
    pub(crate) fn plan_exact_extension(&mut self, least: u64) -> Option<Extension> {
        self.growth.plan_exactly(least)
    }

    pub(crate) fn cancel_extension(&mut self, extension: &Extension) {
        self.growth.unreserve(extension.reserved());
    }

    pub(crate) fn overlaps(&self, base: u64, bytes: u64) -> bool {
        self.regions.overlaps(base, bytes)
    }

    /// Adds what the backend gave: `given` bytes at `base`, a multiple of 256, which overlap nothing.
    /// On failure nothing changed but that the extension is over.
    pub(crate) fn add_region(
        &mut self,
        extension: &Extension,
        base: u64,
        given: u64,
    ) -> Result<(), HostMemoryExhausted> {
        let added = self.insert_region(base, given);
        match added {
            Ok(()) => {
                self.growth.commit(extension, given);
                self.counters.regions_added += 1;
            }
            Err(HostMemoryExhausted) => self.cancel_extension(extension),
        }
        added
    }

    /// The backend did not take a detached region, which counts as held still: it is free memory again. On failure
    /// nothing changed.
    pub(crate) fn restore(&mut self, region: &Detached) -> Result<(), HostMemoryExhausted> {
        self.insert_region(region.base, region.given)?;
        // Work that nobody knows of may use it as before.
        if let Some(id) = self.regions.find(region.base) {
            self.regions.touch(id, region.touched);
        }
        Ok(())
    }

    fn insert_region(&mut self, base: u64, given: u64) -> Result<(), HostMemoryExhausted> {
        self.reserve_chunks(1)?;
        self.starts.reserve(&self.chunks.slab, &mut self.regions, 1)?;
        let bytes = usable(given);
        let below = if self.settings.coalesce_regions { self.regions.ending_at(base) } else { None };
        let below = below.filter(|&id| self.regions.get(id).bytes + bytes <= MAX_CHUNK);
        let (region, last) = match below {
            Some(id) => {
                let last = self.last_chunk(id);
                self.regions.extend(id, bytes, given)?;
                (id, last)
            }
            None => (self.regions.add(base, bytes, given, self.starts.needs_flat())?, NIL),
        };
        let slab = &mut self.chunks.slab[..];
        let id = self.chunks.vacant.fill(slab, Hot::new(base, bytes, region, last, NIL));
        if last == NIL {
            self.regions.get_mut(region).first = id;
        } else {
            slab[last].next = id;
        }
        self.chunks.set_stamp(id, 0);
        self.starts.set(&mut self.regions, base, id);
        if self.settings.timestamps {
            self.release::<true>(id);
        } else if self.mixed {
            self.give_to_all(id, None);
        } else {
            self.release::<false>(id);
        }
        Ok(())
    }

    fn last_chunk(&self, region: u32) -> ChunkId {
        let region = self.regions.get(region);
        self.chunk_around(region.base + region.bytes - 1).unwrap_or(NIL)
    }
}

/// The part of a region that chunks can tile.
pub(crate) fn usable(given: u64) -> u64 {
    round_down(given).min(MAX_CHUNK)
}
