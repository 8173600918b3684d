//! Random programs on several streams, against a model of memory units and the streams that freed them, without chunks,
//! lists, free spans or trees.
//!
//! The model predicts every address. A stream may use free memory that is reusable by every stream, and memory that was
//! freed on the stream itself. The best fit is the shortest stretch of these. In addition the model tracks for each
//! unit the work that may still use it, with counts of its own. No unit may be handed out while another stream's work
//! on it is not done.

mod model;

use self::model::Model;
use crate::arena::{Arena, RegionGrowth, Settings};
use crate::request::Request;
use crate::stream_id::Stream;
use crate::streams::Dependencies;
use crate::streams::Work;
use crate::testing::{self, Random};
use crate::units::{UNIT, round_up};

/// The operations of a program besides requests and frees.
#[derive(Clone, Copy, Debug)]
struct Family {
    streams: u64,
    /// The percentage of operations that name no stream.
    plain: u64,
    /// The percentage of requests that may use any stream. Half as many frees are for all streams.
    any: u64,
    records: u64,
    /// Events tell when work is done. Otherwise the caller declares whole streams done.
    has_events: bool,
    /// Memory is given back without waiting for work.
    releases_at_once: bool,
    events: u64,
    forgets: u64,
    waits: u64,
    foreign_frees: u64,
    /// Private pools are begun, ended and released, and devices are synchronized.
    pools: u64,
    aligned: bool,
    /// Chunks whose work is done are shared by later calls, not at once.
    lazily: bool,
    split_always: bool,
    units: u64,
    largest: u64,
}

struct Program {
    arena: Arena,
    model: Model,
    family: Family,
    random: Random,
    live: Vec<(u64, Stream)>,
    /// Recorded events that are not done: the work in the arena's points and in the model's.
    events: Vec<(Work, Stream, u64)>,
    done: Vec<String>,
}

impl Drop for Program {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{:?}\n{}", self.family, self.done.join("\n"));
        }
    }
}

impl Program {
    fn run(seed: u64, family: Family, steps: u64) {
        let limit = 4 * family.units * UNIT;
        let Family { split_always, has_events: events, releases_at_once, .. } = family;
        let growth = RegionGrowth::Doubling;
        let settings = Settings { split_always, events, releases_at_once, growth, ..Settings::new(limit) };
        let arena = Arena::new(settings).unwrap();
        let model = Model::new(split_always, events, family.lazily);
        let (live, done) = (Vec::new(), Vec::new());
        let random = Random(seed);
        let mut program = Program { arena, model, family, random, live, events: Vec::new(), done };
        for _ in 0..steps {
            program.step();
            if !family.lazily {
                program.arena.streams_mut().share_some(usize::MAX);
            }
            assert_eq!(program.arena.check(), Ok(()));
            // The model does not represent chunks that are not shared yet.
            if !program.arena.streams().is_sharing() {
                program.model.compare(&program.arena);
            }
        }
    }

    /// Picks a stream: none, the default stream of one of two threads, or a handle.
    fn stream(&mut self) -> Stream {
        if self.random.chance(self.family.plain) {
            return Stream::NONE;
        }
        match self.random.below(self.family.streams) {
            number @ 4..=5 => Stream::of_thread(number as u32),
            number => Stream::of_handle(number + 10),
        }
    }

    fn step(&mut self) {
        let Family { records, events, forgets, pools, .. } = self.family;
        let wants_more = self.random.below(24) >= self.live.len() as u64;
        match self.random.below(100) {
            dice if dice < records => self.record_use(),
            dice if dice < records + events => self.work_is_done(),
            dice if dice < records + events + forgets => self.forget(),
            dice if dice < records + events + forgets + pools => self.private_pools(),
            _ if wants_more => self.request(),
            _ => self.free(),
        }
    }

    fn say(&mut self, what: String) {
        self.done.push(what);
    }

    fn request(&mut self) {
        let any = self.random.chance(self.family.any);
        let stream = if any { Stream::ANY } else { self.stream() };
        let requested = 1 + self.random.below(self.family.largest * UNIT);
        let alignment = if self.family.aligned { UNIT << self.random.below(4) } else { UNIT };
        let size = round_up(requested).unwrap();
        let request = Request { alignment, ..Request::plain(size, requested, stream) };
        self.say(format!("request {} units at {alignment} on {stream:?}", size / UNIT));
        let mut taken = self.take(&request);
        // Without a stream, waiting is up to the caller.
        if taken.is_none() && !any && self.random.chance(self.family.waits) {
            taken = self.wait(&request);
        }
        if taken.is_none() && self.random.chance(50) {
            self.grow(size);
            taken = self.take(&request);
        }
        if let Some(addr) = taken {
            // Such memory may also be freed without naming a stream.
            let unsaid = if self.random.chance(50) { Stream::NONE } else { Stream::UNKNOWN };
            self.live.push((addr, if any { unsaid } else { stream }));
        }
    }

    fn take(&mut self, request: &Request<'_>) -> Option<u64> {
        if self.family.lazily {
            return self.take_anywhere(request);
        }
        let expected = self.model.take(request);
        assert_eq!(self.alloc(request), expected, "the placement");
        expected
    }

    /// Allocates as a pool does: at once, if that is possible.
    fn alloc(&mut self, request: &Request<'_>) -> Option<u64> {
        let Request { size, requested, stream, .. } = *request;
        let at_once = request.is_plain() && self.random.chance(80);
        let taken = if at_once { self.arena.try_alloc(size, requested, stream) } else { None };
        taken.map(std::num::NonZeroU64::get).or_else(|| self.arena.alloc(request).unwrap())
    }

    /// Requests as a pool does: before a request fails, all finished work is shared.
    fn take_anywhere(&mut self, request: &Request<'_>) -> Option<u64> {
        let mut taken = self.alloc(request);
        while taken.is_none() && self.arena.streams().is_sharing() {
            self.arena.streams_mut().share_some(1);
            taken = self.alloc(request);
        }
        match taken {
            Some(addr) => {
                let id = self.arena.chunk_at(addr).unwrap();
                self.model.take_at(request, addr, self.arena.chunks().size(id));
            }
            None => assert_eq!(self.model.take(request), None, "something fits"),
        }
        taken
    }

    fn grow(&mut self, least: u64) {
        let Some(plan) = self.arena.plan_extension(least) else { return };
        let bytes = least.max(self.random.below(self.family.units) * UNIT);
        let base = self.model.next_base();
        self.say(format!("a region of {} units", bytes / UNIT));
        self.arena.add_region(&plan, base, bytes).unwrap();
        self.model.add_region(base, bytes);
    }

    /// Makes the request's stream wait for events of the others.
    fn wait(&mut self, request: &Request<'_>) -> Option<u64> {
        let dependencies = {
            let arena = &self.arena;
            let has_event = |work: Work| {
                let stream = arena.streams().progress_of(work.queue).stream;
                stream.exists() && stream.pool() == 0 && !arena.streams().is_at_risk(stream)
            };
            arena.dependencies(request, has_event).unwrap()
        };
        let expected = self.model.works_to_wait_for(request);
        assert_eq!(dependencies.is_some(), expected.is_some(), "whether waiting helps");
        let (Dependencies { works, place }, expected) = dependencies.zip(expected)?;
        self.say(format!("which waits for {works:?}"));
        let mut streams: Vec<Stream> =
            works.iter().map(|work| self.arena.streams().progress_of(work.queue).stream).collect();
        assert_eq!(
            (place.span.base, place.span.bytes),
            expected.place,
            "the place that needs the oldest work"
        );
        let mut of_model: Vec<Stream> =
            expected.works.keys().map(|&queue| self.model.stream_of(queue)).collect();
        for streams in [&mut streams, &mut of_model] {
            streams.sort_by_key(|stream| (stream.handle(), stream.thread()));
        }
        assert_eq!(streams, of_model, "the streams whose work is the oldest that helps");
        self.model.wait(request, &expected);
        let own = self.arena.streams().queue_of_request(request).unwrap();
        let since = self.arena.streams_mut().next_work(own);
        assert!(self.arena.adopt(request, &works, place, since), "what was waited for is there");
        self.model.adopt(request, &expected);
        let taken = self.take(request);
        assert!(taken.is_some(), "a request that has waited is served");
        taken
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let place = self.random.below(self.live.len() as u64) as usize;
        let (addr, allocated_on) = self.live.swap_remove(place);
        let elsewhere = self.random.chance(self.family.foreign_frees);
        let for_all = self.random.chance(self.family.any / 2);
        let stream = match elsewhere {
            true if for_all => Stream::UNKNOWN,
            true => self.stream(),
            false => allocated_on,
        };
        self.say(format!("free {addr:#x} on {stream:?}"));
        let at_once = self.random.chance(80);
        if !at_once || !self.arena.try_free(addr, stream) {
            assert!(self.arena.free_on(addr, stream).unwrap().is_ok());
        }
        assert!(!self.arena.try_free(addr, stream), "twice");
        assert!(!self.arena.free_on(addr, stream).unwrap().is_ok(), "twice");
        self.model.free(addr, (stream != Stream::NONE).then_some(stream));
    }

    fn record_use(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let addr = self.random.pick(&self.live).0;
        let stream = self.stream();
        if stream == Stream::NONE {
            return;
        }
        self.say(format!("record {addr:#x} on {stream:?}"));
        assert_eq!(self.arena.streams_mut().record_use(addr, stream).unwrap(), Ok(()));
        self.model.record(addr, stream);
    }

    /// Records events and completes older ones, or the caller declares a whole stream done.
    fn work_is_done(&mut self) {
        if self.random.chance(10) {
            return self.regions_come_back();
        }
        if self.random.chance(20) || !self.family.has_events {
            let stream = self.stream();
            self.say(format!("{stream:?} is synchronised"));
            self.arena.streams_mut().stream_done(stream, true);
            return self.model.synchronize(stream);
        }
        if self.random.chance(50) {
            let unfinished: Vec<_> = self.arena.streams().unfinished(|_| true).collect();
            for unfinished in unfinished {
                let true_point = self.model.point(unfinished.stream);
                self.events.push((unfinished.work, unfinished.stream, true_point));
            }
            return;
        }
        if self.events.is_empty() {
            return;
        }
        // Events of one stream complete in order.
        let picked = self.random.pick(&self.events).1;
        let place = self.events.iter().position(|event| event.1 == picked).unwrap();
        let (work, stream, true_point) = self.events.remove(place);
        self.say(format!("{stream:?} has done {work:?}"));
        self.arena.streams_mut().queue_done(work.queue, work.point);
        self.model.done(stream, true_point);
    }

    /// Regions that are wholly free are about to be released, but the backend does not take them.
    fn regions_come_back(&mut self) {
        self.say("regions come back".to_owned());
        if self.family.releases_at_once {
            self.model.hold_unfinished();
        }
        for region in self.arena.detach_above(0).unwrap() {
            self.arena.restore(&region).unwrap();
        }
    }

    /// Forgets a stream. Its handle may be reused by another stream, which the model numbers separately.
    fn forget(&mut self) {
        let stream = self.stream();
        if stream == Stream::NONE {
            return;
        }
        for (_, on) in self.live.iter_mut().filter(|(_, on)| *on == stream) {
            // It can only be freed without naming the stream.
            *on = Stream::NONE;
        }
        self.say(format!("forget {stream:?}"));
        // The stream's events complete eventually. Here they complete at once, to keep the model simple.
        let work = self.arena.streams_mut().forget_stream(stream).unwrap();
        self.events.retain(|event| event.1 != stream);
        if let Some(work) = work {
            self.arena.streams_mut().queue_done(work.queue, work.point);
        }
        self.model.forget(stream);
    }

    fn private_pools(&mut self) {
        let name = 7 + self.random.below(2);
        let stream = self.stream();
        match self.random.below(6) {
            0 | 1 if stream != Stream::NONE => {
                self.say(format!("pool {name} begins on {stream:?}"));
                let began = self.arena.streams_mut().begin_private(stream, name).unwrap();
                assert_eq!(began.is_ok(), self.model.begin(stream, name));
            }
            2 | 3 => {
                self.say(format!("pool {name} ends on {stream:?}"));
                assert_eq!(
                    self.arena.streams_mut().end_private(stream, name).is_ok(),
                    self.model.end(stream, name)
                );
            }
            4 => {
                self.say(format!("pool {name} is released"));
                let released = self.arena.streams_mut().release_private(name).unwrap();
                assert_eq!(released.is_ok(), self.model.release(name));
            }
            _ => {
                self.say("the device is idle".to_owned());
                let unfinished: Vec<_> =
                    self.arena.streams().unfinished(|_| true).map(|unfinished| unfinished.work).collect();
                unfinished
                    .iter()
                    .for_each(|work| _ = self.arena.streams_mut().queue_done(work.queue, work.point));
                self.model.synchronize_all();
            }
        }
    }
}

fn programs(count: u64, family: impl Fn(&mut Random) -> Family) {
    for seed in 0..count {
        let mut random = Random(seed);
        let family = family(&mut random);
        let steps = 20 + random.below(120);
        Program::run(!seed, family, steps);
    }
}

fn any(random: &mut Random) -> Family {
    let units = random.pick(&[32, 128, 512]);
    let has_events = random.chance(67);
    Family {
        streams: random.pick(&[1, 2, 2, 3, 4, 6]),
        plain: random.pick(&[0, 0, 10, 50]),
        any: random.pick(&[0, 0, 20, 60]),
        records: random.pick(&[0, 5, 15]),
        has_events,
        releases_at_once: !has_events && random.chance(50),
        events: random.pick(&[0, 5, 20, 40]),
        forgets: random.pick(&[0, 0, 2]),
        waits: if has_events { random.pick(&[0, 50, 100]) } else { 0 },
        foreign_frees: random.pick(&[0, 10, 50]),
        pools: random.pick(&[0, 0, 10, 30]),
        aligned: random.chance(30),
        lazily: false,
        split_always: random.chance(50),
        units,
        largest: random.pick(&[4, units / 8, units / 2]),
    }
}

#[test]
fn random_programs_on_streams_agree_with_the_model() {
    programs(testing::programs(), any);
}

/// In this case the model knows where a request may be served, but not where it is.
#[test]
fn what_is_shared_later_is_as_safe_and_found_at_once() {
    programs(testing::programs(), |random| Family { lazily: true, events: 30, ..any(random) });
}

/// A region with memory of two streams was about to be released, but the backend did not take it.
#[test]
fn what_comes_back_is_still_whose_it_was() {
    let limit = 16 * UNIT;
    let mut arena = Arena::new(Settings { growth: RegionGrowth::Doubling, ..Settings::new(limit) }).unwrap();
    let plan = arena.plan_extension(limit).unwrap();
    arena.add_region(&plan, 1 << 20, limit).unwrap();
    let take =
        |arena: &mut Arena, size: u64, stream| arena.alloc(&Request::plain(size, size, stream)).unwrap();
    let (first, second) = (Stream::of_handle(10), Stream::of_handle(11));
    let addr = take(&mut arena, 8 * UNIT, first).unwrap();
    assert!(arena.free_on(addr, first).unwrap().is_ok());
    for region in arena.detach_above(0).unwrap() {
        arena.restore(&region).unwrap();
    }
    assert_eq!(
        take(&mut arena, 12 * UNIT, second),
        None,
        "work on the first stream may still use the half of it"
    );
    assert_eq!(take(&mut arena, 8 * UNIT, second), Some((1 << 20) + 8 * UNIT), "which nobody ever had");
    assert_eq!(arena.check(), Ok(()));
}

/// Chunks that are parts of a stream's own free spans do not hide a better fit, unless there are very many of them.
#[test]
fn a_search_does_not_look_at_thousands_of_parts_of_runs() {
    let (own, other) = (Stream::of_handle(10), Stream::of_handle(11));
    for (pairs, alone_is_found) in [(20, true), (40, false)] {
        let limit = 4096 * UNIT;
        let mut arena =
            Arena::new(Settings { growth: RegionGrowth::Doubling, ..Settings::new(limit) }).unwrap();
        let plan = arena.plan_extension(limit).unwrap();
        arena.add_region(&plan, 1 << 20, limit).unwrap();
        let take = |arena: &mut Arena, units: u64, stream| {
            arena.alloc(&Request::plain(units * UNIT, units * UNIT, stream)).unwrap().unwrap()
        };
        // Chunks of two units that every stream may use, each beside one that only one stream may use, and finally one
        // that stands alone.
        let mut parts = Vec::new();
        for _ in 0..pairs {
            parts.push((take(&mut arena, 2, other), take(&mut arena, 1, own)));
            take(&mut arena, 1, own);
        }
        let alone = take(&mut arena, 2, other);
        take(&mut arena, 1, own);
        for &(common, _) in &parts {
            assert!(arena.free_on(common, other).unwrap().is_ok());
        }
        assert!(arena.free_on(alone, other).unwrap().is_ok());
        arena.streams_mut().stream_done(other, true);
        for &(_, part) in &parts {
            assert!(arena.free_on(part, own).unwrap().is_ok());
        }
        assert_eq!(arena.check(), Ok(()));
        let expected = if alone_is_found { alone } else { parts[0].0 };
        assert_eq!(take(&mut arena, 2, own), expected, "{pairs} pairs");
    }
}

/// A chunk that was freed after its stream was forgotten waits only for the stream of the request, so that request waits
/// for no other.
#[test]
fn a_chunk_of_a_forgotten_stream_is_found_before_one_that_waits_for_work() {
    const UNITS: u64 = 64;
    let limit = UNITS * UNIT;
    let settings = Settings { growth: RegionGrowth::Doubling, events: true, ..Settings::new(limit) };
    let mut arena = Arena::new(settings).unwrap();
    let plan = arena.plan_extension(limit).unwrap();
    arena.add_region(&plan, 1 << 20, limit).unwrap();
    let [gone, own, other] = [10, 11, 12].map(Stream::of_handle);
    let request = |stream| Request::plain(UNIT, UNIT, stream);
    let of_gone = arena.alloc(&request(gone)).unwrap().unwrap();
    assert!(arena.alloc(&request(own)).unwrap().is_some());
    let others: Vec<u64> = (2..UNITS).map(|_| arena.alloc(&request(other)).unwrap().unwrap()).collect();
    arena.streams_mut().record_use(of_gone, own).unwrap().unwrap();
    arena.streams_mut().forget_stream(gone).unwrap();
    arena.streams_mut().stream_done(gone, true);
    others.iter().for_each(|&addr| assert!(arena.free_on(addr, other).unwrap().is_ok()));
    assert!(arena.free_on(of_gone, Stream::NONE).unwrap().is_ok());
    let Dependencies { works, place } = arena.dependencies(&request(own), |_| true).unwrap().unwrap();
    assert_eq!((works, place.span.base), (Vec::new(), of_gone));
}

/// Two parts of one free, which have the same points, are both looked at, also if the oldest recorded use is the
/// request's own.
#[test]
fn the_best_of_equally_old_parts_is_found() {
    const UNITS: u64 = 32;
    let limit = UNITS * UNIT;
    let settings =
        Settings { growth: RegionGrowth::Doubling, events: true, split_always: true, ..Settings::new(limit) };
    let mut arena = Arena::new(settings).unwrap();
    let plan = arena.plan_extension(limit).unwrap();
    arena.add_region(&plan, 1 << 20, limit).unwrap();
    let [own, other, third] = [10, 11, 12].map(Stream::of_handle);
    let request = |units: u64, stream| Request::plain(units * UNIT, units * UNIT, stream);
    assert!(arena.alloc(&request(1, own)).unwrap().is_some());
    let whole = arena.alloc(&request(16, other)).unwrap().unwrap();
    assert!(arena.alloc(&request(15, own)).unwrap().is_some());
    arena.streams_mut().record_use(whole, own).unwrap().unwrap();
    assert!(arena.free_on(whole, other).unwrap().is_ok());
    // A third stream takes 3 units, in front of which 7 are left, and 6 behind. Both keep the points of the free.
    let middle = Request { alignment: 8 * UNIT, ..request(3, third) };
    assert_eq!(arena.alloc(&middle).unwrap(), None);
    let Dependencies { works, place } = arena.dependencies(&middle, |_| true).unwrap().unwrap();
    let queue = arena.streams().queue_of(third).unwrap();
    let since = arena.streams_mut().next_work(queue);
    assert!(arena.adopt(&middle, &works, place, since));
    assert_eq!(arena.alloc(&middle).unwrap(), Some(whole + 7 * UNIT));
    let Dependencies { place, .. } = arena.dependencies(&request(2, own), |_| true).unwrap().unwrap();
    assert_eq!(place.span.base, whole + 10 * UNIT, "the smaller one");
}
