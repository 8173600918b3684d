//! A random program on several streams whose work is held: allocations, simulated kernels on them, frees, streams
//! that are created and destroyed, and now and then a step of some stream's work. The steps that both drivers have in
//! common are here.
//!
//! Every allocation is filled by a kernel and read by kernels before its free. So memory that is handed out too early
//! is detected by its contents, and by the [shadow](super::shadow) even if the contents happen to be right.

use crate::common::Random;
use crate::common::gpu::{LEGACY, PER_THREAD};
use crate::contexts::Contexts;
use crate::driver::Driver;
use crate::graphs::Graph;
use crate::hooked::others::Other;
use crate::kind::Kind;
use crate::shadow::{self, Shadow};
use crate::worker::Worker;

pub struct Stream {
    pub handle: u64,
    pub worker: Option<Worker>,
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
    pub device: i32,
    /// Streams with work on it. The first has filled it.
    pub users: Vec<usize>,
    /// It was allocated in the order of the first. With the library, the caller keeps other memory to stream 0.
    pub ordered: bool,
    /// Its stream has ended, which the library knows. Later users must be named at the free.
    pub moved: bool,
    /// The number of graphs with kernels that read it.
    pub graphs: u32,
}

macro_rules! seen {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The coverage of the tests.
        #[derive(Default, Debug)]
        pub struct Seen {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Seen {
            /// Adds a program's.
            pub fn add<D: Driver>(&mut self, world: &World<D>) {
                $(self.$name += world.seen.$name;)*
                self.crossings += world.shadow.crossings;
                self.reuses += world.shadow.reuses;
            }
        }
    };
}

seen! {
    /// Memory was handed out ordered after other streams' queued work, or after that of the same stream.
    crossings, reuses,
    /// Memory of the interposer was reused.
    again,
    /// It was handed out while work was pending on freed memory that was large enough.
    tempted,
    /// Requests that were refused for lack of memory.
    refused,
    /// Calls of the library in which a call of the driver failed.
    failed,
    /// Allocations that are not pooled, and those that were refused.
    others, without_room,
    /// cudaFree during a capture that the interposer cannot serve then.
    put_off,
    /// Receives, and those whose sends were checked.
    receives, judged,
    /// Deadlocks: waits for a receive whose send is ordered after the wait.
    deadlocks,
}

pub struct World<D: Driver> {
    pub gpu: D,
    pub pool: D::Pool,
    pub kind: Kind,
    pub random: Random,
    pub contexts: Contexts,
    pub streams: Vec<Stream>,
    pub chunks: Vec<Chunk>,
    pub graphs: Vec<Graph>,
    pub others: Vec<Other>,
    pub shadow: Shadow,
    /// The names of private pools, and the number of streams, so far.
    pub names: u64,
    streams_before: u64,
    /// Memory freed recently: address, bytes.
    pub freed: Vec<(u64, u64)>,
    /// Handles of streams that were destroyed with work queued, and not forgotten.
    pub abandoned: Vec<u64>,
    pub seen: Seen,
    log: Vec<String>,
}

impl<D: Driver> World<D> {
    pub fn new(gpu: D, kind: Kind, seed: u64) -> World<D> {
        let mut random = Random::new(seed);
        let contexts = Contexts::new(gpu, kind, &mut random);
        let pool = gpu.pool(&mut random, kind);
        let mut world = World {
            gpu,
            pool,
            kind,
            random,
            contexts,
            streams: Vec::new(),
            chunks: Vec::new(),
            graphs: Vec::new(),
            others: Vec::new(),
            shadow: Shadow::default(),
            names: 0,
            streams_before: 0,
            freed: Vec::new(),
            abandoned: Vec::new(),
            seen: Seen::default(),
            log: vec![format!("seed {seed:#x}")],
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let count = self.random.between(2, 4) as usize + self.kind.devices - 1;
        for place in 0..count {
            let stream = self.some_stream(place);
            self.streams.push(stream);
            self.at(place, |gpu, stream| gpu.hold(stream));
        }
        if self.kind.receives || self.kind.unforgotten {
            // Memory freed while the pool knows only one stream has no event of that time.
            let allocate =
                |place| self.at(place, |gpu, on| gpu.alloc_async(1, on).expect("the pool is empty"));
            let chunks: Vec<u64> = (0..count).map(allocate).collect();
            for (place, address) in chunks.into_iter().enumerate() {
                self.at(place, move |gpu, stream| assert_eq!(gpu.free_async(address, stream), Ok(())));
            }
        }
    }

    pub fn some_stream(&mut self, place: usize) -> Stream {
        let (handle, worker, created, context) = self.choose_stream(place);
        let number = self.streams_before;
        self.streams_before += 1;
        self.say(|| format!("{place} is stream {handle:#x} of context {context}"));
        Stream { handle, worker, created, capturing: None, context, number }
    }

    /// Returns the number of streams so far.
    pub fn streams_so_far(&self) -> u64 {
        self.streams_before
    }

    fn choose_stream(&mut self, place: usize) -> (u64, Option<Worker>, bool, usize) {
        let gpu = self.gpu;
        // The first belongs to the pool's own context, in which requests without a stream work.
        let is_foreign = self.kind.foreign && place != 0 && self.random.one_in(2);
        let context = if is_foreign { self.kind.devices } else { place % self.kind.devices };
        self.contexts.set_current(gpu, context);
        if self.kind.defaults && self.random.one_in(2) {
            let handle = [LEGACY, PER_THREAD][self.random.index(2)];
            let is_it = |stream: &Stream| (stream.handle, stream.context) == (handle, context);
            if !self.streams.iter().any(is_it) {
                return (handle, None, false, context);
            }
        }
        // The default streams wait for each other, and for the blocking ones: after a receive this is the program's.
        let may_block = !self.kind.receives;
        let may_be_legacy = !self.kind.graphs && may_block && !is_foreign && place == 1;
        let (handle, worker, created) = if self.kind.legacy {
            if place == 0 { (LEGACY, None, false) } else { (gpu.stream(true), None, true) }
        } else if self.kind.threads && place != 0 {
            (PER_THREAD, Some(Worker::start(*gpu, self.contexts.handle(context))), false)
        } else if may_be_legacy && (D::HOOKED || context == 0) && self.random.one_in(4) {
            (LEGACY, None, false)
        } else {
            (gpu.stream(may_block && self.random.one_in(3)), None, true)
        };
        (handle, worker, created, context)
    }

    /// Runs work with a stream, on its thread and in its context.
    pub fn at<T: Send + 'static>(&self, place: usize, work: impl FnOnce(D, u64) -> T + Send + 'static) -> T {
        let (gpu, &Stream { handle, ref worker, context, .. }) = (self.gpu, &self.streams[place]);
        match worker {
            Some(worker) => worker.run(move || work(gpu, handle)),
            None => {
                self.contexts.set_current(gpu, context);
                work(gpu, handle)
            }
        }
    }

    pub fn say(&mut self, words: impl FnOnce() -> String) {
        self.log.push(words());
    }

    /// Returns the log, to explain a failure.
    pub fn log(&self) -> String {
        self.log.join("\n")
    }

    pub fn is_capturing(&self) -> bool {
        self.streams.iter().any(|stream| stream.capturing.is_some())
    }

    /// Orders a stream's later work after another stream's work so far, with events, as in a program.
    pub fn order(&self, before: usize, after: usize) {
        if before != after {
            let event = self.at(before, |gpu, stream| gpu.recorded(stream));
            self.at(after, move |gpu, stream| gpu.wait(stream, event));
            self.gpu.destroy_event(event);
        }
    }

    /// Returns the index of a stream that is not captured.
    pub fn any_stream(&mut self) -> Option<usize> {
        let place = self.random.index(self.streams.len());
        self.streams[place].capturing.is_none().then_some(place)
    }

    pub fn any_chunk(&mut self) -> Option<usize> {
        (!self.chunks.is_empty()).then(|| self.random.index(self.chunks.len()))
    }

    pub fn some_bytes(&mut self) -> u64 {
        let most = self.kind.sizes[self.random.index(3)];
        self.random.between(1, most)
    }

    /// Checks new memory, and fills it on its stream. Memory that any stream may use is filled on another one.
    pub fn enter(&mut self, address: u64, bytes: u64, place: usize, ordered: bool) {
        let bytes = D::usable(self, address, bytes);
        let touches = |&(at, size): &(u64, u64)| at < address + bytes && address < at + size;
        self.seen.again += u64::from(self.freed.iter().any(touches));
        let tempts = |&(at, size): &(u64, u64)| size >= bytes && self.shadow.undone(at, size) != 0;
        self.seen.tempted += u64::from(self.freed.iter().any(tempts));
        self.freed.retain(|range| !touches(range));
        let entry = self.shadow.allocated(address, bytes, place, 0);
        let (number, waits, pattern) = (entry.number, entry.is_awaiting(), self.random.bits());
        let device = self.contexts.device(self.streams[place].context);
        // Work of blocking streams comes after that of the legacy stream, and so may use memory allocated there.
        let mut place = if self.kind.legacy { self.random.index(self.streams.len()) } else { place };
        if ordered || !D::HOOKED {
            self.at(place, move |gpu, stream| entry.look(*gpu, stream));
        } else {
            entry.look_now();
            place = self.reaching(device).unwrap_or(place);
        }
        self.say(|| format!("{number}: {bytes} at {address:#x} on {place}, ordered: {ordered}"));
        let users = vec![place];
        let chunk =
            Chunk { address, bytes, pattern, number, device, users, ordered, moved: false, graphs: 0 };
        let deed = self.shadow.queued(address, bytes, place, number);
        self.at(place, move |gpu, stream| {
            gpu.fill(stream, address, bytes, pattern);
            shadow::mark(*gpu, stream, deed);
        });
        self.chunks.push(chunk);
        // The worst case: this stream runs as far as it can, and no other does.
        if waits && self.random.one_in(2) {
            self.at(place, |gpu, stream| gpu.step(stream, 1000));
        }
    }

    /// Returns a stream whose work may touch memory of a device.
    pub fn reaching(&mut self, device: i32) -> Option<usize> {
        let place = self.any_stream()?;
        let is_its = self.contexts.device(self.streams[place].context) == device;
        (self.kind.peers || self.kind.pinned || is_its).then_some(place)
    }

    /// Queues a kernel that reads a chunk on a stream that comes after its filling.
    pub fn read_on(&mut self, chunk: &Chunk, place: usize) {
        let &Chunk { address, bytes, pattern, number, .. } = chunk;
        let deed = self.shadow.queued(address, bytes, place, number);
        self.at(place, move |gpu, stream| {
            gpu.expect(stream, address, bytes, pattern);
            shadow::mark(*gpu, stream, deed);
        });
        self.say(|| format!("{number} is read on {place}"));
    }

    pub fn step(&mut self) {
        let place = self.random.index(self.streams.len());
        let items = self.random.between(1, 6);
        let ran = self.at(place, move |gpu, stream| gpu.step(stream, items));
        self.say(|| format!("stream {place} does {ran}"));
    }

    /// Waits for a stream, or for all of its context. Returns which.
    pub fn synchronize(&mut self) -> Option<usize> {
        // The legacy stream may not be used while blocking streams are captured.
        if self.is_capturing() {
            return None;
        }
        let (place, all) = (self.random.index(self.streams.len()), self.random.one_in(4));
        self.at(place, move |gpu, on| if all { gpu.synchronize_context() } else { gpu.synchronize(on) });
        self.say(|| format!("stream {place} is synchronized, with its context: {all}"));
        Some(place)
    }

    /// Replaces a stream that has ended by another, possibly with its handle.
    pub fn replace_stream(&mut self, place: usize) {
        self.streams[place] = self.some_stream(place);
        self.at(place, |gpu, stream| gpu.hold(stream));
    }

    /// Runs everything that can run until a condition holds. Returns whether it does.
    pub fn run_until(&self, holds: impl Fn() -> bool) -> bool {
        loop {
            if holds() {
                return true;
            }
            let steps = |place| self.at(place, |gpu, stream| gpu.step(stream, 1000));
            let ran: u64 = (0..self.streams.len()).map(steps).sum();
            if ran == 0 {
                return holds();
            }
        }
    }

    /// Runs all work, in some order, as far as possible.
    pub fn drain(&mut self) {
        let mut stuck = 0;
        while stuck < 20 {
            let place = self.random.index(self.streams.len());
            let items = self.random.between(1, 50);
            let ran = self.at(place, move |gpu, stream| gpu.step(stream, items));
            stuck = if ran == 0 { stuck + 1 } else { 0 };
        }
        // The rest waits for streams that have ended.
        self.gpu.sim.release_all();
    }

    /// Resets all devices: everything is gone, and the program begins again.
    pub fn reset(&mut self) {
        self.end_graphs();
        // Memory of cudaMallocAsync may belong to the driver, which no reset frees.
        while let Some(index) = self.chunks.iter().position(|chunk| chunk.ordered) {
            D::free_at(self, index);
        }
        D::end_others(self, false);
        self.drain();
        self.contexts.synchronize(self.gpu);
        self.streams.clear();
        self.contexts.reset(self.gpu);
        self.chunks.clear();
        self.freed.clear();
        self.shadow.forget();
        self.say(|| "the devices are reset".to_owned());
        self.contexts = Contexts::new(self.gpu, self.kind, &mut self.random);
        self.begin();
    }
}
