//! Programs of one pool on the simulated driver that record failures and continue, and the conditions that must hold
//! when each call of the driver is made to fail, one after the other.

use super::gpu::{Gpu, PER_THREAD};
use super::simcuda::simulated;
use super::simcuda::steer::{
    ALLOCATIONS, CONTEXTS, EVENTS, GRAPHS, MAPPINGS, PHYSICAL, RESERVATIONS, RETAINS, STREAMS,
};
use super::*;
use cuda_sys::*;

/// The environment of the programs.
#[derive(Clone, Copy)]
pub struct Kind {
    pub backend: u32,
    /// The unit of the programs' sizes.
    pub unit: u64,
    /// The maximum number of bytes that a kernel fills at the beginning and end of a chunk.
    pub filled: u64,
    pub programs: &'static [(&'static str, Work)],
}

/// A chunk with a pattern in it.
#[derive(Clone, Copy)]
pub struct Chunk {
    address: u64,
    bytes: u64,
}

impl Chunk {
    /// The filled parts, which are the whole chunk if it has at most `most` bytes.
    fn ends(self, most: u64) -> [(u64, u64); 2] {
        let bytes = most.min(self.bytes / 2);
        [(self.address, bytes), (self.address + self.bytes - bytes, bytes)]
    }
}

/// A program that records failures and continues.
pub struct Program {
    gpu: Gpu,
    pub pool: Option<Pool>,
    /// Created before calls may fail, and held.
    pub streams: [u64; 3],
    kind: Kind,
    /// The driver has reported that it is shut down: then all memory is gone, and the device's usage proves nothing.
    is_down: bool,
    failed: Vec<Status>,
}

impl Program {
    /// Created before any failure is injected.
    fn new(gpu: Gpu, kind: Kind, is_down: bool) -> Program {
        gpu.enter(0);
        let streams = [false, false, true].map(|blocking| gpu.stream(blocking));
        streams.iter().for_each(|&stream| gpu.hold(stream));
        Program { gpu: gpu.lenient(), pool: None, streams, kind, is_down, failed: Vec::new() }
    }

    /// Creates a pool with a limit of this many units.
    pub fn create(&mut self, units: u64, flags: u32) {
        let mut wanted = options();
        let Kind { backend, unit, .. } = self.kind;
        (wanted.backend, wanted.flags, wanted.memory_limit) = (backend, flags, units * unit);
        wanted.initial_region_bytes = 8 * unit;
        match Pool::create(0, &wanted, None) {
            Ok(pool) => self.pool = Some(pool),
            Err(status) => self.note(status),
        }
    }

    #[track_caller]
    fn note(&mut self, status: Status) {
        if status != BFC_OK {
            assert!(!last_error().is_empty());
            self.failed.push(status);
        }
        if let Some(pool) = &self.pool {
            pool.check();
            let (used, limit) = (self.gpu.sim.used(0), pool.stats().bytes_limit);
            // cuMemAlloc rounds up, which the pool's statistics do not include.
            let tells = self.kind.backend == BFC_BACKEND_CUDA_VMM && !self.is_down;
            assert!(used <= limit || !tells, "{used} bytes of the device for a limit of {limit}");
        }
    }

    /// Allocates this many units, and lets a kernel fill the chunk.
    #[track_caller]
    pub fn get(&mut self, stream: u64, units: u64) -> Option<Chunk> {
        let bytes = units * self.kind.unit;
        let got = self.pool.as_ref()?.alloc_on(bytes, stream);
        self.note(got.err().unwrap_or(BFC_OK));
        let address = got.ok()?;
        let chunk = Chunk { address, bytes };
        for (at, bytes) in chunk.ends(self.kind.filled) {
            self.gpu.fill(stream, at, bytes, address);
        }
        Some(chunk)
    }

    /// Lets a kernel read the chunk on a stream, and frees it there.
    #[track_caller]
    pub fn put(&mut self, stream: u64, chunk: Option<Chunk>) {
        let (Some(chunk), Some(pool)) = (chunk, &self.pool) else { return };
        let address = chunk.address;
        for (at, bytes) in chunk.ends(self.kind.filled) {
            self.gpu.expect(stream, at, bytes, address);
        }
        // Everything it needs exists, so it succeeds whatever the driver returns.
        assert_eq!(pool.free_on(address, stream), BFC_OK, "{}", last_error());
        self.note(BFC_OK);
    }

    pub fn call(&mut self, work: impl FnOnce(&Pool) -> Status) {
        if let Some(pool) = &self.pool {
            let status = work(pool);
            self.note(status);
        }
    }

    pub fn trim(&mut self) {
        self.call(|pool| pool.try_trim(0).err().unwrap_or(BFC_OK));
    }

    /// Uses a chunk on another stream.
    pub fn lend(&mut self, chunk: Option<Chunk>, from: u64, to: u64) {
        let Some(chunk) = chunk else { return };
        let address = chunk.address;
        self.gpu.order(from, to);
        for (at, bytes) in chunk.ends(self.kind.filled) {
            self.gpu.expect(to, at, bytes, address);
        }
        self.call(|pool| pool.record(address, to));
    }
}

/// Creation, growth, plain calls, trim.
fn growth(program: &mut Program) {
    program.create(512, GROWING);
    let mut live = Vec::new();
    let unit = program.kind.unit;
    for bytes in [4 * unit, 12 * unit, 256, 100 * unit, 60 * unit, 90 * unit] {
        let Some(pool) = &program.pool else { return };
        let got = pool.alloc(bytes);
        live.extend(got.ok());
        program.note(got.err().unwrap_or(BFC_OK));
        if live.len() == 3 {
            live.drain(..2).for_each(|address| program.pool.as_ref().expect("there").put(address));
            program.trim();
        }
    }
    live.into_iter().for_each(|address| program.pool.as_ref().expect("there").put(address));
    program.trim();
}

/// Frees on streams whose work is held, from which others are served: after events complete, by waiting for events, by
/// a synchronization.
fn streams(program: &mut Program) {
    let [a, b, c] = program.streams;
    program.create(40, GROWING);
    let first = program.get(a, 4);
    let second = program.get(b, 8);
    program.lend(first, a, b);
    program.put(a, first);
    program.put(b, second);
    // Growth, then the memory that a has freed and b has read, ordered after both.
    let third = program.get(c, 12);
    let fourth = program.get(c, 4);
    program.gpu.step(b, 5);
    let fifth = program.get(a, 8);
    program.put(c, third);
    program.put(c, fourth);
    // No stream itself waits.
    if let Some(pool) = &program.pool {
        let bytes = 12 * program.kind.unit;
        let got = pool.alloc(bytes);
        if let Ok(address) = got {
            program.gpu.fill(c, address, bytes, 1);
            program.gpu.expect(c, address, bytes, 1);
            program.gpu.synchronize(c);
            pool.put(address);
        }
        program.note(got.err().unwrap_or(BFC_OK));
    }
    program.put(a, fifth);
    let whole = program.get(b, 30);
    program.put(b, whole);
    program.trim();
}

/// A stream that ends with its work queued, and the default stream of a thread.
fn ends(program: &mut Program) {
    let [a, b, _] = program.streams;
    program.create(16, BFC_ALLOW_GROWTH);
    program.gpu.hold(PER_THREAD);
    let first = program.get(b, 6);
    let second = program.get(b, 2);
    program.put(b, first);
    program.gpu.order(b, a);
    program.call(|pool| pool.try_forget(b));
    program.gpu.destroy_stream(b);
    program.streams[1] = 0;
    let own = program.get(PER_THREAD, 4);
    program.put(a, second);
    program.put(PER_THREAD, own);
    let third = program.get(a, 8);
    program.put(a, third);
    let fourth = program.get(PER_THREAD, 8);
    program.put(PER_THREAD, fourth);
    program.call(|pool| pool.try_forget(PER_THREAD));
    program.call(|pool| pool.try_forget(a));
}

/// A captured graph in a private pool, launched while other work continues.
fn private(program: &mut Program) {
    let [a, b, _] = program.streams;
    program.create(64, GROWING);
    let before = program.get(b, 4);
    program.put(b, before);
    let mut begun = false;
    program.call(|pool| {
        let status = pool.begin_private(7, a);
        begun = status == BFC_OK;
        status
    });
    if !begun {
        return;
    }
    program.gpu.begin_capture(a);
    let inside = program.get(a, 4);
    let other = program.get(b, 4);
    let kept = program.get(a, 8);
    program.put(a, inside);
    let again = program.get(a, 2);
    program.put(a, again);
    program.put(b, other);
    let graph = program.gpu.try_end_capture(a);
    program.call(|pool| pool.end_private(7, a));
    for _ in 0..2 {
        if let Ok(graph) = graph {
            program.gpu.launch(graph, a);
        }
        let large = program.get(b, 16);
        program.put(b, large);
    }
    if let Ok(graph) = graph {
        program.gpu.destroy_graph(graph);
    }
    program.put(a, kept);
    program.call(|pool| pool.release_private(7));
    let whole = program.get(b, 60);
    program.put(b, whole);
    program.trim();
}

/// One program.
pub type Work = fn(&mut Program);

/// The programs for every backend.
pub const PROGRAMS: [(&str, Work); 4] =
    [("growth", growth), ("streams", streams), ("ends", ends), ("private", private)];

/// The remains of a run, with the program's own context still existing.
fn left(gpu: Gpu) -> [u64; 5] {
    [ALLOCATIONS, EVENTS, PHYSICAL, MAPPINGS, RESERVATIONS].map(|kind| gpu.sim.live(kind))
}

/// Runs a program while the nth call fails with a code. Returns the failures, and whether there was such a call.
fn run(gpu: Gpu, kind: Kind, work: Work, nth: u64, code: CUresult) -> (Vec<Status>, bool) {
    let sim = gpu.sim;
    assert_eq!(sim.configure(1, 1 << 30), 0);
    let gpu = Gpu::new(sim);
    let mut program = Program::new(gpu, kind, code == CUDA_ERROR_DEINITIALIZED);
    if nth != 0 {
        sim.fail(None, nth, code);
    }
    work(&mut program);
    let in_time = sim.struck() != 0;
    if let Some(pool) = program.pool.take() {
        pool.check();
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
    }
    let struck = sim.struck() != 0;
    sim.clear_faults();
    // At the very end one resource may be lost with the call that would have released it, and everything that is
    // released after the driver reports that it is shut down, or that no call works.
    let left = left(program.gpu);
    let is_sticky = code == CUDA_ERROR_ILLEGAL_ADDRESS;
    let may_be_lost = match code {
        _ if !struck => 0,
        CUDA_ERROR_ILLEGAL_ADDRESS => u64::MAX,
        CUDA_ERROR_DEINITIALIZED => 1,
        _ => u64::from(!in_time),
    };
    assert!(
        left.iter().sum::<u64>() <= may_be_lost,
        "allocations, events, physical memory, mappings, ranges: {left:?} are lost:\n{}",
        sim.log_text()
    );
    sim.release_all();
    for stream in program.streams.into_iter().filter(|&stream| stream != 0) {
        program.gpu.destroy_stream(stream);
    }
    program.gpu.leave(0);
    let kinds = [CONTEXTS, STREAMS, EVENTS, ALLOCATIONS, GRAPHS, RETAINS];
    let after = kinds.map(|kind| sim.live(kind));
    // The context remains only if it could not be released, with the resources lost in it.
    let failed = |line: &str| line.contains("PrimaryCtxRelease") && !line.ends_with("= 0");
    let unreleased = || sim.log_text().lines().any(failed);
    assert!(
        after == [0; 6] || struck && after[5] <= 1 && unreleased(),
        "{after:?} are left:\n{}",
        sim.log_text()
    );
    // After a sticky error no work is done, so nothing is read.
    let words = sim.misuse_texts();
    assert!(words.is_empty() || is_sticky && struck, "{words:#?}\n{}", sim.log_text());
    (program.failed, struck)
}

/// Without failures every program completes.
#[track_caller]
pub fn nothing_fails(test: &str, kind: Kind) {
    simulated(test, |sim| {
        for (name, work) in kind.programs {
            assert_eq!(run(Gpu::new(sim), kind, *work, 0, CUDA_SUCCESS), (vec![], false), "{name}");
        }
    });
}

/// One test for each code: they run in processes of their own.
#[track_caller]
pub fn every_call_fails(test: &str, kind: Kind, code: CUresult, answers: &[Status]) {
    simulated(test, |sim| {
        for (name, work) in kind.programs {
            let (mut nth, mut noticed) = (1, 0);
            loop {
                let (failed, struck) = run(Gpu::new(sim), kind, *work, nth, code);
                if !struck {
                    break;
                }
                let wrong = failed.iter().find(|status| !answers.contains(status));
                assert_eq!(wrong, None, "{name}, call {nth}, code {code}: {failed:?}, {}", last_error());
                noticed += u64::from(!failed.is_empty());
                nth += 1;
            }
            println!("{name}: {} calls made to fail with {code}, {noticed} were noticed", nth - 1);
            assert!(nth > 40 && noticed > 5, "{name}: {nth} calls, {noticed} noticed");
        }
    });
}

/// Defines the tests of a kind: each call of the driver fails, with each of these codes.
#[macro_export]
macro_rules! every_call_fails {
    ($kind:expr) => {
        #[test]
        fn nothing_fails_by_itself() {
            nothing_fails("nothing_fails_by_itself", $kind);
        }

        #[test]
        fn every_call_is_out_of_memory() {
            let answers = [BFC_ERROR_OUT_OF_MEMORY, BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE];
            every_call_fails("every_call_is_out_of_memory", $kind, CUDA_ERROR_OUT_OF_MEMORY, &answers);
        }

        #[test]
        fn every_call_fails_for_no_known_reason() {
            let answers = [BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_OUT_OF_MEMORY];
            every_call_fails("every_call_fails_for_no_known_reason", $kind, CUDA_ERROR_UNKNOWN, &answers);
        }

        /// Sticky: from then on everything in the context fails.
        #[test]
        fn every_call_finds_the_context_broken() {
            let answers = [BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_OUT_OF_MEMORY];
            every_call_fails(
                "every_call_finds_the_context_broken",
                $kind,
                CUDA_ERROR_ILLEGAL_ADDRESS,
                &answers,
            );
        }

        #[test]
        fn every_call_finds_the_driver_down() {
            let answers = [BFC_ERROR_SHUTTING_DOWN, BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE];
            every_call_fails("every_call_finds_the_driver_down", $kind, CUDA_ERROR_DEINITIALIZED, &answers);
        }
    };
}
