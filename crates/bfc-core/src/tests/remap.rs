//! Granules together with streams: random programs against a shadow of the memory that tracks, for each unit, which
//! stream's queued work may still use it. No unit is handed out before that work is done, even though the arena changes
//! while plans are under way: a second stream may appear, and frees and requests go on.

use crate::arena::{Arena, RegionGrowth, Settings};
use crate::arena::{NewMemory, Plan, bytes};
use crate::request::Request;
use crate::stream_id::Stream;
use crate::streams::Freed;
use crate::testing::Random;
use crate::units::{UNIT, round_up};
use crate::vmm::Range;
use std::collections::{BTreeMap, BTreeSet};

const GRANULE: u64 = 4 * UNIT;
const BASE: u64 = 1 << 40;

struct Program {
    arena: Arena,
    random: Random,
    streams: u64,
    /// The start, the bytes and the stream of the allocation.
    live: Vec<(u64, u64, Stream)>,
    /// By unit, the stream on which it was freed, until its work is done.
    pending: BTreeMap<u64, Stream>,
    mapped: BTreeSet<u64>,
    moved: u64,
    /// Streams that appeared while a plan was under way.
    came: u64,
}

impl Program {
    fn run(seed: u64) -> (u64, u64) {
        let mut random = Random(seed);
        let settings = Settings {
            growth: if random.chance(80) { RegionGrowth::Doubling } else { RegionGrowth::Whole },
            split_always: true,
            ..Settings::new(20 * GRANULE)
        };
        let mut arena = Arena::new(settings).unwrap();
        arena.set_range(Range { base: BASE, bytes: 140 * GRANULE, granule: GRANULE });
        let streams = 1 + random.below(3);
        let (live, pending, mapped) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
        let mut program = Program { arena, random, streams, live, pending, mapped, moved: 0, came: 0 };
        for step in 0..120 {
            if step == 60 {
                program.streams = 4;
            }
            program.step(true);
        }
        (program.moved, program.came)
    }

    fn stream(&mut self) -> Stream {
        match self.random.below(self.streams) {
            3 => Stream::NONE,
            number => Stream::of_handle(10 + number),
        }
    }

    fn step(&mut self, plans: bool) {
        match self.random.below(20) {
            0 => {
                let stream = self.stream();
                self.arena.streams_mut().stream_done(stream, true);
                self.pending.retain(|_, other| *other != stream);
            }
            1 if plans => {
                let keep = self.random.below(20) * GRANULE;
                let plan = self.arena.plan_trim(keep).unwrap();
                if !plan.sources.is_empty() {
                    self.carry_out(plan);
                }
            }
            2..11 if !self.live.is_empty() => self.free(),
            _ => self.request(plans),
        }
        assert_eq!(self.arena.check(), Ok(()));
    }

    fn free(&mut self) {
        let place = self.random.below(self.live.len() as u64) as usize;
        let (addr, size, allocated_on) = self.live.swap_remove(place);
        let stream = if self.random.chance(70) { allocated_on } else { self.stream() };
        assert!(matches!(self.arena.free_on(addr, stream), Ok(Freed::Done | Freed::InQueue)));
        // No stream stands for the stream of the allocation.
        let stream = if stream == Stream::NONE { allocated_on } else { stream };
        units(addr, size).for_each(|unit| _ = self.pending.insert(unit, stream));
    }

    fn request(&mut self, plans: bool) {
        let stream = self.stream();
        let most = [2 * UNIT, 3 * GRANULE, 12 * GRANULE][self.random.below(3) as usize];
        let requested = 1 + self.random.below(most);
        let request = Request::plain(round_up(requested).unwrap(), requested, stream);
        if self.take(&request) || !plans {
            return;
        }
        if let Some(plan) = self.arena.plan_growth(&request, NewMemory::Ample, u64::MAX).unwrap() {
            self.carry_out(plan);
            if self.take(&request) {
                return;
            }
        }
        if self.random.chance(50) {
            // The device is synchronized first, as in the pool.
            for number in 10..13 {
                self.arena.streams_mut().stream_done(Stream::of_handle(number), true);
            }
            self.arena.streams_mut().stream_done(Stream::NONE, true);
            self.pending.clear();
            if self.take(&request) {
                return;
            }
        }
        if let Some(plan) = self.arena.plan_relocation(&request, NewMemory::Needed, u64::MAX).unwrap() {
            self.moved += bytes(&plan.targets);
            if self.carry_out(plan) {
                assert!(self.take(&request), "there is room now");
            }
        }
    }

    fn take(&mut self, request: &Request<'_>) -> bool {
        let Some(addr) = self.arena.alloc(request).unwrap() else { return false };
        let size = self.arena.chunks().size(self.arena.chunk_in_use(addr).unwrap());
        for unit in units(addr, size) {
            assert!(self.mapped.contains(&(unit / GRANULE * GRANULE)), "{unit:#x} is not mapped");
            let pending = self.pending.remove(&unit);
            let mixed = self.arena.streams().is_multi();
            let sound = pending.is_none_or(|stream| stream == request.stream);
            assert!(sound, "{unit:#x} for {:?} waits for {pending:?} {mixed}", request.stream);
        }
        self.live.push((addr, size, request.stream));
        true
    }

    /// Carries out a plan. Returns whether nothing changed meanwhile and everything succeeded.
    fn carry_out(&mut self, mut plan: Plan) -> bool {
        assert_eq!(self.arena.check(), Ok(()));
        let mut alone = true;
        for _ in 0..self.random.below(4) {
            alone = false;
            self.came += u64::from(self.streams == 1);
            self.streams = self.streams.max(1 + self.random.below(4));
            self.step(false);
        }
        let fails = self.random.chance(20);
        let Plan { sources, fresh, targets, .. } = &mut plan;
        for piece in sources.iter_mut() {
            piece.mapped = fails && self.random.chance(70);
        }
        let restored: u64 = sources.iter().filter(|piece| piece.mapped).map(|piece| piece.span.bytes).sum();
        let mut kept = bytes(sources) - restored;
        for piece in targets.iter_mut() {
            piece.mapped = piece.span.bytes <= kept && (!fails || self.random.chance(50));
            kept -= if piece.mapped { piece.span.bytes } else { 0 };
        }
        fresh.iter_mut().for_each(|piece| piece.mapped = !fails);
        for piece in sources.iter().chain(fresh.iter()).chain(targets.iter()) {
            let span = piece.span;
            for granule in (span.base..span.base + span.bytes).step_by(GRANULE as usize) {
                if piece.mapped {
                    self.mapped.insert(granule)
                } else {
                    self.mapped.remove(&granule)
                };
            }
            if !piece.mapped {
                // The device was idle, or nothing was mapped there.
                units(span.base, span.bytes).for_each(|unit| _ = self.pending.remove(&unit));
            }
        }
        self.arena.commit(plan);
        assert_eq!(self.arena.check(), Ok(()));
        alone && !fails
    }
}

fn units(addr: u64, bytes: u64) -> impl Iterator<Item = u64> {
    (addr..addr + bytes).step_by(UNIT as usize)
}

#[test]
fn granules_and_streams() {
    let (moved, came) = (0..500).map(Program::run).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!("{} granules were moved, {came} streams came in the middle", moved / GRANULE);
    assert!(moved / GRANULE > 1000 && came > 100);
}

/// Memory that a stream freed, and that its work still uses, counts for the stream's own requests and is not mapped
/// again.
#[test]
fn a_stream_grows_beside_its_own_unfinished_memory() {
    let settings =
        Settings { growth: RegionGrowth::Doubling, split_always: true, ..Settings::new(20 * GRANULE) };
    let [one, two] = [10, 11].map(Stream::of_handle);
    for asks in [one, two] {
        let mut arena = Arena::new(settings).unwrap();
        arena.set_range(Range { base: BASE, bytes: 140 * GRANULE, granule: GRANULE });
        let mut get = |granules: u64, stream: Stream| {
            let request = Request::plain(granules * GRANULE, granules * GRANULE, stream);
            let mut fresh = 0;
            while arena.alloc(&request).unwrap().is_none() {
                let mut plan =
                    arena.plan_growth(&request, NewMemory::Needed, u64::MAX).unwrap().expect("there is room");
                fresh += bytes(&plan.fresh) / GRANULE;
                plan.fresh.iter_mut().for_each(|piece| piece.mapped = true);
                arena.commit(plan);
                assert_eq!(arena.check(), Ok(()));
            }
            fresh
        };
        assert_eq!([get(1, two), get(4, one)], [1, 4]);
        arena.free_on(BASE + GRANULE, one).unwrap().unwrap();
        let request = Request::plain(6 * GRANULE, 6 * GRANULE, asks);
        let mut plan = arena.plan_growth(&request, NewMemory::Needed, u64::MAX).unwrap().unwrap();
        assert_eq!(bytes(&plan.fresh) / GRANULE, if asks == one { 2 } else { 6 });
        plan.fresh.iter_mut().for_each(|piece| piece.mapped = true);
        arena.commit(plan);
        let at = arena.alloc(&request).unwrap();
        assert_eq!(at, Some(if asks == one { BASE + GRANULE } else { BASE + 5 * GRANULE }));
        assert_eq!(arena.check(), Ok(()));
    }
}
