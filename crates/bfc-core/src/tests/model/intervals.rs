//! The model: intervals in maps. Every query examines all of them.

use crate::arena::{Detached, RegionGrowth, Reuse, Settings, usable};
use crate::request::Request;
use crate::stats::Stats;
use crate::units::{MAX_CHUNK, UNIT, round_down};
use std::collections::BTreeMap;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum What {
    Live {
        requested: u64,
        id: u64,
        /// The number of the operation's name, and the step.
        scope: Option<(u32, u64)>,
    },
    Free {
        stamp: u64,
    },
    Unmapped,
    /// An unmapped chunk that is being mapped, and free memory that is withheld meanwhile.
    BeingMapped,
    Withheld,
}
pub(super) use What::{BeingMapped, Free, Live, Unmapped, Withheld};

/// The address, the size and the kind.
pub(super) type Chunk = (u64, u64, What);

/// A free chunk: address, size, stamp.
pub(super) type Gap = (u64, u64, u64);

pub(super) struct Model {
    pub(super) settings: Settings,
    /// The regions by base: usable bytes and given bytes.
    pub(super) regions: BTreeMap<u64, (u64, u64)>,
    /// Live intervals and those that wait under a stamp. The rest of the regions is free.
    pub(super) pieces: BTreeMap<u64, (u64, What)>,
    /// Only those statistics that are counted with each operation.
    pub(super) counted: Stats,
    /// Regions added, regions released, and splits of chunks that carried a stamp.
    pub(super) events: (u64, u64, u64),
    allocations: u64,
    pub(super) last_stamp: u64,
    pub(super) frontier: u64,
    pub(super) first_hint: u64,
    pub(super) hint: u64,
    pub(super) reserved: u64,
    /// The bytes of a plan.
    pub(super) planned: u64,
    /// Small requests spare large chunks.
    pub(super) spares_large: bool,
    /// They are not until the regions change, because the pool could not grow.
    pub(super) splits_large: bool,
}

impl Model {
    pub(super) fn new(settings: Settings) -> Self {
        let initial = if settings.initial_region == 0 { 2 << 20 } else { settings.initial_region };
        let first = if settings.growth.grows() { initial.min(settings.limit) } else { settings.limit };
        let first_hint = first.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX - 255);
        let (regions, pieces) = Default::default();
        let counted = Stats { bytes_limit: settings.limit, ..Stats::default() };
        let hint = first_hint;
        let (events, allocations, last_stamp, frontier, reserved) = ((0, 0, 0), 0, 0, 0, 0);
        Model {
            settings,
            regions,
            pieces,
            counted,
            events,
            allocations,
            last_stamp,
            frontier,
            first_hint,
            hint,
            reserved,
            planned: 0,
            spares_large: false,
            splits_large: false,
        }
    }

    pub(super) fn chunks(&self) -> Vec<Chunk> {
        let mut chunks = Vec::new();
        for (&base, &(bytes, _)) in &self.regions {
            let mut at = base;
            for (&addr, &(size, what)) in self.pieces.range(base..base + bytes) {
                assert!(addr >= at, "{addr:#x} lies in what ends at {at:#x}");
                chunks.extend((addr > at).then_some((at, addr - at, Free { stamp: 0 })));
                chunks.push((addr, size, what));
                at = addr + size;
            }
            let rest = (base + bytes).checked_sub(at).expect("nothing reaches over the end of a region");
            chunks.extend((rest > 0).then_some((at, rest, Free { stamp: 0 })));
        }
        chunks
    }

    pub(super) fn stats(&self, chunks: &[Chunk], metadata_bytes: u64) -> Stats {
        let free = || chunks.iter().filter(|chunk| matches!(chunk.2, Free { .. }));
        let held = |what| self.settings.reuse == Reuse::Quarantine && what != Free { stamp: 0 };
        Stats {
            largest_free_block_bytes: free().filter(|c| !held(c.2)).map(|c| c.1).max().unwrap_or(0),
            num_regions: self.regions.len() as u64,
            num_chunks: chunks.iter().filter(|chunk| !matches!(chunk.2, Unmapped | BeingMapped)).count()
                as u64,
            num_free_chunks: chunks.iter().filter(|c| matches!(c.2, Free { .. } | Withheld)).count() as u64,
            metadata_bytes,
            ..self.counted
        }
    }

    pub(super) fn merge_safe(&mut self) {
        let frontier = self.frontier;
        self.pieces.retain(|_, (_, what)| !matches!(what, Free { stamp } if *stamp < frontier));
    }

    /// Returns the free chunks after a forced merge, and whether it made a chunk of `wanted` bytes. The oldest chunk
    /// comes first, among equally old ones the lowest. Each merges with the free chunk behind it and the one before it.
    pub(super) fn merge_forced(&self, wanted: u64) -> (Vec<Gap>, bool) {
        let chunks = self.chunks().into_iter();
        let mut free: BTreeMap<u64, (u64, u64)> = chunks
            .filter_map(|(addr, size, what)| match what {
                Free { stamp } => Some((addr, (size, stamp))),
                _ => None,
            })
            .collect();
        let waiting = free.iter().filter(|(_, (_, stamp))| *stamp != 0);
        let mut queue: Vec<(u64, u64)> = waiting.map(|(&addr, &(_, stamp))| (stamp, addr)).collect();
        queue.sort_unstable();
        let mut found = false;
        for (_, addr) in queue {
            let Some((mut size, mut stamp)) = free.remove(&addr) else { continue };
            let mut whole = addr;
            let behind = Some(addr + size).filter(|at| !self.regions.contains_key(at));
            if let Some((more, other)) = behind.and_then(|at| free.remove(&at)) {
                (size, stamp) = (size + more, stamp.max(other));
            }
            let before = free.range(..addr).next_back().map(|(&at, &(size, stamp))| (at, size, stamp));
            let touches = |at, more| at + more == addr && !self.regions.contains_key(&addr);
            if let Some((at, more, other)) = before.filter(|&(at, more, _)| touches(at, more)) {
                (whole, size, stamp) = (at, size + more, stamp.max(other));
            }
            free.insert(whole, (size, stamp));
            found = size >= wanted;
            if found {
                break;
            }
        }
        (free.into_iter().map(|(addr, (size, stamp))| (addr, size, stamp)).collect(), found)
    }

    /// Finds the best fit by examining all free memory. Returns size, address, aligned address and stamp.
    pub(super) fn find(&mut self, request: &Request<'_>) -> Option<(u64, u64, u64, u64)> {
        if self.settings.reuse.has_stamps() {
            self.merge_safe();
        }
        let fits = self.chunks().into_iter().filter_map(|(addr, size, what)| {
            let Free { stamp } = what else { return None };
            let start = addr.checked_next_multiple_of(request.alignment.max(UNIT))?;
            let allowed =
                stamp == 0 || (stamp <= request.max_stamp && self.settings.reuse != Reuse::Quarantine);
            let room = size.saturating_sub(start - addr);
            (allowed && room >= request.size).then_some((size, addr, start, stamp))
        });
        fits.min()
    }

    /// Allocates by best fit and the split rule.
    pub(super) fn take(&mut self, request: &Request<'_>) -> Option<u64> {
        let (size, addr, start, stamp) = self.find(request)?;
        if self.small_region_for(request).is_some() {
            return None;
        }
        self.take_from((addr, size, start, stamp), request, false)
    }

    /// Returns the size of the region for a request of at most 1 MiB that would split a chunk of 16 MiB and more.
    pub(super) fn small_region_for(&mut self, request: &Request<'_>) -> Option<u64> {
        let is_small =
            request.size <= 1 << 20 && request.alignment <= 1 << 20 && self.find(request)?.0 >= 16 << 20;
        if !is_small || request.splits_large || !self.spares_large || self.splits_large {
            return None;
        }
        let sizes = self.regions.values().map(|region| region.0);
        let small = sizes.clone().filter(|&bytes| bytes < 16 << 20).sum::<u64>();
        let left = (sizes.sum::<u64>() / 16).saturating_sub(small).min(8 << 20);
        let granules = small.max(self.first_hint).min(left) / self.first_hint;
        (granules != 0)
            .then(|| (granules * self.first_hint).max(request.size + request.alignment.max(UNIT) - UNIT))
    }

    /// Allocates the upper end of the best fit, if the split rule allows that.
    pub(super) fn take_upper_end(&mut self, request: &Request<'_>) -> Option<u64> {
        let (size, addr, ..) = self.find(request)?;
        let start = if self.splits(size, request.size) { addr + size - request.size } else { addr };
        self.take_from((addr, size, start, 0), request, false)
    }

    /// Returns whether a remainder of free memory of `whole` bytes is split off.
    fn splits(&self, whole: u64, wanted: u64) -> bool {
        let slack = match self.settings.fragmentation_fraction {
            _ if self.settings.split_always => UNIT,
            0.0 => 128 << 20,
            fraction => ((fraction * self.settings.limit as f64) as u64).max(UNIT),
        };
        whole >= 2 * wanted || whole - wanted >= slack
    }

    /// Allocates a place, if it is free.
    pub(super) fn take_at(&mut self, place: u64, request: &Request<'_>) -> Option<u64> {
        let is_aligned = place.is_multiple_of(request.alignment.max(UNIT));
        let end = place.checked_add(request.size)?;
        let holds = |&(addr, size, what): &Chunk| {
            what == Free { stamp: 0 } && addr <= place && end <= addr + size && is_aligned
        };
        let (addr, size, _) = self.chunks().into_iter().find(holds)?;
        let taken = self.take_from((addr, size, place, 0), request, true);
        self.counted.num_planned_allocs += 1;
        taken
    }

    /// Allocates the smallest free memory behind an address that has room, of the next 64 chunks.
    pub(super) fn take_behind(&mut self, from: u64, request: &Request<'_>) -> Option<u64> {
        let (&base, &(bytes, _)) = self.regions.range(..=from).next_back()?;
        let region = base..base + bytes;
        let chunks =
            self.chunks().into_iter().filter(|chunk| region.contains(&from) && region.contains(&chunk.0));
        let behind = chunks.filter(|&(addr, size, _)| addr + size > from).take(64);
        let rooms = behind.filter(|chunk| chunk.2 == Free { stamp: 0 }).filter_map(|(addr, size, _)| {
            let start = addr.max(from).checked_next_multiple_of(request.alignment.max(UNIT))?;
            let room = (addr + size).checked_sub(start)?;
            (room >= request.size).then_some((room, addr, size, start))
        });
        let (_, addr, size, start) = rooms.min_by_key(|found| found.0)?;
        self.take_from((addr, size, start, 0), request, true)
    }

    /// Allocates at `start` in a free chunk. A planned place has exactly the request's size.
    fn take_from(
        &mut self,
        (addr, size, start, stamp): (u64, u64, u64, u64),
        request: &Request<'_>,
        exactly: bool,
    ) -> Option<u64> {
        let whole = addr + size - start;
        let splits = exactly || self.splits(whole, request.size);
        let size = if splits { request.size } else { whole };
        let waiting =
            [(addr, start), (start + size, start + whole)].into_iter().filter(|(from, to)| from < to);
        self.pieces.remove(&addr);
        if stamp != 0 {
            self.events.2 += waiting.clone().count() as u64;
            self.pieces.extend(waiting.map(|(from, to)| (from, (to - from, Free { stamp }))));
        }
        self.allocations += 1;
        let live = Live {
            requested: request.requested,
            id: self.allocations,
            scope: request.scope.map(|tag| (tag.name, tag.step)),
        };
        self.pieces.insert(start, (size, live));
        let c = &mut self.counted;
        c.num_allocs += 1;
        c.bytes_in_use += size;
        c.bytes_requested += request.requested;
        c.peak_bytes_in_use = c.peak_bytes_in_use.max(c.bytes_in_use);
        c.peak_bytes_requested = c.peak_bytes_requested.max(c.bytes_requested);
        c.largest_alloc_size = c.largest_alloc_size.max(size);
        Some(start)
    }

    pub(super) fn free(&mut self, addr: u64) {
        let Some((size, Live { requested, .. })) = self.pieces.remove(&addr) else { panic!("{addr:#x}") };
        if self.settings.reuse.has_stamps() {
            self.last_stamp += 1;
            self.pieces.insert(addr, (size, Free { stamp: self.last_stamp }));
        }
        self.counted.num_frees += 1;
        self.counted.bytes_in_use -= size;
        self.counted.bytes_requested -= requested;
    }

    /// Returns how much is requested from the backend, and whether the hint was raised for it.
    pub(super) fn plan(&mut self, least: u64) -> Option<(u64, bool)> {
        let held = self.counted.pool_bytes.saturating_add(self.reserved);
        let available = round_down(self.settings.limit.saturating_sub(held));
        let grows = self.settings.growth.grows() && held == 0 && self.planned > least.max(self.hint);
        if grows && least <= available {
            self.reserved += self.planned.min(available);
            return Some((self.planned.min(available), true));
        }
        if self.settings.growth == RegionGrowth::ByNeed {
            let room = (least <= available).then_some(available)?;
            let (granule, share) = (self.first_hint, self.counted.pool_bytes / 16);
            let whole = least.checked_next_multiple_of(granule).filter(|whole| *whole <= least + share);
            let need = whole.unwrap_or(least.max(granule));
            let bytes = (1..)
                .map(|times| need * times)
                .take_while(|all| *all <= share + least.min(need / 4 * 3))
                .last()
                .unwrap_or(need)
                .min(room);
            self.reserved += bytes;
            return Some((bytes, true));
        }
        let before = self.hint;
        while least <= available && self.hint < least {
            self.hint = self.hint.saturating_mul(2) & !255;
        }
        let bytes = self.hint.min(available);
        self.reserved += if least <= available { bytes } else { 0 };
        (least <= available).then_some((bytes, self.hint != before))
    }

    pub(super) fn overlaps(&self, base: u64, bytes: u64) -> bool {
        let end = base.saturating_add(bytes);
        self.regions.iter().any(|(&other, &(_, given))| other < end && base < other + given)
    }

    pub(super) fn add_region(&mut self, base: u64, given: u64, raised: bool) {
        self.insert_region(base, given);
        self.events.0 += 1;
        self.counted.pool_bytes += given;
        self.counted.peak_pool_bytes = self.counted.peak_pool_bytes.max(self.counted.pool_bytes);
        self.hint = if raised { self.hint } else { self.hint.saturating_mul(2) & !255 };
    }

    /// Adds a region as free memory, also if the backend did not take it back.
    pub(super) fn insert_region(&mut self, base: u64, given: u64) {
        self.splits_large = false;
        let bytes = usable(given);
        // Regions merge only upwards, and only without a tail.
        let below = self.regions.range_mut(..base).next_back();
        let below = below.filter(|(other, (b, g))| **other + *b == base && b == g && *b + bytes <= MAX_CHUNK);
        match below.filter(|_| self.settings.coalesce_regions) {
            Some((_, below)) => *below = (below.0 + bytes, below.1 + given),
            None => _ = self.regions.insert(base, (bytes, given)),
        }
    }

    /// Returns the regions without live memory and without memory that was freed too recently, with their given bytes.
    pub(super) fn collectable(&self) -> BTreeMap<u64, u64> {
        let safe = |what: &What| matches!(what, Free { stamp } if *stamp < self.frontier);
        let free = |base, bytes| self.pieces.range(base..base + bytes).all(|(_, (_, what))| safe(what));
        let regions = self.regions.iter().filter(|&(&base, &(bytes, _))| free(base, bytes));
        regions.map(|(&base, &(_, given))| (base, given)).collect()
    }

    /// Returns the sizes of the regions that one region of `size` bytes replaces, the largest first.
    pub(super) fn replaceable(&self, size: u64) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.collectable().into_values().collect();
        sizes.sort_unstable_by_key(|&given| std::cmp::Reverse(given));
        let by_need = self.settings.growth == RegionGrowth::ByNeed && self.settings.garbage_collection;
        let all = sizes.iter().map(|&given| u128::from(given)).sum::<u128>();
        let held = self.counted.pool_bytes.saturating_add(self.reserved);
        let room = round_down(self.settings.limit.saturating_sub(held));
        if !by_need || size > room || size < self.counted.pool_bytes / 32 || all < u128::from(size) {
            return Vec::new();
        }
        let mut sum = 0;
        let goes = |given: &u64| {
            let is_short = sum < u128::from(size);
            sum += u128::from(*given);
            is_short
        };
        sizes.into_iter().take_while(goes).collect()
    }

    pub(super) fn remove_region(&mut self, region: &Detached) {
        self.splits_large = false;
        assert_eq!(self.regions.remove(&region.base), Some((region.bytes, region.given)));
        self.pieces.retain(|&addr, _| addr.wrapping_sub(region.base) >= region.bytes);
    }
}
