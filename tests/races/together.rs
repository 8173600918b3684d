//! The same with threads that really run concurrently, each with streams of its own. They hand chunks to each other. The
//! interleaving differs from run to run, but the conditions are the same.
//!
//! With the library each thread has two streams, one of them its default stream, and steps them. With the interposer it
//! has one, another thread steps them all, and in half of the programs a thread that synchronizes waits for that.

use crate::common::Random;
use crate::common::gpu::PER_THREAD;
use crate::common::ordered::{forget_stream, record_stream};
use crate::common::simcuda::steer::SYNCHRONIZE_WAITS;
use crate::common::*;
use crate::driver::Driver;
use crate::graphs::MODES;
use crate::shadow::{self, Shadow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};

/// A chunk, with the event after its filling if it is passed to another thread.
struct Chunk {
    address: u64,
    bytes: u64,
    pattern: u64,
    number: u64,
    stream: usize,
    event: u64,
}

/// The shared state of the threads.
struct Shared<D> {
    gpu: D,
    context: u64,
    shadow: Mutex<Shadow>,
    handed_over: Mutex<Vec<Chunk>>,
    allocated: AtomicU64,
    /// Threads have ended, and streams that they have created are to be destroyed.
    is_over: AtomicBool,
    streams: Mutex<Vec<u64>>,
    /// All begin at the same moment, before the interposer has a pool.
    begins: Barrier,
}

/// One thread.
struct Hand<'a, D> {
    shared: &'a Shared<D>,
    random: Random,
    /// Handles, with their numbers in the shadow.
    streams: Vec<(u64, usize)>,
    chunks: Vec<Chunk>,
    /// Names of private pools, which no other thread uses.
    names: u64,
    /// It captures graphs. Then no thread synchronizes the device itself.
    captures: bool,
    waits: bool,
}

/// Runs one program with this many threads. Returns how often the library handed memory out ordered after other streams'
/// queued work, or how often the interposer handed any out.
pub fn program<D: Driver>(gpu: D, threads: usize, seed: u64, captures: bool, is_mutated: bool) -> u64 {
    let context = gpu.enter(0);
    let pool = gpu.shared_pool();
    gpu.sim.set(SYNCHRONIZE_WAITS, i64::from(D::HOOKED && seed.is_multiple_of(2)));
    let shared = Shared {
        gpu,
        context,
        shadow: Mutex::default(),
        handed_over: Mutex::default(),
        allocated: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        streams: Mutex::default(),
        begins: Barrier::new(threads),
    };
    std::thread::scope(|scope| {
        let device = D::HOOKED.then(|| scope.spawn(|| shared.step_all(Random::new(!seed))));
        let hands: Vec<_> = (0..threads)
            .map(|thread| {
                let (shared, random) = (&shared, Random::new(seed * 64 + thread as u64));
                let captures = captures || D::HOOKED && seed % 4 >= 2 && thread == 0;
                let waits = D::HOOKED && seed % 4 < 2;
                scope.spawn(move || Hand::new(shared, random, thread, captures, waits).work())
            })
            .collect();
        let ended: Vec<_> = hands.into_iter().map(|hand| hand.join()).collect();
        shared.is_over.store(true, SeqCst);
        device.into_iter().for_each(|device| device.join().expect("it steps"));
        let well = ended.iter().all(Result::is_ok);
        assert!(well, "seed {seed}: a thread has failed; {:#?}", gpu.sim.misuse_texts());
    });
    gpu.sim.set(SYNCHRONIZE_WAITS, 0);
    for chunk in shared.handed_over.lock().unwrap().drain(..) {
        if chunk.event != 0 {
            gpu.destroy_event(chunk.event);
        }
        assert_eq!(gpu.free(chunk.address), Ok(()));
    }
    if D::HOOKED {
        gpu.sim.release_all();
    }
    gpu.end_pool(&pool);
    gpu.sim.release_all();
    shared.streams.lock().unwrap().drain(..).for_each(|stream| gpu.destroy_stream(stream));
    gpu.leave(0);
    let (races, words) = shadow::races();
    let found = (races, gpu.sim.mismatches(), gpu.sim.misuses());
    assert!(found == (0, 0, 0) || is_mutated, "seed {seed}: {words}; {:#?}", gpu.sim.misuse_texts());
    let crossings = shared.shadow.into_inner().unwrap().crossings;
    if D::HOOKED { shared.allocated.into_inner() } else { crossings }
}

impl<D: Driver> Shared<D> {
    /// Steps random streams until everything has ended, as the device.
    fn step_all(&self, mut random: Random) {
        self.gpu.set_current(self.context);
        while !self.is_over.load(SeqCst) {
            let stream = {
                let streams = self.streams.lock().unwrap();
                (!streams.is_empty()).then(|| streams[random.index(streams.len())])
            };
            if stream.is_none_or(|stream| self.gpu.step(stream, random.between(1, 8)) == 0) {
                std::thread::yield_now();
            }
        }
    }
}

impl<'a, D: Driver> Hand<'a, D> {
    fn new(shared: &'a Shared<D>, random: Random, thread: usize, captures: bool, waits: bool) -> Self {
        let gpu = shared.gpu;
        gpu.set_current(shared.context);
        let created = gpu.stream(false);
        let mut streams = vec![(created, 2 * thread)];
        if D::HOOKED {
            shared.streams.lock().unwrap().push(created);
        } else {
            streams.push((PER_THREAD, 2 * thread + 1));
        }
        streams.iter().for_each(|&(handle, _)| gpu.hold(handle));
        let names = 1000 * (1 + thread as u64);
        Hand { shared, random, streams, chunks: Vec::new(), names, captures, waits }
    }

    fn work(mut self) {
        let gpu = self.shared.gpu;
        self.shared.begins.wait();
        self.allocate();
        self.free();
        for _ in 0..self.random.between(20, if D::HOOKED { 120 } else { 60 }) {
            match self.random.below(20) {
                0..8 => self.allocate(),
                8..13 => self.free(),
                13 => self.hand_over(),
                14 | 15 => self.take_over(),
                16 if self.captures && D::HOOKED => self.capture_read(),
                16 if self.captures => self.capture(),
                16 if self.waits => gpu.synchronize_context(),
                _ if D::HOOKED => std::thread::yield_now(),
                _ => _ = gpu.step(self.streams[self.random.index(2)].0, self.random.between(1, 8)),
            }
        }
        while !self.chunks.is_empty() {
            self.free();
        }
        if !D::HOOKED {
            // With work queued that is stepped only by waiting threads.
            for &(handle, _) in &self.streams {
                assert_eq!(forget_stream(0, handle), BFC_OK, "{}", last_error());
            }
            gpu.destroy_stream(self.streams[0].0);
        }
    }

    fn allocate(&mut self) {
        let (gpu, stream) = (self.shared.gpu, self.random.index(self.streams.len()));
        let ((handle, name), bytes) = (self.streams[stream], self.random.between(1, 4000));
        let got = if D::HOOKED { gpu.alloc(bytes) } else { gpu.alloc_async(bytes, handle) };
        let address = match got {
            Ok(address) => address,
            Err(code) => return assert_eq!(code, D::OUT_OF_MEMORY, "{}", last_error()),
        };
        self.shared.allocated.fetch_add(1, SeqCst);
        let bytes = if D::HOOKED { bytes } else { rounded(bytes) };
        let (number, waits, deed) = {
            let mut shadow = self.shared.shadow.lock().unwrap();
            let entry = shadow.allocated(address, bytes, name, 0);
            let (number, waits) = (entry.number, entry.is_awaiting());
            let deed = shadow.queued(address, bytes, name, number);
            if D::HOOKED {
                entry.look_now();
            } else {
                entry.look(*gpu, handle);
            }
            (number, waits, deed)
        };
        let pattern = self.random.bits();
        gpu.fill(handle, address, bytes, pattern);
        shadow::mark(*gpu, handle, deed);
        self.chunks.push(Chunk { address, bytes, pattern, number, stream, event: 0 });
        if waits {
            gpu.step(handle, 1000);
        }
    }

    fn read(&self, chunk: &Chunk, stream: usize) {
        let (gpu, (handle, name)) = (self.shared.gpu, self.streams[stream]);
        let &Chunk { address, bytes, pattern, number, .. } = chunk;
        let deed = self.shared.shadow.lock().unwrap().queued(address, bytes, name, number);
        gpu.expect(handle, address, bytes, pattern);
        shadow::mark(*gpu, handle, deed);
    }

    fn some_chunk(&mut self) -> Option<Chunk> {
        let place = (!self.chunks.is_empty()).then(|| self.random.index(self.chunks.len()))?;
        Some(self.chunks.swap_remove(place))
    }

    /// Reads a chunk, and frees it while that is queued.
    fn free(&mut self) {
        let Some(chunk) = self.some_chunk() else { return };
        self.read(&chunk, chunk.stream);
        let (gpu, handle) = (self.shared.gpu, self.streams[chunk.stream].0);
        let freed = if D::HOOKED { gpu.free(chunk.address) } else { gpu.free_async(chunk.address, handle) };
        assert_eq!(freed, Ok(()), "{}", last_error());
    }

    fn hand_over(&mut self) {
        let Some(mut chunk) = self.some_chunk() else { return };
        if !D::HOOKED {
            chunk.event = self.shared.gpu.recorded(self.streams[chunk.stream].0);
        }
        self.shared.handed_over.lock().unwrap().push(chunk);
    }

    /// Takes over another thread's chunk: read, recorded or not, and freed here. cudaFree comes after that thread's work
    /// on it, which may still be queued.
    fn take_over(&mut self) {
        let Some(mut chunk) = self.shared.handed_over.lock().unwrap().pop() else { return };
        let gpu = self.shared.gpu;
        if D::HOOKED {
            return assert_eq!(gpu.free(chunk.address), Ok(()));
        }
        chunk.stream = self.random.index(2);
        let handle = self.streams[chunk.stream].0;
        gpu.wait(handle, chunk.event);
        gpu.destroy_event(chunk.event);
        self.read(&chunk, chunk.stream);
        if self.random.one_in(2) {
            assert_eq!(record_stream(0, chunk.address, handle), BFC_OK, "{}", last_error());
        }
        self.chunks.push(chunk);
    }

    /// No allocation or free of another thread may break a capture that others need not know about.
    fn capture_read(&mut self) {
        let (gpu, handle) = (self.shared.gpu, self.streams[0].0);
        gpu.begin_capture_in(handle, MODES[1 + self.random.index(2)]);
        if let Some(&Chunk { address, bytes, pattern, .. }) = self.chunks.first() {
            gpu.expect(handle, address, bytes, pattern);
        }
        std::thread::yield_now();
        let graph = gpu.try_end_capture(handle);
        gpu.destroy_graph(
            graph.unwrap_or_else(|code| panic!("another thread has broken the capture: {code}")),
        );
    }

    /// Captures work on memory of a private pool, and launches it once. Other threads' calls meanwhile break no capture
    /// that is announced.
    fn capture(&mut self) {
        let (Shared { gpu, shadow, .. }, (handle, name)) = (self.shared, self.streams[0]);
        let (gpu, mode) = (*gpu, MODES[self.random.index(3)]);
        self.names += 1;
        assert_eq!(bfc_pool_begin(0, self.names, pointer(handle)), BFC_OK, "{}", last_error());
        gpu.begin_capture_in(handle, mode);
        let mut entries = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            if let Ok(address) = gpu.alloc_async(512, handle) {
                gpu.fill(handle, address, 512, 7);
                entries.push((address, shadow.lock().unwrap().allocated(address, 512, name, 0)));
            }
            std::thread::yield_now();
        }
        let graph = gpu.try_end_capture(handle);
        let graph = graph.unwrap_or_else(|code| panic!("the capture is broken, mode {mode}: {code}"));
        assert_eq!(bfc_pool_end(0, self.names, pointer(handle)), BFC_OK, "{}", last_error());
        let addresses: Vec<_> = entries.iter().map(|(address, entry)| (*address, entry.number)).collect();
        entries.into_iter().for_each(|(_, entry)| entry.look(*gpu, handle));
        gpu.launch(graph, handle);
        for (address, number) in addresses {
            let deed = shadow.lock().unwrap().queued(address, 512, name, number);
            shadow::mark(*gpu, handle, deed);
            assert_eq!(gpu.free_async(address, handle), Ok(()), "{}", last_error());
        }
        gpu.destroy_graph(graph);
        assert_eq!(bfc_pool_release(0, self.names), BFC_OK, "{}", last_error());
    }
}
