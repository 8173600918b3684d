//! The same with threads that really run concurrently, each with a stream of its own, and one that captures graphs now
//! and then. They free each other's chunks. In half of the programs a thread that synchronizes waits until another
//! thread steps the streams. The interleaving differs from run to run, but the conditions are the same.

use super::world::{self, Seen};
use crate::common::Random;
use crate::common::hooked::Hooked;
use crate::common::simcuda::steer::SYNCHRONIZE_WAITS;
use crate::shadow::{self, Shadow};
use cuda_sys::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};

struct Chunk {
    address: u64,
    bytes: u64,
    number: u64,
    pattern: u64,
}

/// The shared state of the threads.
struct Shared {
    gpu: Hooked,
    context: u64,
    streams: Vec<u64>,
    shadow: Mutex<Shadow>,
    handed_over: Mutex<Vec<Chunk>>,
    again: AtomicU64,
    is_over: AtomicBool,
    /// All begin at the same moment, before there is a pool.
    begins: Barrier,
}

/// One thread.
struct Hand<'a> {
    shared: &'a Shared,
    random: Random,
    stream: usize,
    chunks: Vec<Chunk>,
    /// It captures graphs. Then no thread synchronizes the device itself.
    captures: bool,
    waits: bool,
}

/// Runs one program with this many threads.
pub fn program(gpu: Hooked, threads: usize, seed: u64, mutated: bool, sum: &mut Seen) {
    let context = gpu.enter(0);
    let waits = seed.is_multiple_of(2);
    gpu.sim.set(SYNCHRONIZE_WAITS, i64::from(waits));
    let streams: Vec<u64> = (0..threads).map(|_| gpu.stream(false)).collect();
    streams.iter().for_each(|&stream| gpu.hold(stream));
    let shared = Shared {
        gpu,
        context,
        streams,
        shadow: Mutex::default(),
        handed_over: Mutex::default(),
        again: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        begins: Barrier::new(threads),
    };
    std::thread::scope(|scope| {
        // Acts as the device.
        let device = scope.spawn(|| step_all(&shared, Random::new(!seed)));
        let hands: Vec<_> = (0..threads)
            .map(|thread| {
                let (shared, random) = (&shared, Random::new(seed * 64 + thread as u64));
                let captures = seed % 4 >= 2 && thread == 0;
                let hand = Hand {
                    shared,
                    random,
                    stream: thread,
                    chunks: Vec::new(),
                    captures,
                    waits: seed % 4 < 2,
                };
                scope.spawn(move || hand.work())
            })
            .collect();
        let ended: Vec<_> = hands.into_iter().map(|hand| hand.join()).collect();
        shared.is_over.store(true, SeqCst);
        device.join().expect("it steps");
        let well = ended.iter().all(Result::is_ok);
        assert!(well, "seed {seed}: a thread has failed; {:#?}", gpu.sim.misuse_texts());
    });
    gpu.sim.set(SYNCHRONIZE_WAITS, 0);
    for chunk in shared.handed_over.lock().unwrap().drain(..) {
        assert_eq!(gpu.free(chunk.address), Ok(()));
    }
    gpu.sim.release_all();
    shared.streams.iter().for_each(|&stream| gpu.destroy_stream(stream));
    gpu.leave(0);
    sum.again += shared.again.load(SeqCst);
    if !mutated {
        let words = shadow::races().1;
        assert_eq!(world::troubles(&gpu), (0, 0, 0), "seed {seed}: {words}; {:#?}", gpu.sim.misuse_texts());
    }
}

/// Steps random streams until everything has ended.
fn step_all(shared: &Shared, mut random: Random) {
    shared.gpu.set_current(shared.context);
    while !shared.is_over.load(SeqCst) {
        let stream = shared.streams[random.index(shared.streams.len())];
        if shared.gpu.step(stream, random.between(1, 8)) == 0 {
            std::thread::yield_now();
        }
    }
}

impl Hand<'_> {
    fn work(mut self) {
        let gpu = self.shared.gpu;
        gpu.set_current(self.shared.context);
        self.shared.begins.wait();
        self.allocate();
        self.free();
        for _ in 0..self.random.between(30, 120) {
            match self.random.below(20) {
                0..9 => self.allocate(),
                9..15 => self.free(),
                15 => self.hand_over(),
                16 => self.take_over(),
                17 if self.captures => self.capture(),
                17 if self.waits => gpu.synchronize_context(),
                _ => std::thread::yield_now(),
            }
        }
        while !self.chunks.is_empty() {
            self.free();
        }
    }

    fn handle(&self) -> u64 {
        self.shared.streams[self.stream]
    }

    fn allocate(&mut self) {
        let (gpu, handle) = (self.shared.gpu, self.handle());
        let bytes = self.random.between(1, 4000);
        let address = match gpu.alloc(bytes) {
            Ok(address) => address,
            Err(code) => return assert_eq!(code, CUDA_ERROR_OUT_OF_MEMORY),
        };
        let (number, deed) = {
            let mut shadow = self.shared.shadow.lock().unwrap();
            let entry = shadow.allocated(address, bytes, self.stream, 0);
            let number = entry.number;
            entry.look_now();
            (number, shadow.queued(address, bytes, self.stream, number))
        };
        self.shared.again.fetch_add(1, SeqCst);
        let pattern = self.random.bits();
        gpu.fill(handle, address, bytes, pattern);
        shadow::mark(*gpu, handle, deed);
        self.chunks.push(Chunk { address, bytes, number, pattern });
    }

    fn some_chunk(&mut self) -> Option<Chunk> {
        let place = (!self.chunks.is_empty()).then(|| self.random.index(self.chunks.len()))?;
        Some(self.chunks.swap_remove(place))
    }

    /// Reads a chunk, and frees it while that is queued.
    fn free(&mut self) {
        let Some(Chunk { address, bytes, number, pattern }) = self.some_chunk() else { return };
        let (gpu, handle) = (self.shared.gpu, self.handle());
        let deed = self.shared.shadow.lock().unwrap().queued(address, bytes, self.stream, number);
        gpu.expect(handle, address, bytes, pattern);
        shadow::mark(*gpu, handle, deed);
        assert_eq!(gpu.free(address), Ok(()));
    }

    fn hand_over(&mut self) {
        let Some(chunk) = self.some_chunk() else { return };
        self.shared.handed_over.lock().unwrap().push(chunk);
    }

    /// Frees another thread's chunk, with that thread's work on it still queued.
    fn take_over(&mut self) {
        let Some(chunk) = self.shared.handed_over.lock().unwrap().pop() else { return };
        assert_eq!(self.shared.gpu.free(chunk.address), Ok(()));
    }

    /// No allocation or free of another thread may break a capture that others need not know about.
    fn capture(&mut self) {
        let (gpu, handle) = (self.shared.gpu, self.handle());
        let modes = [CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL];
        gpu.begin_capture(handle, modes[self.random.index(2)]);
        if let Some(Chunk { address, bytes, pattern, .. }) = self.chunks.first() {
            gpu.expect(handle, *address, *bytes, *pattern);
        }
        std::thread::yield_now();
        match gpu.end_capture(handle) {
            Ok(graph) => gpu.destroy_graph(graph),
            Err(code) => panic!("another thread has broken the capture: {code}"),
        }
    }
}
