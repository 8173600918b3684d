//! Several threads with one allocator on the simulated driver (a simulation, and no device): which waits for which.

use crate::common::gpu::Gpu;
use crate::common::simcuda::steer::SYNCHRONIZE_WAITS;
use crate::common::simcuda::{simulated, simulated_with};
use crate::common::*;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Versions of the driver: contexts are numbered since CUDA 12.
const NUMBERED: &str = "13000";
const UNNUMBERED: &str = "11080";

#[track_caller]
fn cuda_pool(limit: u64) -> Pool {
    Pool::in_small_regions(BFC_BACKEND_CUDA, 0, limit, GROWING)
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
        pool.put_on(pool.get_on(1, b), b);
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
            gpu.await_call("cuEventSynchronize");
            // Releases the stream in the end, because nothing else would.
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
            // One that is related to it, and one that is not.
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

/// The debug mode queries every stream for a capture.
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
            gpu.await_call("cuStreamIsCapturing");
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

/// A thread that waits for several events does not end up waiting for later work that one of them represents.
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
            gpu.await_call("cuEventSynchronize");
            // Another request sees that the second has completed. Its event would now be the third's.
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

/// While a stream is being forgotten all its work is seen to have completed, and its place is given to another stream.
#[test]
fn a_stream_that_is_forgotten_leaves_its_successors_events_alone() {
    simulated("a_stream_that_is_forgotten_leaves_its_successors_events_alone", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        sim.set(SYNCHRONIZE_WAITS, 1);
        let [other, dying, next, asking, done] = [(); 5].map(|()| gpu.stream(false));
        let pool = cuda_pool(64 * KIB);
        let other_one = pool.get_on(28 * KIB, other);
        pool.get_on(256, asking);
        let dying_one = pool.get_on(KIB, dying);
        // Pieces that never merge, because an allocation in use lies beside each.
        let pieces = |bytes: u64| {
            [(); 3].map(|()| {
                let piece = pool.get_on(bytes, asking);
                pool.get_on(256, asking);
                piece
            })
        };
        let (large, small) = (pieces(6 * KIB), pieces(2 * KIB));
        while pool.alloc_on(256, asking).is_ok() {}
        for (stream, chunk, bytes) in [(other, other_one, 28 * KIB), (dying, dying_one, KIB)] {
            gpu.hold(stream);
            gpu.fill(stream, chunk, bytes, 1);
            pool.put_on(chunk, stream);
        }
        let late =
            |function: &CStr, milliseconds: u64| sim.delay(function.as_ptr(), milliseconds * 1_000_000);
        let forget = |stream| {
            gpu.set_current(context);
            pool.forget(stream);
        };
        // A request that looks for more queries the events of both.
        pool.put_on(small[2], done);
        assert_eq!(pool.get_on(2 * KIB, asking), small[2]);
        std::thread::scope(|scope| {
            // While another thread's query is slow, the stream is not forgotten.
            let recorded = sim.calls("cuEventRecord");
            late(c"cuEventRecord", 1500);
            scope.spawn(|| forget(other));
            while sim.calls("cuEventRecord") == recorded {
                std::thread::sleep(Duration::from_millis(2));
            }
            sim.clear_faults();
            let forgetting = scope.spawn(|| forget(dying));
            std::thread::sleep(Duration::from_millis(200));
            sim.release(pointer(dying));
            // Its work has completed, and nothing of it is left. Another gets its place, and has two events.
            assert_eq!(pool.get_on(KIB, asking), dying_one);
            gpu.hold(next);
            for place in 0..2 {
                gpu.fill(next, large[place], 6 * KIB, 2);
                pool.put_on(large[place], next);
                pool.put_on(small[place], done);
                assert_eq!(pool.get_on(2 * KIB, asking), small[place]);
            }
            // A request is querying them when the first stream is finally forgotten.
            late(c"cuEventQuery", 2500);
            pool.put_on(small[2], done);
            let meanwhile = scope.spawn(|| {
                gpu.set_current(context);
                pool.get_on(2 * KIB, asking)
            });
            forgetting.join().unwrap();
            sim.clear_faults();
            assert_eq!(meanwhile.join().unwrap(), small[2]);
            // Memory freed first is taken first.
            assert_eq!(pool.get_on(28 * KIB, asking), other_one);
            let waits = sim.calls("cuStreamWaitEvent");
            let got = pool.get_on(6 * KIB, asking);
            let (waits, pending) = (sim.calls("cuStreamWaitEvent") - waits, gpu.pending(next));
            sim.release_all();
            assert!(large[..2].contains(&got) && pending != 0, "{got:#x} of {large:x?}");
            assert_ne!(waits, 0, "{got:#x} is still used");
        });
        pool.check();
    });
}

/// One thread runs out of memory, and checks whether the context exists; another releases meanwhile the memory that it
/// looks for.
fn a_trim_is_no_end(gpu: Gpu, pool: &Pool) {
    let sim = gpu.sim;
    let (asks, call) = match sim.calls("cuCtxGetId") {
        0 => (c"cuMemGetAddressRange_v2", "cuMemGetAddressRange_v2"),
        _ => (c"cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState"),
    };
    sim.clear_log();
    sim.delay(asks.as_ptr(), 200_000_000);
    std::thread::scope(|scope| {
        let failing = scope.spawn(|| pool.alloc(64 * MIB));
        gpu.await_call(call);
        assert!(pool.trim(0) >= MIB);
        assert_eq!(failing.join().expect("no panic"), Err(BFC_ERROR_OUT_OF_MEMORY));
    });
    sim.clear_faults();
}

/// Concurrent calls must not make the pool forget live memory of a live context, whether contexts have numbers or only
/// a region identifies them.
fn nothing_is_lost(test: &str, driver_version: &str, work: fn(Gpu, &Pool)) {
    simulated_with(test, &[("SIMCUDA_DRIVER_VERSION", driver_version)], |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let pool = cuda_pool(16 * MIB);
        let (first, live) = (pool.get(MIB), pool.get(4 * MIB));
        assert_eq!(pool.stats().num_regions, 2);
        pool.put(first);
        work(gpu, &pool);
        assert_eq!(pool.requested_size(live), Ok(4 * MIB), "live memory was forgotten: {}", last_error());
        pool.put(live);
        drop(pool);
        gpu.leave(0);
        sim.assert_clean();
    });
}

#[test]
fn a_trim_meanwhile_is_not_the_end_of_a_context() {
    nothing_is_lost("a_trim_meanwhile_is_not_the_end_of_a_context", NUMBERED, a_trim_is_no_end);
}

#[test]
fn a_trim_meanwhile_is_not_the_end_of_a_context_without_a_number() {
    let test = "a_trim_meanwhile_is_not_the_end_of_a_context_without_a_number";
    nothing_is_lost(test, UNNUMBERED, a_trim_is_no_end);
}

fn threads_trim(_: Gpu, pool: &Pool) {
    let (stop, start) = (AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    let _ = pool.alloc(64 * MIB);
                }
            });
        }
        while start.elapsed() < Duration::from_secs(2) && pool.stats().bytes_in_use != 0 {
            if let Ok(chunk) = pool.alloc(MIB) {
                pool.free(chunk);
            }
            let _ = pool.try_trim(0);
        }
        stop.store(true, SeqCst);
    });
}

#[test]
fn nothing_is_forgotten_while_threads_trim() {
    nothing_is_lost("nothing_is_forgotten_while_threads_trim", NUMBERED, threads_trim);
}

#[test]
fn nothing_is_forgotten_while_threads_trim_without_a_number() {
    nothing_is_lost("nothing_is_forgotten_while_threads_trim_without_a_number", UNNUMBERED, threads_trim);
}

/// Memory that another thread is releasing when bfc_trim is called has been released when it returns, and counts.
#[test]
fn a_trim_waits_for_what_others_are_giving_back() {
    const DELAY: Duration = Duration::from_millis(60);
    simulated("a_trim_waits_for_what_others_are_giving_back", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        for (backend, calls, unit) in
            [(BFC_BACKEND_CUDA, c"cuMemFree_v2", KIB), (BFC_BACKEND_CUDA_VMM, c"cuMemUnmap", 2 * MIB)]
        {
            let pool = Pool::in_small_regions(backend, 0, 64 * unit, GROWING);
            let chunks = [4, 8, 16].map(|units| pool.get(units * unit));
            chunks.into_iter().for_each(|chunk| pool.put(chunk));
            let held = pool.stats().pool_bytes;
            sim.delay(calls.as_ptr(), DELAY.as_nanos() as u64);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    gpu.set_current(context);
                    pool.try_trim(0)
                });
                std::thread::sleep(DELAY / 2);
                assert_eq!(pool.try_trim(0), Ok(held), "{}", last_error());
                assert_eq!(pool.stats().pool_bytes, 0);
                assert_eq!(other.join().expect("no panic"), Ok(held));
            });
            sim.clear_faults();
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A thread releases memory, which waits for a receive. Another one, which sends only later, needs more memory.
#[test]
fn a_request_does_not_wait_for_a_trim_that_waits_for_it() {
    let variables = [("SIMCUDA_SYNCHRONIZE_WAITS", "1"), ("SIMCUDA_DEADLOCK_MILLISECONDS", "2000")];
    simulated_with("a_request_does_not_wait_for_a_trim_that_waits_for_it", &variables, |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let foreign = gpu.own_context(0);
        let elsewhere = gpu.stream(false);
        gpu.set_current(context);
        for (backend, unit, waits_in) in [
            (BFC_BACKEND_CUDA, KIB, "cuCtxSynchronize"),
            (BFC_BACKEND_CUDA_VMM, 64 * KIB, "cuCtxSynchronize"),
            // For another context's work, which is unknown to the pool.
            (BFC_BACKEND_CUDA, KIB, "cuMemFree_v2"),
        ] {
            let is_foreign = waits_in == "cuMemFree_v2";
            let (own, compute) = (gpu.stream(false), gpu.stream(false));
            let comm = if is_foreign { elsewhere } else { own };
            let pool = Pool::in_small_regions(backend, 0, 1024 * unit, GROWING);
            let known = [own, compute].map(|stream| pool.get_on(unit, stream));
            pool.put_on(pool.get_on(100 * unit, compute), compute);
            gpu.synchronize_context();
            pool.synchronized(compute);
            assert_eq!(sim.receive(pointer(comm), 5), 0);
            std::thread::scope(|scope| {
                let calls = sim.calls(waits_in);
                let trimmer = scope.spawn(|| {
                    gpu.set_current(context);
                    pool.try_trim(0)
                });
                while sim.calls(waits_in) == calls {
                    std::thread::yield_now();
                }
                let more = pool.get_on(200 * unit, compute);
                assert!(!trimmer.is_finished(), "it waits for the device");
                assert_eq!(sim.send(pointer(compute), 5), 0);
                assert!(trimmer.join().expect("no panic").is_ok());
                pool.put_on(more, compute);
            });
            known.into_iter().for_each(|chunk| pool.put(chunk));
            drop(pool);
            [own, compute].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        }
        gpu.destroy_context(foreign);
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// The driver has no memory left, except the memory that another thread is releasing.
#[test]
fn a_refused_request_waits_for_what_goes_back() {
    const DELAY: Duration = Duration::from_millis(60);
    let variables = [("SIMCUDA_MEMORY", "67108864")];
    simulated_with("a_refused_request_waits_for_what_goes_back", &variables, |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        for (backend, calls) in [(BFC_BACKEND_CUDA, "cuMemFree_v2"), (BFC_BACKEND_CUDA_VMM, "cuMemUnmap")] {
            let pool = Pool::on_device(0, |options| {
                (options.backend, options.flags) = (backend, GROWING);
                (options.memory_limit, options.growth_policy) = (GIB, BFC_GROWTH_NEED);
                options.initial_region_bytes = 2 * MIB;
            });
            let chunks = [16, 18].map(|size| pool.get(size * MIB));
            chunks.into_iter().for_each(|chunk| pool.put(chunk));
            let name = CString::new(calls).expect("no zero byte");
            (0..3).for_each(|_| sim.delay(name.as_ptr(), DELAY.as_nanos() as u64));
            std::thread::scope(|scope| {
                let before = sim.calls(calls);
                scope.spawn(|| {
                    gpu.set_current(context);
                    pool.trim(0)
                });
                while sim.calls(calls) == before {
                    std::thread::yield_now();
                }
                pool.put(pool.get(60 * MIB));
            });
            sim.clear_faults();
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}
