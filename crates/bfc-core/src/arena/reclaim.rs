//! Giving memory back: garbage collection, trim, and destruction.

use super::arena::Arena;
use crate::heap::{InUse, Region, State};
use crate::ids::{ChunkId, NIL};
use crate::sort::sort_by_key;
use crate::units::Span;
use crate::vmm::has_donors;
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// A region that the arena no longer knows, to be given back to the backend. Its bytes count as held until
/// [`Arena::region_released`].
pub type Detached = Region;

/// How far [`Arena::visit_idle`] has come.
#[derive(Default)]
pub struct Cursor {
    /// The search goes on at this address.
    from: u64,
    /// The last chunk in use before it. It is found without a walk along the region.
    near: u64,
}

impl Arena {
    /// TensorFlow's `DeallocateFreeRegions`: detaches every wholly free region, unless even that would not make room
    /// for `size` bytes. Without memory for the list, nothing is detached.
    pub fn detach_for(&mut self, size: u64) -> Vec<Detached> {
        if !self.settings.garbage_collection || self.range().is_some() {
            return Vec::new();
        }
        let free = self.idle_regions().fold(0u64, |sum, (_, bytes)| sum.saturating_add(bytes));
        let pool = self.growth().pool_bytes();
        let possible = self.growth().limit().saturating_sub(pool).saturating_add(free);
        if free == 0 || size > possible {
            return Vec::new();
        }
        self.detach_while(|_, _| true).unwrap_or_default()
    }

    /// Returns whether [`Self::detach_to_replace`] would find regions now.
    pub fn could_replace(&self, size: u64) -> bool {
        let may = self.settings.garbage_collection && self.range().is_none() && self.has_room_to_grow(size);
        let free = || self.idle_regions().fold(0u64, |sum, (_, bytes)| sum.saturating_add(bytes));
        may && self.growth().replaces_regions(size) && free() >= size
    }

    /// Returns whether a request for `size` bytes is to move idle granules before new ones are mapped: as much as it needs
    /// is idle. Smaller requests are left to growth, because moves wait for the device.
    pub fn moves_before_growth(&self, size: u64) -> bool {
        const LEAST_SHARE: u64 = 64;
        let held = self.growth().pool_bytes();
        let idle = held.saturating_sub(self.counters().bytes_in_use);
        self.range().is_some() && self.has_room_to_grow(size) && size >= held / LEAST_SHARE && idle >= size
    }

    /// Returns whether the limit leaves room for a request. Where it does not, memory moves or goes back only once nothing
    /// else serves the request.
    fn has_room_to_grow(&self, size: u64) -> bool {
        self.growth().available() >= size
    }

    /// Detaches wholly free regions that one region for a request of `size` bytes can replace: none of them has room for
    /// it, but all together do. With growth by need a pool with requests of many sizes would otherwise collect regions that
    /// nothing fits in. Without memory for the list, nothing is detached.
    pub fn detach_to_replace(&mut self, size: u64) -> Vec<Detached> {
        if !self.could_replace(size) {
            return Vec::new();
        }
        let mut left = size;
        let detached = self.detach_while(|_, bytes| {
            let goes = left > 0;
            left = left.saturating_sub(bytes);
            goes
        });
        detached.unwrap_or_default()
    }

    /// Detaches wholly free regions, the largest first, as long as `keep` bytes stay held.
    pub fn detach_above(&mut self, keep: u64) -> Result<Vec<Detached>, HostMemoryExhausted> {
        if !self.prepare_trim(keep)? {
            return Ok(Vec::new());
        }
        let mut left = self.held_in_regions();
        self.detach_while(|_, bytes| {
            let goes = left.saturating_sub(bytes) >= keep && left > keep;
            left -= if goes { bytes } else { 0 };
            goes
        })
    }

    /// Detaches wholly free regions until at most `most` bytes are held, or none is left. The largest go first. The
    /// last one is the smallest that is large enough.
    pub fn detach_beyond(&mut self, most: u64) -> Result<Vec<Detached>, HostMemoryExhausted> {
        self.merge_safe();
        let mut left = self.held_in_regions();
        if left <= most {
            return Ok(Vec::new());
        }
        self.detach_of(|free| {
            let mut chosen = 0;
            while left > most && chosen < free.len() {
                let excess = left - most;
                if free[chosen].1 >= excess {
                    let last = free.partition_point(|&(_, bytes)| bytes >= excess) - 1;
                    free.swap(chosen, last);
                    left = most;
                } else {
                    left -= free[chosen].1;
                }
                chosen += 1;
            }
            free.truncate(chosen);
        })
    }

    /// Returns the bytes held, less `piece`, or less the smallest wholly free region if that is larger.
    pub fn held_without(&self, piece: u64) -> u64 {
        if self.range().is_some() {
            return self.growth().pool_bytes().saturating_sub(piece);
        }
        let least = self.idle_regions().map(|(_, bytes)| bytes).min().unwrap_or(0);
        self.held_in_regions().saturating_sub(piece.max(least))
    }

    /// Returns the bytes held by the arena's regions. The pool's bytes also count what another thread is giving back.
    fn held_in_regions(&self) -> u64 {
        self.regions().iter().fold(0u64, |sum, (_, region)| sum.saturating_add(region.given))
    }

    /// Shows `visit` the free memory that was handed out or populated before and that nothing waits for, in address order
    /// from the cursor on, and moves the cursor. `visit` returns with how many of a span's bytes it is done, or `None` to
    /// stop. Returns whether all of it was visited. It looks at `most` chunks at most.
    pub fn visit_idle(
        &mut self,
        cursor: &mut Cursor,
        most: usize,
        mut visit: impl FnMut(Span) -> Option<u64>,
    ) -> bool {
        if self.streams.hold_unfinished().is_err() {
            return true;
        }
        let mut left = most;
        for (_, region) in self.regions().iter() {
            if region.resident_to() <= cursor.from {
                continue;
            }
            let first = if cursor.from > region.base { self.chunk_for(cursor) } else { Some(region.first) };
            for id in first.into_iter().flat_map(|first| self.heap().from(first)) {
                let (addr, end) = (self.chunks().addr(id), self.heap().end_of(id).min(region.resident_to()));
                if end <= cursor.from {
                    continue;
                }
                if addr >= region.resident_to() {
                    break;
                }
                if left == 0 {
                    return false;
                }
                left -= 1;
                if !self.is_idle(id) {
                    *cursor = Cursor { from: end, near: addr };
                    continue;
                }
                cursor.from = addr.max(cursor.from);
                while cursor.from < end {
                    let span = Span { base: cursor.from, bytes: end - cursor.from };
                    let Some(done) = visit(span) else { return false };
                    cursor.from += done;
                }
            }
        }
        true
    }

    /// Returns a chunk from which it is not far to the cursor. What changed meanwhile may have merged the chunk there
    /// into one that begins before it.
    fn chunk_for(&self, cursor: &Cursor) -> Option<ChunkId> {
        let is_before = |&id: &ChunkId| {
            let same = |addr: u64| self.regions().find(addr);
            cursor.near < cursor.from && same(self.chunks().addr(id)) == same(cursor.from)
        };
        self.heap().entry_at(cursor.near).filter(is_before).or_else(|| self.chunk_around(cursor.from))
    }

    /// Returns whether some free memory could be given back now, with at least `keep` bytes staying held.
    pub fn could_trim(&mut self, keep: u64) -> bool {
        self.prepare_trim(keep).unwrap_or(false)
    }

    /// Returns the same, and holds what a trim must not release.
    pub(super) fn prepare_trim(&mut self, keep: u64) -> Result<bool, HostMemoryExhausted> {
        self.merge_safe();
        self.hold_unfinished_if(|arena| match arena.range() {
            Some(range) => has_donors(arena.heap(), range, keep),
            None => {
                let held = arena.held_in_regions();
                arena.idle_regions().any(|(_, bytes)| held - bytes >= keep)
            }
        })
    }

    /// Returns whether some memory is to be released, with what must not be held. If there is none anyway, the only stream
    /// stays alone: being told apart costs it the fast path and its plan.
    fn hold_unfinished_if(&mut self, is_some: impl Fn(&Self) -> bool) -> Result<bool, HostMemoryExhausted> {
        if !is_some(self) {
            return Ok(false);
        }
        self.streams.hold_unfinished()?;
        Ok(is_some(self))
    }

    /// Detaches some region, free or not, when the arena is destroyed.
    pub fn detach_any(&mut self) -> Option<Detached> {
        let (id, _) = self.regions().iter().next()?;
        Some(self.detach(id))
    }

    /// Notes that the backend has taken a detached region back.
    pub fn region_released(&mut self, given: u64) {
        self.heap_mut().growth_mut().released(given);
        self.heap_mut().counters_mut().regions_released += 1;
    }

    /// Shrinks all tables to the size that the current chunks need, and resets the region hint to its small initial
    /// value.
    pub fn forget_past(&mut self) {
        self.heap_mut().growth_mut().reset_hint();
        let Arena { streams, stamps, vm, .. } = self;
        streams.forget_past();
        // Memory that a plan has reserved belongs to the plan until it is carried out.
        if !vm.is_moving() {
            streams.heap_mut().shrink();
            stamps.shrink(streams.heap().chunks().places());
            streams.shrink();
            vm.shrink();
        }
        streams.heap_mut().shrink_starts();
    }

    /// In a forked child, forgets what other threads of the parent had under way, because it will never be finished.
    /// The thread that forked may itself be obtaining a region, with `reserved` bytes reserved, or giving regions back.
    pub fn forget_unfinished(&mut self, reserved: u64, releases: bool) {
        self.heap_mut().growth_mut().forget_reservations(reserved);
        if releases {
            // It is not known here which of the held bytes that thread is giving back, so none are forgotten.
            return;
        }
        let held = self.held_in_regions();
        self.heap_mut().growth_mut().set_pool_bytes(held);
    }

    /// Returns the regions that could be given back, in address order, with the bytes that the backend gave for each.
    fn idle_regions(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let free = self.regions().iter().filter(|(_, region)| self.is_free(region.first));
        free.map(|(id, region)| (id, region.given))
    }

    /// Returns whether no chunk from `id` on is in use or waits for work.
    fn is_free(&self, id: ChunkId) -> bool {
        self.heap().from(id).all(|id| self.is_idle(id))
    }

    /// Returns whether a chunk is neither in use nor waits for work.
    fn is_idle(&self, id: ChunkId) -> bool {
        let waits = self.streams.is_multi() && !self.streams.is_reusable(id);
        !waits && !self.chunks().in_use(id) && self.stamps.is_safe(self.chunks().stamp(id))
    }

    /// Detaches the wholly free regions that `goes` accepts, which is asked from the largest to the smallest.
    fn detach_while(
        &mut self,
        mut goes: impl FnMut(u32, u64) -> bool,
    ) -> Result<Vec<Detached>, HostMemoryExhausted> {
        self.detach_of(|free| free.retain(|&(id, bytes)| goes(id, bytes)))
    }

    /// Detaches those wholly free regions that `choose` leaves in the list, which has the largest first.
    fn detach_of(
        &mut self,
        choose: impl FnOnce(&mut Vec<(u32, u64)>),
    ) -> Result<Vec<Detached>, HostMemoryExhausted> {
        if !self.hold_unfinished_if(|arena| arena.idle_regions().next().is_some())? {
            return Ok(Vec::new());
        }
        let mut ids: Vec<(u32, u64)> = Vec::new();
        ids.try_reserve_exact(self.regions().count())?;
        ids.extend(self.idle_regions());
        sort_by_key(&mut ids, |&(id, bytes)| (core::cmp::Reverse(bytes), id));
        choose(&mut ids);
        let mut detached = Vec::new();
        detached.try_reserve_exact(ids.len())?;
        detached.extend(ids.into_iter().map(|(id, _)| self.detach(id)));
        // In address order, as the original gives them back.
        sort_by_key(&mut detached, |region: &Detached| region.base);
        Ok(detached)
    }

    pub(super) fn detach(&mut self, region: u32) -> Detached {
        let Arena { streams, stamps, vm, settings, .. } = self;
        let heap = streams.heap_mut();
        let mut id = heap.regions().get(region).first;
        while id != NIL {
            let next = heap.next(id);
            match heap.state(id) {
                State::Free | State::Held if settings.reuse.has_stamps() => _ = stamps.remove_free(heap, id),
                State::Free => heap.unindex(id),
                // Only when the whole arena is destroyed.
                State::InUse => heap.count_free(InUse::of(id)),
                State::Unmapped => vm.forget(heap, id),
                _ => {}
            }
            heap.end_chunk(id);
            id = next;
        }
        heap.remove_region(region)
    }
}
