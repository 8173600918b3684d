//! PyTorch's private pools on the simulated driver (a simulation, and no device): which requests are for one, how long
//! it lives, and captures that are not named before they begin.

use crate::common::adapters::*;
use crate::common::gpu::Gpu;
use crate::common::simcuda::steer::{FREE_SYNCHRONIZES, STREAMS};
use crate::common::simcuda::{Simulation, simulated, simulated_with};
use crate::common::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Barrier;
use std::sync::atomic::Ordering::SeqCst;

const ID: (u64, u64) = (0, 7);

fn end_to_pool(id: (u64, u64)) {
    bfc_torch_end_allocate_to_pool(0, id.0, id.1);
}

fn release(id: (u64, u64)) {
    bfc_torch_release_pool(0, id.0, id.1);
}

/// A program with two streams that do not block, and a pool of device 0 with a limit.
fn with_pool(sim: Simulation, limit: u64, work: impl FnOnce(Gpu, [u64; 2])) {
    let gpu = Gpu::new(sim);
    gpu.enter(0);
    let mut wanted = options();
    (wanted.flags, wanted.memory_limit, wanted.initial_region_bytes) = (GROWING, limit, 64 * KIB);
    assert_eq!(create(0, Some(&wanted)), BFC_OK, "{}", last_error());
    let streams = [gpu.stream(false), gpu.stream(false)];
    work(gpu, streams);
    sim.release_all();
    assert_eq!(COPIES.load(SeqCst), 0, "every filter has ended");
    end(0);
    streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
    gpu.leave(0);
    assert_eq!((sim.mismatches(), sim.live(STREAMS)), (0, 0));
    sim.assert_clean();
}

fn get(stream: u64, bytes: u64) -> u64 {
    let address = (TORCH.alloc)(bytes, stream);
    assert_ne!(address, 0, "{}", last_error());
    address
}

/// A graph's memory is its own until the graph is gone, even memory that was freed in the capture.
#[test]
fn a_graph_keeps_its_memory() {
    simulated("a_graph_keeps_its_memory", |sim| {
        with_pool(sim, 16 * MIB, |gpu, [a, b]| {
            begin_to_pool(ID, a);
            gpu.begin_capture(a);
            let chunks = [get(a, MIB), get(a, MIB)];
            gpu.fill(a, chunks[0], MIB, 1);
            gpu.expect(a, chunks[0], MIB, 1);
            (TORCH.free)(chunks[0], a);
            assert_eq!(get(a, MIB), chunks[0], "in the capture it comes back");
            (TORCH.free)(chunks[0], a);
            let graph = gpu.end_capture(a);
            end_to_pool(ID);
            // On the stream of the capture too, whose requests are for common memory again.
            let others: Vec<u64> = std::iter::from_fn(|| match (TORCH.alloc)(MIB, a) {
                0 => None,
                address => Some(address),
            })
            .collect();
            assert!(others.len() >= 8 && !others.contains(&chunks[0]), "{}", others.len());
            for &other in &others {
                gpu.fill(b, other, MIB, 2);
            }
            gpu.launch(graph, a);
            others.iter().for_each(|&other| gpu.expect(b, other, MIB, 2));
            others.into_iter().for_each(|other| (TORCH.free)(other, b));
            gpu.destroy_graph(graph);
            release(ID);
            bfc_torch_reset();
            (TORCH.free)(chunks[1], a);
            // Now every stream may reuse it.
            assert_ne!((TORCH.alloc)(14 * MIB, b), 0, "{}", last_error());
            assert_eq!(bfc_destroy_forced(0), BFC_OK);
            assert_eq!(create(0, None), BFC_OK);
        });
    });
}

/// Several graphs share a pool, which the last one releases.
#[test]
fn it_ends_when_the_last_has_released_it() {
    simulated("it_ends_when_the_last_has_released_it", |sim| {
        with_pool(sim, 4 * MIB, |_, [a, b]| {
            for _ in 0..2 {
                begin_to_pool(ID, a);
                let chunk = get(a, 2 * MIB);
                (TORCH.free)(chunk, a);
                end_to_pool(ID);
            }
            release(ID);
            bfc_torch_reset();
            assert_eq!((TORCH.alloc)(3 * MIB, b), 0, "the second graph has it");
            release(ID);
            let chunk = get(b, 3 * MIB);
            (TORCH.free)(chunk, b);
            release(ID);
            assert!(last_error().contains("(0, 7)"), "{}", last_error());
            end_to_pool(ID);
            assert!(last_error().contains("(0, 7)"), "{}", last_error());
            // One in which nothing was allocated.
            begin_to_pool(ID, a);
            end_to_pool(ID);
            release(ID);
        });
    });
}

/// The filter selects the requests. Of several pools the one begun last serves them. Without a pool no filter is
/// called.
#[test]
fn the_filter_is_asked() {
    simulated("the_filter_is_asked", |sim| {
        with_pool(sim, 64 * MIB, |_, [a, b]| {
            let pool_of = |address: u64| {
                let map = pool::text(|buf, size, length| {
                    // SAFETY: the buffer is valid for as many bytes.
                    unsafe { bfc_memory_map(0, buf, size, length) }
                });
                let map: serde_json::Value = serde_json::from_str(&map).unwrap();
                let regions = map["regions"].as_array().unwrap().iter();
                let mut chunks = regions.flat_map(|region| region["chunks"].as_array().unwrap());
                let found = chunks.find(|chunk| chunk["address"] == format!("{address:#x}")).unwrap();
                found["pool"].as_u64()
            };
            let asked = ASKED.load(SeqCst);
            let common = get(a, 1000);
            assert_eq!((pool_of(common), ASKED.load(SeqCst)), (None, asked));
            begin_to_pool(ID, a);
            begin_to_pool((1, 0), b);
            let chunks = [get(a, 1000), get(b, 1000), get(0, 1000)];
            let [first, second, third] = chunks.map(pool_of);
            assert!(first.is_some() && second.is_some() && first != second && third.is_none());
            begin_to_pool((2, 0), a);
            let inner = get(a, 1000);
            assert!(![None, first, second].contains(&pool_of(inner)));
            end_to_pool((2, 0));
            let again = get(a, 1000);
            assert_eq!(pool_of(again), first);
            // Requests of every stream, on device 0 only.
            // SAFETY: NULL is allowed.
            unsafe { bfc_torch_begin_allocate_to_pool(0, 3, 0, null_mut::<c_void>()) };
            let any = get(0, 1000);
            assert!(pool_of(any).is_some());
            [ID, (1, 0), (3, 0)].into_iter().for_each(end_to_pool);
            let last = get(a, 1000);
            assert_eq!(pool_of(last), None);
            let all = chunks.into_iter().chain([common, inner, again, any, last]);
            all.for_each(|chunk| (TORCH.free)(chunk, a));
            [ID, (1, 0), (2, 0), (3, 0)].into_iter().for_each(release);
        });
    });
}

/// A graph is launched on another stream than it was captured on, and its pool is released while its output is in use. The
/// output is freed, in the order of the capture's stream, while the launch still writes it.
#[test]
fn memory_in_use_at_the_release_waits_for_the_last_launch() {
    simulated("memory_in_use_at_the_release_waits_for_the_last_launch", |sim| {
        for is_launch_over in [false, true] {
            sim.set(FREE_SYNCHRONIZES, 0);
            with_pool(sim, 16 * MIB, |gpu, [a, b]| {
                let launches = gpu.stream(false);
                begin_to_pool(ID, a);
                gpu.begin_capture(a);
                let output = get(a, MIB);
                gpu.fill(a, output, MIB, 1);
                gpu.expect(a, output, MIB, 1);
                let graph = gpu.end_capture(a);
                end_to_pool(ID);
                gpu.hold(launches);
                gpu.launch(graph, launches);
                gpu.destroy_graph(graph);
                release(ID);
                (TORCH.free)(output, a);
                if is_launch_over {
                    gpu.step(launches, u64::MAX);
                    let mut given_back = 0;
                    // SAFETY: the pointer is valid for writing.
                    assert_eq!(unsafe { bfc_trim(0, 0, &mut given_back) }, BFC_OK, "{}", last_error());
                    assert_eq!(stats_of(0).pool_bytes, 0, "it is common memory by now");
                }
                for stream in [a, b] {
                    let other = get(stream, MIB);
                    gpu.fill(stream, other, MIB, 2);
                    gpu.step(launches, u64::MAX);
                    gpu.expect(stream, other, MIB, 2);
                    (TORCH.free)(other, stream);
                    gpu.hold(launches);
                }
                gpu.step(launches, u64::MAX);
                gpu.destroy_stream(launches);
            });
        }
    });
}

/// Before the first request it is not known which stream is captured. No request of another stream breaks that capture.
#[test]
fn a_capture_that_nobody_names_is_left_alone() {
    simulated("a_capture_that_nobody_names_is_left_alone", |sim| {
        sim.set(FREE_SYNCHRONIZES, 0);
        with_pool(sim, 4 * MIB, |gpu, [a, b]| {
            // Work that could be synchronized, and memory that could be released.
            let chunks = [get(b, MIB), (CUPY.alloc)(2 * MIB, 0)];
            gpu.hold(b);
            gpu.fill(b, chunks[0], MIB, 1);
            begin_to_pool(ID, a);
            gpu.begin_capture(a);
            sim.clear_log();
            (TORCH.free)(chunks[0], b);
            (CUPY.free)(chunks[1], 0);
            assert_eq!((CUPY.alloc)(3 * MIB, 0), 0, "{}", last_error());
            assert_eq!((TORCH.alloc)(3 * MIB, b), 0, "{}", last_error());
            bfc_torch_reset();
            assert_eq!(sim.calls("cuCtxSynchronize"), 0, "{}", sim.log_text());
            let chunk = get(a, 1000);
            gpu.fill(a, chunk, 1000 / 8 * 8, 1);
            // From this point the library sees it by itself.
            bfc_torch_reset();
            assert_eq!((CUPY.alloc)(3 * MIB, 0), 0, "{}", last_error());
            assert_eq!(sim.calls("cuCtxSynchronize"), 0, "{}", sim.log_text());
            let graph = gpu.end_capture(a);
            end_to_pool(ID);
            gpu.destroy_graph(graph);
            (TORCH.free)(chunk, a);
            release(ID);
            // Now requests may wait for it.
            let chunk = (CUPY.alloc)(3 * MIB, 0);
            assert_ne!(chunk, 0, "{}", last_error());
            (CUPY.free)(chunk, 0);
        });
    });
}

/// A capture without a request of its own still ends its announcement.
#[test]
fn an_announcement_ends_with_its_capture() {
    simulated("an_announcement_ends_with_its_capture", |sim| {
        with_pool(sim, 4 * MIB, |_, [a, b]| {
            for id in [ID, (8, 8)] {
                begin_to_pool(id, a);
            }
            let chunk = (CUPY.alloc)(3 * MIB, 0);
            (CUPY.free)(chunk, 0);
            assert_eq!((TORCH.alloc)(3 * MIB, b), 0);
            end_to_pool(ID);
            assert_eq!((TORCH.alloc)(3 * MIB, b), 0, "the other is still under way");
            end_to_pool((8, 8));
            let chunk = get(b, 3 * MIB);
            (TORCH.free)(chunk, b);
            // With a request it ends too: torch.cuda.use_mem_pool captures nothing, and may last.
            begin_to_pool(ID, a);
            let (of_pool, chunk) = (get(a, 1000), (CUPY.alloc)(3 * MIB, 0));
            (CUPY.free)(chunk, 0);
            let chunk = (CUPY.alloc)(3 * MIB, 0);
            assert_ne!(chunk, 0, "{}", last_error());
            (CUPY.free)(chunk, 0);
            (TORCH.free)(of_pool, a);
            end_to_pool(ID);
            [ID, ID, (8, 8)].into_iter().for_each(release);
        });
    });
}

/// Threads begin and end pools while others allocate.
#[test]
fn pools_and_requests_of_many_threads() {
    simulated("pools_and_requests_of_many_threads", |sim| {
        with_pool(sim, 256 * MIB, |gpu, streams| {
            const THREADS: u64 = 4;
            let (start, context) = (Barrier::new(THREADS as usize), gpu.current());
            std::thread::scope(|scope| {
                for number in 0..THREADS {
                    let start = &start;
                    scope.spawn(move || {
                        gpu.set_current(context);
                        start.wait();
                        let mut random = Random::new(number);
                        for round in 0..200 {
                            let (id, stream) = ((number, round % 3), streams[random.index(2)]);
                            begin_to_pool(id, stream);
                            let chunks = [(); 4].map(|()| get(stream, random.between(1, 100_000)));
                            chunks.into_iter().for_each(|chunk| (TORCH.free)(chunk, stream));
                            end_to_pool(id);
                            release(id);
                        }
                        gpu.set_current(0);
                    });
                }
            });
            let stats = stats_of(0);
            assert_eq!((stats.num_allocs, stats.bytes_in_use), (THREADS * 800, 0));
        });
    });
}

/// The debug mode checks freed memory when the device is idle. Between the announcement of a capture and its first
/// request it skips the check.
#[test]
fn guards_do_not_break_a_capture_that_nobody_names() {
    let test = "guards_do_not_break_a_capture_that_nobody_names";
    simulated_with(test, &[("BFC_DEBUG", "guard")], |sim| {
        with_pool(sim, 4 * MIB, |gpu, [a, _]| {
            let chunks = [(CUPY.alloc)(1000, 0), (CUPY.alloc)(1000, 0)];
            (CUPY.free)(chunks[0], 0);
            assert_ne!(sim.calls("cuCtxSynchronize"), 0, "it is looked at after a synchronisation");
            begin_to_pool(ID, a);
            gpu.begin_capture(a);
            sim.clear_log();
            (CUPY.free)(chunks[1], 0);
            assert_eq!(sim.calls("cuCtxSynchronize"), 0, "{}", sim.log_text());
            gpu.destroy_graph(gpu.end_capture(a));
            end_to_pool(ID);
            release(ID);
        });
    });
}

/// A child that was forked while another thread accessed the pools gets an answer at once.
#[test]
fn a_forked_child_does_not_wait_for_the_parent_s_threads() {
    simulated("a_forked_child_does_not_wait_for_the_parent_s_threads", |sim| {
        with_pool(sim, 16 * MIB, |_, [a, _]| {
            begin_to_pool(ID, a);
            let stop = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(SeqCst) {
                        (TORCH.free)(get(a, 1000), a);
                    }
                });
                for _ in 0..200 {
                    // SAFETY: the child calls the library, which answers there, and ends.
                    let child = unsafe { libc::fork() };
                    if child == 0 {
                        // SAFETY: a child that waits forever is ended.
                        unsafe { libc::alarm(20) };
                        let is_refused = (TORCH.alloc)(1000, a) == 0;
                        end_to_pool(ID);
                        release(ID);
                        // SAFETY: nothing else may run in the child.
                        unsafe { libc::_exit(i32::from(!is_refused)) };
                    }
                    let mut status = 0;
                    // SAFETY: the pointer is valid for writing.
                    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                    assert_eq!(status, 0, "the child of a fork");
                }
                stop.store(true, SeqCst);
            });
            end_to_pool(ID);
            release(ID);
        });
    });
}
