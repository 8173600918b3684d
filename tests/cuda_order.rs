//! Stream order on the simulated driver (a simulation, and no device): which calls of the driver are made, and which
//! are not, in steady states, in captures, with contexts and devices of several kinds, and at the end of the process.

mod common;

use common::gpu::{Gpu, LEGACY, PER_THREAD};
use common::simcuda::steer::{EVENTS, FREE_SYNCHRONIZES};
use common::simcuda::{simulated, simulated_with};
use common::*;
use cuda_sys::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

const KIB: u64 = 1 << 10;

#[track_caller]
fn cuda_pool(device: i32, limit: u64, flags: u32) -> Pool {
    pool_of(BFC_BACKEND_CUDA, device, limit, flags)
}

#[track_caller]
fn pool_of(backend: u32, device: i32, limit: u64, flags: u32) -> Pool {
    let mut wanted = options();
    (wanted.backend, wanted.flags, wanted.memory_limit) = (backend, flags, limit);
    wanted.initial_region_bytes = 64 * KIB;
    Pool::create(device, &wanted, None).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
}

/// Both backends, with a unit for the sizes of a test: where memory is mapped by granules 32 of them are a granule.
const BACKENDS: [(u32, u64); 2] = [(BFC_BACKEND_CUDA, KIB), (BFC_BACKEND_CUDA_VMM, 64 * KIB)];

const GROWING: u32 = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;

/// Allocations and frees of many sizes, of which some live for a while.
fn churn(random: &mut Random, rounds: u64, get: impl Fn(u64) -> u64, put: impl Fn(u64)) {
    let mut live = Vec::new();
    for _ in 0..rounds {
        if live.len() < 20 && random.one_in(2) || live.is_empty() {
            live.push(get(random.between(1, 20_000)));
        } else {
            put(live.swap_remove(random.index(live.len())));
        }
    }
    live.into_iter().for_each(put);
}

#[test]
fn in_a_steady_state_the_driver_is_not_called() {
    simulated("in_a_steady_state_the_driver_is_not_called", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let streams = [None, Some(gpu.stream(false)), Some(LEGACY), Some(0)];
        for (stream, (backend, _)) in streams.into_iter().flat_map(|one| BACKENDS.map(|two| (one, two))) {
            let pool = pool_of(backend, 0, GIB, GROWING);
            let get = |bytes| stream.map_or_else(|| pool.get(bytes), |stream| pool.get_on(bytes, stream));
            let put =
                |address| stream.map_or_else(|| pool.put(address), |stream| pool.put_on(address, stream));
            // Enough for all that will live at a time.
            put(get(MIB));
            sim.hold(pointer(stream.unwrap_or(LEGACY)));
            sim.clear_log();
            churn(&mut Random::new(1), 5000, get, put);
            assert_eq!(sim.all_calls(), 0, "{stream:x?}:\n{}", sim.log_text());
            sim.release_all();
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Also where others have been, as long as what the stream itself has freed is enough for it.
#[test]
fn nor_in_one_where_others_have_been() {
    simulated("nor_in_one_where_others_have_been", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, _) in BACKENDS {
            let pool = pool_of(backend, 0, GIB, GROWING);
            let streams = [gpu.stream(false), gpu.stream(false), gpu.stream(true)];
            let large: Vec<u64> = streams.iter().map(|&stream| pool.get_on(MIB, stream)).collect();
            for (&stream, address) in streams.iter().zip(large) {
                gpu.hold(stream);
                gpu.fill(stream, address, MIB, 1);
                pool.put_on(address, stream);
            }
            sim.clear_log();
            for (seed, &stream) in streams.iter().enumerate() {
                let (get, put) = (|bytes| pool.get_on(bytes, stream), |address| pool.put_on(address, stream));
                churn(&mut Random::new(seed as u64), 2000, get, put);
            }
            assert_eq!(sim.all_calls(), 0, "{}", sim.log_text());
            assert_eq!(sim.live(EVENTS), 0, "nobody has waited for anybody");
            drop(pool);
            sim.release_all();
            streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// The context is entered once for all that a step has to ask, and not for each question.
#[test]
fn a_request_behind_four_streams_enters_the_context_a_few_times() {
    simulated("a_request_behind_four_streams_enters_the_context_a_few_times", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let pool = cuda_pool(0, 64 * KIB, GROWING);
        let streams = [(); 5].map(|()| gpu.stream(false));
        for &stream in &streams[1..] {
            gpu.hold(stream);
            let chunk = pool.get_on(10 * KIB, stream);
            gpu.fill(stream, chunk, 10 * KIB, 1);
            pool.put_on(chunk, stream);
        }
        // As it is for a thread that uses another device.
        gpu.set_current(0);
        sim.clear_log();
        pool.get_on(40 * KIB, streams[0]);
        assert_eq!(sim.calls("cuEventRecord"), 4, "{}", sim.log_text());
        assert_eq!(sim.calls("cuStreamWaitEvent"), 4, "{}", sim.log_text());
        let entered = ["cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuCtxGetId"].map(|call| sim.calls(call));
        assert!(entered.iter().all(|&times| times <= 4), "{entered:?}:\n{}", sim.log_text());
        gpu.set_current(context);
        sim.release_all();
        drop(pool);
        streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// What a pool needs events, waits and synchronisations for.
fn all_kinds_of_order(gpu: Gpu, pool: &Pool, [a, b]: [u64; 2]) {
    [a, b].into_iter().for_each(|stream| gpu.hold(stream));
    let whole = 64 * KIB;
    for round in 0..3 {
        let chunk = pool.get_on(whole, a);
        gpu.fill(a, chunk, whole, round);
        if round == 1 {
            gpu.order(a, b);
            assert_eq!(pool.record(chunk, b), BFC_OK);
            gpu.expect(b, chunk, whole, round);
        }
        pool.put_on(chunk, a);
        // Behind a, and then without any stream at all.
        let chunk = pool.get_on(whole, b);
        gpu.fill(b, chunk, whole, !round);
        gpu.expect(b, chunk, whole, !round);
        pool.put_on(chunk, b);
        let chunk = pool.get(whole);
        gpu.fill(a, chunk, whole, round);
        gpu.expect(a, chunk, whole, round);
        pool.put_on(chunk, a);
    }
    pool.forget(a);
    pool.check();
}

#[test]
fn whatever_context_is_current_stays_so() {
    simulated_with("whatever_context_is_current_stays_so", &[("SIMCUDA_DEVICES", "2")], |sim| {
        let gpu = Gpu::new(sim);
        let (primary, elsewhere) = (gpu.enter(0), gpu.enter(1));
        gpu.set_current(0);
        let own = gpu.own_context(1);
        for current in [0, own, elsewhere, primary] {
            // Streams are the primary context's of device 0, whatever is current where they are used.
            gpu.set_current(primary);
            let streams = [gpu.stream(false), gpu.stream(false)];
            gpu.set_current(current);
            let pool = cuda_pool(0, 64 * KIB, BFC_ALLOW_GROWTH);
            let kept = |what: &str| assert_eq!(gpu.current(), current, "{what}");
            kept("creation");
            streams.iter().for_each(|&stream| gpu.hold(stream));
            let [a, b] = streams;
            for _ in 0..2 {
                let chunk = pool.get_on(64 * KIB, a);
                gpu.fill(a, chunk, 64 * KIB, 1);
                pool.put_on(chunk, a);
                let chunk = pool.get_on(64 * KIB, b);
                kept("behind another stream");
                gpu.fill(b, chunk, 64 * KIB, 2);
                pool.put_on(chunk, b);
                pool.put_on(pool.get(64 * KIB), a);
                kept("waiting for a stream");
            }
            assert_eq!(pool.alloc_on(128 * KIB, b), Err(BFC_ERROR_OUT_OF_MEMORY));
            kept("a failure");
            pool.forget(a);
            kept("a stream's end");
            pool.trim(0);
            kept("a trim");
            drop(pool);
            kept("the end");
            gpu.set_current(primary);
            streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
            gpu.set_current(0);
        }
        gpu.destroy_context(own);
        (0..2).for_each(|device| gpu.leave(device));
        sim.assert_clean();
    });
}

/// Default streams are those of the pool's device, whatever device is current.
#[test]
fn each_device_has_its_own_order() {
    simulated_with("each_device_has_its_own_order", &[("SIMCUDA_DEVICES", "3")], |sim| {
        let gpu = Gpu::new(sim);
        let contexts = [0, 1, 2].map(|device| gpu.enter(device));
        let pools = [0, 1, 2].map(|device| cuda_pool(device, 64 * KIB, BFC_ALLOW_GROWTH));
        for (device, pool) in pools.iter().enumerate() {
            gpu.set_current(contexts[device]);
            let other = gpu.stream(false);
            for default in [LEGACY, PER_THREAD] {
                gpu.set_current(contexts[device]);
                [default, other].into_iter().for_each(|stream| gpu.hold(stream));
                let chunk = pool.get_on(64 * KIB, default);
                gpu.fill(default, chunk, 64 * KIB, 1);
                gpu.expect(default, chunk, 64 * KIB, 1);
                // From elsewhere.
                gpu.set_current(contexts[(device + 1) % 3]);
                pool.put_on(chunk, default);
                assert_eq!(pool.get_on(64 * KIB, other), chunk);
                gpu.fill(other, chunk, 64 * KIB, 2);
                gpu.step(other, 100);
                assert!(gpu.pending(other) > 0, "the {default:#x} of device {device} has not done its work");
                gpu.set_current(contexts[device]);
                assert!(gpu.step(default, 100) > 0);
                assert!(gpu.step(other, 100) > 0);
                pool.put_on(chunk, other);
                sim.release_all();
                gpu.synchronize(other);
            }
            all_kinds_of_order(gpu, pool, [gpu.stream(false), other]);
            sim.release_all();
        }
        assert_eq!(sim.mismatches(), 0);
        drop(pools);
        (0..3).for_each(|device| gpu.leave(device));
        sim.assert_clean();
    });
}

/// What may not be called for a stream that is captured, nor for anything that encompasses it.
const FORBIDDEN: [&str; 9] = [
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuCtxSynchronize",
    "cuMemFree",
    "cuMemUnmap",
];

/// CUDA Programming Guide, Prohibited and Unhandled Operations: "It is invalid to synchronize or query the execution
/// status of a stream which is being captured [...] or a broader handle which encompasses an active stream capture".
#[test]
fn in_a_capture_nothing_is_queried_or_synchronised() {
    simulated("in_a_capture_nothing_is_queried_or_synchronised", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, unit) in BACKENDS {
            for (private, blocking) in [(false, false), (false, true), (true, false), (true, true)] {
                let pool = pool_of(backend, 0, 256 * unit, GROWING);
                let (captured, other) = (gpu.stream(blocking), gpu.stream(false));
                [captured, other].into_iter().for_each(|stream| gpu.hold(stream));
                // What could be polled, waited for, synchronised and given back.
                let chunks =
                    [pool.get_on(60 * unit, other), pool.get_on(20 * unit, captured), pool.get(30 * unit)];
                gpu.fill(other, chunks[0], 60 * unit, 1);
                if private {
                    assert_eq!(pool.begin_private(1, captured), BFC_OK);
                }
                pool.put_on(chunks[0], other);
                pool.put_on(chunks[1], captured);
                pool.put(chunks[2]);
                gpu.begin_capture(captured);
                sim.clear_log();
                let (mut live, mut others) = (Vec::new(), Vec::new());
                while let Ok(address) = pool.alloc_on(10 * unit, captured) {
                    gpu.fill(captured, address, 10 * unit, 3);
                    gpu.expect(captured, address, 10 * unit, 3);
                    live.push(address);
                }
                assert_eq!(pool.alloc_on(10 * unit, captured), Err(BFC_ERROR_OUT_OF_MEMORY));
                assert!(live.len() >= 8, "{}: it has grown", live.len());
                for address in live.drain(..live.len() / 2) {
                    pool.put_on(address, captured);
                }
                assert!(
                    pool.alloc_on(10 * unit, captured)
                        .is_ok_and(|address| pool.free_on(address, captured) == BFC_OK)
                );
                for function in FORBIDDEN {
                    assert_eq!(sim.calls(function), 0, "{function}:\n{}", sim.log_text());
                }
                let graph = gpu.end_capture(captured);
                gpu.launch(graph, captured);
                if private {
                    assert_eq!(pool.end_private(1, captured), BFC_OK);
                    // What the graph uses is its own, also of what was freed in it, whatever else goes and comes.
                    let before = pool.stats().pool_bytes;
                    sim.release_all();
                    assert!(pool.try_trim(0).is_ok(), "{}", last_error());
                    while let Ok(address) = pool.alloc_on(10 * unit, other) {
                        gpu.fill(other, address, 10 * unit, 9);
                        others.push(address);
                    }
                    assert!(others.len() as u64 * 10 * unit < before, "{} are others'", others.len());
                    gpu.launch(graph, captured);
                    sim.release_all();
                    for address in others.drain(..) {
                        gpu.expect(other, address, 10 * unit, 9);
                        pool.put_on(address, other);
                    }
                    assert_eq!(pool.release_private(1), BFC_OK);
                }
                gpu.destroy_graph(graph);
                live.into_iter().for_each(|address| pool.put_on(address, captured));
                pool.check();
                sim.release_all();
                assert_eq!(pool.destroy(), BFC_OK);
                [captured, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
            }
        }
        assert_eq!((sim.mismatches(), sim.misuses()), (0, 0));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A request of a stream that is not captured may wait for others; but not for the device as a whole, nor give memory
/// back, which waits for it: so far as the library can see, that some stream is captured.
#[test]
fn others_do_not_break_a_capture() {
    simulated("others_do_not_break_a_capture", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        sim.set(FREE_SYNCHRONIZES, 0);
        let kinds = [(false, false), (false, true), (true, false), (true, true)];
        for ((blocking, private), (backend, unit)) in
            kinds.into_iter().flat_map(|one| BACKENDS.map(|two| (one, two)))
        {
            let pool = pool_of(backend, 0, 256 * unit, GROWING);
            let (captured, other) = (gpu.stream(blocking), gpu.stream(false));
            gpu.hold(captured);
            let chunks =
                [pool.get_on(64 * unit, other), pool.get(100 * unit), pool.get_on(10 * unit, captured)];
            gpu.fill(captured, chunks[2], 10 * unit, 1);
            // The library knows the captured stream: it is in use, or bfc_pool_begin has named it.
            if private {
                assert_eq!(pool.begin_private(1, captured), BFC_OK);
            }
            pool.put_on(chunks[2], captured);
            gpu.begin_capture(captured);
            pool.put_on(chunks[0], other);
            pool.put(chunks[1]);
            // Nothing fits, but for what goes back first.
            assert_eq!(pool.alloc_on(200 * unit, other), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
            assert_eq!(pool.alloc(200 * unit), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
            let trimmed = pool.try_trim(0);
            assert!(trimmed == Err(BFC_ERROR_BACKEND_FAILED) || trimmed == Ok(0), "{trimmed:?}");
            assert_eq!(pool.begin_private(2, other), BFC_OK, "which synchronises only if it may");
            assert_eq!(pool.end_private(2, other), BFC_OK);
            pool.check();
            gpu.destroy_graph(gpu.end_capture(captured));
            // Afterwards all of it works.
            if private {
                assert_eq!(pool.end_private(1, captured), BFC_OK);
                assert_eq!(pool.release_private(1), BFC_OK);
            }
            let large = pool.get_on(200 * unit, other);
            pool.put_on(large, other);
            assert!(pool.try_trim(0).is_ok_and(|released| released >= 200 * unit), "{}", last_error());
            assert_eq!(pool.stats().pool_bytes, 0);
            drop(pool);
            [captured, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A capture on a stream that is not blocking cannot be seen by who was never told of the stream, and what waits for
/// the device breaks it: "It is also invalid to query the execution status of or synchronize [...] the broader handle
/// [...] when any associated stream is in capture mode" (CUDA C++ Programming Guide, Prohibited and Unhandled
/// Operations). Each way of telling that the header names is one.
#[test]
fn a_capture_that_nobody_was_told_of() {
    simulated("a_capture_that_nobody_was_told_of", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        type Tell = fn(&Pool, u64);
        let tell: [(&str, Tell, bool); 5] = [
            ("not at all", |_, _| {}, false),
            ("bfc_pool_begin", |pool, stream| assert_eq!(pool.begin_private(1, stream), BFC_OK), true),
            ("a request before", |pool, stream| pool.put_on(pool.get_on(1, stream), stream), true),
            ("bfc_free_async before", |pool, stream| pool.put_on(pool.get(1), stream), true),
            (
                "bfc_record_stream before",
                |pool, stream| {
                    let address = pool.get(1);
                    assert_eq!(ordered::record_stream(pool.device(), address, stream), BFC_OK);
                    pool.put(address);
                },
                true,
            ),
        ];
        for (way, tell, is_told) in tell {
            let pool = cuda_pool(0, GIB, GROWING);
            pool.put(pool.get(1000));
            let stream = gpu.stream(false);
            tell(&pool, stream);
            gpu.begin_capture(stream);
            let trimmed = pool.try_trim(0);
            assert!(matches!(trimmed, Err(BFC_ERROR_BACKEND_FAILED) | Ok(0)), "{way}: {trimmed:?}");
            let ended = gpu.try_end_capture(stream);
            assert_eq!(ended.err(), (!is_told).then_some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), "{way}");
            drop(pool);
            ended.iter().for_each(|&graph| gpu.destroy_graph(graph));
            gpu.destroy_stream(stream);
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Free regions would make a larger one, but giving them back waits for the device.
#[test]
fn regions_stay_while_a_stream_is_captured() {
    simulated("regions_stay_while_a_stream_is_captured", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for blocking in [false, true] {
            let pool = cuda_pool(0, 192 * KIB, GROWING);
            let (captured, other) = (gpu.stream(blocking), gpu.stream(false));
            let chunks = [64, 128].map(|kib| pool.get_on(kib * KIB, other));
            chunks.into_iter().for_each(|chunk| pool.put_on(chunk, other));
            gpu.synchronize(other);
            assert_eq!(pool.vouch(other), BFC_OK);
            assert_eq!(pool.begin_private(1, captured), BFC_OK);
            gpu.begin_capture(captured);
            assert_eq!(pool.alloc_on(160 * KIB, other), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
            gpu.destroy_graph(gpu.end_capture(captured));
            assert_eq!(pool.end_private(1, captured), BFC_OK);
            pool.put_on(pool.get_on(160 * KIB, other), other);
            drop(pool);
            [captured, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Free granules would make room, but to move them the device is waited for. Growth needs no wait.
#[test]
fn granules_stay_while_a_stream_is_captured() {
    simulated("granules_stay_while_a_stream_is_captured", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for blocking in [false, true] {
            let pool = pool_of(BFC_BACKEND_CUDA_VMM, 0, 16 * MIB, BFC_ALLOW_GROWTH);
            let (captured, other) = (gpu.stream(blocking), gpu.stream(false));
            let chunks: Vec<u64> = (0..6).map(|_| pool.get_on(2 * MIB, other)).collect();
            chunks.iter().step_by(2).for_each(|&chunk| pool.put_on(chunk, other));
            gpu.synchronize(other);
            assert_eq!(pool.vouch(other), BFC_OK);
            assert_eq!(pool.begin_private(1, captured), BFC_OK);
            gpu.begin_capture(captured);
            sim.clear_log();
            let grown = pool.get_on(4 * MIB, captured);
            assert_eq!(sim.calls("cuMemMap"), 2, "what the limit leaves");
            for stream in [captured, other] {
                assert_eq!(pool.alloc_on(6 * MIB, stream), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
            }
            assert_eq!(pool.try_trim(0), Err(BFC_ERROR_BACKEND_FAILED));
            for function in FORBIDDEN {
                assert_eq!(sim.calls(function), 0, "{function}:\n{}", sim.log_text());
            }
            gpu.destroy_graph(gpu.end_capture(captured));
            // As long as one is announced it might begin.
            assert_eq!(pool.alloc_on(6 * MIB, other), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
            assert_eq!(pool.end_private(1, captured), BFC_OK);
            // Three granules that are free, and none that the limit leaves.
            pool.put_on(pool.get_on(6 * MIB, other), other);
            assert_eq!(sim.calls("cuMemUnmap"), 3);
            pool.put_on(grown, captured);
            // Of the private pool nothing moves, nor goes.
            assert_eq!(pool.try_trim(0), Ok(6 * MIB));
            assert_eq!(pool.alloc_on(12 * MIB, other), Err(BFC_ERROR_OUT_OF_MEMORY));
            assert_eq!(pool.release_private(1), BFC_OK);
            pool.check();
            assert_eq!(pool.destroy_forced(), BFC_OK);
            [captured, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        }
        assert_eq!((sim.mismatches(), sim.misuses()), (0, 0));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// docs/algorithm.md: synchronising comes before remapping and before giving regions back, which could serve too here.
#[test]
fn what_a_synchronisation_serves_moves_nothing_and_gives_nothing_back() {
    simulated("what_a_synchronisation_serves_moves_nothing_and_gives_nothing_back", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let (a, b) = (gpu.stream(false), gpu.stream(false));
        for (backend, unit) in BACKENDS {
            let pool = pool_of(backend, 0, 384 * unit, GROWING);
            let pieces: Vec<u64> = (0..6).map(|_| pool.get_on(32 * unit, a)).collect();
            let large = pool.get(192 * unit);
            assert_eq!(pool.stats().pool_bytes, 384 * unit);
            // Free for everybody: two regions, or three granules, that are apart and together enough.
            pool.put_on(pool.get_on(0, b), b);
            let (idle, wanted) = if backend == BFC_BACKEND_CUDA { (1, 150) } else { (2, 70) };
            pieces.iter().step_by(idle).for_each(|&piece| pool.put_on(piece, a));
            gpu.synchronize(a);
            assert_eq!(pool.vouch(a), BFC_OK);
            // Free for nobody else, before the device is waited for: it is without a stream.
            pool.put(large);
            sim.clear_log();
            assert_eq!(pool.alloc_on(wanted * unit, b), Ok(large), "{}", last_error());
            let calls = ["cuCtxSynchronize", "cuMemUnmap", "cuMemFree"].map(|function| sim.calls(function));
            assert_eq!(calls, [1, 0, 0], "{}", sim.log_text());
            assert_eq!(pool.destroy_forced(), BFC_OK);
        }
        [a, b].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Nobody else can name the default stream of a thread: its events are recorded at the free.
#[test]
fn what_a_thread_frees_on_its_default_stream_is_known_by_an_event() {
    simulated("what_a_thread_frees_on_its_default_stream_is_known_by_an_event", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (pool, other) = (cuda_pool(0, 64 * KIB, BFC_ALLOW_GROWTH), gpu.stream(false));
        gpu.hold(other);
        std::thread::scope(|scope| {
            let work = || {
                gpu.set_current(context);
                gpu.hold(PER_THREAD);
                let chunk = pool.get_on(64 * KIB, PER_THREAD);
                gpu.fill(PER_THREAD, chunk, 64 * KIB, 1);
                gpu.expect(PER_THREAD, chunk, 64 * KIB, 1);
                sim.clear_log();
                pool.put_on(chunk, PER_THREAD);
                assert_eq!(sim.calls("cuEventRecord"), 1);
                chunk
            };
            let chunk = scope.spawn(work).join().expect("no panic");
            assert_eq!(pool.get_on(64 * KIB, other), chunk, "behind the event");
            assert_eq!((sim.calls("cuStreamWaitEvent"), sim.calls("cuCtxSynchronize")), (1, 0));
            gpu.fill(other, chunk, 64 * KIB, 2);
            gpu.step(other, 100);
            assert!(gpu.pending(other) > 0);
            sim.release_all();
            pool.put_on(chunk, other);
        });
        assert_eq!(sim.mismatches(), 0);
        drop(pool);
        gpu.destroy_stream(other);
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// The simulation knows what these tests are about.
#[test]
fn a_synchronisation_would_break_it() {
    simulated("a_synchronisation_would_break_it", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let stream = gpu.stream(false);
        gpu.begin_capture(stream);
        gpu.lenient().synchronize(stream);
        assert_eq!(gpu.try_end_capture(stream), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
        gpu.destroy_stream(stream);
        gpu.leave(0);
    });
}

#[test]
fn a_driver_that_is_down_ends_the_order() {
    simulated("a_driver_that_is_down_ends_the_order", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let pool = cuda_pool(0, 64 * KIB, BFC_ALLOW_GROWTH);
        let streams = [gpu.stream(false), gpu.stream(false)];
        all_kinds_of_order(gpu, &pool, streams);
        assert_ne!(sim.live(EVENTS), 0);
        let [_, b] = streams;
        let chunk = pool.get_on(64 * KIB, b);
        assert_eq!(pool.record(chunk, LEGACY), BFC_OK);
        sim.shutdown();
        assert_eq!(pool.free_on(chunk, b), BFC_OK);
        assert_eq!(pool.alloc_on(64 * KIB, LEGACY), Err(BFC_ERROR_SHUTTING_DOWN), "{}", last_error());
        assert_eq!(pool.alloc(64 * KIB), Err(BFC_ERROR_SHUTTING_DOWN));
        let forgotten = pool.try_forget(b);
        assert!([BFC_OK, BFC_ERROR_SHUTTING_DOWN].contains(&forgotten), "{forgotten}");
        pool.check();
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
    });
}

static DEVICE: AtomicI32 = AtomicI32::new(-1);

/// The driver's own handler runs first at the exit of a process: it was registered last.
extern "C" fn at_exit() {
    let sim = simcuda::steer::Steer::load().expect("the simulation");
    sim.shutdown();
    let device = DEVICE.load(SeqCst);
    let right = [
        alloc(device, 8 << 20) == Err(BFC_ERROR_SHUTTING_DOWN),
        alloc(device, 256).is_ok_and(|address| free(device, address) == BFC_OK),
        bfc_check(device) == BFC_OK,
        bfc_destroy(device) == BFC_ERROR_BUSY,
        bfc_destroy_forced(device) == BFC_OK,
    ];
    if let Some(wrong) = right.iter().position(|right| !right) {
        // SAFETY: it ends the process at once.
        unsafe { libc::_exit(10 + wrong as i32) };
    }
}

fn end_with_live_allocations(test: &str, backend: u32) {
    simulated(test, |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let pool = pool_of(backend, 0, GIB, GROWING);
        let stream = gpu.stream(false);
        gpu.hold(stream);
        let live = [pool.get(1000), pool.get_on(100 * KIB, stream), pool.get_on(MIB, LEGACY)];
        gpu.fill(stream, live[1], 100 * KIB, 1);
        pool.put_on(live[1], stream);
        DEVICE.store(pool.device(), SeqCst);
        std::mem::forget(pool);
        sim.clear_log();
        // SAFETY: the handler is a function of this program.
        assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
        std::process::exit(0);
    });
}

#[test]
fn a_process_may_end_with_live_allocations() {
    end_with_live_allocations("a_process_may_end_with_live_allocations", BFC_BACKEND_CUDA);
}

#[test]
fn a_process_may_end_with_live_allocations_in_granules() {
    end_with_live_allocations("a_process_may_end_with_live_allocations_in_granules", BFC_BACKEND_CUDA_VMM);
}

/// And without a word to anybody: nothing is called at the exit.
fn nothing_is_freed_at_the_exit(test: &str, backend: u32) {
    simulated(test, |sim| {
        static SIM: std::sync::OnceLock<simcuda::Simulation> = std::sync::OnceLock::new();
        extern "C" fn last() {
            let calls = SIM.get().map_or(1, |sim| sim.all_calls());
            if calls != 0 {
                // SAFETY: it ends the process at once.
                unsafe { libc::_exit(20) };
            }
        }
        let _ = SIM.set(sim);
        // Registered first, it runs last.
        // SAFETY: the handler is a function of this program.
        assert_eq!(unsafe { libc::atexit(last) }, 0);
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let pool = pool_of(backend, 0, GIB, GROWING);
        pool.get_on(100 * KIB, LEGACY);
        pool.put_on(pool.get_on(100 * KIB, PER_THREAD), PER_THREAD);
        std::mem::forget(pool);
        sim.clear_log();
        std::process::exit(0);
    });
}

#[test]
fn at_the_exit_nothing_is_freed() {
    nothing_is_freed_at_the_exit("at_the_exit_nothing_is_freed", BFC_BACKEND_CUDA);
}

#[test]
fn at_the_exit_no_granule_is_unmapped() {
    nothing_is_freed_at_the_exit("at_the_exit_no_granule_is_unmapped", BFC_BACKEND_CUDA_VMM);
}
