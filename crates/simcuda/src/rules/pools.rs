//! Memory pools and stream-ordered allocation. A pool takes areas of its device's memory and hands out pieces of them
//! in the order of streams. Both happen at the call already: an allocation is handed out, and freed memory belongs to
//! the pool again. The work follows later: for other work, an allocation is live from its allocation to its free in
//! stream order.
//!
//! Rules: CUmemPool_attribute, cuMemAllocAsync, cuMemFreeAsync and cuMemPoolTrimTo in cuda.h; CUDA Programming Guide,
//! Stream-Ordered Memory Allocator (reuse policies, physical page caching).

use cuda_sys::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUdevice};

use crate::abi::Answer;
use crate::options::{Choice, POISON, POISON_FILL};
use crate::sim::Sim;
use crate::state::arena::ALIGNMENT;
use crate::state::memory::{Living, Origin};
use crate::state::pool::{Area, Pool};
use crate::state::stream::Point;
use crate::system::round_up;

impl Sim {
    /// Calls `act` with a pool and the rest of the state.
    fn with_pool<T>(&mut self, handle: u64, act: impl FnOnce(&Sim, &mut Pool) -> T) -> Option<T> {
        let mut pool = self.pools.remove(&handle)?;
        let result = act(self, &mut pool);
        self.pools.insert(handle, pool);
        Some(result)
    }

    /// Takes memory of a pool for a stream. Returns its address, its number, and the work that the stream has to wait
    /// for.
    ///
    /// The pool first uses memory freed by the same stream, or by another where the order permits it. Then it uses
    /// memory of the device. Then, "failing to allocate and map more physical memory from the OS", it uses memory that
    /// another stream still uses, after that work.
    pub(crate) fn take_from_pool(
        &mut self,
        handle: u64,
        bytes: u64,
        stream: u64,
    ) -> Answer<(u64, u64, Option<Point>)> {
        let charge = round_up(bytes, ALIGNMENT);
        let device = self.pools.get(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?.device();
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
        let after = pool.take(at, charge);
        let unique = self.add_allocation(at, device, 0, bytes, Origin::Pool(handle), (at, charge));
        Ok((at, unique, after.filter(|point| !self.is_done(*point))))
    }

    fn reusable(&mut self, handle: u64, bytes: u64, stream: u64) -> Option<u64> {
        self.with_pool(handle, |sim, pool| {
            let is_behind = |point| sim.is_behind(stream, point);
            pool.reusable(bytes, stream, &|point| sim.is_done(point), is_behind)
        })?
    }

    fn behind_others(&mut self, handle: u64, bytes: u64) -> Option<u64> {
        self.pools.get(&handle)?.behind_others(bytes)
    }

    /// Takes an area of the device's memory, which is a single free piece at first.
    fn add_area(&mut self, handle: u64, device: CUdevice, bytes: u64) -> Answer<u64> {
        let (at, span) = self.take_device(device, bytes)?;
        let pool = self.pools.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        pool.add_area(at, Area { bytes, span });
        Ok(at)
    }

    /// Returns an allocation to the pool at the call that frees it. The pool then owns it, in the order of a stream or
    /// at once.
    pub(crate) fn return_to_pool(&mut self, at: u64, freed: Option<Point>) {
        let Some(allocation) = self.allocations.remove(&at) else { return };
        let Origin::Pool(handle) = allocation.origin else { return };
        let Some(pool) = self.pools.get_mut(&handle) else { return };
        let bytes = round_up(allocation.bytes, ALIGNMENT);
        pool.give_back(at, bytes, freed);
        if freed.is_none() {
            self.stop_living(at, allocation.unique);
        }
        self.end_if_empty(handle);
    }

    /// Ends a destroyed pool "once there are no more outstanding allocations".
    pub(crate) fn end_if_empty(&mut self, handle: u64) {
        let has_ended = self.with_pool(handle, |sim, pool| pool.has_ended(&|point| sim.is_done(point)));
        if has_ended == Some(true)
            && let Some(pool) = self.pools.remove(&handle)
        {
            self.end_pool(pool);
        }
    }

    fn end_pool(&mut self, pool: Pool) {
        let device = pool.device();
        for area in pool.into_areas() {
            self.give_device_back(device, area.bytes, area.span);
        }
    }

    pub(crate) fn end_destroyed_pools(&mut self) {
        let destroyed = self.pools.iter().filter(|(_, pool)| pool.is_destroyed());
        for handle in destroyed.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            self.end_if_empty(handle);
        }
    }

    /// Returns wholly free areas to the device whose work is done and known to the host to be done, as long as more
    /// than `above` bytes are held and `keep` remain. Returns the number of bytes released.
    pub(crate) fn release_areas(&mut self, handle: u64, above: u64, keep: u64) -> u64 {
        let mut released = 0;
        loop {
            let next = self.with_pool(handle, |sim, pool| {
                let area = pool.release_area(above, keep, &|point| sim.is_done(point))?;
                Some((pool.device(), area))
            });
            let Some(Some((device, area))) = next else { return released };
            self.give_device_back(device, area.bytes, area.span);
            released += area.bytes;
        }
    }

    /// Records that the host has synchronized with a stream, an event or a context: "the allocator will try to release
    /// memory back to the OS" that is above the threshold.
    pub(crate) fn observe(&mut self) {
        for handle in self.pools.keys().copied().collect::<Vec<_>>() {
            self.with_pool(handle, |sim, pool| pool.observe(&|point| sim.is_done(point)));
            let above = self.pools.get(&handle).map_or(u64::MAX, Pool::threshold);
            self.release_areas(handle, above, 0);
            self.end_if_empty(handle);
        }
    }

    /// Makes an allocation live when its turn comes. Memory that was live there before can only be memory not freed in
    /// order.
    pub(crate) fn start_living(&mut self, at: u64, living: Living) {
        let end = at + living.bytes;
        let before = self.living.range(..end).filter(|(start, other)| *start + other.bytes > at);
        for start in before.map(|(start, _)| *start).collect::<Vec<_>>() {
            self.living.remove(&start);
        }
        self.living.insert(at, living);
    }

    /// Ends the life of an allocation when its free is done. Returns false if that allocation is not live there.
    pub(crate) fn stop_living(&mut self, at: u64, unique: u64) -> bool {
        let Some(living) = self.living.get(&at).filter(|living| living.unique == unique) else {
            return false;
        };
        if self.options.get(Choice::Poison) == POISON_FILL {
            // SAFETY: the memory belongs to a pool or a graph, and stays accessible until that releases it.
            unsafe { std::ptr::write_bytes(at as *mut u8, POISON, living.bytes as usize) };
        }
        self.living.remove(&at);
        true
    }

    /// Ends the memory of all pools when the machine is reset.
    pub(crate) fn drop_pools(&mut self) {
        self.living.clear();
        for (_, pool) in std::mem::take(&mut self.pools) {
            self.end_pool(pool);
        }
    }
}
