//! The same with threads that really run concurrently, each with two streams of its own, one of them its default
//! stream. They hand chunks to each other. The interleaving differs from run to run, but the conditions are the same.

use crate::common::gpu::{Gpu, PER_THREAD};
use crate::common::ordered::*;
use crate::common::*;
use crate::shadow::{self, Shadow};
use cuda_sys::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode,
};
use std::sync::Mutex;

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
struct Shared {
    gpu: Gpu,
    device: i32,
    context: u64,
    shadow: Mutex<Shadow>,
    handed_over: Mutex<Vec<Chunk>>,
    /// Threads capture graphs, in all modes.
    captures: bool,
}

/// One thread.
struct Hand<'a> {
    shared: &'a Shared,
    random: Random,
    /// Handles, with their numbers in the shadow.
    streams: [(u64, usize); 2],
    chunks: Vec<Chunk>,
    /// Names of private pools, which no other thread uses.
    names: u64,
}

/// Runs one program with this many threads. Returns how often memory was handed out ordered after other streams' queued
/// work.
pub fn program(gpu: Gpu, threads: usize, seed: u64, captures: bool) -> u64 {
    let context = gpu.enter(0);
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_CUDA, 32 << 10);
    (wanted.flags, wanted.initial_region_bytes) = (BFC_ALLOW_GROWTH, 8 << 10);
    let pool = Pool::create(0, &wanted, None).unwrap_or_else(|status| panic!("{status}: {}", last_error()));
    let shadow = Mutex::new(Shadow::default());
    let shared = Shared { gpu, device: 0, context, shadow, handed_over: Mutex::default(), captures };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (shared, random) = (&shared, Random::new(seed * 64 + thread as u64));
            scope.spawn(move || Hand::new(shared, random, thread).work());
        }
    });
    for chunk in shared.handed_over.lock().unwrap().drain(..) {
        gpu.destroy_event(chunk.event);
        pool.put(chunk.address);
    }
    pool.check();
    gpu.sim.release_all();
    assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
    gpu.leave(0);
    let (races, words) = shadow::races();
    let found = (races, gpu.sim.mismatches(), gpu.sim.misuses());
    assert_eq!(found, (0, 0, 0), "seed {seed}: {words}; {:#?}", gpu.sim.misuse_texts());
    shared.shadow.into_inner().unwrap().crossings
}

impl<'a> Hand<'a> {
    fn new(shared: &'a Shared, random: Random, thread: usize) -> Self {
        let gpu = shared.gpu;
        gpu.set_current(shared.context);
        let streams = [(gpu.stream(false), 2 * thread), (PER_THREAD, 2 * thread + 1)];
        streams.iter().for_each(|&(handle, _)| gpu.hold(handle));
        Hand { shared, random, streams, chunks: Vec::new(), names: 1000 * (1 + thread as u64) }
    }

    fn work(mut self) {
        for _ in 0..self.random.between(20, 60) {
            match self.random.below(20) {
                0..8 => self.allocate(),
                8..12 => self.free(),
                12 => self.hand_over(),
                13 | 14 => self.take_over(),
                15 if self.shared.captures => self.capture(),
                _ => self.step(),
            }
        }
        while !self.chunks.is_empty() {
            self.free();
        }
        let (gpu, device) = (self.shared.gpu, self.shared.device);
        for (handle, _) in self.streams {
            // With work queued that is stepped only by waiting threads.
            assert_eq!(forget_stream(device, handle), BFC_OK, "{}", last_error());
            if handle != PER_THREAD {
                gpu.destroy_stream(handle);
            }
        }
    }

    fn step(&mut self) {
        let (handle, _) = self.streams[self.random.index(2)];
        self.shared.gpu.step(handle, self.random.between(1, 8));
    }

    fn allocate(&mut self) {
        let (gpu, stream) = (self.shared.gpu, self.random.index(2));
        let (handle, name) = self.streams[stream];
        let bytes = self.random.between(1, 4000);
        let address = match alloc_async(self.shared.device, bytes as usize, handle) {
            Ok(address) => address,
            Err(status) => return assert_eq!(status, BFC_ERROR_OUT_OF_MEMORY, "{}", last_error()),
        };
        let bytes = rounded(bytes);
        let (entry, deed) = {
            let mut shadow = self.shared.shadow.lock().unwrap();
            let entry = shadow.allocated(address, bytes, name, 0);
            let deed = shadow.queued(address, bytes, name, entry.number);
            (entry, deed)
        };
        let (number, waits, pattern) = (entry.number, entry.is_awaiting(), self.random.bits());
        entry.look(gpu, handle);
        gpu.fill(handle, address, bytes, pattern);
        shadow::mark(gpu, handle, deed);
        self.chunks.push(Chunk { address, bytes, pattern, number, stream, event: 0 });
        if waits {
            gpu.step(handle, 1000);
        }
    }

    /// Captures work on memory of a private pool, and launches it once. Other threads' calls meanwhile break no capture
    /// that is announced.
    fn capture(&mut self) {
        const MODES: [CUstreamCaptureMode; 3] = [
            CU_STREAM_CAPTURE_MODE_GLOBAL,
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CU_STREAM_CAPTURE_MODE_RELAXED,
        ];
        let (Shared { gpu, device, shadow, .. }, (handle, name)) = (self.shared, self.streams[0]);
        let (gpu, device, mode) = (*gpu, *device, MODES[self.random.index(3)]);
        self.names += 1;
        assert_eq!(bfc_pool_begin(device, self.names, pointer(handle)), BFC_OK, "{}", last_error());
        gpu.begin_capture_in(handle, mode);
        let mut chunks = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            if let Ok(address) = alloc_async(device, 512, handle) {
                gpu.fill(handle, address, 512, 7);
                let entry = shadow.lock().unwrap().allocated(address, 512, name, 0);
                chunks.push((address, entry));
            }
            std::thread::yield_now();
        }
        let graph = match gpu.try_end_capture(handle) {
            Ok(graph) => graph,
            Err(code) => panic!("the capture is broken, mode {mode}: {code}"),
        };
        assert_eq!(bfc_pool_end(device, self.names, pointer(handle)), BFC_OK, "{}", last_error());
        let addresses: Vec<(u64, u64)> =
            chunks.iter().map(|(address, entry)| (*address, entry.number)).collect();
        chunks.into_iter().for_each(|(_, entry)| entry.look(gpu, handle));
        gpu.launch(graph, handle);
        for (address, number) in addresses {
            let deed = shadow.lock().unwrap().queued(address, 512, name, number);
            shadow::mark(gpu, handle, deed);
            assert_eq!(free_async(device, address, handle), BFC_OK, "{}", last_error());
        }
        gpu.destroy_graph(graph);
        assert_eq!(bfc_pool_release(device, self.names), BFC_OK, "{}", last_error());
    }

    fn read(&self, chunk: &Chunk, stream: usize) {
        let (gpu, (handle, name)) = (self.shared.gpu, self.streams[stream]);
        let &Chunk { address, bytes, pattern, number, .. } = chunk;
        let deed = self.shared.shadow.lock().unwrap().queued(address, bytes, name, number);
        gpu.expect(handle, address, bytes, pattern);
        shadow::mark(gpu, handle, deed);
    }

    fn some_chunk(&mut self) -> Option<Chunk> {
        let place = (!self.chunks.is_empty()).then(|| self.random.index(self.chunks.len()))?;
        Some(self.chunks.swap_remove(place))
    }

    fn free(&mut self) {
        let Some(chunk) = self.some_chunk() else { return };
        self.read(&chunk, chunk.stream);
        let status = free_async(self.shared.device, chunk.address, self.streams[chunk.stream].0);
        assert_eq!(status, BFC_OK, "{}", last_error());
    }

    fn hand_over(&mut self) {
        let Some(mut chunk) = self.some_chunk() else { return };
        chunk.event = self.shared.gpu.recorded(self.streams[chunk.stream].0);
        self.shared.handed_over.lock().unwrap().push(chunk);
    }

    /// Takes over another thread's chunk: read, recorded or not, and freed here.
    fn take_over(&mut self) {
        let Some(mut chunk) = self.shared.handed_over.lock().unwrap().pop() else { return };
        chunk.stream = self.random.index(2);
        let (gpu, handle) = (self.shared.gpu, self.streams[chunk.stream].0);
        gpu.wait(handle, chunk.event);
        gpu.destroy_event(chunk.event);
        self.read(&chunk, chunk.stream);
        if self.random.one_in(2) {
            assert_eq!(record_stream(self.shared.device, chunk.address, handle), BFC_OK, "{}", last_error());
        }
        self.chunks.push(chunk);
    }
}
