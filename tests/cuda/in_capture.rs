//! Captures on the simulated driver (a simulation, and no device): what the library leaves alone during one, and
//! what stays for the graph.

use crate::common::gpu::{BACKENDS, Gpu};
use crate::common::simcuda::simulated;
use crate::common::simcuda::steer::FREE_SYNCHRONIZES;
use crate::common::*;
use cuda_sys::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

/// The calls that are prohibited for a captured stream, and for anything that encompasses it.
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
                let pool = Pool::in_small_regions(backend, 0, 256 * unit, GROWING);
                let (captured, other) = (gpu.stream(blocking), gpu.stream(false));
                [captured, other].into_iter().for_each(|stream| gpu.hold(stream));
                // Work that could be polled, waited for and synchronized, and memory that could be released.
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
                    // Memory that the graph uses is its own, even if freed in the capture, whatever else is allocated
                    // and freed.
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

/// A request of a stream that is not captured may wait for others, but neither for the whole device nor release memory,
/// which waits for the device, as far as the library can see that some stream is captured.
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
            let pool = Pool::in_small_regions(backend, 0, 256 * unit, GROWING);
            let (captured, other) = (gpu.stream(blocking), gpu.stream(false));
            gpu.hold(captured);
            let chunks =
                [pool.get_on(64 * unit, other), pool.get(100 * unit), pool.get_on(10 * unit, captured)];
            gpu.fill(captured, chunks[2], 10 * unit, 1);
            // The library knows the captured stream: it is in use, or bfc_pool_begin has named it.
            if private {
                assert_eq!(pool.begin_private(1, captured), BFC_OK);
            }
            // The library knows that the stream exists: memory of it is in use, or it is announced.
            if private {
                pool.put_on(chunks[2], captured);
            }
            gpu.begin_capture(captured);
            pool.put_on(chunks[0], other);
            pool.put(chunks[1]);
            // Nothing fits unless memory is released first.
            assert_eq!(pool.alloc_on(200 * unit, other), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
            assert_eq!(pool.alloc(200 * unit), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
            let trimmed = pool.try_trim(0);
            assert!(trimmed == Err(BFC_ERROR_BACKEND_FAILED) || trimmed == Ok(0), "{trimmed:?}");
            assert_eq!(pool.begin_private(2, other), BFC_OK, "which synchronises only if it may");
            assert_eq!(pool.end_private(2, other), BFC_OK);
            pool.check();
            gpu.destroy_graph(gpu.end_capture(captured));
            if !private {
                pool.put_on(chunks[2], captured);
            }
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

/// A capture on a non-blocking stream cannot be seen unless the library was told of the stream and it certainly exists,
/// and a call that waits for the device breaks it: "It is also invalid to query the execution status of or synchronize
/// [...] the broader handle [...] when any associated stream is in capture mode" (CUDA C++ Programming Guide,
/// Prohibited and Unhandled Operations). Each way that the header names is tested. A stream whose memory was all freed
/// may have been destroyed since, so its handle is not given to the driver.
#[test]
fn a_capture_that_was_not_announced() {
    simulated("a_capture_that_was_not_announced", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        type Tell = fn(&Pool, u64) -> Option<u64>;
        let tell: [(&str, Tell, bool); 6] = [
            ("not at all", |_, _| None, false),
            (
                "bfc_pool_begin",
                |pool, stream| {
                    assert_eq!(pool.begin_private(1, stream), BFC_OK);
                    None
                },
                true,
            ),
            ("memory in use", |pool, stream| Some(pool.get_on(1, stream)), true),
            (
                "memory in use that is recorded",
                |pool, stream| {
                    let address = pool.get(1);
                    assert_eq!(ordered::record_stream(pool.device(), address, stream), BFC_OK);
                    Some(address)
                },
                true,
            ),
            (
                "memory that was given back",
                |pool, stream| {
                    pool.put_on(pool.get_on(1, stream), stream);
                    None
                },
                false,
            ),
            (
                "memory that was given back within the capture",
                |pool, stream| {
                    pool.put_on(pool.get_on(1, stream), stream);
                    None
                },
                true,
            ),
        ];
        for (way, tell, is_told) in tell {
            let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, GIB, GROWING);
            pool.put(pool.get(1000));
            let stream = gpu.stream(false);
            let within = way.ends_with("within the capture");
            if within {
                gpu.begin_capture(stream);
            }
            let live = tell(&pool, stream);
            if !within {
                gpu.begin_capture(stream);
            }
            // Memory that only a synchronization makes reusable.
            pool.put(pool.get(1000));
            let trimmed = pool.try_trim(0);
            assert!(matches!(trimmed, Err(BFC_ERROR_BACKEND_FAILED) | Ok(0)), "{way}: {trimmed:?}");
            let ended = gpu.try_end_capture(stream);
            assert_eq!(ended.err(), (!is_told).then_some(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED), "{way}");
            live.into_iter().for_each(|address| pool.put(address));
            if way == "bfc_pool_begin" {
                assert_eq!(pool.end_private(1, stream), BFC_OK);
            }
            drop(pool);
            ended.iter().for_each(|&graph| gpu.destroy_graph(graph));
            gpu.destroy_stream(stream);
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// Free regions would make room for a larger one, but releasing them waits for the device.
#[test]
fn regions_stay_while_a_stream_is_captured() {
    simulated("regions_stay_while_a_stream_is_captured", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for blocking in [false, true] {
            let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, 192 * KIB, GROWING);
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

/// Free granules would make room, but moving them waits for the device. Growth needs no wait.
#[test]
fn granules_stay_while_a_stream_is_captured() {
    simulated("granules_stay_while_a_stream_is_captured", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for blocking in [false, true] {
            let pool = Pool::in_small_regions(BFC_BACKEND_CUDA_VMM, 0, 16 * MIB, BFC_ALLOW_GROWTH);
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
            // As long as a capture is announced it may begin.
            assert_eq!(pool.alloc_on(6 * MIB, other), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
            assert_eq!(pool.end_private(1, captured), BFC_OK);
            // Three granules that are free, and none that the limit leaves.
            pool.put_on(pool.get_on(6 * MIB, other), other);
            assert_eq!(sim.calls("cuMemUnmap"), 3);
            pool.put_on(grown, captured);
            // No memory of the private pool is moved or released.
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

/// The simulation implements the rules that these tests check.
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
