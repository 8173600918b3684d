//! A random program on several streams whose work is held: allocations, simulated kernels on them, frees, streams
//! that are created and destroyed, and now and then a step of some stream's work.
//!
//! Every allocation is filled by a kernel on its stream and read by kernels before its free: on its own stream, on
//! others that were recorded, or on the one that frees it. So memory that is handed out too early is detected by its
//! contents, and by the [shadow](super::shadow) even if the contents happen to be right.

use super::contexts::Contexts;
use super::graphs::Graph;
use crate::common::gpu::{Gpu, LEGACY, PER_THREAD};
use crate::common::granules::enough;
use crate::common::ordered::*;
use crate::common::simcuda::steer::EVENTS_LIE;
use crate::common::*;
use crate::shadow::{self, Shadow};
use crate::worker::Worker;

/// The kinds of operations of a program.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Chunks are used on streams other than their own.
    pub records: bool,
    /// Streams are forgotten and destroyed.
    pub ends: bool,
    /// Streams are the default streams of threads, except for one.
    pub threads: bool,
    /// `bfc_alloc` and `bfc_free` without a stream.
    pub plain: bool,
    /// Captures into graphs, which are launched repeatedly.
    pub graphs: bool,
    /// Events always report completion to a request, which simulates a library that does not check.
    pub lies: bool,
    /// The memory is mapped and remapped in granules.
    pub granules: bool,
    /// Some streams belong to a context that the program has created, and to another device, which is a peer.
    pub contexts: bool,
    /// Some are the default streams of their contexts, which may be the only streams.
    pub defaults: bool,
    /// Streams are destroyed without `bfc_forget_stream`, once all memory that was allocated there or recorded is
    /// freed.
    pub unforgotten: bool,
    /// Receives are posted, whose sends are queued later on other streams.
    pub receives: bool,
    /// A receive's stream frees after it, before the memory to send from is requested.
    pub frees_behind: bool,
    /// Captures are of all three modes, and some are not announced by `bfc_pool_begin`.
    pub modes: bool,
}

/// Only allocation, use and free.
pub const SIMPLE: Kind = Kind {
    records: false,
    ends: false,
    threads: false,
    plain: false,
    graphs: false,
    lies: false,
    granules: false,
    contexts: false,
    defaults: false,
    unforgotten: false,
    receives: false,
    frees_behind: false,
    modes: false,
};

pub struct Stream {
    pub handle: u64,
    worker: Option<Worker>,
    /// It may be destroyed.
    pub created: bool,
    /// The private pool into which it is being captured. 0 is none.
    pub capturing: Option<u64>,
    /// The index of its context.
    pub context: usize,
    /// The number of streams that the program had before.
    pub number: u64,
}

#[derive(Clone)]
pub struct Chunk {
    pub address: u64,
    pub bytes: u64,
    pub pattern: u64,
    pub number: u64,
    /// The stream whose work comes after its filling. None means the caller, which keeps to the first stream.
    pub home: Option<usize>,
    /// Its stream has ended, which the library knows. Later users must be named at the free.
    pub moved: bool,
    /// Other streams that use it, as recorded.
    pub lent: Vec<usize>,
}

pub struct World {
    pub gpu: Gpu,
    pub pool: Pool,
    pub random: Random,
    pub streams: Vec<Stream>,
    pub chunks: Vec<Chunk>,
    pub graphs: Vec<Graph>,
    pub shadow: Shadow,
    pub kind: Kind,
    pub names: u64,
    /// The number of streams so far.
    streams_before: u64,
    /// Requests that were refused for lack of memory.
    pub refused: u64,
    /// The primary context of the pool's device is first.
    pub contexts: Contexts,
    /// Deadlocks: waits for a receive whose send is ordered after the wait.
    pub deadlocks: u64,
    /// Receives, and those whose sends were checked.
    pub receives: u64,
    pub judged: u64,
    /// Handles of streams that were destroyed with work queued, and not forgotten.
    pub abandoned: Vec<u64>,
    log: Vec<String>,
}

impl World {
    pub fn new(gpu: Gpu, context: u64, kind: Kind, seed: u64) -> World {
        let mut random = Random::new(seed);
        let pool = some_pool(&mut random, kind);
        let contexts = Contexts::new(gpu, context, kind, &mut random);
        let log = vec![format!("seed {seed}, limit {}", pool.stats().bytes_limit)];
        let mut world = World {
            gpu,
            pool,
            random,
            streams: Vec::new(),
            chunks: Vec::new(),
            graphs: Vec::new(),
            shadow: Shadow::default(),
            kind,
            names: 0,
            streams_before: 0,
            refused: 0,
            contexts,
            deadlocks: 0,
            receives: 0,
            judged: 0,
            abandoned: Vec::new(),
            log,
        };
        let count = world.random.between(2, 4) as usize;
        for place in 0..count {
            let stream = world.some_stream(place);
            world.streams.push(stream);
            world.at(place, |gpu, stream| gpu.hold(stream));
        }
        if kind.receives || kind.unforgotten {
            // Memory freed while the pool knows only one stream has no event of that time.
            let device = world.pool.device();
            let allocate = move |_: Gpu, stream| alloc_async(device, 1, stream).expect("the pool is empty");
            let chunks: Vec<u64> = (0..count).map(|place| world.at(place, allocate)).collect();
            for (place, address) in chunks.into_iter().enumerate() {
                world.at(place, move |_, stream| assert_eq!(free_async(device, address, stream), BFC_OK));
            }
        }
        world
    }

    pub fn some_stream(&mut self, place: usize) -> Stream {
        let mut stream = self.choose_stream(place);
        (stream.number, self.streams_before) = (self.streams_before, self.streams_before + 1);
        let Stream { handle, context, .. } = stream;
        self.say(|| format!("{place} is stream {handle:#x} of context {context}"));
        stream
    }

    fn choose_stream(&mut self, place: usize) -> Stream {
        let gpu = self.gpu;
        // The first belongs to the pool's own context, in which requests without a stream work.
        let context = if place == 0 { 0 } else { self.contexts.any(&mut self.random) };
        self.contexts.set_current(gpu, context);
        if self.kind.defaults && self.random.one_in(2) {
            let handle = [LEGACY, PER_THREAD][self.random.index(2)];
            let is_it = |stream: &Stream| (stream.handle, stream.context) == (handle, context);
            if !self.streams.iter().any(is_it) {
                return Stream { handle, worker: None, created: false, capturing: None, context, number: 0 };
            }
        }
        // The default streams wait for each other, and for the blocking ones: after a receive this is the program's.
        let may_block = !self.kind.receives;
        let (handle, worker, created) = if self.kind.threads && place != 0 {
            (PER_THREAD, Some(Worker::start(gpu, self.contexts.primary())), false)
        } else if !self.kind.graphs && may_block && context == 0 && place == 1 && self.random.one_in(4) {
            (LEGACY, None, false)
        } else {
            (gpu.stream(may_block && self.random.one_in(3)), None, true)
        };
        Stream { handle, worker, created, capturing: None, context, number: 0 }
    }

    /// Runs work with a stream, on its thread.
    pub fn at<T: Send + 'static>(
        &self,
        place: usize,
        work: impl FnOnce(Gpu, u64) -> T + Send + 'static,
    ) -> T {
        let (gpu, Stream { handle, worker, .. }) = (self.gpu, &self.streams[place]);
        let handle = *handle;
        match worker {
            Some(worker) => worker.run(move || work(gpu, handle)),
            None => {
                self.contexts.set_current(gpu, self.streams[place].context);
                work(gpu, handle)
            }
        }
    }

    pub fn say(&mut self, words: impl FnOnce() -> String) {
        self.log.push(words());
    }

    /// Orders a stream's later work after another stream's work so far, with events, as in a program.
    pub fn order(&self, before: usize, after: usize) {
        if before == after {
            return;
        }
        let event = self.at(before, |gpu, stream| gpu.recorded(stream));
        self.at(after, move |gpu, stream| gpu.wait(stream, event));
        self.gpu.destroy_event(event);
    }

    /// Returns the index of a stream that is not captured.
    pub fn any_stream(&mut self) -> Option<usize> {
        let place = self.random.index(self.streams.len());
        self.streams[place].capturing.is_none().then_some(place)
    }

    pub fn any_chunk(&mut self) -> Option<usize> {
        let place = (!self.chunks.is_empty()).then(|| self.random.index(self.chunks.len()))?;
        let home = self.chunks[place].home.unwrap_or(0);
        self.streams[home].capturing.is_none().then_some(place)
    }

    /// Runs a random step.
    pub fn act(&mut self) {
        match self.random.below(100) {
            0..38 => self.allocate(),
            38..62 => self.free(),
            62..66 if self.kind.graphs => self.act_on_graphs(),
            62..80 => self.step(),
            80..86 if self.kind.records => self.lend(),
            86..88 if self.kind.ends => self.end_stream(),
            88..92 if self.kind.plain => self.allocate_plain(),
            80..92 if self.kind.graphs => self.act_on_graphs(),
            92..94 => self.synchronize(),
            94 if self.random.one_in(4) => self.trim(),
            95..97 if self.kind.contexts => self.copy(),
            97 if self.kind.contexts && self.kind.ends => self.end_context(),
            95..98 if self.kind.receives => self.receive(),
            _ => self.read(),
        }
    }

    pub fn some_bytes(&mut self) -> u64 {
        let sizes = if self.kind.granules { [100_000, MIB, 3 * MIB] } else { [512, 2048, 8192] };
        let most = sizes[self.random.index(3)];
        self.random.between(1, most)
    }

    pub fn allocate(&mut self) {
        let Some(place) = self.any_stream() else { return };
        self.allocate_on(place);
    }

    pub fn allocate_on(&mut self, place: usize) {
        // Memory allocated on another device's default stream is safe on that of the pool's own context.
        let Stream { created, context, .. } = self.streams[place];
        if !created && self.contexts.is_of_peer(context) {
            return;
        }
        let (bytes, device) = (self.some_bytes(), self.pool.device());
        self.gpu.sim.set(EVENTS_LIE, i64::from(self.kind.lies));
        let got = self.at(place, move |_, stream| alloc_async(device, bytes as usize, stream));
        self.gpu.sim.set(EVENTS_LIE, 0);
        match got {
            Ok(address) => self.enter(address, place, Some(place)),
            Err(status) => self.refuse(status, bytes),
        }
    }

    /// Without a stream: the caller keeps to one stream, the first.
    fn allocate_plain(&mut self) {
        if self.streams[0].capturing.is_some() {
            return;
        }
        let bytes = self.some_bytes();
        match self.pool.alloc(bytes) {
            Ok(address) => self.enter(address, 0, None),
            Err(status) => self.refuse(status, bytes),
        }
    }

    fn refuse(&mut self, status: Status, bytes: u64) {
        assert_eq!(status, BFC_ERROR_OUT_OF_MEMORY, "{}", last_error());
        self.refused += 1;
        // Whichever stream they belong to, because the request waited for the device. During a capture it may not wait,
        // and graphs keep some.
        if self.kind.granules && !self.kind.graphs && enough(&self.pool, bytes) {
            let map = self.pool.memory_map();
            panic!("{}\n{bytes} bytes are refused: {map}", self.log());
        }
        self.say(|| format!("{bytes} bytes: refused"));
    }

    /// Fills a new chunk.
    pub fn enter(&mut self, address: u64, place: usize, home: Option<usize>) {
        let bytes = self.pool.allocated_size(address).expect("live");
        let entry = self.shadow.allocated(address, bytes, place, 0);
        let (number, waits) = (entry.number, entry.is_awaiting());
        let pattern = self.random.bits();
        let deed = self.shadow.queued(address, bytes, place, number);
        self.at(place, move |gpu, stream| {
            entry.look(gpu, stream);
            gpu.fill(stream, address, bytes, pattern);
            shadow::mark(gpu, stream, deed);
        });
        self.say(|| format!("{number}: {bytes} at {address:#x} on {place}, plain: {}", home.is_none()));
        self.chunks.push(Chunk { address, bytes, pattern, number, home, moved: false, lent: Vec::new() });
        // The worst case: this stream runs as far as it can, and no other does.
        if waits && self.random.one_in(2) {
            self.at(place, |gpu, stream| gpu.step(stream, 1000));
        }
    }

    /// Queues a kernel that reads a chunk on a stream that comes after its filling.
    pub fn read_on(&mut self, chunk: &Chunk, place: usize) {
        let &Chunk { address, bytes, pattern, number, .. } = chunk;
        let deed = self.shadow.queued(address, bytes, place, number);
        self.at(place, move |gpu, stream| {
            gpu.expect(stream, address, bytes, pattern);
            shadow::mark(gpu, stream, deed);
        });
    }

    pub fn read(&mut self) {
        let Some(place) = self.any_chunk() else { return };
        let chunk = self.chunks[place].clone();
        // Work unknown to the library, once the stream that it knows no longer exists.
        if !chunk.moved {
            self.read_on(&chunk, chunk.home.unwrap_or(0));
        }
    }

    /// Reads a chunk on another stream too.
    fn lend(&mut self) {
        let (Some(place), Some(to)) = (self.any_chunk(), self.any_stream()) else { return };
        self.chunks[place].lent.push(to);
        let chunk = self.chunks[place].clone();
        self.order(chunk.home.unwrap_or(0), to);
        let (device, address) = (self.pool.device(), chunk.address);
        // Before or after the work, because the work queued by the time of the free counts.
        let early = self.random.one_in(2);
        if !early {
            self.read_on(&chunk, to);
        }
        let status = self.at(to, move |_, stream| record_stream(device, address, stream));
        assert_eq!(status, BFC_OK, "{}", last_error());
        if early {
            self.read_on(&chunk, to);
        }
        self.say(|| format!("{} also used on {to}", chunk.number));
    }

    fn free(&mut self) {
        let Some(place) = self.any_chunk() else { return };
        self.free_at(place);
    }

    pub fn free_at(&mut self, place: usize) {
        let chunk = self.chunks.swap_remove(place);
        let (device, address) = (self.pool.device(), chunk.address);
        let Some(home) = chunk.home else {
            self.read_on(&chunk, 0);
            self.say(|| format!("free {}", chunk.number));
            // On the first stream, which comes after all its work, or without a stream.
            return if self.random.one_in(3) {
                self.at(0, move |_, stream| assert_eq!(free_async(device, address, stream), BFC_OK));
            } else {
                self.pool.put(address);
            };
        };
        let elsewhere = self.any_stream().filter(|_| self.random.one_in(4));
        let on = elsewhere.unwrap_or(home);
        if chunk.moved && self.random.one_in(2) {
            self.say(|| format!("free {} of a stream that has ended", chunk.number));
            return self.pool.put(address);
        }
        self.order(home, on);
        self.read_on(&chunk, on);
        let plain = on == home && !chunk.moved && self.random.one_in(3);
        self.say(|| format!("free {} on {on}, plain: {plain}", chunk.number));
        let status = match plain {
            // From any thread: it is a free on the stream of the allocation. But only a thread itself can
            // record its own stream's events, so there it waits for a synchronization.
            true => self.pool.free(address),
            false => self.at(on, move |_, stream| free_async(device, address, stream)),
        };
        assert_eq!(status, BFC_OK, "{}", last_error());
    }

    pub fn step(&mut self) {
        let place = self.random.index(self.streams.len());
        let items = self.random.between(1, 6);
        let ran = self.at(place, move |gpu, stream| gpu.step(stream, items));
        self.say(|| format!("stream {place} does {ran}"));
    }

    fn synchronize(&mut self) {
        let Some(place) = self.any_stream() else { return };
        // The legacy stream may not be used while blocking streams are captured.
        if self.streams.iter().any(|stream| stream.capturing.is_some()) {
            return;
        }
        let (vouch, device) = (self.random.one_in(2), self.pool.device());
        self.at(place, move |gpu, stream| {
            gpu.synchronize(stream);
            if vouch {
                assert_eq!(stream_synchronized(device, stream), BFC_OK);
            }
        });
        self.say(|| format!("stream {place} synchronised, said: {vouch}"));
    }

    pub fn trim(&mut self) {
        let keep = self.random.below(if self.kind.granules { 24 << 20 } else { 64 << 10 });
        let trimmed = self.pool.try_trim(keep);
        let captured = self.streams.iter().any(|stream| stream.capturing.is_some());
        assert!(trimmed.is_ok() || captured && trimmed == Err(BFC_ERROR_BACKEND_FAILED), "{}", last_error());
        self.say(|| format!("trim to {keep}: {trimmed:?}"));
    }

    /// Destroys a stream with its work still queued, and replaces it by another, possibly with its handle.
    fn end_stream(&mut self) {
        let Some(place) = self.any_stream() else { return };
        // The first belongs to the plain calls, which rely on its order.
        let forgets = !self.kind.unforgotten;
        if !forgets && !self.may_abandon(place) {
            return;
        }
        let is_graphs = self.graphs.iter().any(|graph| graph.stream == place);
        if place == 0 && self.kind.plain || is_graphs {
            return;
        }
        let threads = self.streams[place].worker.is_some();
        if !threads && !self.streams[place].created {
            return;
        }
        // Live memory there is used elsewhere.
        let heir = (place + 1) % self.streams.len();
        if self.streams[heir].capturing.is_some() {
            return;
        }
        if self.kind.receives {
            // The replacement may be a sender. No work is left on the ended stream, where it would never run.
            self.at(place, |gpu, stream| {
                gpu.synchronize(stream);
                assert_eq!(gpu.sim.release(pointer(stream)), 0);
            });
        }
        self.order(place, heir);
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.home == Some(place)) {
            (chunk.home, chunk.moved) = (Some(heir), true);
        }
        let device = self.pool.device();
        if !forgets {
            self.abandon(place);
        }
        self.at(place, move |gpu, stream| {
            if forgets {
                assert_eq!(forget_stream(device, stream), BFC_OK, "{}", last_error());
            }
            if !threads {
                gpu.destroy_stream(stream);
            }
        });
        self.say(|| format!("stream {place} ends, {heir} goes on"));
        self.streams[place] = self.some_stream(place);
        self.at(place, |gpu, stream| gpu.hold(stream));
    }

    /// Returns the log, to explain a failure.
    pub fn log(&self) -> String {
        self.log.join("\n")
    }
}

/// A small pool, so that memory is scarce.
fn some_pool(random: &mut Random, kind: Kind) -> Pool {
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = match kind.granules {
        true => (BFC_BACKEND_CUDA_VMM, [8, 12, 16, 24][random.index(4)] << 20),
        false => (BFC_BACKEND_CUDA, [8, 16, 32, 64][random.index(4)] << 10),
    };
    if !random.one_in(3) {
        wanted.flags = BFC_ALLOW_GROWTH;
        wanted.initial_region_bytes = [4, 16][random.index(2)] << 10;
    }
    if random.one_in(2) {
        wanted.flags |= BFC_GARBAGE_COLLECTION;
    }
    if random.one_in(4) {
        wanted.flags |= BFC_SPLIT_ALWAYS;
    }
    Pool::create(0, &wanted, None).unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
}
