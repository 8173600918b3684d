//! Captures on the simulated driver (a simulation, and no device): other threads' use of the allocator, and its
//! destruction, break no capture that is announced by `bfc_pool_begin`.

use crate::common::gpu::{Gpu, LEGACY};
use crate::common::simcuda::simulated;
use crate::common::simcuda::steer::{ALLOCATIONS, MAPPINGS, PHYSICAL, RESERVATIONS};
use crate::common::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// On device 0.
#[track_caller]
fn pool_of(backend: u32, limit: u64) -> Pool {
    Pool::in_small_regions(backend, 0, limit, GROWING)
}

/// Ends the other thread's loop, even in a panic.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// One thread captures repeatedly, another allocates, frees and trims.
#[test]
fn captures_that_are_announced_stay_whole_while_others_allocate() {
    simulated("captures_that_are_announced_stay_whole_while_others_allocate", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        for backend in [BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM] {
            let (a, b) = (gpu.stream(true), gpu.stream(false));
            // In a capture memory freed by others is not reused, so others leave some of it.
            let pool = pool_of(backend, 4 * GIB);
            let (stop, served, start) = (AtomicBool::new(false), AtomicU64::new(0), Instant::now());
            std::thread::scope(|scope| {
                let _stop = Stop(&stop);
                scope.spawn(|| {
                    gpu.set_current(context);
                    let mut bytes = MIB;
                    while !stop.load(SeqCst) {
                        if pool.stats().pool_bytes > GIB {
                            let _ = pool.try_trim(0);
                            continue;
                        }
                        // Each is served by growth, once no memory of others is reusable for it.
                        match pool.alloc_on(bytes, if bytes.is_multiple_of(5) { LEGACY } else { b }) {
                            Ok(chunk) => {
                                pool.put_on(chunk, b);
                                served.fetch_add(1, SeqCst);
                            }
                            Err(status) => assert_eq!(status, BFC_ERROR_OUT_OF_MEMORY, "{}", last_error()),
                        }
                        bytes = if bytes > 100 * MIB { MIB } else { bytes + MIB };
                        if bytes == MIB {
                            let _ = pool.try_trim(0);
                        }
                    }
                });
                while start.elapsed() < Duration::from_secs(2) {
                    let chunk = pool.get_on(10 * KIB, a);
                    assert_eq!(pool.begin_private(1, a), BFC_OK, "{}", last_error());
                    pool.put_on(chunk, a);
                    gpu.begin_capture(a);
                    let kept = pool.get_on(10 * KIB, a);
                    pool.put_on(kept, a);
                    let ended = gpu.try_end_capture(a);
                    gpu.destroy_graph(ended.unwrap_or_else(|code| panic!("the capture was broken: {code}")));
                    assert_eq!((pool.end_private(1, a), pool.release_private(1)), (BFC_OK, BFC_OK));
                }
            });
            assert!(served.load(SeqCst) > 1000);
            pool.check();
            drop(pool);
            [a, b].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// The calls that are prohibited while a capture may begin at any time.
const FORBIDDEN: [&str; 3] = ["cuStreamWaitEvent", "cuCtxSynchronize", "cuMemFree_v2"];

#[test]
fn where_a_capture_is_announced_nothing_is_queued_and_nothing_waits_for_the_device() {
    simulated("where_a_capture_is_announced_nothing_is_queued_and_nothing_waits_for_the_device", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let (a, b) = (gpu.stream(true), gpu.stream(false));
        let pool = pool_of(BFC_BACKEND_CUDA, 192 * KIB);
        let chunks = [pool.get_on(60 * KIB, a), pool.get_on(60 * KIB, LEGACY)];
        gpu.hold(a);
        gpu.fill(a, chunks[0], 60 * KIB, 1);
        assert_eq!(pool.begin_private(1, a), BFC_OK);
        pool.put_on(chunks[0], a);
        pool.put_on(chunks[1], LEGACY);
        sim.clear_log();
        // By growth, after which only memory is left whose streams must not be accessed.
        pool.put_on(pool.get_on(60 * KIB, b), b);
        assert_eq!(pool.alloc_on(100 * KIB, b), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert_eq!(pool.alloc(100 * KIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert_eq!(pool.alloc_on(140 * KIB, LEGACY), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert_eq!(pool.try_trim(0), Ok(0), "what is free of those whose work is done");
        let log = sim.log_text();
        for function in FORBIDDEN {
            assert_eq!(sim.calls(function), 0, "{function}:\n{log}");
        }
        let recorded = |stream: u64| {
            log.lines()
                .any(|line| line.contains("cuEventRecord(") && line.contains(&format!(", {stream:#x})")))
        };
        assert_eq!([a, LEGACY, b].map(recorded), [false, false, true], "{log}");
        assert_eq!(pool.end_private(1, a), BFC_OK);
        let whole = pool.get_on(120 * KIB, b);
        pool.put_on(whole, b);
        sim.release_all();
        assert_eq!(sim.mismatches(), 0);
        pool.trim(0);
        assert_eq!(pool.stats().pool_bytes, 0);
        drop(pool);
        [a, b].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Another thread has seen that the stream is not captured, and is about to record an event on it.
#[test]
fn the_announcement_waits_for_who_is_recording() {
    simulated("the_announcement_waits_for_who_is_recording", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (a, b) = (gpu.stream(false), gpu.stream(false));
        let pool = pool_of(BFC_BACKEND_CUDA, GIB);
        let chunk = pool.get_on(60 * KIB, a);
        pool.put_on(pool.get_on(1, b), b);
        gpu.hold(a);
        gpu.fill(a, chunk, 60 * KIB, 1);
        sim.clear_log();
        sim.delay(c"cuEventRecord".as_ptr(), 300_000_000);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                gpu.set_current(context);
                pool.put_on(chunk, a);
            });
            gpu.await_call("cuEventRecord");
            // A call that waits for the device waits for the stream too.
            sim.release_all();
            assert_eq!(pool.begin_private(1, a), BFC_OK);
            gpu.begin_capture(a);
            other.join().expect("no panic");
        });
        let records = sim.log_text();
        gpu.destroy_graph(gpu.end_capture(a));
        assert_eq!(sim.calls("cuEventRecord"), 1, "{records}");
        assert_eq!(pool.end_private(1, a), BFC_OK);
        drop(pool);
        [a, b].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Nothing is guaranteed for a capture that is not announced, but if its beginning was seen it stays valid, and
/// the pool continues to work in any case.
#[test]
fn an_event_that_was_captured_counts_for_nothing() {
    simulated("an_event_that_was_captured_counts_for_nothing", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (a, b) = (gpu.stream(false), gpu.stream(false));
        let pool = pool_of(BFC_BACKEND_CUDA, GIB);
        let chunk = pool.get_on(60 * KIB, a);
        pool.put_on(pool.get_on(1, b), b);
        sim.clear_log();
        sim.delay(c"cuEventRecord".as_ptr(), 200_000_000);
        std::thread::scope(|scope| {
            let freed = scope.spawn(|| {
                gpu.set_current(context);
                pool.put_on(chunk, a);
            });
            gpu.await_call("cuEventRecord");
            gpu.begin_capture(a);
            freed.join().expect("a free does not fail");
        });
        sim.clear_faults();
        gpu.destroy_graph(gpu.end_capture(a));
        // It was not queried. The event of the next free on the stream covers this one too.
        assert_ne!(pool.get_on(60 * KIB, b), chunk);
        pool.put_on(pool.get_on(KIB, a), a);
        assert!((0..8).any(|_| pool.get_on(60 * KIB, b) == chunk));
        // A third, unrelated stream, and pending work.
        pool.forget(a);
        gpu.destroy_stream(a);
        let c = gpu.stream(false);
        gpu.hold(c);
        let chunk = pool.get_on(100 * KIB, c);
        gpu.fill(c, chunk, 100 * KIB, 1);
        pool.put_on(chunk, c);
        pool.get_on(4 * MIB, b);
        sim.release_all();
        pool.check();
        drop(pool);
        [b, c].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// The pool still exists, and so does the capture. When that has ended, the pool can be destroyed.
#[test]
fn no_pool_ends_while_a_stream_is_captured() {
    simulated("no_pool_ends_while_a_stream_is_captured", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for backend in [BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM] {
            // One that the legacy default stream waits for, and one that is announced.
            for (blocking, announced) in [(true, false), (false, true)] {
                let stream = gpu.stream(blocking);
                let pool = pool_of(backend, GIB);
                pool.put(pool.get_on(MIB, stream));
                if announced {
                    assert_eq!(pool.begin_private(1, stream), BFC_OK);
                }
                gpu.begin_capture(stream);
                for end in [Pool::destroy, Pool::destroy_forced] {
                    assert_eq!(end(&pool), BFC_ERROR_BACKEND_FAILED);
                    assert!(last_error().contains("captured"), "{}", last_error());
                }
                gpu.destroy_graph(gpu.end_capture(stream));
                if announced {
                    assert_eq!(pool.end_private(1, stream), BFC_OK);
                }
                pool.check();
                pool.put(pool.get(MIB));
                assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
                let left = [ALLOCATIONS, PHYSICAL, MAPPINGS, RESERVATIONS].map(|kind| sim.live(kind));
                assert_eq!(left, [0; 4], "backend {backend}");
                gpu.destroy_stream(stream);
            }
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A trim is refused if it would break a capture, and not if there is nothing to release.
#[test]
fn a_trim_with_nothing_to_give_back_is_no_failure() {
    simulated("a_trim_with_nothing_to_give_back_is_no_failure", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for backend in [BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM] {
            let stream = gpu.stream(true);
            let pool = pool_of(backend, GIB);
            // A part of a region, or of a granule.
            let (small, large) = (pool.get(256), pool.get(4 * MIB));
            gpu.begin_capture(stream);
            assert_eq!(pool.try_trim(0), Ok(0), "{}", last_error());
            pool.put(large);
            let held = pool.stats().pool_bytes;
            assert_eq!(pool.try_trim(0), Err(BFC_ERROR_BACKEND_FAILED));
            assert_eq!(pool.try_trim(held), Ok(0), "all of it may stay: {}", last_error());
            pool.check();
            gpu.destroy_graph(gpu.end_capture(stream));
            assert_eq!(pool.try_trim(0), Ok(4 * MIB));
            pool.put(small);
            assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
            gpu.destroy_stream(stream);
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}
