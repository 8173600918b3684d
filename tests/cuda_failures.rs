//! Every call of the (simulated) driver made to fail, one after the other, in programs that use everything there is:
//! the library says so or serves otherwise, hands out nothing too early, loses nothing, and its books are right.

mod common;

use common::gpu::{Gpu, LEGACY, PER_THREAD};
use common::simcuda::steer::{ALLOCATIONS, CONTEXTS, EVENTS, GRAPHS, RETAINS, STREAMS};
use common::simcuda::{simulated, simulated_with};
use common::*;
use cuda_sys::*;

const KIB: u64 = 1 << 10;

/// A chunk with a pattern in it.
#[derive(Clone, Copy)]
struct Chunk {
    address: u64,
    bytes: u64,
}

/// A program that notes what fails and goes on.
struct Program {
    gpu: Gpu,
    pool: Option<Pool>,
    /// Created before anything may fail, and held.
    streams: [u64; 3],
    failed: Vec<Status>,
}

impl Program {
    /// Before any failure is ordered.
    fn new(gpu: Gpu) -> Program {
        gpu.enter(0);
        let streams = [false, false, true].map(|blocking| gpu.stream(blocking));
        streams.iter().for_each(|&stream| gpu.hold(stream));
        Program { gpu: gpu.lenient(), pool: None, streams, failed: Vec::new() }
    }

    fn create(&mut self, limit: u64, flags: u32) {
        let mut wanted = options();
        (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_CUDA, flags, limit);
        wanted.initial_region_bytes = 8 * KIB;
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
        }
    }

    /// Allocates, and has a kernel fill the chunk.
    #[track_caller]
    fn get(&mut self, stream: u64, bytes: u64) -> Option<Chunk> {
        let got = self.pool.as_ref()?.alloc_on(bytes, stream);
        self.note(got.err().unwrap_or(BFC_OK));
        let address = got.ok()?;
        self.gpu.fill(stream, address, bytes, address);
        Some(Chunk { address, bytes })
    }

    /// Has a kernel read the chunk on a stream, and frees it there.
    #[track_caller]
    fn put(&mut self, stream: u64, chunk: Option<Chunk>) {
        let (Some(Chunk { address, bytes }), Some(pool)) = (chunk, &self.pool) else { return };
        self.gpu.expect(stream, address, bytes, address);
        // What it needs is there, so it succeeds whatever the driver says.
        assert_eq!(pool.free_on(address, stream), BFC_OK, "{}", last_error());
        self.note(BFC_OK);
    }

    fn call(&mut self, work: impl FnOnce(&Pool) -> Status) {
        if let Some(pool) = &self.pool {
            let status = work(pool);
            self.note(status);
        }
    }

    fn trim(&mut self) {
        self.call(|pool| pool.try_trim(0).err().unwrap_or(BFC_OK));
    }

    /// What another stream does with a chunk.
    fn lend(&mut self, chunk: Option<Chunk>, from: u64, to: u64) {
        let Some(Chunk { address, bytes }) = chunk else { return };
        self.gpu.order(from, to);
        self.gpu.expect(to, address, bytes, address);
        self.call(|pool| pool.record(address, to));
    }
}

const GROWING: u32 = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;

/// Creation, growth, plain calls, trim.
fn growth(program: &mut Program) {
    program.create(512 * KIB, GROWING);
    let mut live = Vec::new();
    for bytes in [4 * KIB, 12 * KIB, 256, 100 * KIB, 60 * KIB, 90 * KIB] {
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

/// Frees on streams whose work is held, from which others are served: by events, behind them, by a synchronisation.
fn streams(program: &mut Program) {
    let [a, b, c] = program.streams;
    program.create(40 * KIB, GROWING);
    let first = program.get(a, 4 * KIB);
    let second = program.get(b, 8 * KIB);
    program.lend(first, a, b);
    program.put(a, first);
    program.put(b, second);
    // Growth, then what a has freed and b has read, behind both.
    let third = program.get(c, 12 * KIB);
    let fourth = program.get(c, 4 * KIB);
    program.gpu.step(b, 3);
    let fifth = program.get(a, 8 * KIB);
    program.put(c, third);
    program.put(c, fourth);
    // Nobody's stream waits itself.
    if let Some(pool) = &program.pool {
        let got = pool.alloc(12 * KIB);
        if let Ok(address) = got {
            program.gpu.fill(c, address, 12 * KIB, 1);
            program.gpu.expect(c, address, 12 * KIB, 1);
            program.gpu.synchronize(c);
            pool.put(address);
        }
        program.note(got.err().unwrap_or(BFC_OK));
    }
    program.put(a, fifth);
    let whole = program.get(b, 30 * KIB);
    program.put(b, whole);
    program.trim();
}

/// A stream that ends with its work queued, and the default stream of a thread.
fn ends(program: &mut Program) {
    let [a, b, _] = program.streams;
    program.create(16 * KIB, BFC_ALLOW_GROWTH);
    program.gpu.hold(PER_THREAD);
    let first = program.get(b, 6 * KIB);
    let second = program.get(b, 2 * KIB);
    program.put(b, first);
    program.gpu.order(b, a);
    program.call(|pool| pool.try_forget(b));
    program.gpu.destroy_stream(b);
    program.streams[1] = 0;
    let own = program.get(PER_THREAD, 4 * KIB);
    program.put(a, second);
    program.put(PER_THREAD, own);
    let third = program.get(a, 8 * KIB);
    program.put(a, third);
    let fourth = program.get(PER_THREAD, 8 * KIB);
    program.put(PER_THREAD, fourth);
    program.call(|pool| pool.try_forget(PER_THREAD));
    program.call(|pool| pool.try_forget(a));
}

/// A captured graph in a private pool, launched while others go on.
fn private(program: &mut Program) {
    let [a, b, _] = program.streams;
    program.create(64 * KIB, GROWING);
    let before = program.get(b, 4 * KIB);
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
    let inside = program.get(a, 4 * KIB);
    let other = program.get(b, 4 * KIB);
    let kept = program.get(a, 8 * KIB);
    program.put(a, inside);
    let again = program.get(a, 2 * KIB);
    program.put(a, again);
    program.put(b, other);
    let graph = program.gpu.try_end_capture(a);
    program.call(|pool| pool.end_private(7, a));
    for _ in 0..2 {
        if let Ok(graph) = graph {
            program.gpu.launch(graph, a);
        }
        let large = program.get(b, 16 * KIB);
        program.put(b, large);
    }
    if let Ok(graph) = graph {
        program.gpu.destroy_graph(graph);
    }
    program.put(a, kept);
    program.call(|pool| pool.release_private(7));
    let whole = program.get(b, 60 * KIB);
    program.put(b, whole);
    program.trim();
}

type Work = fn(&mut Program);

const PROGRAMS: [(&str, Work); 4] =
    [("growth", growth), ("streams", streams), ("ends", ends), ("private", private)];

/// What a run has left, with the program's own context still there.
fn left(gpu: Gpu) -> [u64; 2] {
    [ALLOCATIONS, EVENTS].map(|kind| gpu.sim.live(kind))
}

/// Runs a program while the nth call fails with a code. Gives what failed, and whether there was such a call.
fn run(gpu: Gpu, work: Work, nth: u64, code: CUresult) -> (Vec<Status>, bool) {
    let sim = gpu.sim;
    assert_eq!(sim.configure(1, 1 << 30), 0);
    let gpu = Gpu::new(sim);
    let mut program = Program::new(gpu);
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
    // At the very end one thing may be lost with the call that would have given it back; and whatever goes back
    // when the driver says that it is down, or that nothing works any more.
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
        "{left:?} allocations and events are lost:\n{}",
        sim.log_text()
    );
    sim.release_all();
    for stream in program.streams.into_iter().filter(|&stream| stream != 0) {
        program.gpu.destroy_stream(stream);
    }
    program.gpu.leave(0);
    let kinds = [CONTEXTS, STREAMS, EVENTS, ALLOCATIONS, GRAPHS, RETAINS];
    let after = kinds.map(|kind| sim.live(kind));
    // Only where the context itself could not be released it is left, with what was lost in it.
    let failed = |line: &str| line.contains("PrimaryCtxRelease") && !line.ends_with("= 0");
    let unreleased = || sim.log_text().lines().any(failed);
    assert!(
        after == [0; 6] || struck && after[5] <= 1 && unreleased(),
        "{after:?} are left:\n{}",
        sim.log_text()
    );
    // After an error that sticks nothing is done any more, and so nothing is read.
    let words = sim.misuse_texts();
    assert!(words.is_empty() || is_sticky && struck, "{words:#?}\n{}", sim.log_text());
    (program.failed, struck)
}

#[test]
fn nothing_fails_by_itself() {
    simulated("nothing_fails_by_itself", |sim| {
        for (name, work) in PROGRAMS {
            assert_eq!(run(Gpu::new(sim), work, 0, CUDA_SUCCESS), (vec![], false), "{name}");
        }
    });
}

/// One test for each code: they run in processes of their own.
fn every_call_fails(test: &str, code: CUresult, answers: &[Status]) {
    simulated(test, |sim| {
        for (name, work) in PROGRAMS {
            let (mut nth, mut noticed) = (1, 0);
            loop {
                let (failed, struck) = run(Gpu::new(sim), work, nth, code);
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

#[test]
fn every_call_is_out_of_memory() {
    let answers = [BFC_ERROR_OUT_OF_MEMORY, BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE];
    every_call_fails("every_call_is_out_of_memory", CUDA_ERROR_OUT_OF_MEMORY, &answers);
}

#[test]
fn every_call_fails_for_no_known_reason() {
    let answers = [BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_OUT_OF_MEMORY];
    every_call_fails("every_call_fails_for_no_known_reason", CUDA_ERROR_UNKNOWN, &answers);
}

/// From then on everything in the context fails.
#[test]
fn every_call_finds_the_context_broken() {
    let answers = [BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_OUT_OF_MEMORY];
    every_call_fails("every_call_finds_the_context_broken", CUDA_ERROR_ILLEGAL_ADDRESS, &answers);
}

#[test]
fn every_call_finds_the_driver_down() {
    let answers = [BFC_ERROR_SHUTTING_DOWN, BFC_ERROR_BACKEND_FAILED, BFC_ERROR_BACKEND_UNAVAILABLE];
    every_call_fails("every_call_finds_the_driver_down", CUDA_ERROR_DEINITIALIZED, &answers);
}

#[track_caller]
fn growing(limit: u64) -> Pool {
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_CUDA, limit);
    wanted.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
    wanted.initial_region_bytes = 64 * KIB;
    Pool::create(0, &wanted, None).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
}

/// What others have freed is looked at to save memory; where that fails, there is the memory that is not saved.
#[test]
fn a_failing_look_at_others_fails_no_request_that_growth_serves() {
    simulated("a_failing_look_at_others_fails_no_request_that_growth_serves", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let streams = [gpu.stream(false), gpu.stream(false), gpu.stream(false)];
        for (nth, call) in [
            (1, "cuStreamIsCapturing"),
            (2, "cuStreamIsCapturing"),
            (3, "cuStreamIsCapturing"),
            (1, "cuEventCreate"),
            (1, "cuEventRecord"),
            (1, "cuEventQuery"),
        ] {
            let pool = growing(GIB);
            let [a, b, c] = streams;
            for stream in [a, c] {
                gpu.hold(stream);
                let chunk = pool.get_on(30 * KIB, stream);
                gpu.fill(stream, chunk, 30 * KIB, 1);
                pool.put_on(chunk, stream);
            }
            assert_eq!(pool.free(12345), BFC_ERROR_INVALID_POINTER);
            let before = last_error();
            sim.fail(Some(call), nth, CUDA_ERROR_UNKNOWN);
            let got = pool.alloc_on(MIB, b);
            assert!(got.is_ok(), "{nth} {call}: {got:?}, {}", last_error());
            assert_eq!(last_error(), before, "{nth} {call}: a success leaves the last error");
            assert_eq!((sim.struck(), pool.stats().num_failures), (1, 0), "{nth} {call}");
            sim.clear_faults();
            sim.release_all();
            pool.check();
        }
        streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// But where nothing else serves it, the request fails for what failed.
#[test]
fn a_failing_look_at_others_is_why_a_request_fails_that_nothing_else_serves() {
    simulated("a_failing_look_at_others_is_why_a_request_fails_that_nothing_else_serves", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let (a, b) = (gpu.stream(false), gpu.stream(false));
        let pool = growing(64 * KIB);
        gpu.hold(a);
        let chunk = pool.get_on(60 * KIB, a);
        gpu.fill(a, chunk, 60 * KIB, 1);
        pool.put_on(chunk, a);
        for nth in 1..=3 {
            sim.fail(Some("cuStreamWaitEvent"), nth, CUDA_ERROR_UNKNOWN);
        }
        sim.fail(Some("cuCtxSynchronize"), 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(pool.alloc_on(60 * KIB, b), Err(BFC_ERROR_BACKEND_FAILED));
        assert!(last_error().contains("CUDA_ERROR_UNKNOWN"), "{}", last_error());
        sim.clear_faults();
        assert_eq!(pool.get_on(60 * KIB, b), chunk);
        assert_eq!(pool.stats().num_failures, 1);
        sim.release_all();
        drop(pool);
        [a, b].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// One stream of another device, recorded on one allocation.
#[test]
fn a_foreign_stream_does_not_spoil_the_pool() {
    simulated_with("a_foreign_stream_does_not_spoil_the_pool", &[("SIMCUDA_DEVICES", "2")], |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(1);
        let foreign = gpu.stream(false);
        gpu.enter(0);
        let (a, b) = (gpu.stream(false), gpu.stream(false));
        let pool = growing(GIB);
        let chunk = pool.get_on(60 * KIB, a);
        assert_eq!(pool.record(chunk, foreign), BFC_OK, "{}", last_error());
        pool.put_on(chunk, a);
        for _ in 0..3 {
            pool.get_on(MIB, b);
        }
        pool.check();
    });
}

/// A free that succeeds and a bfc_pool_begin that does say nothing of what the driver failed to do meanwhile.
#[test]
fn a_success_leaves_the_last_error() {
    simulated("a_success_leaves_the_last_error", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let pool = growing(GIB);
        pool.put_on(pool.get_on(10 * KIB, LEGACY), LEGACY);
        let chunk = pool.get_on(10 * KIB, PER_THREAD);
        assert_eq!(pool.free(12345), BFC_ERROR_INVALID_POINTER);
        let before = last_error();
        gpu.hold(PER_THREAD);
        gpu.fill(PER_THREAD, chunk, 10 * KIB, 1);
        sim.fail(Some("cuEventRecord"), 1, CUDA_ERROR_UNKNOWN);
        pool.put_on(chunk, PER_THREAD);
        assert_eq!((sim.struck(), last_error()), (1, before.clone()));
        sim.fail(Some("cuStreamIsCapturing"), 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(pool.begin_private(1, LEGACY), BFC_OK);
        assert_eq!((sim.struck(), last_error()), (2, before));
        sim.clear_faults();
        sim.release_all();
    });
}

/// It is tried once more, for nobody comes back to it.
#[test]
fn a_pool_that_ends_gives_back_what_failed_once() {
    simulated("a_pool_that_ends_gives_back_what_failed_once", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for call in ["cuCtxSynchronize", "cuMemFree_v2", "cuStreamIsCapturing"] {
            let pool = growing(GIB);
            pool.put(pool.get(MIB));
            sim.fail(Some(call), 1, CUDA_ERROR_UNKNOWN);
            assert_eq!(pool.destroy(), BFC_OK, "{call}: {}", last_error());
            assert_eq!(sim.live(ALLOCATIONS), 0, "{call}");
            sim.clear_faults();
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}
