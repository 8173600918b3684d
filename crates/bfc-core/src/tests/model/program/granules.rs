//! Programs in a reserved range: growth, remapping and trim against a search over all places. The backend fails now and
//! then, and frees and requests happen while it works.

use super::*;
use crate::arena::{NewMemory, Piece, Plan, bytes};
use crate::vmm::Range;

/// The contents of memory, by unit.
struct Units {
    base: u64,
    /// For each unit, how many units below it are neither idle nor unmapped.
    closed: Vec<u64>,
    /// For each granule, how many granules below it are unmapped, and how many are wholly idle.
    unmapped: Vec<u64>,
    idle: Vec<u64>,
    granule: u64,
}

impl Units {
    /// Returns the bytes of the unmapped chunks that a request at an address overlaps, and those of its whole granules.
    /// Returns `None` if something else is in the way.
    fn cost(&self, at: u64, size: u64) -> Option<(u64, u64)> {
        let unit = |addr: u64| ((addr - self.base) / UNIT) as usize;
        if self.closed[unit(at)] != self.closed[unit(at + size)] {
            return None;
        }
        let granule = |addr: u64| ((addr - self.base) / self.granule) as usize;
        let (from, to) = (granule(at), granule((at + size).next_multiple_of(self.granule)));
        let missing = (self.unmapped[to] - self.unmapped[from]) * self.granule;
        Some((missing, missing + (self.idle[to] - self.idle[from]) * self.granule))
    }
}

impl Program {
    fn units(&self, range: Range) -> Units {
        let mut state = vec![1u8; (range.bytes / UNIT) as usize];
        for (addr, size, what) in self.model.chunks() {
            let value = match what {
                Unmapped => 2,
                Free { stamp: 0 } => 0,
                _ => 1,
            };
            let first = ((addr - range.base) / UNIT) as usize;
            state[first..first + (size / UNIT) as usize].fill(value);
        }
        if self.model.regions.is_empty() {
            state.fill(2);
        }
        let sums = |of: &mut dyn Iterator<Item = bool>| {
            let mut sum = 0;
            let next = |holds: bool| {
                sum += u64::from(holds);
                sum
            };
            std::iter::once(0).chain(of.map(next)).collect::<Vec<u64>>()
        };
        let whole = |value| move |units: &[u8]| units.iter().all(|&unit| unit == value);
        let granules = || state.chunks((range.granule / UNIT) as usize);
        let closed = sums(&mut state.iter().map(|&unit| unit == 1));
        let (unmapped, idle) = (sums(&mut granules().map(whole(2))), sums(&mut granules().map(whole(0))));
        Units { base: range.base, closed, unmapped, idle, granule: range.granule }
    }

    /// Returns the fewest bytes of unmapped chunks that a place of the request overlaps, among the places that are
    /// `allowed`.
    fn least_missing(
        &self,
        units: &Units,
        range: Range,
        request: &Request<'_>,
        allowed: impl Fn(u64, u64) -> bool,
    ) -> Option<u64> {
        let first = range.base.next_multiple_of(request.alignment.max(UNIT));
        let last = range.end().checked_sub(request.size)?;
        let places = (first..=last).step_by(request.alignment.max(UNIT) as usize);
        let costs = places.filter_map(|at| units.cost(at, request.size));
        costs.filter(|&(missing, whole)| allowed(missing, whole)).map(|(missing, _)| missing).min()
    }

    /// Returns the fewest bytes of whole granules that a place of the request takes.
    fn fewest_granules(&self, units: &Units, range: Range, request: &Request<'_>) -> Option<u64> {
        let first = range.base.next_multiple_of(request.alignment.max(UNIT));
        let last = range.end().checked_sub(request.size)?;
        let places = (first..=last).step_by(request.alignment.max(UNIT) as usize);
        let costs = places.filter_map(|at| units.cost(at, request.size));
        costs.filter(|&(missing, _)| missing != 0).map(|(_, whole)| whole).min()
    }

    fn available(&self, range: Range, below: u64) -> u64 {
        let left = (self.family.settings.limit - self.model.counted.pool_bytes).min(below - 1);
        left - left % range.granule
    }

    /// Tries the strategies in the pool's order.
    pub(super) fn attempt_granular(&mut self, request: &Request<'_>, range: Range) -> Option<u64> {
        if let Some(addr) = self.take(request) {
            return Some(addr);
        }
        let (mut failed, mut below) = (false, u64::MAX);
        for new in [NewMemory::Ample, NewMemory::Needed] {
            let Some(plan) = self.plan_growth(request, range, new, below) else { break };
            let asked = plan.reserved();
            match self.carry_out(plan, request) {
                Carried::Out => return Some(self.take(request).expect("there is room now")),
                Carried::Served(addr) => return Some(addr),
                Carried::Failed => (failed, below) = (true, asked),
            }
        }
        if request.max_stamp == u64::MAX && self.arena.stamps_wait() && self.force(request.size) {
            let addr = self.take(request);
            if addr.is_some() {
                return addr;
            }
        }
        let ways = if failed { &[NewMemory::Least][..] } else { &[NewMemory::Needed, NewMemory::Least] };
        for &new in ways {
            let Some(plan) = self.plan_relocation(request, range, new, below) else { break };
            let asked = plan.reserved();
            match self.carry_out(plan, request) {
                Carried::Out => return Some(self.take(request).expect("there is room now")),
                Carried::Served(addr) => return Some(addr),
                Carried::Failed => (failed, below) = (true, if asked == 0 { below } else { asked }),
            }
        }
        if !failed {
            self.nothing_helped(request, range);
        }
        None
    }

    /// A request fails only if there are not enough whole granules, free ones and those that the limit leaves. The
    /// range has room for any request that they could serve.
    fn nothing_helped(&self, request: &Request<'_>, range: Range) {
        let units = self.units(range);
        let granules = units.idle.last().unwrap() * range.granule + self.available(range, u64::MAX);
        let needed = request.size.next_multiple_of(range.granule);
        let room = self.model.chunks();
        let unsafe_ones = room.iter().any(|c| matches!(c.2, Free { stamp: 1.. }));
        assert!(
            granules < needed || request.alignment > range.granule || unsafe_ones,
            "{granules} bytes of whole granules, and {needed} needed"
        );
    }

    fn plan_growth(
        &mut self,
        request: &Request<'_>,
        range: Range,
        new: NewMemory,
        below: u64,
    ) -> Option<Plan> {
        self.model.merge_safe();
        let units = self.units(range);
        let available = self.available(range, below);
        let least = self.least_missing(&units, range, request, |missing, _| missing <= available);
        let least = least.filter(|_| self.model.find(request).is_none());
        let plan = self.arena.plan_growth(request, new, below).unwrap();
        let found = plan.as_ref().map(Plan::reserved);
        match (least, found) {
            (Some(least), Some(fresh)) if new == NewMemory::Needed => assert_eq!(fresh, least),
            (Some(least), Some(fresh)) => {
                let pool = self.model.counted.pool_bytes;
                let initial = if pool == 0 { self.family.settings.initial_region } else { 0 };
                let step = (pool / 64).max(initial).max(range.granule).saturating_add(range.granule - 1);
                let most = if self.family.settings.growth.grows() { least.max(step) } else { available };
                assert!(fresh >= least && fresh <= most.min(available), "{least} to {most}: {fresh}");
            }
            (least, found) => assert_eq!(least, found),
        }
        plan
    }

    fn plan_relocation(
        &mut self,
        request: &Request<'_>,
        range: Range,
        new: NewMemory,
        below: u64,
    ) -> Option<Plan> {
        self.model.merge_safe();
        let units = self.units(range);
        let available = self.available(range, below);
        let idle = units.idle.last().unwrap() * range.granule;
        let is_new = self.model.find(request).is_none();
        let least = self.least_missing(&units, range, request, |_, whole| whole <= available + idle);
        let least = least.filter(|_| is_new);
        let fewest = self.fewest_granules(&units, range, request).filter(|_| least.is_some());
        let plan = self.arena.plan_relocation(request, new, below).unwrap();
        let found = plan.as_ref().map(|plan| bytes(&plan.fresh) + bytes(&plan.targets));
        let plan = match new {
            NewMemory::Least => {
                assert_eq!(found.is_some(), least.is_some());
                let plan = plan?;
                assert_eq!(bytes(&plan.fresh), fewest.unwrap().saturating_sub(idle), "no more than it must");
                plan
            }
            NewMemory::Ample | NewMemory::Needed => {
                assert_eq!(found, least);
                let plan = plan?;
                assert_eq!(bytes(&plan.fresh), least.unwrap().min(available));
                plan
            }
        };
        assert_eq!(bytes(&plan.sources), bytes(&plan.targets));
        Some(plan)
    }

    /// Returns, by chunk, the whole granules that are released if `spare` bytes may be.
    fn largest_first(&self, range: Range, spare: u64) -> Vec<(u64, u64)> {
        let whole = |addr: u64, size: u64| {
            let end = (addr + size) / range.granule * range.granule;
            end.saturating_sub(addr.next_multiple_of(range.granule))
        };
        let free = self.model.chunks().into_iter().filter(|c| c.2 == Free { stamp: 0 });
        let mut free: Vec<_> = free.map(|(addr, size, _)| (addr, size, whole(addr, size))).collect();
        free.retain(|&(_, _, whole)| whole != 0);
        free.sort_by_key(|&(addr, size, _)| (std::cmp::Reverse(size), addr));
        let mut left = spare;
        let goes = free.into_iter().map(|(addr, _, whole)| {
            let goes = whole.min(left);
            left -= goes;
            (addr, goes)
        });
        goes.filter(|&(_, goes)| goes != 0).collect()
    }

    pub(super) fn trim_granules(&mut self) {
        let range = self.family.range.unwrap();
        let pool = self.model.counted.pool_bytes;
        let keep = self.random.below(pool + 1);
        let keep = self.random.pick(&[0, keep, pool, u64::MAX]);
        self.model.merge_safe();
        let idle = self.units(range).idle.last().unwrap() * range.granule;
        let spare = pool.saturating_sub(keep);
        let expected = self.largest_first(range, spare - spare % range.granule);
        let plan = self.arena.plan_trim(keep).unwrap();
        let goes = bytes(&plan.sources);
        assert_eq!(goes, idle.min(spare - spare % range.granule));
        assert!(plan.fresh.is_empty() && plan.targets.is_empty());
        let before = self.model.chunks();
        let of = |addr: u64| before.iter().find(|c| addr - c.0 < c.1 && addr >= c.0).unwrap().0;
        let given: Vec<_> =
            plan.sources.iter().map(|piece| (of(piece.span.base), piece.span.bytes)).collect();
        assert_eq!(given, expected);
        if !given.is_empty() {
            let request = Request::plain(UNIT, 1, Stream::NONE);
            self.carry_out(plan, &request);
        }
        self.arena.forget_past();
        self.model.hint = self.model.first_hint;
        self.did(format!("trimmed to {keep}"));
    }

    /// The backend carries out a plan, completely or as far as it can.
    fn carry_out(&mut self, mut plan: Plan, request: &Request<'_>) -> Carried {
        let range = self.family.range.unwrap();
        self.begin(&plan, range);
        let mut served = None;
        for _ in 0..self.random.below(4) {
            match self.random.below(3) {
                0 if !self.live.is_empty() => self.free(),
                1 => served = served.or_else(|| self.take(request)),
                _ => self.probe(),
            }
        }
        let fails = self.family.moody && self.random.chance(40);
        let trims = plan.targets.is_empty() && plan.fresh.is_empty();
        let mut left = self.family.settings.limit - self.model.counted.pool_bytes + bytes(&plan.sources);
        let Plan { sources, fresh, targets, .. } = &mut plan;
        let mut set = |piece: &mut Piece, mapped: bool| {
            piece.mapped = mapped && piece.span.bytes <= left;
            left -= if piece.mapped { piece.span.bytes } else { 0 };
        };
        for piece in sources.iter_mut() {
            // Pieces that could be put back, or were not changed.
            let stays = fails && self.random.chance(70);
            set(piece, stays);
        }
        for piece in fresh.iter_mut().chain(targets) {
            let comes = !fails || self.random.chance(20);
            set(piece, comes);
        }
        self.end_plan(plan, range);
        self.did(format!("carried out, {}", if fails { "badly" } else { "well" }));
        match served {
            Some(addr) if trims => {
                self.live.push(addr);
                Carried::Out
            }
            Some(addr) => Carried::Served(addr),
            None if fails => Carried::Failed,
            None => Carried::Out,
        }
    }

    /// Withholds the chunks of a plan, free and unmapped ones.
    fn begin(&mut self, plan: &Plan, range: Range) {
        if self.model.regions.is_empty() {
            self.model.regions.insert(range.base, (range.bytes, 0));
        }
        let before = self.model.chunks();
        let within = |addr: u64, size: u64, what| {
            let is_it = |c: &&Chunk| c.0 <= addr && addr + size <= c.0 + c.1 && c.2 == what;
            self.mapped.is_empty() || before.iter().any(|c| is_it(&c))
        };
        let out: Vec<Chunk> = chunks_of(&self.arena)
            .into_iter()
            .filter_map(|(addr, size, what)| match what {
                Withheld => Some((addr, size, Withheld)),
                BeingMapped => Some((addr, size, BeingMapped)),
                _ => None,
            })
            .collect();
        for piece in plan.sources.iter().chain(&plan.fresh).chain(&plan.targets) {
            let span = piece.span;
            assert!(out.iter().any(|c| (c.0, c.1) == (span.base, span.bytes)));
            assert!(span.base % range.granule == 0 && span.bytes % range.granule == 0 && span.bytes != 0);
        }
        for &(addr, size, what) in &out {
            let was = if what == Withheld { Free { stamp: 0 } } else { Unmapped };
            assert!(within(addr, size, was), "{size} at {addr:#x}");
            self.model.pieces.insert(addr, (size, what));
        }
        self.put_holes(range);
        self.did("planned".into());
    }

    fn end_plan(&mut self, plan: Plan, range: Range) {
        self.model.pieces.retain(|_, (_, what)| !matches!(what, Withheld | BeingMapped));
        for piece in plan.sources.iter().chain(&plan.fresh).chain(&plan.targets) {
            let granules = (piece.span.base..).step_by(range.granule as usize);
            for granule in granules.take((piece.span.bytes / range.granule) as usize) {
                if piece.mapped {
                    self.mapped.insert(granule)
                } else {
                    self.mapped.remove(&granule)
                };
            }
        }
        let pool = self.mapped.len() as u64 * range.granule;
        assert!(pool <= self.family.settings.limit, "{pool} bytes are over the limit");
        let c = &mut self.model.counted;
        (c.pool_bytes, c.peak_pool_bytes) = (pool, c.peak_pool_bytes.max(pool));
        match pool {
            0 => _ = self.model.regions.remove(&range.base),
            _ => _ = self.model.regions.insert(range.base, (range.bytes, pool)),
        }
        self.put_holes(range);
        self.arena.commit(plan);
        let region = self.arena.regions().iter().map(|(_, region)| region.given).next();
        assert_eq!(region.unwrap_or(0), pool);
    }

    /// Adds the granules that are neither mapped nor being mapped.
    fn put_holes(&mut self, range: Range) {
        let pieces = &mut self.model.pieces;
        pieces.retain(|_, (_, what)| *what != Unmapped);
        if self.model.regions.is_empty() {
            return;
        }
        let coming: Vec<(u64, u64)> = pieces
            .iter()
            .filter(|(_, (_, what))| *what == BeingMapped)
            .map(|(&at, &(size, _))| (at, size))
            .collect();
        let (mut from, mut at) = (range.base, range.base);
        while at <= range.end() {
            let comes = coming.iter().any(|&(from, size)| at.wrapping_sub(from) < size);
            if at == range.end() || comes || self.mapped.contains(&at) {
                if from < at {
                    pieces.insert(from, (at - from, Unmapped));
                }
                from = at + range.granule;
            }
            at += range.granule;
        }
    }
}

enum Carried {
    Out,
    /// A concurrent free provided what the request needed.
    Served(u64),
    Failed,
}
