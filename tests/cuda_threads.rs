//! Several threads with one allocator on the simulated driver (a simulation, and no device): who waits for whom.

mod common;

use common::gpu::Gpu;
use common::simcuda::steer::SYNCHRONIZE_WAITS;
use common::simcuda::{Simulation, simulated, simulated_with};
use common::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const KIB: u64 = 1 << 10;

#[track_caller]
fn cuda_pool(limit: u64) -> Pool {
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_CUDA, limit);
    wanted.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
    wanted.initial_region_bytes = 64 * KIB;
    Pool::create(0, &wanted, None).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
}

/// Waits until another thread has called a function of the driver.
#[track_caller]
fn await_call(gpu: Gpu, function: &str) {
    let start = Instant::now();
    while gpu.sim.calls(function) == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "nobody calls {function}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// One thread waits for work that is held until another has forgotten a stream.
#[test]
fn forgetting_a_stream_waits_for_nobody_s_work() {
    simulated("forgetting_a_stream_waits_for_nobody_s_work", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        sim.set(SYNCHRONIZE_WAITS, 1);
        let (a, b) = (gpu.stream(false), gpu.stream(false));
        let pool = cuda_pool(64 * KIB);
        gpu.hold(a);
        let chunk = pool.get_on(60 * KIB, a);
        gpu.fill(a, chunk, 60 * KIB, 1);
        pool.put_on(chunk, a);
        let forgotten = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                gpu.set_current(context);
                pool.get(60 * KIB)
            });
            await_call(gpu, "cuEventSynchronize");
            // Lets the stream go in the end, which nobody else would.
            scope.spawn(|| {
                let start = Instant::now();
                while !forgotten.load(SeqCst) && start.elapsed() < Duration::from_secs(5) {
                    std::thread::sleep(Duration::from_millis(2));
                }
                let in_time = forgotten.load(SeqCst);
                gpu.set_current(context);
                sim.release_all();
                assert!(in_time, "bfc_forget_stream waits for work that waits for it");
            });
            // One that has to do with it, and one that has nothing.
            [b, a].into_iter().for_each(|stream| pool.forget(stream));
            forgotten.store(true, SeqCst);
            assert_eq!(waiting.join().expect("no panic"), chunk);
        });
        pool.put(chunk);
        drop(pool);
        [a, b].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// The debug mode asks every stream whether it is captured.
#[test]
fn nobody_asks_about_a_forgotten_stream() {
    simulated_with("nobody_asks_about_a_forgotten_stream", &[("BFC_DEBUG", "guard")], |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (a, b) = (gpu.stream(false), gpu.stream(false));
        let pool = cuda_pool(GIB);
        [a, b].into_iter().for_each(|stream| pool.put_on(pool.get_on(MIB, stream), stream));
        sim.delay(c"cuStreamIsCapturing".as_ptr(), 100_000_000);
        sim.clear_log();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                gpu.set_current(context);
                pool.get_on(1000, b)
            });
            await_call(gpu, "cuStreamIsCapturing");
            pool.forget(a);
            gpu.destroy_stream(a);
            other.join().expect("no panic");
        });
        sim.clear_faults();
        drop(pool);
        gpu.destroy_stream(b);
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// One thread fails for want of memory, and looks whether the context is there; another gives back meanwhile what it
/// looks for.
fn a_trim_is_no_end(sim: Simulation) {
    let gpu = Gpu::new(sim);
    gpu.enter(0);
    let pool = cuda_pool(16 * MIB);
    let (first, live) = (pool.get(MIB), pool.get(4 * MIB));
    assert_eq!(pool.stats().num_regions, 2);
    pool.put(first);
    let (asks, call) = match sim.calls("cuCtxGetId") {
        0 => (c"cuMemGetAddressRange_v2", "cuMemGetAddressRange_v2"),
        _ => (c"cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState"),
    };
    sim.clear_log();
    sim.delay(asks.as_ptr(), 200_000_000);
    std::thread::scope(|scope| {
        let failing = scope.spawn(|| pool.alloc(64 * MIB));
        await_call(gpu, call);
        assert!(pool.trim(0) >= MIB);
        assert_eq!(failing.join().expect("no panic"), Err(BFC_ERROR_OUT_OF_MEMORY));
    });
    sim.clear_faults();
    assert_eq!(pool.requested_size(live), Ok(4 * MIB), "live memory was forgotten: {}", last_error());
    pool.put(live);
    drop(pool);
    gpu.leave(0);
    sim.assert_clean();
}

#[test]
fn a_trim_meanwhile_is_not_the_end_of_a_context() {
    simulated("a_trim_meanwhile_is_not_the_end_of_a_context", a_trim_is_no_end);
}

/// There only a region tells.
#[test]
fn a_trim_meanwhile_is_not_the_end_of_a_context_without_a_number() {
    let old = [("SIMCUDA_DRIVER_VERSION", "11080")];
    simulated_with("a_trim_meanwhile_is_not_the_end_of_a_context_without_a_number", &old, a_trim_is_no_end);
}

fn nothing_is_forgotten(sim: Simulation) {
    let gpu = Gpu::new(sim);
    gpu.enter(0);
    let pool = cuda_pool(16 * MIB);
    let (first, live) = (pool.get(MIB), pool.get(4 * MIB));
    pool.put(first);
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let _ = pool.alloc(64 * MIB);
                }
            });
        }
        while start.elapsed() < Duration::from_secs(2) && pool.requested_size(live).is_ok() {
            if let Ok(chunk) = pool.alloc(MIB) {
                pool.free(chunk);
            }
            let _ = pool.try_trim(0);
        }
        stop.store(true, SeqCst);
    });
    assert_eq!(pool.requested_size(live), Ok(4 * MIB), "live memory was forgotten: {}", last_error());
    pool.put(live);
    drop(pool);
    gpu.leave(0);
    sim.assert_clean();
}

#[test]
fn nothing_is_forgotten_while_threads_trim() {
    simulated("nothing_is_forgotten_while_threads_trim", nothing_is_forgotten);
}

#[test]
fn nothing_is_forgotten_while_threads_trim_without_a_number() {
    let old = [("SIMCUDA_DRIVER_VERSION", "11080")];
    simulated_with("nothing_is_forgotten_while_threads_trim_without_a_number", &old, nothing_is_forgotten);
}

/// A thread that waits for several events does not come to wait for what one of them stands for later.
#[test]
fn an_event_that_is_waited_for_is_recorded_for_nothing_else() {
    simulated("an_event_that_is_waited_for_is_recorded_for_nothing_else", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        sim.set(SYNCHRONIZE_WAITS, 1);
        let [first, second, third, other] = [(); 4].map(|()| gpu.stream(false));
        let pool = cuda_pool(64 * KIB);
        let chunks = [first, second, third, other].map(|stream| pool.get_on(16 * KIB, stream));
        for (stream, chunk) in [(first, chunks[0]), (second, chunks[1])] {
            gpu.hold(stream);
            gpu.fill(stream, chunk, 16 * KIB, 1);
            pool.put_on(chunk, stream);
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let pool = &pool;
            scope.spawn(move || {
                gpu.set_current(context);
                // For the first stream, and then for the second.
                sender.send(pool.alloc(32 * KIB)).unwrap();
            });
            await_call(gpu, "cuEventSynchronize");
            // Another request sees that the second is done. Its event would be the third's now.
            sim.release(pointer(second));
            let mut small = vec![pool.get_on(256, other)];
            gpu.hold(third);
            gpu.fill(third, chunks[2], 16 * KIB, 1);
            pool.put_on(chunks[2], third);
            while sim.calls("cuEventRecord") <= 2 {
                small.extend(pool.alloc_on(256, other));
            }
            small.into_iter().for_each(|address| pool.put_on(address, other));
            sim.release(pointer(first));
            let got = receiver.recv_timeout(Duration::from_secs(3));
            let pending = gpu.pending(third);
            sim.release_all();
            assert!(got.is_ok() && pending != 0, "{got:?}: it waits for work that does not concern it");
        });
        pool.check();
    });
}

/// While a stream is being forgotten all its work is seen to be done, and what was its place is another stream's.
#[test]
fn a_stream_that_is_forgotten_leaves_its_successors_events_alone() {
    simulated("a_stream_that_is_forgotten_leaves_its_successors_events_alone", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        sim.set(SYNCHRONIZE_WAITS, 1);
        let [held, dying, next, asking, done] = [(); 5].map(|()| gpu.stream(false));
        let pool = cuda_pool(64 * KIB);
        let held_one = pool.get_on(28 * KIB, held);
        pool.get_on(256, asking);
        let dying_one = pool.get_on(KIB, dying);
        // Pieces that never merge, each with what stays beside it.
        let pieces = |bytes: u64| {
            [(); 3].map(|()| {
                let piece = pool.get_on(bytes, asking);
                pool.get_on(256, asking);
                piece
            })
        };
        let (large, small) = (pieces(6 * KIB), pieces(2 * KIB));
        while pool.alloc_on(256, asking).is_ok() {}
        for (stream, chunk, bytes) in [(held, held_one, 28 * KIB), (dying, dying_one, KIB)] {
            gpu.hold(stream);
            gpu.fill(stream, chunk, bytes, 1);
            pool.put_on(chunk, stream);
        }
        let late = |milliseconds: u64| sim.delay(c"cuEventQuery".as_ptr(), milliseconds * 1_000_000);
        let in_thread = |work: &(dyn Fn() + Sync)| {
            gpu.set_current(context);
            work();
        };
        // The events of both are known from now on.
        assert!(pool.alloc_on(256, next).is_err() || sim.calls("cuEventRecord") == 2);
        std::thread::scope(|scope| {
            // A request that asks for a long time: the stream is not forgotten before it has.
            late(1500);
            let asked = sim.calls("cuEventQuery");
            scope.spawn(|| in_thread(&|| _ = pool.alloc_on(2 * KIB, asking)));
            while sim.calls("cuEventQuery") == asked {
                std::thread::sleep(Duration::from_millis(2));
            }
            sim.clear_faults();
            let forgetting = scope.spawn(|| in_thread(&|| pool.forget(dying)));
            std::thread::sleep(Duration::from_millis(200));
            sim.release(pointer(dying));
            // It gets the place, and has two events.
            gpu.hold(next);
            for place in 0..2 {
                gpu.fill(next, large[place], 6 * KIB, 2);
                pool.put_on(large[place], next);
                pool.put_on(small[place], done);
                assert_eq!(pool.get_on(2 * KIB, asking), small[place]);
            }
            late(2500);
            pool.put_on(small[2], done);
            let asked = scope.spawn(|| in_thread(&|| assert_eq!(pool.get_on(2 * KIB, asking), small[2])));
            forgetting.join().unwrap();
            sim.clear_faults();
            asked.join().unwrap();
            let (waits, pending) = (sim.calls("cuStreamWaitEvent"), gpu.pending(next));
            let got = pool.alloc_on(6 * KIB, asking);
            let waits = sim.calls("cuStreamWaitEvent") - waits;
            sim.release_all();
            assert!(
                pending != 0 && (waits != 0 || !large[..2].contains(&got.unwrap_or(0))),
                "{got:x?} too early"
            );
        });
        pool.check();
    });
}
