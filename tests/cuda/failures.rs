//! Every call of the (simulated) driver made to fail, one after the other, in programs that use all features:
//! the library reports the failure or serves the request in another way, reuses nothing too early, loses nothing, and
//! its statistics are correct.

use crate::common::failing::*;
use crate::common::gpu::{Gpu, LEGACY, PER_THREAD};
use crate::common::simcuda::steer::ALLOCATIONS;
use crate::common::simcuda::{simulated, simulated_with};
use crate::common::*;
use cuda_sys::*;

const KIND: Kind = Kind { backend: BFC_BACKEND_CUDA, unit: 1 << 10, filled: u64::MAX, programs: &PROGRAMS };

crate::every_call_fails!(KIND);

#[track_caller]
fn growing(limit: u64) -> Pool {
    Pool::in_small_regions(BFC_BACKEND_CUDA, 0, limit, GROWING)
}

/// Memory freed by others is examined to save memory. If that fails, other memory is used.
#[test]
fn a_failing_look_at_others_fails_no_request_that_growth_serves() {
    simulated("a_failing_look_at_others_fails_no_request_that_growth_serves", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let streams = [gpu.stream(false), gpu.stream(false), gpu.stream(false)];
        for (at_free, nth, call) in [
            (false, 1, "cuStreamIsCapturing"),
            (false, 1, "cuEventQuery"),
            (true, 1, "cuStreamIsCapturing"),
            (true, 2, "cuStreamIsCapturing"),
            (true, 1, "cuStreamGetCtx"),
            (true, 1, "cuEventCreate"),
            (true, 1, "cuEventRecord"),
        ] {
            let pool = growing(GIB);
            let [a, b, c] = streams;
            for stream in [a, c] {
                gpu.hold(stream);
                let chunk = pool.get_on(30 * KIB, stream);
                gpu.fill(stream, chunk, 30 * KIB, 1);
                assert_eq!(pool.free(12345), BFC_ERROR_INVALID_POINTER);
                if at_free && stream == c {
                    sim.fail(Some(call), nth, CUDA_ERROR_UNKNOWN);
                }
                pool.put_on(chunk, stream);
            }
            let before = last_error();
            if !at_free {
                sim.fail(Some(call), nth, CUDA_ERROR_UNKNOWN);
            }
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

/// If nothing else serves it, the request fails with that failure.
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

/// A free or a bfc_pool_begin that succeeds does not report what the driver failed to do meanwhile.
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
        assert_eq!(pool.end_private(1, LEGACY), BFC_OK);
        sim.clear_faults();
        sim.release_all();
    });
}

/// It is tried once more, because there is no later attempt.
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
