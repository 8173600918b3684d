//! The arena's type, which all requests and frees go through.

use super::mode::{Placement, Reuse};
use crate::heap::{Chunks, Growth, Heap, Parts, Region, RegionGrowth, Regions, Tag};
use crate::ids::ChunkId;
use crate::op_names::{Name, Names};
use crate::request::Request;
use crate::stamps::{Forced, ForcedPass, StampQueue};
use crate::stats::{Counters, FailureCause, Stats};
use crate::stream_id::Stream;
use crate::streams::{Dependencies, Freed, Place, StreamHeap, StreamSettings, Work};
use crate::units::{Span, UNIT};
use crate::vmm::{Range, VmRange, is_unmapped};
use bfc_hostmem::HostMemoryExhausted;
use core::num::NonZeroU64;

/// The configuration of an arena. Fixed at creation, except for the limit.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The most bytes to hold from the backend.
    pub limit: u64,
    /// The sizes of regions.
    pub growth: RegionGrowth,
    /// Regions without allocations may be given back for a request that nothing else can serve.
    pub garbage_collection: bool,
    /// Chunks are always split, however small the remainder.
    pub split_always: bool,
    /// As a fraction of the limit. 0 selects the rule of 128 MiB.
    pub fragmentation_fraction: f64,
    /// In bytes. 0 selects 2 MiB.
    pub initial_region: u64,
    /// When freed memory may be reused.
    pub reuse: Reuse,
    /// Adjacent regions become one.
    pub coalesce_regions: bool,
    /// Events tell when work is done. On a thread's default stream an event is recorded at each free, in that stream's
    /// order.
    pub events: bool,
    /// No driver and no caller waits for the device when memory is given back.
    pub releases_at_once: bool,
    /// The seed of the hashes of addresses.
    pub seed: u64,
}

impl Settings {
    /// One region of `limit` bytes, streams in order, and the defaults of TensorFlow.
    pub fn new(limit: u64) -> Self {
        Settings {
            limit,
            growth: RegionGrowth::Whole,
            garbage_collection: false,
            split_always: false,
            fragmentation_fraction: 0.0,
            initial_region: 0,
            reuse: Reuse::Streams,
            coalesce_regions: false,
            events: true,
            releases_at_once: false,
            seed: 1,
        }
    }
}

/// Counts of what may help a request that found nothing. Each count only rises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    frees: u64,
    frontier: u64,
    queues: u64,
    /// Regions obtained and given back, granules mapped, moved and unmapped, losses of all memory, and changes of the
    /// limit.
    pub regions: u64,
}

/// An allocator of numbers: it decides where each request is placed. See the [crate's example](crate).
pub struct Arena {
    pub(super) streams: StreamHeap,
    pub(super) stamps: StampQueue,
    pub(super) vm: VmRange,
    pub(super) names: Names,
    pub(super) settings: Settings,
    pub(super) placement: Placement,
}

impl Arena {
    /// Creates an arena without regions.
    pub fn new(settings: Settings) -> Result<Self, HostMemoryExhausted> {
        let parts = Parts::new(settings.seed)?;
        Ok(Self::with(settings, parts))
    }

    /// Creates an arena. The struct is large, and callers may have little stack. Nothing can fail here, so the arena is
    /// constructed in place.
    #[inline(always)]
    pub fn with(settings: Settings, parts: Parts) -> Self {
        let Settings { seed, reuse, events, releases_at_once, .. } = settings;
        let timestamps = reuse.has_stamps();
        let growth = Growth::new(settings.limit, settings.growth, settings.initial_region);
        let heap = Heap::with(parts, seed, timestamps, growth, max_slack(&settings));
        Arena {
            streams: StreamHeap::with(
                heap,
                StreamSettings { timestamps, events, releases_at_once, seed, steered: false },
            ),
            stamps: StampQueue::new(seed, reuse == Reuse::Quarantine),
            vm: VmRange::default(),
            names: Names::default(),
            settings,
            placement: Placement::BestFit,
        }
    }

    /// Allocates the best fitting chunk. Returns `None` if no free chunk fits. On an error nothing changed.
    pub fn alloc(&mut self, request: &Request<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        if request.scope.is_some() {
            self.heap_mut().chunks_mut().start_tags()?;
        }
        let allocated = if request.is_plain() && self.streams.is_fast(request.stream) {
            self.alloc_best_fit(request)?
        } else {
            self.alloc_special(request)?
        };
        if let (Some(tag), Some(addr)) = (request.scope, allocated)
            && let Some(id) = self.chunk_in_use(addr)
        {
            self.heap_mut().chunks_mut().set_tag(id, *tag);
        }
        Ok(allocated)
    }

    /// Returns the tag to keep for the operation that a request is for.
    pub fn tag(&mut self, name: Name<'_>, step: u64) -> Result<Tag, HostMemoryExhausted> {
        Ok(Tag { name: self.names.intern(name)?, step })
    }

    #[inline(always)]
    pub(super) fn alloc_best_fit(
        &mut self,
        request: &Request<'_>,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        let Request { size, requested, splits_large, .. } = *request;
        let heap = self.streams.heap_mut();
        if splits_large { heap.alloc_splitting(size, requested) } else { heap.alloc(size, requested) }
    }

    /// Allocates as [`Self::alloc`] does, for a size and a stream and no other constraint.
    #[inline(always)]
    pub fn alloc_plain_request(
        &mut self,
        size: u64,
        requested: u64,
        stream: Stream,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        if !self.streams.is_fast(stream) {
            return self.alloc_special(&Request::plain(size, requested, stream));
        }
        self.streams.heap_mut().alloc(size, requested)
    }

    /// Allocates as [`Self::alloc_plain_request`] does in the usual case. Otherwise nothing changes.
    #[inline(always)]
    pub fn try_alloc(&mut self, size: u64, requested: u64, stream: Stream) -> Option<NonZeroU64> {
        if !self.streams.is_fast(stream) {
            return self.streams.try_alloc(size, requested, stream);
        }
        self.streams.heap_mut().try_alloc(size, requested)
    }

    /// Allocates at a multiple of a power of two in the usual case, where the best fit has such an address. Otherwise
    /// nothing changes. With stamps that is for quarantine, where no chunk with a stamp can be found.
    #[inline(always)]
    pub fn try_alloc_aligned(&mut self, size: u64, requested: u64, alignment: u64) -> Option<u64> {
        let is_usual = match self.settings.reuse {
            Reuse::Streams => self.streams.is_fast(Stream::NONE),
            Reuse::Stamps => false,
            Reuse::Quarantine => !self.is_merging() && self.stamps.has_room(self.chunks().places()),
        };
        if !is_usual || alignment > self.growth().limit() {
            return None;
        }
        self.heap_mut().try_alloc_aligned(size, requested, alignment)
    }

    /// Frees as [`Self::free_on`] does in the usual case. Otherwise nothing changes.
    #[inline(always)]
    pub fn try_free(&mut self, addr: u64, stream: Stream) -> bool {
        let is_fast =
            if stream == Stream::NONE { self.streams.frees_fast() } else { self.streams.is_fast(stream) };
        if is_fast {
            self.streams.heap_mut().try_free(addr)
        } else if self.settings.reuse.has_stamps() {
            stream == Stream::NONE && self.free_stamped(addr)
        } else {
            self.streams.try_free(addr, stream)
        }
    }

    /// Frees a chunk under the next stamp. Returns false if there is no such chunk in use.
    #[inline(never)]
    fn free_stamped(&mut self, addr: u64) -> bool {
        let Arena { streams, stamps, .. } = self;
        let freed = streams.heap_mut().begin_free(addr).map(|id| stamps.free(streams.heap_mut(), id));
        freed.is_ok()
    }

    /// Allocates for a request that needs more than best fit. Out of line: otherwise the fast path computes the address of
    /// `streams` for it.
    #[inline(never)]
    fn alloc_special(&mut self, request: &Request<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        if !self.streams.is_multi() {
            self.streams.admit(request.stream)?;
        }
        if self.streams.is_multi() {
            return self.streams.alloc(request);
        }
        match self.placement {
            Placement::Plan(_) => self.alloc_planned(request),
            Placement::TwoEnds(_) => self.alloc_at_an_end(request),
            Placement::BestFit if request.short_lived && !self.settings.reuse.has_stamps() => {
                self.alloc_at_an_end(request)
            }
            Placement::BestFit if self.streams.is_fast(request.stream) && request.is_plain() => {
                self.alloc_best_fit(request)
            }
            Placement::BestFit => self.alloc_constrained(request),
        }
    }

    /// Frees a chunk. Needs no memory and cannot fail for a chunk in use.
    #[inline(never)]
    pub fn free(&mut self, addr: u64) -> Freed {
        let Arena { streams, stamps, .. } = self;
        let id = match streams.heap_mut().begin_free(addr) {
            Ok(id) => id,
            Err(refused) => return Freed::Refused(refused),
        };
        if self.settings.reuse.has_stamps() {
            stamps.free(streams.heap_mut(), id);
        } else if streams.is_multi() {
            return streams.free(id);
        } else {
            self.note_lifetime(id);
            self.heap_mut().release::<false>(id);
        }
        Freed::Done
    }

    /// Frees a chunk in the order of a stream. [`Stream::NONE`] stands for the stream it was allocated on.
    pub fn free_on(&mut self, addr: u64, stream: Stream) -> Result<Freed, HostMemoryExhausted> {
        if !self.streams.is_fast(stream)
            && let Some(freed) = self.streams.free_on(addr, stream)?
        {
            return Ok(freed);
        }
        Ok(self.free(addr))
    }

    /// Reserves room for `count` more chunks. The slab grows last, so that a failure leaves no place without a stamp.
    #[inline]
    pub(super) fn reserve_chunks(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        if self.settings.reuse.has_stamps() {
            self.stamps.reserve(self.chunks().places_with(count))?;
        }
        self.streams.reserve_chunks(count)
    }

    /// Makes a chunk that is in no tree and no list free memory for every request.
    pub(super) fn release(&mut self, id: ChunkId) {
        if self.settings.reuse.has_stamps() {
            self.heap_mut().release::<true>(id);
        } else if self.streams.is_multi() {
            self.streams.make_reusable(id);
        } else {
            self.heap_mut().release::<false>(id);
        }
    }

    /// Returns the counts of what may help a request that found nothing.
    pub fn progress(&self) -> Progress {
        let c = self.heap().counters();
        Progress {
            frees: c.frees(),
            frontier: self.stamps.frontier(),
            queues: self.streams.advances(),
            regions: c.regions_added + c.regions_released + c.remaps + c.losses + c.limits,
        }
    }

    /// Returns a number that changes when work was found to be done, so that free memory may have become reusable.
    pub fn work_done(&self) -> u64 {
        self.stamps.frontier().wrapping_add(self.streams.advances())
    }

    /// Changes the limit. Memory held beyond it stays held until it is given back.
    pub fn set_limit(&mut self, limit: u64) {
        let initial_region = self.settings.initial_region;
        self.settings.limit = limit;
        let max_slack = max_slack(&self.settings);
        let heap = self.heap_mut();
        heap.growth_mut().set_limit(limit, initial_region);
        heap.set_max_slack(max_slack);
        heap.renew_sparing();
        heap.counters_mut().limits += 1;
    }

    /// Returns whether freed chunks wait for the frontier.
    pub fn stamps_wait(&self) -> bool {
        !self.stamps.is_empty()
    }

    /// Raises the frontier: frees stamped below `to` may be reused. A lower one than before has no effect.
    pub fn raise_frontier(&mut self, to: u64) {
        self.stamps.raise_frontier(to);
    }

    /// Returns the stamp of the last free.
    pub fn last_stamp(&self) -> u64 {
        self.stamps.last()
    }

    /// Returns whether chunks may remain whose stamps the frontier has passed. Requests find nothing until these are
    /// merged.
    #[inline]
    pub fn is_merging(&self) -> bool {
        self.stamps.is_merging()
    }

    /// Returns whether chunks may remain that are to be merged, or shared by all streams.
    pub fn is_merging_or_sharing(&self) -> bool {
        self.is_merging() || self.streams.is_sharing()
    }

    /// Clears the stamps that the frontier has passed, and merges their chunks.
    pub fn merge_safe(&mut self) {
        self.merge_safe_some(usize::MAX);
    }

    /// Does the same for at most `most` chunks. Returns whether some remain.
    pub fn merge_safe_some(&mut self, most: usize) -> bool {
        self.stamps.merge_safe_some(self.streams.heap_mut(), most)
    }

    /// Begins to merge waiting chunks in spite of their stamps.
    pub fn begin_forced_pass(&mut self) -> ForcedPass {
        self.stamps.begin_forced_pass()
    }

    /// Merges the next chunks of a pass, at most `most`, until a chunk of `size` bytes exists.
    pub fn merge_forced_some(&mut self, pass: &mut ForcedPass, size: u64, most: usize) -> Forced {
        self.stamps.merge_forced_some(self.streams.heap_mut(), pass, size, most)
    }

    /// Counts a request that failed, of that many bytes.
    pub fn count_failure(&mut self, requested: u64, cause: FailureCause) {
        self.heap_mut().counters_mut().failed(requested, cause);
    }

    /// Makes the statistics wrong, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn spoil(&mut self) {
        self.heap_mut().counters_mut().miscount();
    }

    /// Makes the next allocation or free panic in the middle of its change, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn break_index(&mut self) {
        self.heap_mut().break_index();
    }

    /// Resets the counters to 0 and the peaks to the current values.
    pub fn reset_stats(&mut self) {
        let heap = self.heap_mut();
        heap.counters_mut().reset();
        heap.growth_mut().reset_peak();
        if let Some(plan) = self.placement.plan_mut() {
            plan.reset_stats();
        }
    }

    /// Returns the work behind which a request could be served. Only work with an event of its own counts.
    pub fn dependencies(
        &self,
        request: &Request<'_>,
        has_event: impl Fn(Work) -> bool,
    ) -> Result<Option<Dependencies>, HostMemoryExhausted> {
        self.streams.dependencies(&self.vm, request, has_event)
    }

    /// Hands memory that serves a request behind some work over to the request's stream.
    pub fn adopt(&mut self, request: &Request<'_>, works: &[Work], planned: Place, since: Work) -> bool {
        self.streams.adopt(&self.vm, request, works, planned, since)
    }

    /// Sets the range in which memory is mapped by the granule from now on. There must be no region yet.
    pub fn set_range(&mut self, range: Range) {
        self.vm.set_range(range);
        self.heap_mut().never_spare_large();
        self.note_range();
    }

    /// Returns the reserved range, if the backend has granules.
    pub fn range(&self) -> Option<Range> {
        self.vm.range()
    }

    /// Returns whether an address is in a region, and not in an unmapped part of a range.
    pub fn has_memory_at(&self, addr: u64) -> bool {
        self.vm.has_memory_at(self.heap(), addr)
    }

    /// Returns the bytes of a range that no memory is mapped to, except at its end.
    pub fn unmapped_bytes(&self) -> u64 {
        self.vm.bytes_inside(self.heap())
    }

    /// Returns whether a chunk has no memory.
    pub fn is_unmapped(&self, id: ChunkId) -> bool {
        is_unmapped(self.heap(), id)
    }

    /// Returns the first piece of neighbours with memory, from a chunk on, and the chunk behind it.
    pub fn mapped_from(&self, first: ChunkId) -> Option<(Span, ChunkId)> {
        self.chunks().piece_from(first, |id| !self.is_unmapped(id))
    }

    /// Returns the bytes of a region. In a range, the unmapped chunk at the end is left out.
    pub fn extent(&self, region: &Region) -> u64 {
        self.vm.extent(self.heap(), region)
    }

    /// Returns the chunk that begins at an address, in use or free.
    #[cfg(test)]
    pub fn chunk_at(&self, addr: u64) -> Option<ChunkId> {
        self.heap().chunk_at(addr)
    }

    /// Returns the chunk in use that begins at `addr`.
    pub fn chunk_in_use(&self, addr: u64) -> Option<ChunkId> {
        self.heap().chunk_in_use(addr)
    }

    /// Returns the chunk around an address of a region, if there is one.
    pub fn chunk_around(&self, addr: u64) -> Option<ChunkId> {
        self.heap().chunk_around(addr)
    }

    /// Returns the heap in the order of streams.
    pub fn streams(&self) -> &StreamHeap {
        &self.streams
    }

    /// Returns the heap in the order of streams, to change it.
    pub fn streams_mut(&mut self) -> &mut StreamHeap {
        &mut self.streams
    }

    #[inline(always)]
    pub(crate) fn heap(&self) -> &Heap {
        self.streams.heap()
    }

    #[inline(always)]
    pub(super) fn heap_mut(&mut self) -> &mut Heap {
        self.streams.heap_mut()
    }

    #[cfg(test)]
    pub(crate) fn stamps(&self) -> &StampQueue {
        &self.stamps
    }

    /// Returns the chunks.
    pub fn chunks(&self) -> &Chunks {
        self.heap().chunks()
    }

    /// Returns the regions.
    pub fn regions(&self) -> &Regions {
        self.heap().regions()
    }

    /// Returns the names of operations.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns the state of growth: the limit, and the bytes that are held.
    pub fn growth(&self) -> &Growth {
        self.heap().growth()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        self.heap().counters()
    }

    /// Returns the configuration.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the bytes that mapped chunks tile: the regions without their tails and without unmapped chunks.
    pub fn usable_bytes(&self) -> u64 {
        self.streams.usable_bytes(&self.vm)
    }

    /// Returns the bytes of the largest free chunk or free span. With stamps, merges that are due are not considered.
    pub fn largest_free(&self) -> u64 {
        self.largest_common().max(self.streams.largest_own())
    }

    /// Returns the most bytes that a request in the order of a stream could get in one piece now.
    pub fn largest_for(&self, stream: Stream) -> u64 {
        self.largest_common().max(self.streams.largest_own_of(stream))
    }

    /// Returns how many free bytes a request in the order of a stream could not get now, because they are in quarantine,
    /// wait for the work of other streams, or are reserved for private pools.
    pub fn waiting_bytes(&self, stream: Stream) -> u64 {
        self.stamps.held_bytes() + self.streams.waiting_bytes(stream)
    }

    /// Returns whether a free chunk of at least `size` bytes has no stamp later than `newest`.
    pub fn has_old_enough(&self, size: u64, newest: u64) -> bool {
        self.stamps.first_old_enough(self.heap(), (size, 0), newest).is_some()
    }

    /// Returns the bytes of the largest chunk that every request may use.
    fn largest_common(&self) -> u64 {
        let ids = [self.heap().largest(), self.stamps.largest_findable(self.heap())];
        ids.into_iter().flatten().map(|id| self.heap().size(id)).max().unwrap_or(0)
    }

    /// Returns the host memory of the arena, the struct itself included, in bytes.
    fn metadata_bytes(&self) -> u64 {
        size_of::<Self>() as u64
            + self.streams.metadata_bytes()
            + self.stamps.metadata_bytes()
            + self.names.metadata_bytes()
            + self.vm.metadata_bytes()
            + self.placement.metadata_bytes()
    }

    /// Computes the statistics.
    pub fn stats(&self) -> Stats {
        let chunks = (self.heap().chunks().count() - self.vm.count()) as u64;
        let c = self.heap().counters();
        let growth = self.heap().growth();
        Stats {
            num_allocs: c.num_allocs(),
            num_frees: c.num_frees(),
            num_failures: c.num_failures,
            bytes_in_use: c.bytes_in_use,
            peak_bytes_in_use: c.peak_bytes_in_use,
            bytes_requested: c.bytes_requested,
            peak_bytes_requested: c.peak_bytes_requested,
            largest_alloc_size: c.largest_alloc_size,
            bytes_limit: growth.limit(),
            pool_bytes: growth.pool_bytes(),
            peak_pool_bytes: growth.peak_pool_bytes(),
            largest_free_block_bytes: self.largest_free(),
            num_regions: self.heap().regions().count() as u64,
            num_chunks: chunks,
            num_free_chunks: chunks - c.live(),
            metadata_bytes: self.metadata_bytes(),
            num_planned_allocs: self.plan().map_or(0, |plan| plan.followed_since_reset()),
        }
    }

    /// Returns the parts of the arena, for tests that break each invariant on purpose.
    #[cfg(test)]
    pub(crate) fn internals(&mut self) -> Internals<'_> {
        let Arena { streams, stamps, vm, .. } = self;
        Internals { streams, stamps, vm }
    }
}

/// The parts of an arena.
#[cfg(test)]
pub(crate) struct Internals<'a> {
    pub(crate) streams: &'a mut StreamHeap,
    pub(crate) stamps: &'a mut StampQueue,
    pub(crate) vm: &'a mut VmRange,
}

/// Returns the original's limit for unsplit remainders, with the original's arithmetic: a double times the limit,
/// truncated.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn max_slack(settings: &Settings) -> u64 {
    if settings.split_always {
        UNIT
    } else if settings.fragmentation_fraction > 0.0 {
        // Below one unit there is nothing to split off. The original would make a chunk of 0 bytes.
        ((settings.fragmentation_fraction * settings.limit as f64) as u64).max(UNIT)
    } else {
        128 << 20
    }
}
