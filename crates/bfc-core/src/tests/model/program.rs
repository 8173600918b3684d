//! One random program, run on an arena and on the model at the same time: the pool's loop, and a backend.

use super::intervals::{BeingMapped, Chunk, Free, Live, Model, Unmapped, Withheld};
use super::planned::Planned;
use super::{Family, Layout};
use crate::arena::Detached;
use crate::arena::usable;
use crate::arena::{Arena, Placement, RegionGrowth, Reuse, Settings};
use crate::heap::Refused;
use crate::heap::State;
use crate::ids::NIL;
use crate::op_names::Name;
use crate::request::Request;
use crate::stamps::Forced;
use crate::stats::FailureCause;
use crate::stream_id::Stream;
use crate::streams::Freed;
use crate::testing::Random;
use crate::units::{UNIT, round_up};
use std::collections::{BTreeMap, BTreeSet};

mod granules;

pub(super) struct Program {
    arena: Arena,
    model: Model,
    family: Family,
    random: Random,
    live: Vec<u64>,
    /// The addresses of the mapped granules.
    mapped: BTreeSet<u64>,
    planned: Option<Planned>,
    done: Vec<String>,
    steps: usize,
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{:?}\n{}", self.family, self.done.join("\n"));
        }
    }
}

/// Returns the arena's chunks in the order of its lists.
fn chunks_of(arena: &Arena) -> Vec<Chunk> {
    let (mut found, chunks) = (Vec::new(), arena.chunks());
    for (_, region) in arena.regions().iter() {
        let mut id = region.first;
        while id != NIL {
            let (cold, tag, stamp) = (chunks.cold(id), chunks.tag(id), chunks.stamp(id));
            let scope = (tag.name != 0).then_some((tag.name, tag.step));
            let held = arena.settings().reuse == Reuse::Quarantine && stamp != 0;
            let what = match chunks.state(id) {
                State::InUse => Live { requested: cold.requested, id: cold.allocation_id, scope },
                State::Unmapped => Unmapped,
                State::BeingMapped => BeingMapped,
                State::Withheld => Withheld,
                state => {
                    assert_eq!(state, if held { State::Held } else { State::Free });
                    Free { stamp }
                }
            };
            found.push((chunks.addr(id), chunks.size(id), what));
            id = chunks.next(id);
        }
    }
    found
}

impl Program {
    /// Runs to the end. Returns how many times arena and model were compared.
    pub(super) fn run(family: Family, seed: u64) -> usize {
        let (arena, model) = (Arena::new(family.settings).unwrap(), Model::new(family.settings));
        let random = Random(seed);
        let mut program = Program {
            arena,
            model,
            family,
            random,
            live: Vec::new(),
            mapped: BTreeSet::new(),
            planned: None,
            done: Vec::new(),
            steps: 0,
        };
        let Settings { reuse, growth, .. } = family.settings;
        let timestamps = reuse.has_stamps();
        if family.spares_large {
            program.arena.spare_large_chunks();
        }
        program.model.spares_large = family.spares_large
            && growth == RegionGrowth::ByNeed
            && !family.settings.coalesce_regions
            && (timestamps || !(family.planned || family.two_ends))
            && family.range.is_none();
        if let Some(range) = family.range {
            program.arena.set_range(range);
        }
        if family.planned && !timestamps {
            program.set_plan();
        }
        if family.two_ends && !timestamps && family.range.is_none() && !family.planned {
            program.arena.set_placement(Placement::TwoEnds(Box::default()));
        }
        for _ in 0..family.regions {
            let least = program.random.below(family.most) & !255;
            program.extend(least.max(UNIT));
        }
        (0..family.steps).for_each(|_| program.step());
        program.end();
        program.steps
    }

    fn set_plan(&mut self) {
        let Family { largest, settings, range, .. } = self.family;
        let mut planned = Planned::any(&mut self.random, largest.min(1 << 40), settings.limit);
        planned.base = range.map(|range| range.base);
        self.done.push(format!("{planned:?}"));
        self.arena.set_placement(Placement::Plan(planned.plan()));
        self.model.planned = planned.bytes;
        if range.is_some() {
            let initial = &mut self.model.settings.initial_region;
            *initial = planned.bytes.max(*initial);
            self.family.settings.initial_region = *initial;
        }
        self.planned = Some(planned);
    }

    /// Logs a step and compares everything.
    fn did(&mut self, what: String) {
        self.done.push(what);
        self.steps += 1;
        assert_eq!(self.arena.check(), Ok(()));
        let expected = self.model.chunks();
        assert_eq!(chunks_of(&self.arena), expected);
        let stats = self.arena.stats();
        assert_eq!(stats, self.model.stats(&expected, stats.metadata_bytes));
        assert_eq!(self.arena.last_stamp(), self.model.last_stamp);
        let c = self.arena.counters();
        assert_eq!((c.regions_added, c.regions_released, c.stamped_splits), self.model.events);
        let waits = expected.iter().any(|c| matches!(c.2, Free { stamp: 1.. }));
        assert!(self.arena.stamps_wait() || !waits);
    }

    fn step(&mut self) {
        match self.random.below(100) {
            0..4 => self.probe(),
            4..6 if self.family.trims && self.family.range.is_some() => self.trim_granules(),
            4..6 if self.family.trims => self.trim(),
            6 => {
                let c = &mut self.model.counted;
                (c.num_allocs, c.num_frees, c.num_failures, c.largest_alloc_size) = (0, 0, 0, 0);
                c.num_planned_allocs = 0;
                c.peak_bytes_in_use = c.bytes_in_use;
                c.peak_bytes_requested = c.bytes_requested;
                c.peak_pool_bytes = c.pool_bytes;
                self.arena.reset_stats();
                self.did("reset_stats".into());
            }
            // In a forked child an extension is never finished.
            7 if self.family.trims && self.family.range.is_none() => {
                assert_eq!(self.arena.plan_extension(UNIT).is_some(), self.model.plan(UNIT).is_some());
                self.arena.forget_unfinished(0, false);
                self.model.reserved = 0;
                self.did("fork".into());
            }
            8..16 if self.family.settings.reuse.has_stamps() => {
                let to = self.random.below(self.model.last_stamp + 3);
                self.model.frontier = self.model.frontier.max(to);
                self.arena.raise_frontier(to);
                self.did(format!("frontier {to}"));
            }
            16 => (0..self.live.len().min(40) / 2).for_each(|_| self.free()),
            _ if self.random.below(2 * self.family.live) >= self.live.len() as u64 => self.request(),
            _ => self.free(),
        }
    }

    fn free(&mut self) {
        let place = self.random.below(self.live.len() as u64) as usize;
        let addr = self.live.swap_remove(place);
        let before = self.arena.stats().metadata_bytes;
        self.model.free(addr);
        let is_freed = self.random.chance(50) && self.arena.try_free(addr, Stream::NONE);
        assert!(is_freed || self.arena.free(addr) == Freed::Done);
        assert_eq!(self.arena.stats().metadata_bytes, before, "a free needs no memory");
        self.did(format!("free {addr:#x}"));
    }

    fn request(&mut self) {
        let Family { largest, aligned, named, settings, .. } = self.family;
        let random = &mut self.random;
        // Many of a few sizes, so that there are ties, or any magnitude.
        let requested = match random.below(8) {
            0 => largest - random.below(600).min(largest - 1),
            1..4 => largest / random.pick(&[4, 16, 64, 256]),
            _ => random.next() >> random.below(64),
        };
        let likely = self.planned.as_ref().and_then(|planned| planned.likely(random));
        let requested = likely.unwrap_or(requested).clamp(1, largest);
        let alignment = if aligned && random.chance(50) { 16 << random.below(14) } else { UNIT };
        let scope = (named && random.chance(60))
            .then(|| (random.pick(&["MatMul", "Relu", "", "é"]), random.below(3)));
        let dated = settings.reuse.has_stamps() && random.chance(40);
        let newest = if dated { random.below(self.model.last_stamp + 2) } else { u64::MAX };
        let short_lived = self.family.two_ends && random.chance(20);
        let size = round_up(requested).unwrap();
        let tag = scope.map(|(name, step)| {
            let tag = self.arena.tag(Name::new(name), step).unwrap();
            assert_eq!((self.arena.names().name(tag.name), tag.step), (Some(name), step));
            tag
        });
        let request = Request {
            size,
            requested,
            alignment,
            max_stamp: newest,
            thorough: true,
            no_growth: false,
            short_lived,
            splits_large: self.family.spares_large && self.random.chance(5),
            stream: Stream::NONE,
            scope: tag.as_ref(),
            stack: 0,
            is_attempt: false,
        };
        match self.attempt(&request) {
            Some(addr) => self.live.push(addr),
            None => {
                self.arena.count_failure(requested, FailureCause::Exhaustion);
                self.model.counted.num_failures += 1;
                self.did("failed".into());
            }
        }
    }

    /// Tries the strategies in the pool's order.
    fn attempt(&mut self, request: &Request<'_>) -> Option<u64> {
        if let Some(range) = self.family.range {
            return self.attempt_granular(request, range);
        }
        let mut least = request.size;
        loop {
            if let Some(addr) = self.take(request) {
                return Some(addr);
            }
            let small = self.arena.small_region_for(request);
            assert_eq!(small, self.model.small_region_for(request));
            if let Some(bytes) = small {
                return self.take_from_small_region(request, bytes);
            }
            if let Some(addr) = self.replace(least).then(|| self.take(request)).flatten() {
                return Some(addr);
            }
            if !self.extend(least) {
                break;
            }
            least = request.size + request.alignment.max(UNIT) - UNIT;
        }
        if request.max_stamp == u64::MAX && self.arena.stamps_wait() && self.force(request.size) {
            let addr = self.take(request);
            if addr.is_some() {
                return addr;
            }
        }
        let free = self.model.collectable();
        let possible = self.model.settings.limit.saturating_sub(self.model.counted.pool_bytes) as u128;
        let enough =
            request.size as u128 <= possible + free.values().map(|&given| given as u128).sum::<u128>();
        let expected = if self.family.settings.garbage_collection && enough { free } else { BTreeMap::new() };
        let regions = self.arena.detach_for(request.size);
        assert!(regions.iter().map(|region| (region.base, region.given)).eq(expected));
        if regions.is_empty() {
            return None;
        }
        self.release(regions);
        self.extend(request.size);
        self.take(request)
    }

    /// Serves a small request from a new region, or from a large chunk if there is none.
    fn take_from_small_region(&mut self, request: &Request<'_>, bytes: u64) -> Option<u64> {
        let plan = if self.random.chance(70) { self.arena.plan_exact_extension(bytes) } else { None };
        match plan {
            Some(plan) => {
                let base = self.place(bytes);
                self.model.add_region(base, bytes, true);
                self.arena.add_region(&plan, base, bytes).unwrap();
                self.did(format!("a small region of {bytes} at {base:#x}"));
            }
            None => {
                self.arena.split_large_chunks();
                self.model.splits_large = true;
            }
        }
        let addr = self.take(&Request { splits_large: true, ..*request });
        assert!(addr.is_some());
        addr
    }

    /// Gives regions back for the one that a request of that size needs. Of several of one size, any may go.
    fn replace(&mut self, size: u64) -> bool {
        let free = self.model.collectable();
        let regions = self.arena.detach_to_replace(size);
        assert!(regions.iter().all(|region| free.get(&region.base) == Some(&region.given)));
        let mut sizes: Vec<u64> = regions.iter().map(|region| region.given).collect();
        sizes.sort_unstable_by_key(|&given| std::cmp::Reverse(given));
        assert_eq!(sizes, self.model.replaceable(size));
        let replaced = !regions.is_empty();
        if replaced {
            self.release(regions);
        }
        replaced
    }

    fn take(&mut self, request: &Request<'_>) -> Option<u64> {
        self.merge_in_pieces();
        let expected = self.take_in_model(request);
        let addr = self.try_take(request).or_else(|| self.arena.alloc(request).unwrap());
        self.done.push(format!("{request:?} -> {addr:x?}"));
        assert_eq!(addr, expected);
        self.did("took".into());
        addr
    }

    /// Allocates the planned place if that is free, and otherwise behind the planned bytes, or the best fit. Without a
    /// plan a short-lived request gets the upper end of the best fit.
    fn take_in_model(&mut self, request: &Request<'_>) -> Option<u64> {
        let Some(planned) = &mut self.planned else {
            let may_lie_above = request.alignment <= UNIT && !self.family.settings.reuse.has_stamps();
            let is_above = may_lie_above && self.arena.is_short_lived(request);
            return if is_above { self.model.take_upper_end(request) } else { self.model.take(request) };
        };
        let (entry, place) = planned.place(request.size, self.live.is_empty());
        let at_place = place.and_then(|place| self.model.take_at(place, request));
        let end = planned.end();
        let behind = || self.model.take_behind(end?, request);
        let taken = at_place.or_else(behind).or_else(|| self.model.take(request));
        if taken.is_some() {
            planned.served(request.size, entry, at_place.is_some());
        }
        taken
    }

    /// Tries the usual case alone, half of the time.
    fn try_take(&mut self, request: &Request<'_>) -> Option<u64> {
        let Request { size, requested, alignment, max_stamp, stream, scope, short_lived, .. } = *request;
        let is_usual = max_stamp == u64::MAX && stream == Stream::NONE && scope.is_none() && !short_lived;
        if !is_usual || !self.random.chance(50) {
            return None;
        }
        self.arena.try_alloc_aligned(size, requested, alignment.max(UNIT))
    }

    /// Merges safe chunks, as the pool does before each request.
    fn merge_in_pieces(&mut self) {
        while self.arena.is_merging() {
            let most = 1 + self.random.below(9) as usize;
            let more = self.arena.merge_safe_some(most);
            self.done.push(format!("merged {most}, more: {more}"));
            assert_eq!((more, self.arena.check()), (self.arena.is_merging(), Ok(())));
        }
    }

    fn extend(&mut self, least: u64) -> bool {
        let (planned, plan) = (self.model.plan(least), self.arena.plan_extension(least));
        assert_eq!(plan.map(|plan| (plan.bytes, plan.least)), planned.map(|(bytes, _)| (bytes, least)));
        let (Some(mut plan), Some((reserved, raised))) = (plan, planned) else { return false };
        if self.random.chance(5) {
            // Another thread extends at the same time.
            let (planned, rival) = (self.model.plan(UNIT), self.arena.plan_extension(UNIT));
            assert_eq!(rival.map(|plan| plan.bytes), planned.map(|(bytes, _)| bytes));
            rival.inspect(|rival| self.arena.cancel_extension(rival));
        }
        self.model.reserved = 0;
        let moody = self.family.moody;
        while moody && self.random.chance(40) {
            let before = plan.bytes;
            if !plan.shrink() {
                self.arena.cancel_extension(&plan);
                self.did(format!("no region of {least} bytes"));
                return false;
            }
            let step = before - plan.bytes;
            assert!(plan.bytes >= least && (1..=before / 9 + UNIT).contains(&step) && step % UNIT == 0);
        }
        let given = match self.random.below(4) {
            0 if moody => least + self.random.below(plan.bytes - least + 1),
            1 if moody => plan.bytes.saturating_add(self.random.below(700)),
            _ => plan.bytes,
        };
        let given = given.min(self.family.most.max(least));
        if usable(given) < least {
            self.arena.cancel_extension(&plan);
            return false;
        }
        let base = self.place(given);
        self.model.add_region(base, given, raised);
        self.arena.add_region(&plan, base, given).unwrap();
        self.note_region(base);
        self.did(format!("of {reserved} bytes {given} at {base:#x}"));
        true
    }

    /// Offsets of a plan are counted from the first region.
    fn note_region(&mut self, base: u64) {
        if let Some(planned) = self.planned.as_mut().filter(|_| self.model.regions.len() == 1) {
            planned.base = Some(base);
        }
    }

    fn place(&mut self, given: u64) -> u64 {
        let room = given.next_multiple_of(UNIT);
        let regions: Vec<_> =
            self.model.regions.iter().map(|(&base, r)| (base, base + r.1.next_multiple_of(UNIT))).collect();
        let apart = self.random.below(100) * UNIT * self.random.below(2);
        let (Some(&(low, _)), Some(&(_, high))) = (regions.first(), regions.last()) else {
            return match self.family.layout {
                Layout::Up => 1 << 40,
                Layout::Down => u64::MAX - (UNIT - 1) - room,
                Layout::Any => 1 << 62,
            };
        };
        for _ in 0..8 * u32::from(self.family.layout == Layout::Any) {
            let (base, end) = self.random.pick(&regions);
            let at = if self.random.chance(50) { end + apart } else { base - apart - room };
            let overlaps = self.model.overlaps(at, given);
            assert_eq!(self.arena.overlaps(at, given), overlaps);
            if !overlaps {
                return at;
            }
        }
        if self.family.layout == Layout::Down { low - apart - room } else { high + apart }
    }

    /// Free chunks may merge under the latest stamp. Nothing else changes.
    fn force(&mut self, size: u64) -> bool {
        let mut pass = self.arena.begin_forced_pass();
        let found = loop {
            let most = 1 + self.random.below(9) as usize;
            match self.arena.merge_forced_some(&mut pass, size, most) {
                Forced::More => assert_eq!(self.arena.check(), Ok(())),
                end => break end == Forced::Found,
            }
        };
        let merged: Vec<_> = chunks_of(&self.arena)
            .into_iter()
            .filter_map(|(addr, size, what)| match what {
                Free { stamp } => Some((addr, size, stamp)),
                _ => None,
            })
            .collect();
        let before = self.model.chunks();
        for &(addr, size, stamp) in &merged {
            let parts = before.iter().filter(|c| (addr..addr + size).contains(&c.0));
            assert_eq!(parts.clone().map(|c| c.1).sum::<u64>(), size);
            assert_eq!(parts.map(|c| c.2).max(), Some(Free { stamp }), "of {addr:#x}");
        }
        let quarantine = self.family.settings.reuse == Reuse::Quarantine;
        assert!(!quarantine || (!found && chunks_of(&self.arena) == before), "it waits, come what may");
        let expected = self.model.merge_forced(size);
        assert!(quarantine || expected == (merged.clone(), found));
        assert!(!found || merged.iter().any(|c| c.1 >= size));
        self.model.pieces.retain(|_, (_, what)| !matches!(what, Free { .. }));
        let waiting = merged.iter().filter(|c| c.2 != 0);
        assert!(
            quarantine || self.arena.stamps().iter().count() == waiting.clone().count(),
            "each is queued once"
        );
        self.model.pieces.extend(waiting.map(|&(addr, size, stamp)| (addr, (size, Free { stamp }))));
        self.did(format!("merge_forced {size} -> {found}"));
        found
    }

    fn release(&mut self, regions: Vec<Detached>) {
        assert!(regions.is_sorted_by_key(|region| region.base));
        regions.iter().for_each(|region| self.model.remove_region(region));
        self.did(format!("detached {} regions", regions.len()));
        for region in regions {
            if self.random.chance(20) {
                self.arena.restore(&region).unwrap();
                self.model.insert_region(region.base, region.given);
                self.note_region(region.base);
                self.did(format!("kept {:#x}", region.base));
            } else {
                self.released(&region);
            }
        }
    }

    fn released(&mut self, region: &Detached) {
        self.model.counted.pool_bytes -= region.given;
        self.model.events.1 += 1;
        self.arena.region_released(region.given);
        self.did(format!("released {:#x}", region.base));
    }

    fn trim(&mut self) {
        let mut left = self.model.counted.pool_bytes;
        let without = self.model.regions.values().map(|&(_, given)| left - given).max().unwrap_or(0);
        let keep = self.random.below(left + 1);
        let keep = self.random.pick(&[0, keep, without, without + 1]);
        self.model.merge_safe();
        let free = self.model.collectable();
        let mut expected: Vec<u64> = free.values().copied().collect();
        expected.sort_unstable_by_key(|&given| std::cmp::Reverse(given));
        expected.retain(|given| {
            left - given >= keep && {
                left -= given;
                true
            }
        });
        let regions = self.arena.detach_above(keep).unwrap();
        assert!(regions.iter().all(|region| free.get(&region.base) == Some(&region.given)));
        // Which of two equal regions is released is unspecified.
        let mut given: Vec<u64> = regions.iter().map(|region| region.given).collect();
        given.sort_unstable_by_key(|&given| std::cmp::Reverse(given));
        assert_eq!(given, expected);
        self.release(regions);
        self.arena.forget_past();
        self.model.hint = self.model.first_hint;
        self.did(format!("trimmed to {keep}"));
    }

    /// An address that must not be freed, and memory that the backend must not give.
    fn probe(&mut self) {
        let regions: Vec<_> = self.model.regions.iter().map(|(&base, &(_, given))| (base, given)).collect();
        if !regions.is_empty() && self.family.range.is_none() {
            let (base, given) = self.random.pick(&regions);
            let near = self.random.pick(&[base, base + given - given % UNIT, base + given]);
            let (at, bytes) = (near - self.random.below(600), 1 + self.random.below(600));
            assert_eq!(self.arena.overlaps(at, bytes), self.model.overlaps(at, bytes), "{bytes} at {at:#x}");
        }
        let chunks = self.model.chunks();
        let addr = match self.random.below(8) {
            0 => self.random.next(),
            _ if chunks.is_empty() => 1 << 40,
            kind => {
                let (addr, size, _) = self.random.pick(&chunks);
                let inside =
                    [0, 0, 1, UNIT, size - 1, size, self.random.below(size), self.random.below(size) & !255];
                addr + inside[kind as usize]
            }
        };
        let around = chunks.iter().find(|c| addr.wrapping_sub(c.0) < c.1);
        let arena = &mut self.arena;
        assert_eq!(arena.chunk_around(addr).map(|id| arena.chunks().addr(id)), around.map(|c| c.0));
        let start = around.filter(|c| c.0 == addr);
        assert_eq!(arena.chunk_at(addr).is_some(), start.is_some());
        let in_use = start.is_some_and(|c| matches!(c.2, Live { .. }));
        assert_eq!(arena.chunk_in_use(addr).is_some(), in_use);
        if !in_use {
            let refused = match arena.chunk_at(addr) {
                Some(id) => Refused::AlreadyFree(id),
                None => Refused::NotAChunk(arena.chunk_around(addr)),
            };
            assert!(!arena.try_free(addr, Stream::NONE));
            assert_eq!(arena.free(addr), Freed::Refused(refused));
        }
        self.did(format!("probe {addr:#x}"));
    }

    /// Either everything is freed and merges, or the arena is dropped with live chunks.
    fn end(&mut self) {
        if self.random.chance(50) {
            (0..self.live.len()).for_each(|_| self.free());
            self.model.frontier = u64::MAX;
            self.arena.raise_frontier(u64::MAX);
            self.arena.merge_safe();
            self.model.merge_safe();
            assert!(self.model.pieces.values().all(|&(_, what)| what == Unmapped));
            self.did("all is free".into());
        }
        while let Some(region) = self.arena.detach_any() {
            let end = region.base + region.bytes;
            let live = self.live.iter().copied().filter(|addr| (region.base..end).contains(addr));
            live.for_each(|addr| self.model.free(addr));
            self.model.last_stamp = self.arena.last_stamp();
            self.model.remove_region(&region);
            self.released(&region);
        }
        assert_eq!((self.arena.usable_bytes(), self.arena.counters().live()), (0, 0));
    }
}
