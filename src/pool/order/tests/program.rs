//! Random programs on the streams of a simulated device.

use super::device::{Call, Clock, Device, DriverCall};
use crate::backend::{AnyBackend, Owned};
use crate::error::Error;
use crate::options::Resolved;
use crate::pool::alloc;
use crate::pool::free;
use crate::pool::slot::Slot;
use crate::pool::{idle::trim, lifecycle, order};
use crate::sys::thread;
use bfc_core::arena::{RegionGrowth, Reuse, Settings};
use bfc_core::request::Request;
use bfc_core::stream_id::Stream;
use bfc_core::testing::Random;
use bfc_core::units::UNIT;

/// The parameters of a random program. Most are probabilities in percent, per step or per the event in question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) streams: usize,
    /// The number of them that are default streams of threads.
    pub(super) threads: usize,
    pub(super) plain: u64,
    pub(super) works: u64,
    pub(super) records: u64,
    pub(super) progress: u64,
    pub(super) synchronisations: u64,
    pub(super) forgets: u64,
    /// Streams that are destroyed without notice to the library.
    pub(super) destroys: u64,
    /// The share of streams with a handle that are of other contexts.
    pub(super) elsewhere: u64,
    pub(super) captures: u64,
    pub(super) trims: u64,
    pub(super) foreign_frees: u64,
    pub(super) aligned: bool,
    pub(super) split_always: bool,
    pub(super) growth: bool,
    pub(super) units: u64,
    pub(super) largest: u64,
}

impl Family {
    pub(super) fn any(random: &mut Random) -> Self {
        let units = random.pick(&[32, 64, 256]);
        let streams = random.pick(&[2, 2, 3, 4]);
        Family {
            streams,
            threads: if random.chance(40) { random.below(streams as u64 + 1) as usize } else { 0 },
            plain: random.pick(&[0, 0, 10, 40]),
            works: random.pick(&[5, 20, 30]),
            records: random.pick(&[0, 5, 15]),
            progress: random.pick(&[2, 10, 20]),
            synchronisations: random.pick(&[0, 1, 3]),
            forgets: random.pick(&[0, 0, 1, 4]),
            destroys: random.pick(&[0, 0, 1, 4]),
            elsewhere: random.pick(&[0, 0, 0, 50]),
            captures: random.pick(&[0, 0, 0, 3]),
            trims: random.pick(&[0, 0, 1]),
            foreign_frees: random.pick(&[0, 10, 50]),
            aligned: random.chance(30),
            split_always: random.chance(50),
            growth: random.chance(50),
            units,
            largest: random.pick(&[4, units / 8, units / 2]),
        }
    }
}

/// A stream of the program. The first one stands for no stream. It has a queue that the library does not know.
#[derive(Clone, Copy)]
struct Actor {
    stream: Stream,
    queue: usize,
    capturing: bool,
}

struct Live {
    addr: u64,
    bytes: u64,
    /// The queue it was allocated for.
    queue: usize,
    /// Whether the stream of that queue can still be named.
    named: bool,
    /// Queues whose work may use it.
    users: Vec<usize>,
    /// The work that has used it.
    clock: Clock,
}

pub(super) struct Program {
    slot: &'static Slot,
    device: &'static Device,
    family: Family,
    random: Random,
    actors: Vec<Actor>,
    live: Vec<Live>,
    threads: u32,
    most_queues: u64,
    most_events: u64,
    handles: u64,
    pub(super) failures: u64,
    done: Vec<String>,
}

/// The outcome of a run.
#[derive(Default)]
pub(super) struct Outcome {
    /// Calls of the driver that could have failed.
    pub(super) calls: u64,
    /// Calls of the library that failed because of one.
    pub(super) failures: u64,
}

impl Drop for Program {
    fn drop(&mut self) {
        thread::pretend(None);
        if std::thread::panicking() {
            println!("{:?}\n{}", self.family, self.done.join("\n"));
        }
    }
}

pub(super) fn create(slot: &'static Slot, device: &'static Device, family: &Family, capacity: u64) {
    device.reset(slot, capacity);
    let settings = Settings {
        limit: capacity,
        growth: if family.growth { RegionGrowth::Doubling } else { RegionGrowth::Whole },
        garbage_collection: true,
        split_always: family.split_always,
        fragmentation_fraction: 0.0,
        initial_region: capacity / 4,
        reuse: Reuse::Streams,
        coalesce_regions: false,
        releases_at_once: false,
        events: true,
        seed: 1,
    };
    let backend = Owned::new(AnyBackend::Test(device));
    lifecycle::create(slot, 0, Resolved::with_settings(settings, backend, "")).unwrap();
}

impl Program {
    /// Runs a program in which the driver call with number `fails_at` fails, or none if that is 0.
    pub(super) fn run(
        slot: &'static Slot,
        device: &'static Device,
        seed: u64,
        family: Family,
        steps: u64,
        fails_at: u64,
    ) -> Outcome {
        create(slot, device, &family, family.units * UNIT);
        device.state().fails_at = fails_at;
        let (actors, live, done) = (Vec::new(), Vec::new(), Vec::new());
        let (threads, most_queues, most_events, handles, failures) = (1 << 20, 0, 0, 1000, 0);
        let random = Random(seed);
        let mut program = Program {
            slot,
            device,
            family,
            random,
            actors,
            live,
            threads,
            most_queues,
            most_events,
            handles,
            failures,
            done,
        };
        program.begin();
        for _ in 0..steps {
            program.step();
            program.check();
        }
        program.end()
    }

    fn begin(&mut self) {
        let queue = self.device.state().add_queue();
        self.actors.push(Actor { stream: Stream::NONE, queue, capturing: false });
        for number in 0..self.family.streams {
            let stream = match number {
                _ if number < self.family.threads => self.new_thread(),
                0 => Stream::DEFAULT,
                _ => Stream::of_handle(number as u64 + 10),
            };
            let queue = self.add_stream(stream);
            self.actors.push(Actor { stream, queue, capturing: false });
        }
    }

    fn new_thread(&mut self) -> Stream {
        self.threads += 1;
        Stream::of_thread(self.threads)
    }

    /// Adds a stream with a name. One with a handle may be of another context.
    fn add_stream(&mut self, stream: Stream) -> usize {
        let is_elsewhere = !stream.is_default() && self.random.chance(self.family.elsewhere);
        let context = if is_elsewhere { 1 + self.random.below(2) } else { 0 };
        let mut state = self.device.state();
        let queue = state.add_stream(stream.handle(), stream.thread());
        state.queues[queue].context = context;
        queue
    }

    fn say(&mut self, what: String) {
        self.done.push(what);
    }

    /// Checks the invariants, the contract with the driver, and that the number of events stays bounded.
    fn check(&mut self) {
        let guard = self.slot.enter().unwrap();
        assert_eq!(guard.arena.check(), Ok(()));
        self.most_queues = self.most_queues.max(guard.arena.streams().queue_count() as u64);
        let events = guard.events.count() as u64;
        let free = guard.arena.stats().num_free_chunks;
        drop(guard);
        let state = self.device.state();
        assert!(state.wrong.is_empty(), "{:#?}", state.wrong);
        assert_eq!(state.events_alive() as u64, events, "no event is lost");
        // Twice as many events as free chunks and their recorded uses wait for, and a few for each queue.
        let most = 2 * free * (1 + self.family.streams as u64) + 40 * self.most_queues;
        assert!(state.events_created() <= most.max(self.most_events), "the events become more and more");
        self.most_events = self.most_events.max(most);
    }

    fn end(mut self) -> Outcome {
        self.say("the end".into());
        self.device.state().end_captures();
        self.device.state().is_ending = true;
        // The allocator is destroyed by a thread without a default stream of its own.
        thread::pretend(None);
        assert_eq!(lifecycle::destroy(self.slot, true), Ok(()));
        let state = self.device.state();
        assert!(state.wrong.is_empty(), "{:#?}", state.wrong);
        assert_eq!((state.events_alive(), state.held), (0, 0), "everything went back to the driver");
        Outcome { calls: state.calls, failures: self.failures }
    }

    fn step(&mut self) {
        let Family { works, records, progress, synchronisations, forgets, destroys, captures, trims, .. } =
            self.family;
        let mut dice = self.random.below(100);
        let mut falls = |percent: u64| {
            let falls = dice < percent;
            dice = dice.wrapping_sub(percent);
            falls
        };
        if falls(works) {
            self.launch();
        } else if falls(records) {
            self.record_use();
        } else if falls(progress) {
            self.progress();
        } else if falls(synchronisations) {
            self.synchronise();
        } else if falls(forgets) {
            self.forget();
        } else if falls(destroys) {
            self.destroy_without_telling();
        } else if falls(captures) {
            self.capture();
        } else if falls(trims) {
            self.trim();
        } else if self.random.below(16) >= self.live.len() as u64 {
            self.request();
        } else {
            self.free();
        }
    }

    /// Chooses a stream, or none.
    fn actor(&mut self) -> usize {
        if self.random.chance(self.family.plain) {
            return 0;
        }
        1 + self.random.below(self.actors.len() as u64 - 1) as usize
    }

    /// Pretends to be the thread that owns the stream, and returns the stream.
    fn act(&self, actor: usize) -> Stream {
        let stream = self.actors[actor].stream;
        thread::pretend(Some(if stream.thread() == 0 { 1 << 19 } else { stream.thread() }));
        stream
    }

    fn calls(&self) -> u64 {
        self.device.state().calls
    }

    /// Returns whether a driver call after number `since` was made to fail.
    fn has_failed(&self, since: u64) -> bool {
        let state = self.device.state();
        since < state.fails_at && state.fails_at <= state.calls
    }

    /// Returns the number of driver calls about pending work.
    fn asked(&self) -> u64 {
        use DriverCall::*;
        let state = self.device.state();
        [Create, Record, IsDone, WaitFor, MakeWait, Synchronize].iter().map(|&what| state.count(what)).sum()
    }

    fn request(&mut self) {
        let actor = self.actor();
        let Actor { queue, capturing, .. } = self.actors[actor];
        let bytes = UNIT * (1 + self.random.below(self.family.largest));
        let alignment = if self.family.aligned { UNIT << self.random.below(4) } else { UNIT };
        let stream = self.act(actor);
        self.say(format!("request {} units at {alignment} on {stream:?}", bytes / UNIT));
        let (asked, before) = (self.asked(), self.calls());
        self.device.state().begin_request(queue);
        let served = if alignment == UNIT {
            alloc::alloc(self.slot, bytes, stream)
        } else {
            alloc::serve(self.slot.enter().unwrap(), &Request { alignment, ..Request::new(bytes, stream) })
        };
        assert!(!capturing || asked == self.asked(), "something was asked in the middle of a capture");
        let calls = self.calls() - before;
        // In the first search, and again after each change, each queue has an event recorded, queried and waited for,
        // and two older ones queried. Growth and a synchronization come in addition.
        assert!(calls <= 5 * (12 * self.most_queues + 4) + 40, "{calls} calls for one request");
        self.say(format!("  {served:x?} after {calls} calls"));
        match served {
            Ok(addr) => self.served(addr, actor, queue),
            Err(Error::OutOfMemory) => {
                self.is_exhausted(bytes, alignment, before);
            }
            Err(Error::BackendFailed) if self.has_failed(before) => self.failures += 1,
            Err(Error::BackendFailed) if self.is_capturing() => {}
            Err(error) => panic!("{error:?}"),
        }
    }

    fn is_captured(&self, queue: usize) -> bool {
        self.actors.iter().any(|actor| actor.queue == queue && actor.capturing)
    }

    fn is_capturing(&self) -> bool {
        self.actors.iter().any(|actor| actor.capturing)
    }

    fn served(&mut self, addr: u64, actor: usize, queue: usize) {
        let guard = self.slot.enter().unwrap();
        let bytes = guard.arena.chunks().size(guard.arena.chunk_in_use(addr).unwrap());
        drop(guard);
        let clock = self.device.state().take(addr, bytes, queue);
        let users = vec![queue];
        self.live.push(Live { addr, bytes, queue, named: true, users, clock });
        if !self.actors[actor].capturing && self.random.chance(60) {
            let place = self.live.len() - 1;
            self.touch(place, queue);
        }
    }

    /// Asserts that a request failed only because no free memory of any stream is large enough.
    fn is_exhausted(&mut self, bytes: u64, alignment: u64, before: u64) {
        // The end of work in another context is not known if no event could be recorded at the free.
        let may_lack_events = self.family.captures > 0 || self.device.state().fails_at > 0;
        if self.is_capturing() || self.has_failed(before) || self.family.elsewhere > 0 && may_lack_events {
            return;
        }
        let guard = self.slot.enter().unwrap();
        // If the driver failed at a free, it is not known whether a synchronization covers that stream. The stream may be
        // gone, so it is not queried again.
        let streams = guard.arena.streams();
        let is_unknown =
            |queue_id| guard.events.context_of(queue_id, streams.progress_of(queue_id)).is_none();
        let mut waiting = streams.unfinished(|_| true).filter(|unfinished| unfinished.stream.exists());
        if self.device.state().fails_at > 0 && waiting.any(|unfinished| is_unknown(unfinished.work.queue)) {
            return;
        }
        let mut live: Vec<(u64, u64)> = self.live.iter().map(|live| (live.addr, live.bytes)).collect();
        live.sort_unstable();
        for (_, region) in guard.arena.regions().iter() {
            let end = region.base + region.bytes;
            let mut at = region.base;
            let inside = live.iter().copied().filter(|&(addr, _)| region.base <= addr && addr < end);
            for (addr, length) in inside.chain([(end, 0)]) {
                let start = at.next_multiple_of(alignment);
                assert!(start + bytes > addr, "{bytes} bytes were free at {start:#x}");
                at = addr + length;
            }
        }
        let growth = guard.arena.growth();
        let room = self.family.growth && growth.limit() - growth.pool_bytes() >= bytes;
        assert!(!room, "the pool could have grown");
    }

    /// Queues a kernel that uses a chunk.
    fn touch(&mut self, place: usize, queue: usize) {
        let at = self.device.state().launch(queue);
        self.live[place].clock.insert(queue, at);
    }

    fn launch(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let place = self.random.below(self.live.len() as u64) as usize;
        if self.live[place].users.is_empty() {
            return;
        }
        let queue = self.random.pick(&self.live[place].users);
        if self.actors.iter().any(|actor| actor.queue == queue && !actor.capturing) {
            self.say(format!("a kernel on queue {queue} uses {:#x}", self.live[place].addr));
            self.touch(place, queue);
        }
    }

    /// Makes work on one queue begin after the work that another has queued so far. Returns false in a capture.
    fn order_behind(&mut self, actor: usize, queue: usize) -> bool {
        let captured = |other: &Actor| other.queue == queue && other.capturing;
        if self.actors[actor].capturing || self.actors.iter().any(captured) {
            return false;
        }
        let own = self.actors[actor].queue;
        if own != queue {
            if self.actors.iter().any(|other| other.queue == queue) {
                self.device.state().order_behind(own, queue);
            } else {
                // The stream has ended, so no event can be recorded on it.
                self.device.state().run(queue);
            }
        }
        true
    }

    fn record_use(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let place = self.random.below(self.live.len() as u64) as usize;
        let actor = self.actor();
        if actor == 0 || !self.order_behind(actor, self.live[place].queue) {
            return;
        }
        let stream = self.act(actor);
        let addr = self.live[place].addr;
        self.say(format!("record {addr:#x} on {stream:?}"));
        assert_eq!(order::record_use(self.slot, addr, stream), Ok(()));
        let queue = self.actors[actor].queue;
        if !self.live[place].users.contains(&queue) {
            self.live[place].users.push(queue);
        }
        if self.random.chance(70) {
            self.touch(place, queue);
        }
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let place = self.random.below(self.live.len() as u64) as usize;
        let Live { addr, bytes, queue, named, .. } = self.live[place];
        let own = self.actors.iter().position(|actor| actor.queue == queue).filter(|_| named);
        let elsewhere = self.random.chance(self.family.foreign_frees);
        let actor = match own {
            // In the order of its own stream, whether that is named or not.
            Some(own) if !elsewhere => own,
            _ if elsewhere => self.actor(),
            _ => 0,
        };
        let says_nothing = actor == 0 || Some(actor) == own && self.random.chance(30);
        if !says_nothing && !self.order_behind(actor, queue) {
            return;
        }
        let live = self.live.swap_remove(place);
        let stream = self.act(actor);
        self.device.state().put(addr, bytes, &live.clock);
        let (asked, before) = (self.asked(), self.calls());
        self.device.state().begin(Call::Free);
        let freed = if says_nothing {
            self.say(format!("free {addr:#x}"));
            free::free(self.slot, addr)
        } else {
            self.say(format!("free {addr:#x} on {stream:?}"));
            free::free_on(self.slot, addr, stream, false)
        };
        assert_eq!(freed, Ok(()), "a free that is right never fails, whatever the driver does");
        self.device.state().begin(Call::Other);
        // An event may be recorded on each of these that is not captured.
        let mut concerned = live.users.clone();
        if !says_nothing {
            concerned.push(self.actors[actor].queue);
        }
        let are_captured = !concerned.is_empty() && concerned.iter().all(|&queue| self.is_captured(queue));
        assert!(!are_captured || asked == self.asked(), "asked in the middle of a capture");
        // Each queue that used the chunk costs two queries for captures, one for the context, an event and its
        // recording.
        let most = 6 * (1 + self.family.streams as u64);
        assert!(self.calls() - before <= most, "{} calls at a free", self.calls() - before);
        assert!(free::free(self.slot, addr).is_err(), "twice");
    }

    fn progress(&mut self) {
        let mut state = self.device.state();
        for _ in 0..1 + self.random.below(8) {
            let queue = self.random.below(state.queues.len() as u64) as usize;
            state.step(queue);
        }
    }

    /// Waits for a stream and declares that its work is done.
    fn synchronise(&mut self) {
        let actor = self.actor();
        let Actor { queue, capturing, .. } = self.actors[actor];
        if actor == 0 || capturing {
            return;
        }
        let stream = self.act(actor);
        self.say(format!("{stream:?} is synchronised"));
        self.device.state().run(queue);
        order::declare_done(&mut self.slot.enter().unwrap(), stream);
    }

    /// Destroys a stream and gives its handle to another one, or ends a thread.
    fn forget(&mut self) {
        let actor = self.actor();
        let Actor { queue, capturing, stream } = self.actors[actor];
        if actor == 0 || capturing {
            return;
        }
        self.act(actor);
        let thread_ends = stream.thread() != 0 && self.random.chance(50);
        self.say(format!("{} {stream:?}", if thread_ends { "the end of" } else { "forget" }));
        if !thread_ends {
            let before = self.calls();
            self.device.state().begin(Call::Free);
            match order::forget(&mut self.slot.enter().unwrap(), stream) {
                Ok(()) => {}
                Err(Error::BackendFailed) if self.has_failed(before) => self.failures += 1,
                Err(error) => panic!("{error:?}"),
            }
            self.device.state().begin(Call::Other);
        }
        let next = if stream.thread() == 0 { stream } else { self.new_thread() };
        self.device.state().destroy_stream(stream.handle(), stream.thread());
        self.actors[actor].queue = self.add_stream(next);
        self.actors[actor].stream = next;
        for live in &mut self.live {
            live.users.retain(|&user| user != queue);
            live.named &= live.queue != queue;
        }
    }

    /// Synchronizes and destroys a stream whose memory was all freed, without notice to the library, which violates the
    /// contract. Its handle may be given to another one.
    fn destroy_without_telling(&mut self) {
        let actor = self.actor();
        let Actor { queue, capturing, stream } = self.actors[actor];
        let is_used = |live: &Live| live.queue == queue || live.users.contains(&queue);
        if capturing || stream.is_default() || !stream.exists() || self.live.iter().any(is_used) {
            return;
        }
        self.say(format!("{stream:?} is destroyed without a call"));
        let is_recycled = self.random.chance(50);
        self.handles += 1;
        let next = if is_recycled { stream } else { Stream::of_handle(self.handles) };
        let mut state = self.device.state();
        state.run(queue);
        state.destroy_without_telling(stream.handle());
        let context = state.queues[queue].context;
        let queue = state.add_stream(next.handle(), next.thread());
        state.queues[queue].context = context;
        (self.actors[actor].stream, self.actors[actor].queue) = (next, queue);
    }

    fn capture(&mut self) {
        let actor = self.actor();
        if actor == 0 {
            return;
        }
        let capturing = !self.actors[actor].capturing;
        self.actors[actor].capturing = capturing;
        self.device.state().queues[self.actors[actor].queue].capturing = capturing;
        self.say(format!("{:?} is captured: {capturing}", self.actors[actor].stream));
    }

    fn trim(&mut self) {
        self.say("trim".into());
        self.act(0);
        let before = self.calls();
        match trim::trim(self.slot, 0) {
            Ok(_) => {}
            Err(Error::BackendFailed) if self.has_failed(before) => self.failures += 1,
            Err(Error::BackendFailed) if self.is_capturing() => {}
            Err(error) => panic!("{error:?}"),
        }
    }
}
