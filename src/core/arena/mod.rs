//! The arena: allocation and free over the regions it was given.

pub(crate) mod add_region;
pub(crate) mod constrained;
pub(crate) mod context_loss;
pub(crate) mod dependencies;
pub(crate) mod donors;
pub(crate) mod oldest_work;
pub(crate) mod reclaim;
pub(crate) mod remap_plan;
pub(crate) mod snapshot;

use crate::core::heap::address_map::Starts;
use crate::core::heap::chunks::{Chunks, Cold, Hot, Tag};
use crate::core::heap::free_index::FreeIndex;
use crate::core::heap::region_growth::Growth;
use crate::core::heap::regions::Regions;
use crate::core::heap::size_classes::CLASSES;
use crate::core::ids::{ChunkId, NIL};
use crate::core::op_names::{Name, Names};
use crate::core::stamps::queue::Stamps;
use crate::core::stats::{Counters, FailureCause, Stats};
use crate::core::streams::free::LastFree;
use crate::core::streams::queues::{Lanes, NOBODYS, Stream};
use crate::core::units::{MAX_CHUNK, UNIT};
use crate::core::vmm::unmapped::Holes;
use crate::sys::HostMemoryExhausted;

/// How an arena behaves; fixed at creation, but for the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) limit: u64,
    pub(crate) growth: bool,
    pub(crate) garbage_collection: bool,
    pub(crate) split_always: bool,
    /// Of the limit; 0 is the 128 MiB rule.
    pub(crate) fragmentation_fraction: f64,
    /// 0 is 2 MiB.
    pub(crate) initial_region: u64,
    pub(crate) timestamps: bool,
    /// No chunk is handed out before its stamp is safe.
    pub(crate) quarantine: bool,
    /// Regions that touch are one.
    pub(crate) coalesce_regions: bool,
    /// Events tell when work is done. On the default stream of a thread they are recorded at each free, in its order.
    pub(crate) events: bool,
    /// Of the hashes of addresses.
    pub(crate) seed: u64,
}

impl Settings {
    /// Whose requests are simple as long as no stream has come.
    pub(in crate::core) fn first_simple(&self) -> u64 {
        if self.timestamps { NOBODYS } else { Stream::NONE.simple() }
    }
}

/// One request, already rounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want<'a> {
    /// A multiple of 256, not 0.
    pub(crate) size: u64,
    pub(crate) requested: u64,
    /// A power of two; every chunk is aligned to 256 anyway.
    pub(crate) alignment: u64,
    /// Accept chunks stamped at most this; `u64::MAX` is any.
    pub(crate) newest: u64,
    /// Look at every chunk of a sufficient size for a place at the alignment, and not at a few of them only.
    pub(crate) thorough: bool,
    /// In whose order.
    pub(crate) stream: Stream,
    /// The operation and the step it is for, from [`Arena::tag`].
    pub(crate) scope: Option<&'a Tag>,
}

impl Want<'_> {
    /// `size` bytes and nothing else.
    pub(crate) fn plain(size: u64, requested: u64, stream: Stream) -> Self {
        Want { size, requested, alignment: UNIT, newest: u64::MAX, thorough: false, stream, scope: None }
    }

    /// The place of the request in free memory of so many bytes at an address, and the bytes from there on.
    #[inline]
    pub(in crate::core) fn place_in(&self, (bytes, addr): (u64, u64)) -> Option<(u64, u64)> {
        // A division is what the rest of a search costs together.
        let plain = self.alignment <= UNIT;
        let start = if plain { addr } else { addr.checked_next_multiple_of(self.alignment)? };
        let left = bytes.checked_sub(start - addr)?;
        (left >= self.size).then_some((start, left))
    }

    /// The first (bytes, address) behind free memory without a place that may have one. Memory of that size has a place only at
    /// addresses shortly before a multiple of the alignment, so a search need not look at what lies between two of them.
    pub(in crate::core) fn next_with_place(&self, (bytes, addr): (u64, u64)) -> (u64, u64) {
        let Some(start) = addr.checked_next_multiple_of(self.alignment) else { return (bytes, u64::MAX) };
        (bytes, start - bytes.saturating_sub(self.size))
    }

    /// Whether a thorough search may find what this one does not.
    pub(crate) fn needs_thorough_search(&self) -> bool {
        self.alignment > UNIT && !self.thorough
    }

    /// So many bytes have a place at the alignment wherever they begin.
    pub(in crate::core) fn sure_size(&self) -> u64 {
        self.size.saturating_add(self.alignment.max(UNIT) - UNIT).min(MAX_CHUNK)
    }

    fn is_plain(&self) -> bool {
        self.alignment <= UNIT && self.newest == u64::MAX
    }
}

/// Why a free was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Not the start of a chunk.
    NotAChunk,
    AlreadyFree,
}

/// What came of a free, and what it leaves to do. One byte, with an error around it too: a `Result` in a `Result` would be
/// returned in two registers, which costs each free five instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Freed {
    /// Nothing: one stream alone, stamps, or a backend without events.
    Done,
    /// Other streams may use the chunk once some work is done, so that work needs an event:
    /// [`Arena::work_behind_last_free`].
    InQueue,
    Refused(Refused),
}

#[cfg(test)]
impl Freed {
    pub(crate) fn is_ok(self) -> bool {
        !matches!(self, Freed::Refused(_))
    }

    #[track_caller]
    pub(crate) fn unwrap(self) {
        assert!(self.is_ok(), "{self:?}");
    }
}

/// How much has happened that may help a request which found nothing. Each only rises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    frees: u64,
    frontier: u64,
    lanes: u64,
    /// Regions obtained and given back, granules mapped, moved and unmapped, all of them gone, and the limit changed.
    pub(crate) regions: u64,
}

pub(crate) struct Arena {
    pub(in crate::core) chunks: Chunks,
    pub(in crate::core) index: FreeIndex,
    pub(in crate::core) regions: Regions,
    pub(in crate::core) starts: Starts,
    pub(in crate::core) stamps: Stamps,
    pub(in crate::core) growth: Growth,
    pub(in crate::core) counters: Counters,
    pub(in crate::core) settings: Settings,
    pub(in crate::core) names: Names,
    pub(in crate::core) holes: Holes,
    pub(in crate::core) lanes: Lanes,
    /// Who is the only one, unless several lanes are told apart.
    pub(in crate::core) home: Stream,
    pub(in crate::core) mixed: bool,
    /// Whose requests, by the handle of a stream, need nothing but best fit: one lane, and no stamps.
    pub(in crate::core) simple: u64,
    /// How many frees there were when the only lane's work was last known to be done.
    pub(in crate::core) synchronized_frees: u64,
    /// Chunks were recorded on the only lane.
    pub(in crate::core) home_recorded: bool,
    pub(in crate::core) last_free: LastFree,
    /// A remainder of this many bytes is split off however large the request is.
    pub(in crate::core) max_slack: u64,
}

/// What an arena begins with, and what host memory may not be enough for.
pub(crate) struct Parts {
    roots: Box<[ChunkId; CLASSES]>,
    starts: Starts,
}

impl Parts {
    pub(crate) fn new(seed: u64) -> Result<Self, HostMemoryExhausted> {
        Ok(Parts { roots: FreeIndex::roots()?, starts: Starts::new(seed)? })
    }
}

impl Arena {
    #[cfg(test)]
    pub(crate) fn new(settings: Settings) -> Result<Self, HostMemoryExhausted> {
        let parts = Parts::new(settings.seed)?;
        Ok(Self::with(settings, parts))
    }

    /// An arena is large, and callers may have little stack: nothing can fail here, so that it is made in its place.
    #[inline(always)]
    pub(crate) fn with(settings: Settings, parts: Parts) -> Self {
        Arena {
            chunks: Chunks::new(settings.timestamps),
            index: FreeIndex::with(parts.roots, settings.seed),
            regions: Regions::new(),
            starts: parts.starts,
            stamps: Stamps::new(settings.seed),
            growth: Growth::new(settings.limit, settings.growth, settings.initial_region),
            counters: Counters::default(),
            names: Names::default(),
            lanes: Lanes::new(settings.seed, settings.events),
            home: Stream::NONE,
            mixed: false,
            simple: settings.first_simple(),
            synchronized_frees: 0,
            home_recorded: false,
            last_free: LastFree::NONE,
            holes: Holes::default(),
            max_slack: max_slack(&settings),
            settings,
        }
    }

    /// Hands out the best fitting chunk, or `None` if no free chunk fits. On an error nothing changed.
    pub(crate) fn take(&mut self, want: &Want<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        let Some(tag) = want.scope else { return self.take_untagged(want) };
        self.chunks.start_tags()?;
        let taken = self.take_untagged(want)?;
        if let Some(id) = taken.and_then(|addr| self.chunk_at(addr)) {
            self.chunks.set_tag(id, *tag);
        }
        Ok(taken)
    }

    /// What is to be kept of the operation that a request is for.
    pub(crate) fn tag(&mut self, name: Name<'_>, step: u64) -> Result<Tag, HostMemoryExhausted> {
        Ok(Tag { name: self.names.intern(name)?, step })
    }

    fn take_untagged(&mut self, want: &Want<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        if want.is_plain() {
            return self.take_plain(want.size, want.requested, want.stream);
        }
        self.take_special(want)
    }

    /// As `take`, for `size` bytes and nothing else.
    #[inline(always)]
    pub(crate) fn take_plain(
        &mut self,
        size: u64,
        requested: u64,
        stream: Stream,
    ) -> Result<Option<u64>, HostMemoryExhausted> {
        if !stream.is_simple(self.simple) {
            let want = Want::plain(size, requested, stream);
            return if self.mixed { self.take_in_lane(&want) } else { self.take_special(&want) };
        }
        self.take_simple(size, requested)
    }

    #[inline(never)]
    fn take_special(&mut self, want: &Want<'_>) -> Result<Option<u64>, HostMemoryExhausted> {
        self.admit(want.stream)?;
        if self.mixed {
            self.take_in_lane(want)
        } else if want.stream.is_simple(self.simple) && want.is_plain() {
            self.take_simple(want.size, want.requested)
        } else {
            self.take_choosy(want)
        }
    }

    #[inline(always)]
    fn take_simple(&mut self, size: u64, requested: u64) -> Result<Option<u64>, HostMemoryExhausted> {
        self.chunks.reserve(1)?;
        let Arena { chunks, index, regions, starts, .. } = self;
        let slab = &mut chunks.slab[..];
        let Some((id, class)) = index.best_fit(slab, size) else { return Ok(None) };
        let hot = slab[id];
        let whole = hot.size();
        if !splits(whole, size, self.max_slack) {
            index.remove_from(slab, class, id);
            slab[id].mark_in_use();
            if hot.next == NIL {
                regions.touch(hot.region(), hot.addr + whole);
            }
            self.hand_out(id, whole, requested);
            return Ok(Some(hot.addr));
        }
        starts.reserve(slab, regions, 1)?;
        index.remove_from(slab, class, id);
        let at = hot.addr + size;
        let rest = chunks.vacant.fill(slab, Hot::new(at, whole - size, hot.region(), id, hot.next));
        if hot.next != NIL {
            slab[hot.next].prev = rest;
        } else {
            regions.touch(hot.region(), at);
        }
        let hot = &mut slab[id];
        hot.set_size(size);
        hot.next = rest;
        hot.mark_in_use();
        starts.set(regions, at, rest);
        index.insert(slab, rest, whole - size);
        self.hand_out(id, size, requested);
        Ok(Some(at - size))
    }

    /// Writes down that a chunk is in use now.
    #[inline]
    pub(in crate::core) fn hand_out(&mut self, id: ChunkId, size: u64, requested: u64) {
        let allocation_id = self.counters.allocated(size, requested);
        self.chunks.set_cold(id, Cold { requested, allocation_id });
    }

    /// Whether frees are simple: one stream alone, or none named so far, and no stamps.
    #[inline(always)]
    pub(crate) fn frees_simply(&self) -> bool {
        self.simple != NOBODYS
    }

    /// Takes a chunk back. Needs no memory and cannot fail for a chunk in use.
    #[inline(always)]
    pub(crate) fn free(&mut self, addr: u64) -> Freed {
        match self.begin_free(addr) {
            Ok(id) => self.free_special(id),
            Err(refused) => Freed::Refused(refused),
        }
    }

    /// The same where frees are simple: nothing is left to do.
    #[inline(always)]
    pub(crate) fn free_simple(&mut self, addr: u64) -> Result<(), Refused> {
        let id = self.begin_free(addr)?;
        self.release::<false>(id);
        Ok(())
    }

    /// The chunk in use at an address, which is counted as freed.
    #[inline(always)]
    fn begin_free(&mut self, addr: u64) -> Result<ChunkId, Refused> {
        let Arena { chunks, regions, starts, .. } = self;
        let Some(id) = starts.get(&chunks.slab, regions, addr) else { return Err(Refused::NotAChunk) };
        let hot = &chunks.slab[..][id];
        if !hot.in_use() {
            return Err(Refused::AlreadyFree);
        }
        self.counters.freed(hot.size(), chunks.cold(id).requested);
        Ok(id)
    }

    #[inline(never)]
    fn free_special(&mut self, id: ChunkId) -> Freed {
        if self.settings.timestamps {
            self.free_stamped(id);
        } else if self.mixed {
            // A free that names no stream is one on the stream of the allocation.
            let lane = self.lanes.note(id).lane;
            self.free_in_lane(id, lane);
            return self.freed_in_queue();
        } else {
            self.release::<false>(id);
        }
        Freed::Done
    }

    /// Room for `count` more chunks.
    #[inline]
    pub(in crate::core) fn reserve_chunks(&mut self, count: usize) -> Result<(), HostMemoryExhausted> {
        self.chunks.reserve(count)?;
        if self.settings.timestamps {
            self.stamps.reserve(self.chunks.slab.len())?;
        }
        if self.mixed { self.lanes.reserve(self.chunks.slab.len()) } else { Ok(()) }
    }

    /// Merges a chunk that is in no tree with its free neighbours, and puts the whole, which it returns, into
    /// the index. A neighbour that has a stamp is left alone; the chunk has none.
    #[inline(always)]
    pub(in crate::core) fn release<const STAMPED: bool>(&mut self, id: ChunkId) -> ChunkId {
        let Arena { chunks, index, regions, starts, .. } = self;
        let Chunks { slab, vacant, stamps, .. } = chunks;
        let slab = &mut slab[..];
        let stamps = if STAMPED { stamps.as_deref().unwrap_or_default() } else { &[] };
        let Hot { addr, prev, mut next, .. } = slab[id];
        let (mut size, mut whole) = (slab[id].size(), id);
        let merges = |hot: &Hot, id: ChunkId| hot.is_findable() && (!STAMPED || stamps[id.index()] == 0);
        if next != NIL && merges(&slab[next], next) {
            let hot = slab[next];
            index.remove(slab, next, hot.size());
            starts.clear(slab, regions, hot.addr, next);
            vacant.add(slab, next);
            (size, next) = (size + hot.size(), hot.next);
        }
        if prev != NIL && merges(&slab[prev], prev) {
            let before = slab[prev].size();
            index.remove(slab, prev, before);
            starts.clear(slab, regions, addr, id);
            vacant.add(slab, id);
            (size, whole) = (size + before, prev);
        }
        let hot = &mut slab[whole];
        hot.set_size(size);
        hot.next = next;
        if next != NIL {
            slab[next].prev = whole;
        }
        index.insert(slab, whole, size);
        whole
    }

    /// Takes a free chunk out of the index.
    pub(in crate::core) fn unindex(&mut self, id: ChunkId) {
        let size = self.chunks.size(id);
        self.index.remove(&mut self.chunks.slab, id, size);
    }

    pub(crate) fn progress(&self) -> Progress {
        let c = &self.counters;
        Progress {
            frees: c.frees(),
            frontier: self.stamps.frontier(),
            lanes: self.lanes.advances,
            regions: c.regions_added + c.regions_released + c.remaps + c.losses + c.limits,
        }
    }

    /// Changes the limit. What is held beyond it stays until it is given back.
    pub(crate) fn set_limit(&mut self, limit: u64) {
        let Settings { growth, initial_region, .. } = self.settings;
        self.settings.limit = limit;
        self.growth.set_limit(limit, growth, initial_region);
        self.max_slack = max_slack(&self.settings);
        self.counters.limits += 1;
    }

    pub(crate) fn stamps_wait(&self) -> bool {
        !self.stamps.is_empty()
    }

    pub(crate) fn raise_frontier(&mut self, to: u64) {
        self.stamps.raise_frontier(to);
    }

    pub(crate) fn last_stamp(&self) -> u64 {
        self.stamps.last()
    }

    pub(crate) fn count_failure(&mut self, requested: u64, cause: FailureCause) {
        self.counters.failed(requested, cause);
    }

    /// For tests: books that are wrong.
    #[cfg(test)]
    pub(crate) fn spoil(&mut self) {
        self.counters.miscount();
    }

    pub(crate) fn reset_stats(&mut self) {
        self.counters.reset();
        self.growth.reset_peak();
    }

    /// The chunk that begins at an address, in use or free.
    pub(crate) fn chunk_at(&self, addr: u64) -> Option<ChunkId> {
        self.starts.get(&self.chunks.slab, &self.regions, addr)
    }

    /// A chunk in use that begins at `addr`.
    pub(crate) fn chunk_in_use(&self, addr: u64) -> Option<ChunkId> {
        self.chunk_at(addr).filter(|&id| self.chunks.in_use(id))
    }

    /// The chunk around an address of a region. Unless the tables of starts are dense this walks along the
    /// region's chunks; only starts are found by what allocation and free need.
    pub(crate) fn chunk_around(&self, addr: u64) -> Option<ChunkId> {
        let mut id = match self.chunk_at(addr) {
            Some(id) => return Some(id),
            None => self.regions.chunk_before(addr)?,
        };
        while addr - self.chunks.addr(id) >= self.chunks.size(id) {
            id = self.chunks.next(id);
            if id == NIL {
                return None;
            }
        }
        Some(id)
    }

    pub(crate) fn chunks(&self) -> &Chunks {
        &self.chunks
    }

    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn growth(&self) -> &Growth {
        &self.growth
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What the chunks tile, but for holes: the regions without their tails.
    pub(crate) fn usable_bytes(&self) -> u64 {
        self.regions.iter().map(|(_, region)| region.bytes).sum::<u64>() - self.holes.bytes()
    }

    /// The largest chunk in the index; with stamps, before the merges that are due.
    pub(crate) fn largest_free(&self) -> u64 {
        self.largest_common().max(self.lanes.largest_run())
    }

    /// The largest chunk that everybody may have.
    pub(in crate::core) fn largest_common(&self) -> u64 {
        let stamped = self.stamps.index.largest(&self.chunks);
        let ids = [self.index.largest(&self.chunks.slab), stamped];
        ids.into_iter().flatten().map(|id| self.chunks.size(id)).max().unwrap_or(0)
    }

    /// Host memory that the arena holds beside itself, in bytes.
    fn metadata_bytes(&self) -> u64 {
        size_of::<Self>() as u64
            + self.chunks.metadata_bytes()
            + self.index.metadata_bytes()
            + self.regions.metadata_bytes()
            + self.starts.metadata_bytes()
            + self.stamps.metadata_bytes()
            + self.names.metadata_bytes()
            + self.lanes.metadata_bytes()
            + self.holes.metadata_bytes()
    }

    pub(crate) fn stats(&self) -> Stats {
        let chunks = (self.chunks.count() - self.holes.count()) as u64;
        let c = &self.counters;
        Stats {
            num_allocs: c.num_allocs(),
            num_frees: c.num_frees(),
            num_failures: c.num_failures,
            bytes_in_use: c.bytes_in_use,
            peak_bytes_in_use: c.peak_bytes_in_use,
            bytes_requested: c.bytes_requested,
            peak_bytes_requested: c.peak_bytes_requested,
            largest_alloc_size: c.largest_alloc_size,
            bytes_limit: self.growth.limit,
            pool_bytes: self.growth.pool_bytes,
            peak_pool_bytes: self.growth.peak_pool_bytes,
            largest_free_block_bytes: self.largest_free(),
            num_regions: self.regions.count() as u64,
            num_chunks: chunks,
            num_free_chunks: chunks - c.live(),
            metadata_bytes: self.metadata_bytes(),
        }
    }
}

/// Whether a chunk of `whole` bytes is split for a request of `wanted`: TensorFlow's rule.
#[inline]
pub(in crate::core) fn splits(whole: u64, wanted: u64, max_slack: u64) -> bool {
    let remainder = whole - wanted;
    remainder >= wanted || remainder >= max_slack
}

/// The original's rule with its arithmetic: a double times the limit, truncated.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn max_slack(settings: &Settings) -> u64 {
    if settings.split_always {
        UNIT
    } else if settings.fragmentation_fraction > 0.0 {
        // Below one unit there is nothing to split off; the original would make a chunk of 0 bytes.
        ((settings.fragmentation_fraction * settings.limit as f64) as u64).max(UNIT)
    } else {
        128 << 20
    }
}
