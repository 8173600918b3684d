//! Captures that are announced for the whole process by `bfc_capture_begin`, on the simulated driver (a simulation, and no
//! device). No allocator knows the stream: it does not block, and with timestamps there are no streams.

mod common;

use common::gpu::{Gpu, LEGACY};
use common::simcuda::simulated;
use common::*;

const KINDS: [(u32, u32); 4] = [
    (BFC_BACKEND_CUDA, GROWING),
    (BFC_BACKEND_CUDA, GROWING | BFC_TIMESTAMPS | BFC_QUARANTINE),
    (BFC_BACKEND_CUDA_VMM, GROWING),
    (BFC_BACKEND_CUDA_VMM, GROWING | BFC_TIMESTAMPS | BFC_QUARANTINE),
];

/// A request that only giving back or moving memory would serve, a trim and the end of the allocator.
#[test]
fn nothing_is_synchronized_or_given_back() {
    simulated("nothing_is_synchronized_or_given_back", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, flags) in KINDS {
            let stream = gpu.stream(false);
            let pool = Pool::in_small_regions(backend, 0, 20 * MIB, flags);
            // Free memory on both sides of a live chunk.
            let chunks = [6, 2, 6].map(|size| pool.get(size * MIB));
            [chunks[0], chunks[2]].into_iter().for_each(|chunk| pool.put(chunk));
            if flags & BFC_TIMESTAMPS != 0 {
                // SAFETY: the pointer is valid for writing.
                let safe = |count: &mut u64| unsafe { bfc_timestamp(0, count) };
                let mut count = 0;
                assert_eq!(safe(&mut count), BFC_OK);
                assert_eq!(bfc_set_safe_frontier(0, count + 1), BFC_OK);
            }
            assert_eq!(bfc_capture_begin(), BFC_OK);
            gpu.begin_capture(stream);
            let before = ["cuCtxSynchronize", "cuMemFree", "cuMemUnmap"].map(|name| sim.calls(name));
            assert_eq!(pool.alloc(13 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
            assert_eq!(pool.try_trim(0), Err(BFC_ERROR_BACKEND_FAILED));
            assert!(last_error().contains("bfc_capture_begin"), "{}", last_error());
            assert_eq!(pool.destroy_forced(), BFC_ERROR_BACKEND_FAILED);
            // Growth, and what is free, are there.
            let more = [6, 4].map(|size| pool.get(size * MIB));
            assert_eq!(["cuCtxSynchronize", "cuMemFree", "cuMemUnmap"].map(|name| sim.calls(name)), before);
            gpu.destroy_graph(gpu.end_capture(stream));
            assert_eq!(bfc_capture_end(), BFC_OK);
            more.into_iter().for_each(|chunk| pool.put(chunk));
            pool.put(chunks[1]);
            pool.check();
            assert!(pool.try_trim(0).is_ok(), "{}", last_error());
            assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
            gpu.destroy_stream(stream);
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// An announcement waits a second for a request that is about to wait for the device. One that maps memory for longer asks
/// again before it does.
#[test]
fn a_request_that_maps_for_long_breaks_no_capture() {
    simulated("a_request_that_maps_for_long_breaks_no_capture", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let stream = gpu.stream(false);
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA_VMM, 0, 20 * MIB, GROWING);
        let chunks = [6, 2, 6].map(|size| pool.get(size * MIB));
        [chunks[0], chunks[2]].into_iter().for_each(|chunk| pool.put(chunk));
        sim.delay(c"cuMemCreate".as_ptr(), 1_500_000_000);
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                gpu.set_current(context);
                pool.alloc(13 * MIB)
            });
            let calls = sim.calls("cuMemCreate");
            while sim.calls("cuMemCreate") == calls {
                std::thread::yield_now();
            }
            assert_eq!(bfc_capture_begin(), BFC_OK);
            gpu.begin_capture(stream);
            let refused = served.join().expect("no panic");
            assert!(refused.is_err(), "it had to move memory");
        });
        gpu.destroy_graph(gpu.end_capture(stream));
        assert_eq!(bfc_capture_end(), BFC_OK);
        pool.check();
        pool.put(chunks[1]);
        let whole = pool.get(20 * MIB);
        pool.put(whole);
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        gpu.destroy_stream(stream);
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Announcements are counted, and an end without a beginning is an error. Host memory is not concerned.
#[test]
fn announcements_are_counted() {
    assert_eq!(bfc_capture_end(), BFC_ERROR_INVALID_ARGUMENT);
    assert!(last_error().contains("bfc_capture_begin"), "{}", last_error());
    let pool = Pool::in_small_regions(BFC_BACKEND_HOST, 300, 20 * MIB, GROWING);
    pool.put(pool.get(4 * MIB));
    assert_eq!((bfc_capture_begin(), bfc_capture_begin()), (BFC_OK, BFC_OK));
    assert_eq!(pool.try_trim(0), Ok(4 * MIB), "{}", last_error());
    assert_eq!([bfc_capture_end(), bfc_capture_end(), bfc_capture_end()], [0, 0, BFC_ERROR_INVALID_ARGUMENT]);
}

/// An event on the legacy stream breaks the capture of a blocking stream: it is recorded before the announcement returns, or
/// not before the capture ends.
#[test]
fn no_event_is_recorded_on_the_legacy_stream_in_an_announced_capture() {
    simulated("no_event_is_recorded_on_the_legacy_stream_in_an_announced_capture", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let (captured, third) = (gpu.stream(true), gpu.stream(false));
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, MIB, GROWING);
        // Freed while its stream is the only one, so that its event comes late.
        pool.put_on(pool.get_on(40 * KIB, LEGACY), LEGACY);
        sim.delay(c"cuEventRecord".as_ptr(), 100_000_000);
        let ended = std::thread::scope(|scope| {
            let before = sim.calls("cuEventRecord");
            let other = scope.spawn(|| {
                gpu.set_current(context);
                pool.get_on(100 * KIB, third)
            });
            while sim.calls("cuEventRecord") == before {
                std::thread::yield_now();
            }
            assert_eq!(bfc_capture_begin(), BFC_OK);
            gpu.begin_capture(captured);
            pool.put_on(other.join().expect("no panic"), third);
            // Meanwhile none is recorded.
            pool.put_on(pool.get_on(200 * KIB, third), third);
            let ended = gpu.try_end_capture(captured);
            assert_eq!(bfc_capture_end(), BFC_OK);
            ended
        });
        sim.clear_faults();
        gpu.destroy_graph(ended.unwrap_or_else(|code| panic!("the capture is broken: {code}")));
        drop(pool);
        [captured, third].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    });
}
