//! Stream order on the simulated driver (a simulation, and no device): the driver calls that are made, and those that
//! are not, in steady states, with contexts and devices of several kinds, and when the driver has shut down.

use crate::common::gpu::{BACKENDS, Gpu, LEGACY, PER_THREAD};
use crate::common::simcuda::steer::EVENTS;
use crate::common::simcuda::{simulated, simulated_with};
use crate::common::*;

/// Allocations and frees of many sizes, some of which live for a while.
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
            let pool = Pool::in_small_regions(backend, 0, GIB, GROWING);
            let get = |bytes| stream.map_or_else(|| pool.get(bytes), |stream| pool.get_on(bytes, stream));
            let put =
                |address| stream.map_or_else(|| pool.put(address), |stream| pool.put_on(address, stream));
            // Enough for all that will be live at the same time.
            put(get(MIB));
            sim.hold(pointer(stream.unwrap_or(LEGACY)));
            sim.clear_log();
            let made = || pool.stats().num_allocs + pool.stats().num_frees;
            let before = made();
            churn(&mut Random::new(1), 5000, get, put);
            // A default stream belongs to the current context, which only the driver knows.
            let asks = if matches!(stream, Some(0 | LEGACY)) { made() - before } else { 0 };
            assert_eq!(sim.calls("cuCtxGetCurrent"), asks, "{stream:x?}");
            assert_eq!(sim.all_calls(), asks, "{stream:x?}:\n{}", sim.log_text());
            sim.release_all();
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// With several streams, each free records an event, and no other call is made as long as the memory that the stream
/// itself has freed is sufficient. The same events are recorded repeatedly.
#[test]
fn where_others_have_been_each_free_records_one_event() {
    simulated("where_others_have_been_each_free_records_one_event", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, _) in BACKENDS {
            let pool = Pool::in_small_regions(backend, 0, GIB, GROWING);
            let streams = [gpu.stream(false), gpu.stream(false), gpu.stream(true)];
            let large: Vec<u64> = streams.iter().map(|&stream| pool.get_on(MIB, stream)).collect();
            for (&stream, address) in streams.iter().zip(large) {
                gpu.hold(stream);
                gpu.fill(stream, address, MIB, 1);
                pool.put_on(address, stream);
            }
            sim.clear_log();
            let before = pool.stats().num_frees;
            for (seed, &stream) in streams.iter().enumerate() {
                let (get, put) = (|bytes| pool.get_on(bytes, stream), |address| pool.put_on(address, stream));
                churn(&mut Random::new(seed as u64), 2000, get, put);
            }
            let frees = pool.stats().num_frees - before;
            assert_eq!(sim.calls("cuEventRecord"), frees);
            // The thread's context and its number, and two queries for a capture.
            let created = sim.calls("cuEventCreate") * 3;
            let asked = sim.calls("cuStreamGetCtx");
            assert!(sim.all_calls() <= 5 * frees + created + asked, "{}", sim.log_text());
            assert!(sim.live(EVENTS) <= 3 * 2 * 32, "{} events", sim.live(EVENTS));
            drop(pool);
            sim.release_all();
            streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// The context is entered once for all queries of a step, and not for each query.
#[test]
fn a_request_behind_four_streams_enters_the_context_a_few_times() {
    simulated("a_request_behind_four_streams_enters_the_context_a_few_times", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, 64 * KIB, GROWING);
        let streams = [(); 5].map(|()| gpu.stream(false));
        pool.put_on(pool.get_on(1, streams[0]), streams[0]);
        for &stream in &streams[1..] {
            gpu.hold(stream);
            let chunk = pool.get_on(10 * KIB, stream);
            gpu.fill(stream, chunk, 10 * KIB, 1);
            pool.put_on(chunk, stream);
        }
        // As in a thread that uses another device.
        gpu.set_current(0);
        sim.clear_log();
        pool.get_on(40 * KIB, streams[0]);
        // For memory that only the stream freed, and for memory that is now its own.
        assert_eq!(sim.calls("cuEventRecord"), 2, "{}", sim.log_text());
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

/// The operations for which a pool needs events, waits and synchronizations.
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
        // Ordered after a, and then without any stream.
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
            // Streams belong to the primary context of device 0, whichever context is current where they are used.
            gpu.set_current(primary);
            let streams = [gpu.stream(false), gpu.stream(false)];
            gpu.set_current(current);
            let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, 64 * KIB, BFC_ALLOW_GROWTH);
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

/// Default streams are those of the pool's device, whichever device is current.
#[test]
fn each_device_has_its_own_order() {
    simulated_with("each_device_has_its_own_order", &[("SIMCUDA_DEVICES", "3")], |sim| {
        let gpu = Gpu::new(sim);
        let contexts = [0, 1, 2].map(|device| gpu.enter(device));
        let pools = [0, 1, 2]
            .map(|device| Pool::in_small_regions(BFC_BACKEND_CUDA, device, 64 * KIB, BFC_ALLOW_GROWTH));
        for (device, pool) in pools.iter().enumerate() {
            gpu.set_current(contexts[device]);
            let other = gpu.stream(false);
            pool.put_on(pool.get_on(1, other), other);
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

/// docs/algorithm.md: synchronization comes before remapping and before releasing regions, which could also serve here.
#[test]
fn what_a_synchronisation_serves_moves_nothing_and_gives_nothing_back() {
    simulated("what_a_synchronisation_serves_moves_nothing_and_gives_nothing_back", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let (a, b) = (gpu.stream(false), gpu.stream(false));
        for (backend, unit) in BACKENDS {
            let pool = Pool::in_small_regions(backend, 0, 384 * unit, GROWING);
            let pieces: Vec<u64> = (0..6).map(|_| pool.get_on(32 * unit, a)).collect();
            let large = pool.get(192 * unit);
            assert_eq!(pool.stats().pool_bytes, 384 * unit);
            // Free for every stream: two regions, or three granules, that are apart and together sufficient.
            pool.put_on(pool.get_on(0, b), b);
            let (idle, wanted) = if backend == BFC_BACKEND_CUDA { (1, 150) } else { (2, 70) };
            pieces.iter().step_by(idle).for_each(|&piece| pool.put_on(piece, a));
            gpu.synchronize(a);
            assert_eq!(pool.vouch(a), BFC_OK);
            // Not reusable by others before a wait for the device, because it has no stream.
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

/// Only a thread itself can name its default stream, so its events are recorded at the free.
#[test]
fn what_a_thread_frees_on_its_default_stream_is_known_by_an_event() {
    simulated("what_a_thread_frees_on_its_default_stream_is_known_by_an_event", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (pool, other) =
            (Pool::in_small_regions(BFC_BACKEND_CUDA, 0, 64 * KIB, BFC_ALLOW_GROWTH), gpu.stream(false));
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
            assert_eq!(pool.get_on(64 * KIB, other), chunk, "after the event");
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

#[test]
fn a_driver_that_is_down_ends_the_order() {
    simulated("a_driver_that_is_down_ends_the_order", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, 64 * KIB, BFC_ALLOW_GROWTH);
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

/// Uses a stream once, like a program that does not forget it: it is synchronized, and then destroyed.
fn use_once(gpu: Gpu, pool: &Pool, bytes: u64) {
    let stream = gpu.stream(false);
    pool.put_on(pool.get_on(bytes, stream), stream);
    gpu.synchronize(stream);
    gpu.destroy_stream(stream);
}

#[test]
fn idle_streams_come_and_go() {
    simulated("idle_streams_come_and_go", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, unit) in BACKENDS {
            let pool = Pool::in_small_regions(backend, 0, 64 * unit, GROWING);
            let stream = gpu.stream(false);
            let held = pool.get_on(unit, stream);
            (0..300).for_each(|_| use_once(gpu, &pool, 16 * unit));
            let (before, events) = (pool.stats().metadata_bytes, sim.live(EVENTS));
            (0..4000).for_each(|_| use_once(gpu, &pool, 16 * unit));
            let after = pool.stats().metadata_bytes;
            assert!(after < before + 256 * KIB, "{before} bytes of metadata have become {after}");
            assert!(sim.live(EVENTS) <= events + 64, "{events} events have become {}", sim.live(EVENTS));
            pool.put_on(held, stream);
            gpu.destroy_stream(stream);
            pool.check();
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A stream of another context must be forgotten. After that no event of its context exists, however long it was idle.
#[test]
fn an_idle_stream_of_another_context_is_known_until_it_is_forgotten() {
    simulated("an_idle_stream_of_another_context_is_known_until_it_is_forgotten", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        // However far the search for idle streams has progressed.
        for others in (150..350).step_by(10) {
            let foreign = gpu.own_context(0);
            let elsewhere: Vec<u64> = (0..32).map(|_| gpu.stream(false)).collect();
            gpu.set_current(context);
            let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, 16 * KIB, GROWING);
            use_once(gpu, &pool, 4 * KIB);
            for &stream in &elsewhere {
                pool.put_on(pool.get_on(4 * KIB, stream), stream);
                // The stream takes its memory back, so nothing waits for the event, and then it is idle.
                pool.put_on(pool.get_on(4 * KIB, stream), LEGACY);
                gpu.synchronize(stream);
            }
            (0..others).for_each(|_| use_once(gpu, &pool, 4 * KIB));
            elsewhere.iter().for_each(|&stream| pool.forget(stream));
            let events = sim.live(EVENTS);
            gpu.destroy_context(foreign);
            assert_eq!(sim.live(EVENTS), events, "{others} streams later, events end with the context");
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}
