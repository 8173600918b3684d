//! The adapters on the simulated driver (a simulation, and no device): each framework's contract for streams, NULL and
//! size 0; the first use; failures.

use crate::common::adapters::*;
use crate::common::gpu::Gpu;
use crate::common::simcuda::steer::{ALLOCATIONS, RETAINS};
use crate::common::simcuda::{Simulation, simulated, simulated_saying, simulated_with};
use crate::common::*;
use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN};
use std::ptr::{null, null_mut};
use std::sync::Barrier;

/// `bfc_report`.
fn report_of(device: i32) -> String {
    // SAFETY: `text` hands out room of that length.
    crate::common::pool::text(|to, room, length| unsafe { bfc_report(device, to, room, length) })
}

/// Device 0 has this much memory for the allocator, which begins with small regions.
fn limited(bytes: u64) {
    let mut wanted = options();
    (wanted.flags, wanted.memory_limit, wanted.initial_region_bytes) = (GROWING, bytes, 64 * KIB);
    assert_eq!(create(0, Some(&wanted)), BFC_OK, "{}", last_error());
}

/// A program with the context of device 0 and two streams on which work waits.
fn with_streams(sim: Simulation, work: impl FnOnce(Gpu, [u64; 2])) {
    let gpu = Gpu::new(sim);
    gpu.enter(0);
    let streams = [gpu.stream(false), gpu.stream(false)];
    streams.iter().for_each(|&stream| gpu.hold(stream));
    work(gpu, streams);
    sim.release_all();
    end(0);
    streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
    gpu.leave(0);
    assert_eq!(sim.mismatches(), 0);
    sim.assert_clean();
}

#[test]
fn who_names_a_stream_gets_its_memory_back_there_at_once() {
    simulated("who_names_a_stream_gets_its_memory_back_there_at_once", |sim| {
        for adapter in [TORCH, HANDLER] {
            with_streams(sim, |gpu, [a, b]| {
                let Adapter { name, alloc, free } = adapter;
                let first = alloc(MIB, a);
                assert!(first != 0 && first.is_multiple_of(512), "{name}: {}", last_error());
                gpu.fill(a, first, MIB, 1);
                gpu.expect(a, first, MIB, 1);
                free(first, a);
                sim.clear_log();
                assert_eq!(alloc(MIB, a), first, "{name}");
                free(first, a);
                let other = alloc(MIB, b);
                assert_ne!(other, first, "{name}: its work is under way");
                gpu.fill(b, other, MIB, 2);
                assert_eq!(sim.calls("cuCtxSynchronize"), 0, "{name}");
                free(other, b);
            });
        }
    });
}

#[test]
fn recorded_streams_are_waited_for() {
    simulated("recorded_streams_are_waited_for", |sim| {
        with_streams(sim, |gpu, [a, b]| {
            let chunk = (TORCH.alloc)(MIB, a);
            gpu.fill(a, chunk, MIB, 1);
            gpu.order(a, b);
            gpu.expect(b, chunk, MIB, 1);
            bfc_torch_record_stream(pointer(chunk), pointer(b));
            bfc_torch_record_stream(null_mut(), pointer(b));
            (TORCH.free)(chunk, a);
            let other = (TORCH.alloc)(MIB, a);
            assert_ne!(other, chunk);
            gpu.fill(a, other, MIB, 2);
            (TORCH.free)(other, a);
        });
    });
}

/// Memory freed without a stream is not reused, even on the stream that used it, until the device was idle.
#[test]
fn who_names_no_stream_is_safe_from_all() {
    simulated("who_names_no_stream_is_safe_from_all", |sim| {
        for (adapter, by_bfc) in [(CUPY, false), (ORT, false), (CUPY, true), (ORT, true)] {
            with_streams(sim, |gpu, [a, b]| {
                let Adapter { name, alloc, free } = adapter;
                limited(4 * MIB);
                // Work is queued on both streams, and the memory is used on either of them or on none.
                let chunk = alloc(MIB, 0);
                assert!(chunk != 0 && chunk.is_multiple_of(512), "{name}: {}", last_error());
                gpu.fill(a, chunk, MIB / 2, 1);
                gpu.fill(b, chunk + MIB / 2, MIB / 2, 2);
                gpu.expect(a, chunk, MIB / 2, 1);
                gpu.expect(b, chunk + MIB / 2, MIB / 2, 2);
                if by_bfc {
                    assert_eq!(bfc_free(0, pointer(chunk)), BFC_OK);
                } else {
                    free(chunk, 0);
                }
                let others = [TORCH.alloc, |bytes, _| self::alloc(0, bytes as usize).unwrap_or(0)];
                for (get, stream) in [(alloc, 0), (others[0], a), (others[1], 0)] {
                    let other = get(MIB, stream);
                    assert!(other != 0 && other != chunk, "{name}: {other:#x} {}", last_error());
                    gpu.fill(a, other, MIB, 3);
                    // PyTorch's functions return it to its stream only; here it stays.
                }
                assert_eq!(sim.calls("cuCtxSynchronize"), 0, "{name}: nothing was waited for");
                // Nothing more is available, so the request waits for the device.
                let again = alloc(MIB, 0);
                assert_eq!(again, chunk, "{name}: {}", last_error());
                assert_eq!(sim.calls("cuCtxSynchronize"), 1, "{name}");
                assert_eq!((gpu.pending(a), gpu.pending(b)), (0, 0), "{name}");
                gpu.fill(b, again, MIB, 4);
                assert_eq!(bfc_destroy_forced(0), BFC_OK);
                limited(MIB);
                sim.clear_log();
            });
        }
    });
}

/// The same for memory that another function allocated for one stream, if it is freed without any.
#[test]
fn the_free_says_how_it_is_ordered() {
    simulated("the_free_says_how_it_is_ordered", |sim| {
        with_streams(sim, |gpu, [a, b]| {
            let chunk = (TORCH.alloc)(MIB, a);
            gpu.fill(b, chunk, MIB, 1);
            gpu.expect(b, chunk, MIB, 1);
            (CUPY.free)(chunk, 0);
            let other = (TORCH.alloc)(MIB, a);
            assert_ne!(other, chunk);
            gpu.fill(a, other, MIB, 2);
            // The reverse: it belongs to a stream, whichever function allocated it.
            let any = (CUPY.alloc)(MIB, 0);
            (TORCH.free)(any, a);
            assert_eq!((TORCH.alloc)(MIB, a), any);
            [any, other].into_iter().for_each(|chunk| (TORCH.free)(chunk, a));
        });
    });
}

/// Memory freed on streams serves callers that name none once its work has completed. Otherwise they wait for it.
#[test]
fn who_names_no_stream_gets_what_others_are_done_with() {
    simulated("who_names_no_stream_gets_what_others_are_done_with", |sim| {
        with_streams(sim, |gpu, [a, _]| {
            limited(MIB);
            let chunk = (TORCH.alloc)(MIB, a);
            gpu.fill(a, chunk, MIB, 1);
            gpu.expect(a, chunk, MIB, 1);
            (TORCH.free)(chunk, a);
            assert_eq!((CUPY.alloc)(MIB, 0), chunk, "{}", last_error());
            assert_eq!(gpu.pending(a), 0, "it is waited for");
            (CUPY.free)(chunk, 0);
        });
    });
}

/// The pool neither grows to its limit nor waits at each request.
#[test]
fn who_names_no_stream_keeps_a_pool_small() {
    simulated("who_names_no_stream_keeps_a_pool_small", |sim| {
        with_streams(sim, |gpu, [a, _]| {
            let kept: Vec<u64> = (0..4).map(|_| (CUPY.alloc)(8 * MIB, 0)).collect();
            sim.clear_log();
            for _ in 0..1000 {
                let chunk = (CUPY.alloc)(4 * MIB, 0);
                gpu.fill(a, chunk, 256, 1);
                (CUPY.free)(chunk, 0);
            }
            let stats = stats_of(0);
            assert!(stats.peak_pool_bytes <= 80 * MIB, "{} MiB", stats.peak_pool_bytes / MIB);
            let waits = sim.calls("cuCtxSynchronize");
            assert!((1..=150).contains(&waits), "{waits}");
            kept.into_iter().for_each(|chunk| (CUPY.free)(chunk, 0));
        });
    });
}

#[test]
fn nothing_of_no_bytes_and_nothing_at_null() {
    simulated("nothing_of_no_bytes_and_nothing_at_null", |sim| {
        for Adapter { name, alloc, free } in ALL {
            assert_eq!(alloc(0, 0), 0, "{name}");
            free(0, 0);
        }
        assert_eq!(handler_alloc(0, 0), Ok(0));
        // SAFETY: NULL is allowed.
        let refused = unsafe { bfc_handler_alloc(null_mut(), null_mut(), 1, null_mut()) };
        assert_eq!(refused, BFC_ERROR_INVALID_ARGUMENT);
        bfc_torch_init(1);
        bfc_torch_reset();
        bfc_ort_empty_cache();
        assert_eq!(sim.live(RETAINS), 0, "there is no need of an allocator for any of this");
        assert_eq!(base_alloc(0), (0, 0));
    });
}

#[test]
fn wrong_frees_change_nothing_and_are_told() {
    let told = simulated_saying("wrong_frees_change_nothing_and_are_told", &[("BFC_LOG", "error")], |sim| {
        with_streams(sim, |_, [a, _]| {
            for Adapter { name, alloc, free } in ALL {
                let chunks = [alloc(1000, a), alloc(1000, a)];
                let before = stats_of(0);
                free(chunks[0] + 256, a);
                assert!(last_error().contains("inside the chunk"), "{name}: {}", last_error());
                free(0x1234, a);
                assert!(last_error().contains("in no region"), "{name}: {}", last_error());
                assert_eq!(stats_of(0).num_frees, before.num_frees, "{name}");
                free(chunks[0], a);
                free(chunks[0], a);
                assert!(last_error().contains("already"), "{name}: {}", last_error());
                assert_eq!(stats_of(0).num_frees, before.num_frees + 1, "{name}");
                free(chunks[1], a);
            }
        });
    });
    if child::is_child("wrong_frees_change_nothing_and_are_told") {
        return;
    }
    // The handlers return a status.
    for name in ["bfc_torch_free: ", "bfc_cupy_free: ", "bfc_ort_free: "] {
        assert!(told.matches(name).count() >= 3, "{name}\n{told}");
    }
    assert!(!told.contains("bfc_handler"), "{told}");
}

#[test]
fn threads_that_come_first_together_share_one() {
    simulated("threads_that_come_first_together_share_one", |sim| {
        const THREADS: usize = 8;
        for round in 0..20 {
            let start = Barrier::new(THREADS);
            std::thread::scope(|scope| {
                for number in 0..THREADS {
                    let (start, adapter) = (&start, ALL[(number + round) % ALL.len()]);
                    scope.spawn(move || {
                        start.wait();
                        let chunk = (adapter.alloc)(1000, 0);
                        assert_ne!(chunk, 0, "{}: {}", adapter.name, last_error());
                        (adapter.free)(chunk, 0);
                    });
                }
            });
            assert_eq!(stats_of(0).num_allocs, THREADS as u64);
            assert_eq!(sim.live(RETAINS), 1, "round {round}");
            end(0);
            sim.assert_clean();
        }
    });
}

#[test]
fn the_program_s_own_allocator_is_used() {
    simulated("the_program_s_own_allocator_is_used", |_| {
        limited(3 * MIB);
        let small = alloc(0, 1).unwrap();
        let chunks = ALL.map(|adapter| (adapter.alloc)(1, 0));
        // Aligned like the driver's, whatever the neighbours are.
        assert!(chunks.iter().all(|chunk| chunk.is_multiple_of(512)), "{small:#x} {chunks:#x?}");
        assert_eq!(free(0, small), BFC_OK);
        assert!(!chunks.contains(&0), "{}", last_error());
        assert_eq!((stats_of(0).num_allocs, stats_of(0).bytes_limit), (5, 3 * MIB));
        // Each is freed by another function.
        for (adapter, chunk) in ALL.iter().rev().zip(chunks) {
            (adapter.free)(chunk, 0);
        }
        assert_eq!(stats_of(0).num_frees, 5);
        end(0);
    });
}

#[test]
fn the_environment_says_how_it_is_created() {
    // With cuda_vmm a pool would begin with a granule.
    let variables =
        [("BFC_MEMORY_LIMIT", "5MiB"), ("BFC_INITIAL_REGION_BYTES", "1MiB"), ("BFC_BACKEND", "cuda")];
    simulated_with("the_environment_says_how_it_is_created", &variables, |_| {
        let chunk = (ORT.alloc)(1000, 0);
        let stats = stats_of(0);
        assert_eq!((stats.bytes_limit, stats.pool_bytes), (5 * MIB, MIB), "{}", last_error());
        (ORT.free)(chunk, 0);
        bfc_ort_empty_cache();
        assert_eq!(stats_of(0).pool_bytes, 0);
        let chunk = (TORCH.alloc)(1000, 0);
        let around = base_alloc(chunk + 300);
        assert!(around.0 <= chunk && chunk < around.0 + around.1 && around.1 == MIB, "{around:x?}");
        assert_eq!(base_alloc(around.0 + around.1 + 4096), (0, 0));
        (TORCH.free)(chunk, 0);
        bfc_torch_reset();
        assert_eq!(stats_of(0).pool_bytes, 0);
        end(0);
    });
}

#[test]
fn stamps_exclude_them() {
    simulated_with("stamps_exclude_them", &[("BFC_TIMESTAMPS", "1")], |_| {
        for Adapter { name, alloc, .. } in ALL {
            assert_eq!(alloc(1000, 0), 0, "{name}");
            assert!(last_error().contains("BFC_TIMESTAMPS"), "{name}: {}", last_error());
        }
        end(0);
    });
}

#[test]
fn without_memory_they_fail_and_say_so() {
    simulated("without_memory_they_fail_and_say_so", |_| {
        limited(MIB);
        for Adapter { name, alloc, free } in ALL {
            assert_eq!(alloc(2 * MIB, 0), 0, "{name}");
            assert!(last_error().contains(&(2 * MIB).to_string()), "{name}: {}", last_error());
            assert_eq!(alloc(u64::MAX, 0), 0, "{name}");
            let chunk = alloc(MIB, 0);
            assert_ne!(chunk, 0, "{name}: it works on: {}", last_error());
            free(chunk, 0);
        }
        assert_eq!(handler_alloc(2 * MIB, 0), Err(BFC_ERROR_OUT_OF_MEMORY));
        end(0);
    });
}

#[test]
fn the_status_of_what_failed_stays_with_its_thread() {
    simulated_with("the_status_of_what_failed_stays_with_its_thread", &[("BFC_TIMESTAMPS", "1")], |_| {
        // PyTorch's request creates the allocator, which fails to serve it for a reason other than memory.
        assert_eq!(bfc_adapter_status(), BFC_OK);
        assert_eq!((TORCH.alloc)(1000, 0), 0);
        assert_eq!(bfc_adapter_status(), BFC_ERROR_UNSUPPORTED);
        end(0);
        limited(MIB);
        assert_eq!((TORCH.alloc)(2 * MIB, 0), 0);
        assert_eq!(bfc_adapter_status(), BFC_ERROR_OUT_OF_MEMORY);
        let chunk = (TORCH.alloc)(1000, 0);
        assert_eq!(
            (chunk != 0, bfc_adapter_status()),
            (true, BFC_ERROR_OUT_OF_MEMORY),
            "a success leaves it"
        );
        std::thread::spawn(|| assert_eq!(bfc_adapter_status(), BFC_OK)).join().unwrap();
        bfc_torch_record_stream(pointer(8), pointer(0));
        assert_eq!(bfc_adapter_status(), BFC_ERROR_INVALID_POINTER);
        (TORCH.free)(chunk, 0);
        end(0);
    });
}

#[test]
fn a_share_of_the_device_is_the_limit() {
    let told =
        simulated_saying("a_share_of_the_device_is_the_limit", &[("SIMCUDA_MEMORY", "1073741824")], |_| {
            for wrong in [1.5, -0.1, f64::NAN] {
                bfc_torch_memory_fraction(wrong, 0);
                assert!(last_error().contains("memory_fraction"), "{}", last_error());
            }
            bfc_torch_memory_fraction(0.25, 0);
            let chunk = (TORCH.alloc)(1000, 0);
            assert_eq!(stats_of(0).bytes_limit, GIB / 4);
            // Like a default allocator it grows.
            assert!(stats_of(0).pool_bytes < GIB / 8);
            // The limit of an existing allocator changes: memory in use stays, and free memory is released.
            bfc_torch_memory_fraction(0.5, 0);
            assert_eq!(stats_of(0).bytes_limit, GIB / 2);
            let large = (TORCH.alloc)(300 * MIB, 0);
            assert!(large != 0, "{}", last_error());
            bfc_torch_memory_fraction(0.125, 0);
            assert_eq!(stats_of(0).bytes_limit, GIB / 8);
            assert!(stats_of(0).pool_bytes > GIB / 8 && (TORCH.alloc)(300 * MIB, 0) == 0);
            (TORCH.free)(large, 0);
            bfc_torch_memory_fraction(0.125, 0);
            assert!(stats_of(0).pool_bytes <= GIB / 8, "{}", stats_of(0).pool_bytes);
            bfc_torch_memory_fraction(1.5, 0);
            assert!(last_error().contains("memory_fraction"), "{}", last_error());
            assert_eq!(stats_of(0).bytes_limit, GIB / 8);
            (TORCH.free)(chunk, 0);
            end(0);
            bfc_torch_memory_fraction(0.0, 0);
            assert_eq!((TORCH.alloc)(1000, 0), 0, "there is no more");
            bfc_torch_memory_fraction(0.5, 256);
            assert!(last_error().contains("0 to 255"), "{}", last_error());
            end(0);
            // The fraction applies to options of the program that set no limit.
            let mut wanted = options();
            (wanted.flags, wanted.memory_limit, wanted.name) = (GROWING, 0, c"said".as_ptr());
            // SAFETY: options of this program.
            assert_eq!(unsafe { bfc_adapter_options(-1, &wanted) }, BFC_OK);
            bfc_torch_memory_fraction(0.25, 0);
            assert_eq!((stats_of(0).bytes_limit, report_of(0).contains("\"said\"")), (GIB / 4, true));
            end(0);
        });
    assert!(!told.contains("bfc_torch_memory_fraction: "), "the log is off: {told}");
}

#[test]
fn the_first_request_creates_what_the_program_has_said() {
    let environment = [("SIMCUDA_DEVICES", "2"), ("BFC_MEMORY_LIMIT", "64MiB")];
    simulated_with("the_first_request_creates_what_the_program_has_said", &environment, |sim| {
        let say = |device: i32, wanted: Option<&bfc_options_t>| {
            // SAFETY: options of this program, or NULL.
            unsafe { bfc_adapter_options(device, wanted.map_or(null(), |wanted| wanted)) }
        };
        let limit_of = |device: i32| {
            let chunk = bfc_torch_alloc(1000, device, null_mut());
            assert!(!chunk.is_null(), "{}", last_error());
            bfc_torch_free(chunk, 1000, device, null_mut());
            stats_of(device).bytes_limit
        };
        let mut name = *b"said\0";
        let mut wanted = options();
        (wanted.flags, wanted.memory_limit, wanted.name) = (GROWING, 8 * MIB, name.as_ptr().cast());
        assert_eq!(say(-1, Some(&wanted)), BFC_OK);
        wanted.memory_limit = 4 * MIB;
        assert_eq!(say(1, Some(&wanted)), BFC_OK);
        // Both are copies.
        (name, wanted.memory_limit) = (*b"gone\0", GIB);
        assert_eq!(sim.calls("cuMemAlloc"), 0, "nothing is created before");
        assert_eq!((limit_of(0), limit_of(1)), (8 * MIB, 4 * MIB));
        assert!(report_of(0).contains("\"said\""), "{}", report_of(0));
        end(0);
        assert_eq!(limit_of(0), 8 * MIB, "it holds for the next one too");
        // A given limit takes precedence over a fraction, as the limit of an existing allocator does.
        end(0);
        bfc_torch_memory_fraction(0.5, 0);
        assert!(last_error().contains("takes precedence over the fraction 0."), "{}", last_error());
        assert_eq!(limit_of(0), 8 * MIB);
        end(0);
        end(1);
        assert_eq!((say(1, None), limit_of(1)), (BFC_OK, 8 * MIB), "that of all counts again");
        assert_eq!((say(-1, None), limit_of(0)), (BFC_OK, 64 * MIB), "the environment counts again");
        end(0);
        end(1);
        // The program's own is used as it is.
        assert_eq!(say(0, Some(&wanted)), BFC_OK);
        limited(2 * MIB);
        assert_eq!(limit_of(0), 2 * MIB);
        end(0);
        wanted.memory_fraction = 2.0;
        let refused = [say(0, Some(&wanted)), say(256, None), say(-2, None)];
        assert_eq!(refused, [BFC_ERROR_INVALID_ARGUMENT; 3]);
        assert_ne!(name[0], b's');
    });
}

#[test]
fn who_names_no_device_means_the_current_one() {
    simulated_with("who_names_no_device_means_the_current_one", &[("SIMCUDA_DEVICES", "3")], |sim| {
        let gpu = Gpu::new(sim);
        let mut chunks = vec![bfc_ort_alloc(1000)];
        assert_eq!(owner(chunks[0] as u64), Ok(0), "without a context");
        for device in [2, 1] {
            gpu.enter(device);
            chunks.extend([bfc_ort_alloc(1000), pointer(handler_alloc(1000, 0).unwrap_or(0))]);
            assert!(chunks[chunks.len() - 2..].iter().all(|&chunk| owner(chunk as u64) == Ok(device)));
            let context = gpu.current();
            // With a context of another device, and without any.
            gpu.set_current(0);
            let last = chunks.pop().unwrap();
            assert_eq!(bfc_handler_free(null_mut(), last, 1000, null_mut()), BFC_OK);
            gpu.set_current(context);
            gpu.leave(device);
        }
        chunks.into_iter().for_each(|chunk| bfc_ort_free(chunk));
        (0..3).for_each(end);
        sim.assert_clean();
    });
}

#[test]
fn there_is_no_driver() {
    // In a process without the simulation. If the machine has a driver, this shows nothing.
    if child::is_child("there_is_no_driver") {
        for Adapter { name, alloc, free } in ALL {
            if alloc(1000, 0) == 0 {
                assert!(last_error().contains("BFC_BACKEND"), "{name}: {}", last_error());
                free(0x1000, 0);
            }
        }
        return;
    }
    child::expect_success("there_is_no_driver", &[]);
}

/// A thousand requests of random sizes for each, while calls of the driver fail at random.
#[test]
fn random_sizes_with_failures() {
    simulated("random_sizes_with_failures", |sim| {
        for (seed, Adapter { name, alloc, free }) in (1..).zip(ALL) {
            let mut random = Random::new(seed);
            let gpu = Gpu::new(sim);
            gpu.enter(0);
            let streams = [gpu.stream(false), gpu.stream(true)];
            limited(24 * MIB);
            let (mut live, mut served, mut refused) = (Vec::new(), 0, 0);
            while served + refused < 1000 {
                if random.one_in(20) {
                    bfc_torch_reset();
                }
                if random.one_in(4) {
                    let code = if random.one_in(2) { CUDA_ERROR_OUT_OF_MEMORY } else { CUDA_ERROR_UNKNOWN };
                    sim.fail(None, random.between(1, 4), code);
                }
                let stream = streams[random.index(2)];
                // Most are small, as in real programs.
                let shift = random.between(4, 24);
                let bytes = random.between(1, 1 << shift);
                match alloc(bytes, stream) {
                    0 => refused += 1,
                    chunk => {
                        sim.fill(pointer(stream), chunk, bytes.min(64), seed);
                        sim.expect(pointer(stream), chunk, bytes.min(64), seed);
                        (live.push((chunk, stream)), served += 1).1
                    }
                }
                if live.len() > 30 || random.one_in(3) && !live.is_empty() {
                    let (chunk, stream) = live.swap_remove(random.index(live.len()));
                    free(chunk, stream);
                }
            }
            sim.clear_faults();
            assert!(served > 500 && refused > 20, "{name}: {served} served, {refused} refused");
            live.into_iter().for_each(|(chunk, stream)| free(chunk, stream));
            let stats = stats_of(0);
            assert_eq!((stats.bytes_in_use, stats.num_allocs), (0, served), "{name}");
            assert_eq!(stats.num_frees, served, "{name}");
            end(0);
            streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
            gpu.leave(0);
            assert_eq!((sim.mismatches(), sim.live(ALLOCATIONS)), (0, 0), "{name}");
            sim.assert_clean();
        }
    });
}
