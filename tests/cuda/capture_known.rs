//! A capture is known from its beginning to its end, on the simulated driver (a simulation, and no device): whatever is
//! allocated and freed in it, even without an announcement, once a request named its stream.

use crate::common::adapters::{ORT_ON_STREAM, TORCH, begin_to_pool};
use crate::common::gpu::{Gpu, PER_THREAD};
use crate::common::ordered::forget_stream;
use crate::common::simcuda::{simulated, simulated_with};
use crate::common::*;
use std::sync::Barrier;
use std::time::Duration;

const ID: (u64, u64) = (0, 7);
const LIMIT: u64 = 256 * KIB;

/// A way in which the library learns of a capture.
struct Way {
    name: &'static str,
    /// Begins the capture of a stream that does not block. Returns what is in use.
    begin: fn(Gpu, &Pool, u64) -> Option<u64>,
    /// Other things that end with the capture.
    end: fn(),
}

fn end_of_torch() {
    bfc_torch_end_allocate_to_pool(0, ID.0, ID.1);
    bfc_torch_release_pool(0, ID.0, ID.1);
}

fn temporary(stream: u64) {
    let address = (TORCH.alloc)(KIB, stream);
    assert_ne!(address, 0, "{}", last_error());
    (TORCH.free)(address, stream);
}

const WAYS: [Way; 6] = [
    Way {
        name: "a temporary of a region of PyTorch's",
        begin: |gpu, _, stream| {
            begin_to_pool(ID, stream);
            gpu.begin_capture(stream);
            temporary(stream);
            None
        },
        end: end_of_torch,
    },
    Way {
        name: "a temporary before the capture",
        begin: |gpu, _, stream| {
            begin_to_pool(ID, stream);
            temporary(stream);
            gpu.begin_capture(stream);
            None
        },
        end: end_of_torch,
    },
    Way {
        name: "ONNX Runtime's, in use",
        begin: |gpu, _, stream| {
            gpu.begin_capture(stream);
            Some((ORT_ON_STREAM.alloc)(KIB, stream))
        },
        end: || {},
    },
    Way {
        name: "ONNX Runtime's, freed",
        begin: |gpu, _, stream| {
            gpu.begin_capture(stream);
            (ORT_ON_STREAM.free)((ORT_ON_STREAM.alloc)(KIB, stream), stream);
            None
        },
        end: || {},
    },
    Way {
        name: "a request that was refused",
        begin: |gpu, pool, stream| {
            gpu.begin_capture(stream);
            assert_eq!(pool.alloc_on(2 * LIMIT, stream), Err(BFC_ERROR_OUT_OF_MEMORY));
            None
        },
        end: || {},
    },
    Way {
        name: "memory of a private pool that is freed in another capture",
        begin: |gpu, pool, stream| {
            assert_eq!(pool.begin_private(1, stream), BFC_OK);
            let address = pool.get_on(KIB, stream);
            assert_eq!(pool.end_private(1, stream), BFC_OK);
            gpu.begin_capture(stream);
            pool.put_on(address, stream);
            None
        },
        end: || assert_eq!(bfc_pool_release(0, 1), BFC_OK),
    },
];

/// Runs `others` while a stream is captured that the library learned of in each way. The pool has free memory that
/// waits for a synchronization.
fn in_each_way(gpu: Gpu, others: impl Fn(&Pool, u64)) {
    gpu.enter(0);
    for Way { name, begin, end } in WAYS {
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, LIMIT, GROWING);
        let (captured, other) = (gpu.stream(false), gpu.stream(false));
        let chunks = [pool.get(60 * KIB), pool.get_on(60 * KIB, other)];
        let live = begin(gpu, &pool, captured);
        let before = gpu.sim.calls("cuCtxSynchronize");
        pool.put(chunks[0]);
        pool.put_on(chunks[1], other);
        others(&pool, other);
        assert_eq!(gpu.sim.calls("cuCtxSynchronize"), before, "{name}: {}", gpu.sim.log_text());
        match gpu.try_end_capture(captured) {
            Ok(graph) => gpu.destroy_graph(graph),
            Err(code) => panic!("{name}: the capture is broken: {code}"),
        }
        end();
        // The end of the capture is noticed.
        live.into_iter().for_each(|address| (ORT_ON_STREAM.free)(address, captured));
        assert!(pool.try_trim(0).is_ok(), "{name}: {}", last_error());
        assert_eq!(pool.destroy(), BFC_OK, "{name}: {}", last_error());
        [captured, other].into_iter().for_each(|stream| gpu.destroy_stream(stream));
    }
    gpu.leave(0);
    gpu.sim.assert_clean();
}

#[test]
fn requests_trims_and_the_end_leave_it_whole() {
    simulated("requests_trims_and_the_end_leave_it_whole", |sim| {
        in_each_way(Gpu::new(sim), |pool, other| {
            assert_eq!(pool.alloc_on(240 * KIB, other), Err(BFC_ERROR_OUT_OF_MEMORY));
            assert_eq!(pool.alloc(240 * KIB), Err(BFC_ERROR_OUT_OF_MEMORY));
            // Free memory that waits for work cannot be released.
            let trimmed = pool.try_trim(0);
            assert!(matches!(trimmed, Err(BFC_ERROR_BACKEND_FAILED) | Ok(0)), "{trimmed:?}");
            assert_eq!(pool.destroy_forced(), BFC_ERROR_BACKEND_FAILED);
        });
    });
}

#[test]
fn the_thread_that_trims_leaves_it_whole() {
    let test = "the_thread_that_trims_leaves_it_whole";
    simulated_with(test, &[("BFC_TRIM_AFTER", "0.02")], |sim| {
        in_each_way(Gpu::new(sim), |pool, _| {
            std::thread::sleep(Duration::from_millis(100));
            assert_ne!(pool.stats().pool_bytes, 0, "nothing may go back");
        });
    });
}

/// An announcement needs the allocator, even while there is no memory to release.
#[test]
fn no_allocator_ends_between_an_announcement_and_the_first_request() {
    simulated("no_allocator_ends_between_an_announcement_and_the_first_request", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let stream = gpu.stream(false);
        for (is_torch, has_memory) in [(false, false), (false, true), (true, false), (true, true)] {
            let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, LIMIT, GROWING);
            if has_memory {
                pool.put(pool.get(KIB));
            }
            if is_torch {
                begin_to_pool(ID, stream);
            } else {
                assert_eq!(pool.begin_private(1, stream), BFC_OK);
            }
            assert_eq!(pool.destroy(), BFC_ERROR_BACKEND_FAILED, "torch {is_torch}, memory {has_memory}");
            assert_eq!(pool.destroy_forced(), BFC_ERROR_BACKEND_FAILED);
            if is_torch {
                end_of_torch();
            } else {
                assert_eq!(pool.end_private(1, stream), BFC_OK);
            }
            assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        }
        gpu.destroy_stream(stream);
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A synchronization of the primary context covers its green contexts (cuCtxSynchronize), so their captures count too.
#[test]
fn a_default_stream_of_a_green_context_is_asked_about() {
    simulated("a_default_stream_of_a_green_context_is_asked_about", |sim| {
        let gpu = Gpu::new(sim);
        let own = gpu.enter(0);
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, LIMIT, GROWING);
        let green = gpu.green_context(0).context;
        let held = pool.get_on(KIB, PER_THREAD);
        pool.put(pool.get(100 * KIB));
        gpu.begin_capture(PER_THREAD);
        gpu.set_current(own);
        let trimmed = pool.try_trim(0);
        assert!(matches!(trimmed, Err(BFC_ERROR_BACKEND_FAILED) | Ok(0)), "{trimmed:?}");
        gpu.set_current(green);
        gpu.destroy_graph(gpu.end_capture(PER_THREAD));
        pool.put_on(held, PER_THREAD);
        gpu.set_current(own);
        drop(pool);
        gpu.leave(0);
        assert_eq!(sim.misuses(), 0);
    });
}

/// A thread trims while another one captures its default stream there.
#[test]
fn a_default_stream_of_another_thread_is_asked_about() {
    simulated("a_default_stream_of_another_thread_is_asked_about", |sim| {
        let gpu = Gpu::new(sim);
        let own = gpu.enter(0);
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, LIMIT, GROWING);
        let green = gpu.green_context(0).context;
        gpu.set_current(own);
        pool.put(pool.get(100 * KIB));
        let (begun, trimmed) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gpu.set_current(green);
                let held = pool.get_on(KIB, PER_THREAD);
                gpu.begin_capture(PER_THREAD);
                begun.wait();
                trimmed.wait();
                let ended = gpu.try_end_capture(PER_THREAD);
                pool.put_on(held, PER_THREAD);
                ended.map(|graph| gpu.destroy_graph(graph)).expect("the capture is not broken");
            });
            begun.wait();
            let result = pool.try_trim(0);
            trimmed.wait();
            assert!(matches!(result, Err(BFC_ERROR_BACKEND_FAILED) | Ok(0)), "{result:?}");
        });
        drop(pool);
        gpu.leave(0);
        assert_eq!(sim.misuses(), 0);
    });
}

/// Once bfc_forget_stream has returned, the handle is no longer used, not even by threads that began to query streams
/// while it waited for others, and that know the stream only by its capture.
#[test]
fn a_forgotten_stream_that_was_captured_is_not_queried() {
    const DELAY: Duration = Duration::from_millis(50);
    simulated("a_forgotten_stream_that_was_captured_is_not_queried", |sim| {
        let gpu = Gpu::new(sim);
        let context = gpu.enter(0);
        let pool = Pool::in_small_regions(BFC_BACKEND_CUDA, 0, LIMIT, GROWING);
        let stream = gpu.stream(false);
        gpu.begin_capture(stream);
        assert_eq!(pool.alloc_on(2 * LIMIT, stream), Err(BFC_ERROR_OUT_OF_MEMORY));
        gpu.destroy_graph(gpu.end_capture(stream));
        pool.put(pool.get(100 * KIB));
        sim.delay(c"cuStreamIsCapturing".as_ptr(), DELAY.as_nanos() as u64);
        let trim = || {
            gpu.set_current(context);
            let _ = pool.try_trim(0);
        };
        std::thread::scope(|scope| {
            scope.spawn(trim);
            std::thread::sleep(DELAY / 2);
            scope.spawn(|| {
                // While the query of the first one is awaited.
                std::thread::sleep(DELAY / 2);
                trim();
            });
            assert_eq!(forget_stream(0, stream), BFC_OK, "{}", last_error());
            gpu.destroy_stream(stream);
        });
        sim.clear_faults();
        assert_eq!(sim.misuses(), 0, "{:?}", sim.misuse_texts());
        drop(pool);
        gpu.leave(0);
        sim.assert_clean();
    });
}
