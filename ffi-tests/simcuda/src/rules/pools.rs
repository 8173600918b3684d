//! Memory pools and stream-ordered allocation. A pool takes areas of its device's memory and hands out pieces of them
//! in the order of streams: at the call already, and what is freed is the pool's again at the call. The work comes
//! later: an allocation lives, for those who touch it, from the turn of its allocation to the turn of its free.
//!
//! Rules: CUmemPool_attribute, cuMemAllocAsync, cuMemFreeAsync and cuMemPoolTrimTo in cuda.h; CUDA Programming Guide,
//! Stream-Ordered Memory Allocator (reuse policies, physical page caching).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;

use cuda_sys::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUdevice};

use crate::abi::Answer;
use crate::options::{Choice, POISON, POISON_FILL};
use crate::rules::memory::Origin;
use crate::rules::streams::Point;
use crate::sim::Sim;
use crate::state::arena::ALIGNMENT;
use crate::system::round_up;

/// A memory pool.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) device: CUdevice,
    pub(crate) is_default: bool,
    pub(crate) is_destroyed: bool,
    pub(crate) threshold: u64,
    /// Other devices that may touch its memory (cuMemPoolSetAccess).
    pub(crate) granted: BTreeSet<CUdevice>,
    /// By [`Reuse`].
    pub(crate) reuse: [c_int; 3],
    /// Bytes that were handed out and not freed.
    pub(crate) used: Level,
    /// Bytes of the device that it holds.
    pub(crate) reserved: Level,
    areas: BTreeMap<u64, Area>,
    free: BTreeMap<u64, Piece>,
}

/// Ways to get what another stream freed; CUmemPool_attribute counts them from 1.
#[derive(Clone, Copy)]
enum Reuse {
    FollowEventDependencies = 0,
    Opportunistic = 1,
    InternalDependencies = 2,
}

/// A number and the highest that it was.
#[derive(Default)]
pub(crate) struct Level {
    pub(crate) now: u64,
    pub(crate) high: u64,
}

/// Memory of the device, from the arena; its start is its key.
struct Area {
    bytes: u64,
    span: (u64, u64),
}

/// Free memory in an area.
#[derive(Clone, Copy)]
struct Piece {
    bytes: u64,
    /// The free whose turn has to come; none if the host freed it there and then.
    freed: Option<Point>,
    /// The host has synchronised with that.
    is_observed: bool,
}

/// What lives in the order of device work, by its start.
pub(crate) struct Living {
    pub(crate) bytes: u64,
    pub(crate) unique: u64,
    pub(crate) device: CUdevice,
    /// 0 for the memory of a graph.
    pub(crate) pool: u64,
}

impl Level {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.now += bytes;
        self.high = self.high.max(self.now);
    }

    /// "High watermark can only be reset to zero", from where it is what there is now.
    pub(crate) fn forget(&mut self) {
        self.high = self.now;
    }
}

impl Pool {
    /// An empty one; all policies of reuse are 'default enabled', and the threshold is 0.
    pub(crate) fn new(device: CUdevice, is_default: bool) -> Self {
        Self { device, is_default, reuse: [1; 3], ..Self::default() }
    }

    /// The smallest piece that is large enough, the first of several.
    fn best(&self, bytes: u64, may: impl Fn(&Piece) -> bool) -> Option<u64> {
        let fits = self.free.iter().filter(|(_, piece)| piece.bytes >= bytes && may(piece));
        fits.min_by_key(|(at, piece)| (piece.bytes, **at)).map(|(at, _)| *at)
    }

    /// Cuts an allocation off the beginning of a piece; gives what it has to wait for.
    fn cut(&mut self, at: u64, bytes: u64) -> Option<Point> {
        let piece = self.free.remove(&at)?;
        if piece.bytes > bytes {
            self.free.insert(at + bytes, Piece { bytes: piece.bytes - bytes, ..piece });
        }
        piece.freed
    }

    fn is_free(&self, at: u64, area: &Area, and: impl Fn(&Piece) -> bool) -> bool {
        self.free.get(&at).is_some_and(|piece| piece.bytes == area.bytes && and(piece))
    }
}

impl Sim {
    pub(crate) fn is_over(&self, freed: Option<Point>) -> bool {
        freed.is_none_or(|point| self.is_done(point))
    }

    /// Does something to a pool with the rest of the state in sight.
    fn with_pool<T>(&mut self, handle: u64, act: impl FnOnce(&Sim, &mut Pool) -> T) -> Option<T> {
        let mut pool = self.pools.remove(&handle)?;
        let result = act(self, &mut pool);
        self.pools.insert(handle, pool);
        Some(result)
    }

    /// Memory of a pool for a stream: its address, its number, and what the stream has to wait for.
    ///
    /// First what the same stream freed, or another where that is in order; then memory of the device; then, "failing
    /// to allocate and map more physical memory from the OS", what another stream still works on, behind that work.
    pub(crate) fn take_from_pool(
        &mut self,
        handle: u64,
        bytes: u64,
        stream: u64,
    ) -> Answer<(u64, u64, Option<Point>)> {
        let charge = round_up(bytes, ALIGNMENT);
        let device = self.pools.get(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?.device;
        let mut found = self.reusable(handle, charge, stream);
        if found.is_none() {
            found = match self.add_area(handle, device, charge) {
                Err(CUDA_ERROR_OUT_OF_MEMORY) => self.behind_others(handle, charge),
                at => at.map(Some)?,
            };
        }
        if found.is_none() && self.release_areas(handle, 0, 0) > 0 {
            found = Some(self.add_area(handle, device, charge)?);
        }
        let at = found.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let pool = self.pools.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let after = pool.cut(at, charge);
        pool.used.add(charge);
        let unique = self.add_allocation(at, device, 0, bytes, Origin::Pool(handle), (at, charge));
        Ok((at, unique, after.filter(|point| !self.is_done(*point))))
    }

    fn reusable(&mut self, handle: u64, bytes: u64, stream: u64) -> Option<u64> {
        self.with_pool(handle, |sim, pool| {
            sim.merge(pool);
            let allows = |way: Reuse| pool.reuse[way as usize] != 0;
            let may = |piece: &Piece| match piece.freed {
                None => true,
                Some(point) if point.stream == stream => true,
                Some(point) if sim.is_done(point) => piece.is_observed || allows(Reuse::Opportunistic),
                Some(point) => allows(Reuse::FollowEventDependencies) && sim.is_behind(stream, point),
            };
            pool.best(bytes, may)
        })?
    }

    fn behind_others(&mut self, handle: u64, bytes: u64) -> Option<u64> {
        let pool = self.pools.get(&handle)?;
        let allowed = pool.reuse[Reuse::InternalDependencies as usize] != 0;
        if allowed { pool.best(bytes, |_| true) } else { None }
    }

    /// Takes an area of the device's memory, which is a free piece at first.
    fn add_area(&mut self, handle: u64, device: CUdevice, bytes: u64) -> Answer<u64> {
        let (at, span) = self.take_device(device, bytes)?;
        let pool = self.pools.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        pool.areas.insert(at, Area { bytes, span });
        pool.free.insert(at, Piece { bytes, freed: None, is_observed: true });
        pool.reserved.add(bytes);
        Ok(at)
    }

    /// Free neighbours become one piece if the same stream freed them or nobody works on them any more.
    fn merge(&self, pool: &mut Pool) {
        let mut merged: BTreeMap<u64, Piece> = BTreeMap::new();
        for (at, piece) in std::mem::take(&mut pool.free) {
            let last = merged.last_entry();
            match last.filter(|last| last.key() + last.get().bytes == at) {
                Some(mut last) => {
                    let before = *last.get();
                    match self.together(before, piece) {
                        Some(both) => *last.get_mut() = both,
                        None => drop(merged.insert(at, piece)),
                    }
                }
                None => drop(merged.insert(at, piece)),
            }
        }
        pool.free = merged;
    }

    fn together(&self, first: Piece, second: Piece) -> Option<Piece> {
        let bytes = first.bytes + second.bytes;
        let is_observed = first.is_observed && second.is_observed;
        match (first.freed, second.freed) {
            (Some(one), Some(other)) if one.stream == other.stream => {
                let freed = if one.item > other.item { one } else { other };
                Some(Piece { bytes, freed: Some(freed), is_observed })
            }
            _ if first.is_observed == second.is_observed
                && self.is_over(first.freed)
                && self.is_over(second.freed) =>
            {
                Some(Piece { bytes, freed: first.freed.or(second.freed), is_observed })
            }
            _ => None,
        }
    }

    /// Takes an allocation back at the call that frees it: the pool's it is from now on, in the order of a stream, or
    /// at once.
    pub(crate) fn return_to_pool(&mut self, at: u64, freed: Option<Point>) {
        let Some(allocation) = self.allocations.remove(&at) else { return };
        let Origin::Pool(handle) = allocation.origin else { return };
        let Some(pool) = self.pools.get_mut(&handle) else { return };
        let bytes = round_up(allocation.bytes, ALIGNMENT);
        pool.used.now -= bytes;
        pool.free.insert(at, Piece { bytes, freed, is_observed: freed.is_none() });
        if freed.is_none() {
            self.stop_living(at, allocation.unique);
        }
        self.end_if_empty(handle);
    }

    /// A destroyed pool goes "once there are no more outstanding allocations".
    pub(crate) fn end_if_empty(&mut self, handle: u64) {
        let is_over = self.with_pool(handle, |sim, pool| {
            sim.merge(pool);
            let mut pieces = pool.free.values();
            pool.is_destroyed && pieces.all(|piece| sim.is_over(piece.freed)) && pool.used.now == 0
        });
        if is_over == Some(true)
            && let Some(pool) = self.pools.remove(&handle)
        {
            for area in pool.areas.values() {
                self.give_device_back(pool.device, area.bytes, area.span);
            }
        }
    }

    pub(crate) fn end_destroyed_pools(&mut self) {
        let destroyed = self.pools.iter().filter(|(_, pool)| pool.is_destroyed);
        for handle in destroyed.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            self.end_if_empty(handle);
        }
    }

    /// Gives areas back to the device that are wholly free, the work on them over and that known to the host, as long
    /// as more than `above` bytes are held and `keep` stay; returns how many bytes went.
    pub(crate) fn release_areas(&mut self, handle: u64, above: u64, keep: u64) -> u64 {
        let mut released = 0;
        loop {
            let next = self.with_pool(handle, |sim, pool| {
                sim.merge(pool);
                let held = pool.reserved.now;
                let idle = |piece: &Piece| piece.is_observed && sim.is_over(piece.freed);
                let may = |at: u64, area: &Area| held - area.bytes >= keep && pool.is_free(at, area, idle);
                let at = pool.areas.iter().filter(|_| held > above).find(|(at, area)| may(**at, area));
                let at = at.map(|(at, _)| *at)?;
                let area = pool.areas.remove(&at)?;
                pool.free.remove(&at);
                pool.reserved.now -= area.bytes;
                Some((pool.device, area))
            });
            let Some(Some((device, area))) = next else { return released };
            self.give_device_back(device, area.bytes, area.span);
            released += area.bytes;
        }
    }

    /// The host has synchronised with a stream, an event or a context: "the allocator will try to release memory back
    /// to the OS" that is above the threshold.
    pub(crate) fn observe(&mut self) {
        for handle in self.pools.keys().copied().collect::<Vec<_>>() {
            self.with_pool(handle, |sim, pool| {
                for piece in pool.free.values_mut() {
                    piece.is_observed |= sim.is_over(piece.freed);
                }
            });
            let above = self.pools.get(&handle).map_or(u64::MAX, |pool| pool.threshold);
            self.release_areas(handle, above, 0);
            self.end_if_empty(handle);
        }
    }

    /// The turn of an allocation has come. Whatever lived there can only be what nobody freed in order.
    pub(crate) fn start_living(&mut self, at: u64, living: Living) {
        let end = at + living.bytes;
        let before = self.living.range(..end).filter(|(start, other)| *start + other.bytes > at);
        for start in before.map(|(start, _)| *start).collect::<Vec<_>>() {
            self.living.remove(&start);
        }
        self.living.insert(at, living);
    }

    /// The turn of a free has come; false if that allocation does not live there.
    pub(crate) fn stop_living(&mut self, at: u64, unique: u64) -> bool {
        let Some(living) = self.living.get(&at).filter(|living| living.unique == unique) else {
            return false;
        };
        if self.options.get(Choice::Poison) == POISON_FILL {
            // SAFETY: the memory is a pool's or a graph's, and stays accessible until that gives it back.
            unsafe { std::ptr::write_bytes(at as *mut u8, POISON, living.bytes as usize) };
        }
        self.living.remove(&at);
        true
    }

    /// All pools' memory goes, for a machine that begins anew.
    pub(crate) fn drop_pools(&mut self) {
        self.living.clear();
        for (_, pool) in std::mem::take(&mut self.pools) {
            for area in pool.areas.values() {
                self.give_device_back(pool.device, area.bytes, area.span);
            }
        }
    }
}
