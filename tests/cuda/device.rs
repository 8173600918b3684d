//! `BFC_BACKEND_CUDA` on the simulated driver: a simulation, which shows the calls of the driver and their
//! order, and not the behaviour of a device.

use crate::common::gpu::Gpu;
use crate::common::simcuda::steer::{ALLOCATIONS, CONTEXTS, EVENTS, FREE_SYNCHRONIZES, RETAINS};
use crate::common::simcuda::{Simulation, simulated, simulated_with};
use crate::common::*;
use cuda_sys::*;
use std::ffi::{CStr, c_void};
use std::process::Command;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn cuda_options(limit: u64) -> bfc_options_t {
    let mut wanted = options();
    (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_CUDA, BFC_ALLOW_GROWTH, limit);
    wanted
}

#[track_caller]
fn cuda_pool(device: i32, limit: u64) -> Pool {
    Pool::create(device, &cuda_options(limit), None)
        .unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
}

#[test]
fn regions_come_from_the_driver_and_go_back() {
    simulated("regions_come_from_the_driver_and_go_back", |sim| {
        let pool = cuda_pool(0, GIB);
        assert_eq!((sim.live(RETAINS), sim.calls("cuMemAlloc"), sim.used(0)), (1, 0, 0));
        let (a, b) = (pool.get(MIB), pool.get(3 * MIB));
        assert_eq!(sim.calls("cuMemAlloc"), 2, "regions of 2 and 4 MiB");
        assert_eq!((pool.stats().pool_bytes, sim.used(0)), (6 * MIB, 6 * MIB));
        pool.put(b);
        pool.check();
        assert_eq!((pool.trim(0), sim.used(0)), (4 * MIB, 2 * MIB));
        let calls = sim.calls("cuMemAlloc");
        let c = pool.get(512 * KIB);
        assert_eq!(sim.calls("cuMemAlloc"), calls, "from the existing region");
        for address in [a, c] {
            pool.put(address);
        }
        assert_eq!(pool.destroy(), BFC_OK);
        assert_eq!((sim.used(0), sim.live(CONTEXTS)), (0, 0));
        sim.assert_clean();
    });
}

#[test]
fn auto_on_a_device_s_ordinal_is_cuda() {
    simulated_with("auto_on_a_device_s_ordinal_is_cuda", &[("SIMCUDA_DEVICES", "2")], |sim| {
        assert_eq!(create(1, None), BFC_OK, "{}", last_error());
        let address = alloc(1, 1000).unwrap();
        assert_eq!((sim.used(0), sim.used(1)), (0, 2 * MIB));
        assert_eq!(owner(address), Ok(1));
        assert_eq!((free(1, address), bfc_destroy(1)), (BFC_OK, BFC_OK));
        // There is no third device. The message says so, and what to do.
        assert_eq!(create(2, None), BFC_ERROR_BACKEND_UNAVAILABLE);
        let words = last_error();
        assert!(words.contains("no CUDA device 2: the NVIDIA driver shows 2"), "{words}");
        assert!(words.contains("CUDA_VISIBLE_DEVICES") && words.contains("BFC_BACKEND_HOST"), "{words}");
        assert_eq!(create(256, Some(&cuda_options(0))), BFC_ERROR_INVALID_ARGUMENT);
        sim.assert_clean();
    });
}

#[test]
fn without_a_device_there_is_no_allocator() {
    simulated_with("without_a_device_there_is_no_allocator", &[("SIMCUDA_DEVICES", "0")], |sim| {
        assert_eq!(create(0, None), BFC_ERROR_BACKEND_UNAVAILABLE);
        let words = last_error();
        assert!(words.contains("CUDA_ERROR_NO_DEVICE (100)") || words.contains("shows no device"), "{words}");
        assert_eq!(alloc(0, 1000), Err(BFC_ERROR_NO_ALLOCATOR));
        sim.assert_clean();
    });
}

#[test]
fn each_device_s_memory_is_its_own() {
    simulated_with("each_device_s_memory_is_its_own", &[("SIMCUDA_DEVICES", "3")], |sim| {
        let pools = [0, 1, 2].map(|device| cuda_pool(device, GIB));
        let gpu = Gpu::new(sim);
        for pool in &pools {
            let address = pool.get(MIB);
            assert_eq!(gpu.device_of(address), pool.device());
            pool.put(address);
        }
        assert_eq!(sim.live(RETAINS), 3);
        drop(pools);
        sim.assert_clean();
    });
}

#[test]
fn the_caller_s_context_stays_current() {
    simulated_with("the_caller_s_context_stays_current", &[("SIMCUDA_DEVICES", "2")], |sim| {
        let pool = cuda_pool(0, GIB);
        let gpu = Gpu::new(sim);
        let rounds = |context: u64| {
            assert_eq!(gpu.current(), context);
            let address = pool.get(MIB);
            assert_eq!(gpu.current(), context, "after an allocation");
            pool.put(address);
            assert!(pool.trim(0) > 0);
            assert_eq!(gpu.current(), context, "after a trim");
        };
        rounds(0);
        let own = gpu.own_context(1);
        rounds(own);
        // A failure does not change it either.
        sim.fail(Some("cuMemAlloc"), 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(pool.alloc(MIB), Err(BFC_ERROR_BACKEND_FAILED));
        rounds(own);
        gpu.destroy_context(own);
        std::thread::scope(|scope| scope.spawn(|| assert_eq!(gpu.current(), 0)).join().unwrap());
        assert_eq!(sim.used(1), 0, "nothing went to the caller's device");
        drop(pool);
        sim.assert_clean();
    });
}

/// Captures a stream while `work` runs. Returns the code of the capture's end.
fn captured(gpu: Gpu, stream: u64, work: impl FnOnce()) -> CUresult {
    gpu.begin_capture(stream);
    work();
    match gpu.try_end_capture(stream) {
        Ok(executable) => {
            gpu.destroy_graph(executable);
            CUDA_SUCCESS
        }
        Err(code) => code,
    }
}

/// cuThreadExchangeStreamCaptureMode: in the modes but the relaxed one the thread "is prohibited from potentially
/// unsafe API calls", cudaMalloc among them.
#[test]
fn an_allocation_while_a_stream_is_captured_breaks_nothing() {
    simulated("an_allocation_while_a_stream_is_captured_breaks_nothing", |sim| {
        let pool = cuda_pool(0, GIB);
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for mode in [CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL] {
            gpu.exchange_capture_mode(mode);
            for blocking in [false, true] {
                let stream = gpu.stream(blocking);
                // The simulation knows the rule.
                let alone = captured(gpu, stream, || {
                    let mut address = 0;
                    // SAFETY: the pointer is valid.
                    let code = unsafe { sim.driver().cuMemAlloc_v2().unwrap()(&mut address, 512) };
                    assert_eq!(code, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
                });
                assert_eq!(alone, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
                let calls = sim.calls("cuMemAlloc");
                let ours = captured(gpu, stream, || pool.put(pool.get(MIB)));
                assert_eq!((ours, sim.calls("cuMemAlloc") - calls), (CUDA_SUCCESS, 1));
                assert_eq!(gpu.exchange_capture_mode(mode), mode, "put back");
                assert!(pool.trim(0) > 0);
                gpu.destroy_stream(stream);
            }
        }
        gpu.leave(0);
        drop(pool);
        sim.assert_clean();
    });
}

/// Waiting for the context while one of its streams is captured would break the capture: the region stays.
#[test]
fn a_region_stays_while_a_blocking_stream_is_captured() {
    simulated("a_region_stays_while_a_blocking_stream_is_captured", |sim| {
        let pool = cuda_pool(0, GIB);
        let gpu = Gpu::new(sim);
        let kept = pool.get(256);
        let address = pool.get(3 * MIB);
        pool.put(address);
        gpu.enter(0);
        let stream = gpu.stream(true);
        let before = pool.stats();
        let code = captured(gpu, stream, || {
            assert_eq!(pool.try_trim(0), Err(BFC_ERROR_BACKEND_FAILED));
            let words = last_error();
            assert!(words.contains("a stream is being captured"), "{words}");
            pool.check();
            assert_eq!(pool.stats().pool_bytes, before.pool_bytes);
            assert_eq!(pool.get(3 * MIB), address, "it is free memory as before");
            pool.put(address);
        });
        assert_eq!(code, CUDA_SUCCESS, "the capture is whole");
        assert_eq!(pool.trim(0), 4 * MIB);
        gpu.destroy_stream(stream);
        gpu.leave(0);
        pool.put(kept);
        drop(pool);
        sim.assert_clean();
    });
}

/// cuMemFree "may perform implicit synchronization": here it does not, which shows that another call does.
#[test]
fn a_region_goes_back_when_the_work_on_it_is_done() {
    simulated("a_region_goes_back_when_the_work_on_it_is_done", |sim| {
        sim.set(FREE_SYNCHRONIZES, 0);
        let pool = cuda_pool(0, GIB);
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let stream = gpu.stream(false);
        gpu.hold(stream);
        let address = pool.get(MIB);
        gpu.fill(stream, address, MIB, 7);
        pool.put(address);
        assert_eq!(gpu.pending(stream), 1);
        assert_eq!((pool.trim(0), gpu.pending(stream)), (2 * MIB, 0));
        assert_eq!(sim.misuses(), 0, "the work ran before its memory went");
        gpu.destroy_stream(stream);
        gpu.leave(0);
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn out_of_memory_is_no_failure_of_the_driver() {
    let variables = [("SIMCUDA_MEMORY", "67108864")];
    simulated_with("out_of_memory_is_no_failure_of_the_driver", &variables, |sim| {
        let pool = cuda_pool(0, GIB);
        let addresses: Vec<u64> = std::iter::from_fn(|| pool.alloc(MIB).ok()).collect();
        assert_eq!(pool.alloc(MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert!(addresses.len() >= 60, "{} of 64", addresses.len());
        pool.check();
        for address in addresses {
            pool.put(address);
        }
        pool.put(pool.get(MIB));
        drop(pool);
        sim.assert_clean();
    });
}

/// Compiles the fake interposer of cuda-sys, which counts who enters it, and runs the child below with it.
#[test]
fn an_interposer_in_the_process_is_not_entered() {
    let folder = std::env::temp_dir().join(format!("bfc-interposer-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let library = folder.join("libinterposer.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/cuda-sys/tests/fakes/interposer.c");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-shared", "-fPIC", source, "-o"]).arg(&library).arg("-ldl");
    assert!(compiler.status().expect("a C compiler").success());
    let preload = [("LD_PRELOAD", library.to_str().unwrap())];
    simulated_with("beside_an_interposer", &preload, |_| ());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn beside_an_interposer() {
    if !crate::common::child::is_child("beside_an_interposer") {
        return;
    }
    simulated("beside_an_interposer", |sim| {
        // SAFETY: the names are NUL-terminated.
        let named = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        let entered = named(c"interposer_entered");
        assert!(!entered.is_null(), "there is no interposer");
        // SAFETY: the interposer's function has that type.
        let entered = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> i32>(entered) };
        let pool = cuda_pool(0, GIB);
        pool.put(pool.get(MIB));
        assert_eq!(pool.trim(0), 2 * MIB);
        assert_eq!(pool.destroy(), BFC_OK);
        assert_eq!(entered(), 0, "the library went through the interposer");
        assert!(!named(c"cuMemAlloc_v2").is_null() && entered() == 1, "as a program would");
        sim.assert_clean();
    });
}

#[test]
fn limits() {
    let memory = (8 * GIB).to_string();
    simulated_with("limits", &[("SIMCUDA_MEMORY", &memory)], |sim| {
        // Only whole granules count.
        for (backend, unit) in [(BFC_BACKEND_CUDA, 1), (BFC_BACKEND_CUDA_VMM, 2 * MIB)] {
            limits_of(sim, backend, unit);
        }
        sim.assert_clean();
    });
}

fn limits_of(sim: Simulation, backend: u32, unit: u64) {
    let round = |bytes: u64| bytes / unit * unit;
    let limit = |change: fn(&mut bfc_options_t)| {
        let mut wanted = bfc_options_t { backend, ..cuda_options(0) };
        change(&mut wanted);
        Pool::create(0, &wanted, None).map(|pool| pool.stats().bytes_limit)
    };
    assert_eq!(limit(|wanted| wanted.memory_limit = 5 * MIB), Ok(round(5 * MIB)));
    assert_eq!(limit(|wanted| wanted.memory_fraction = 0.25), Ok(2 * GIB));
    let whole = limit(|_| ()).unwrap();
    // The memory free before the context may be less than the total.
    assert!(whole <= 8 * GIB - 8 * GIB / 20 && whole > 7 * GIB, "{whole}");
    let gpu = Gpu::new(sim);
    gpu.enter(0);
    let taken = gpu.alloc(4 * GIB);
    let (less, reserve) = (limit(|_| ()).unwrap(), (300 * MIB).max(4 * GIB / 20));
    // Two of the figures are rounded.
    let by = less.abs_diff(whole - 4 * GIB + 8 * GIB / 20 - reserve);
    assert!(by == 0 || by <= unit && unit != 1, "{less} is {by} off");
    assert_eq!(less, round(less));
    assert_eq!(limit(|wanted| wanted.memory_fraction = 0.25), Ok(2 * GIB), "of the total");
    let rest = gpu.alloc(4 * GIB - 200 * MIB);
    assert_eq!(limit(|_| ()), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert!(last_error().contains("memory_limit"), "{}", last_error());
    [taken, rest].into_iter().for_each(|address| gpu.free(address));
    gpu.leave(0);
}

/// A program whose calls of the driver can each fail. Returns the statuses that were not a success.
fn program(sim: Simulation) -> Vec<Status> {
    let mut failed = Vec::new();
    let mut note = |status: Status| {
        if status != BFC_OK {
            assert!(!last_error().is_empty());
            failed.push(status);
        }
    };
    let pool = match Pool::create(0, &cuda_options(GIB), None) {
        Ok(pool) => pool,
        Err(status) => return vec![status],
    };
    let mut live = Vec::new();
    for bytes in [MIB, 3 * MIB, 256, 8 * MIB] {
        match pool.alloc(bytes) {
            Ok(address) => live.push(address),
            Err(status) => note(status),
        }
        pool.check();
    }
    let last = live.pop();
    live.into_iter().for_each(|address| pool.put(address));
    note(pool.try_trim(0).err().unwrap_or(BFC_OK));
    pool.check();
    assert_eq!(pool.stats().pool_bytes, sim.used(0), "the books agree with the device");
    last.into_iter().for_each(|address| pool.put(address));
    assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
    failed
}

#[test]
fn every_call_of_the_driver_may_fail() {
    simulated("every_call_of_the_driver_may_fail", |sim| {
        assert_eq!(program(sim), [0; 0]);
        for code in [CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_INITIALIZED] {
            let (mut nth, mut unreleased) = (1, 0);
            loop {
                sim.configure(1, GIB);
                sim.fail(None, nth, code);
                let failed = program(sim);
                if sim.struck() == 0 {
                    break;
                }
                let fine = |status: &Status| {
                    [BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_BACKEND_FAILED, BFC_ERROR_OUT_OF_MEMORY]
                        .contains(status)
                };
                assert!(failed.iter().all(fine), "call {nth}, code {code}: {failed:?}, {}", last_error());
                sim.clear_faults();
                assert_eq!(sim.misuses(), 0, "call {nth}");
                // Something is left only if the context itself could not be released.
                let left = [RETAINS, ALLOCATIONS, EVENTS].map(|kind| sim.live(kind));
                assert!(left == [0; 3] || left == [1, 0, 0], "call {nth}, code {code}: {left:?} are left");
                unreleased += left[0];
                assert_eq!(program(sim), [0; 0], "after call {nth} failed with {code}");
                nth += 1;
            }
            assert!(nth > 40, "only {nth} calls were made to fail");
            assert!(unreleased <= 1, "{unreleased} times the context was not released");
        }
    });
}

/// Two threads that create the same allocator have both opened the device before one of them is too late.
/// A stub, or another temporary replacement of a driver, is not remembered.
#[test]
fn a_driver_that_does_not_say_its_version_is_looked_at_again() {
    simulated("a_driver_that_does_not_say_its_version_is_looked_at_again", |sim| {
        let wanted = cuda_options(GIB);
        for (code, word) in [(CUDA_ERROR_STUB_LIBRARY, "stub"), (CUDA_ERROR_UNKNOWN, "answers 999")] {
            sim.fail(Some("cuDriverGetVersion"), 1, code);
            let status = Pool::create(0, &wanted, None).map(drop);
            assert_eq!(status, Err(BFC_ERROR_BACKEND_UNAVAILABLE));
            assert!(last_error().contains(word), "{}", last_error());
        }
        let pool = Pool::create(0, &wanted, None);
        assert!(pool.is_ok(), "{:?}: {}", pool.err(), last_error());
        pool.map(|pool| pool.put(pool.get(MIB))).expect("it was just looked at");
        sim.assert_clean();
    });
}

#[test]
fn who_comes_second_leaves_nothing() {
    simulated("who_comes_second_leaves_nothing", |sim| {
        sim.delay(c"cuMemGetInfo".as_ptr(), 200_000_000);
        let create_it = || create(0, Some(&cuda_options(MIB)));
        let mut statuses = std::thread::scope(|scope| {
            let threads = [0; 2].map(|_| scope.spawn(create_it));
            threads.map(|thread| thread.join().unwrap())
        });
        statuses.sort_unstable();
        assert_eq!(statuses, [BFC_OK, BFC_ERROR_ALREADY_EXISTS]);
        assert_eq!((sim.calls("cuDevicePrimaryCtxRetain"), sim.live(RETAINS)), (2, 1));
        assert_eq!(bfc_destroy(0), BFC_OK);
        sim.assert_clean();
    });
}

#[test]
fn what_does_not_go_back_is_kept() {
    simulated("what_does_not_go_back_is_kept", |sim| {
        let pool = cuda_pool(0, GIB);
        let addresses = [MIB, 3 * MIB, 7 * MIB].map(|bytes| pool.get(bytes));
        addresses.into_iter().for_each(|address| pool.put(address));
        assert_eq!(pool.stats().pool_bytes, 14 * MIB);
        // The fifth exchange of the mode is the one before the second region: two are of the synchronization before.
        // Querying whether a stream is captured takes none.
        let exchange = "cuThreadExchangeStreamCaptureMode";
        let calls = [("cuMemFree", 2), ("cuCtxPushCurrent", 4), (exchange, 5)];
        for (function, nth) in calls {
            sim.fail(Some(function), nth, CUDA_ERROR_UNKNOWN);
            assert_eq!(pool.try_trim(0), Err(BFC_ERROR_BACKEND_FAILED));
            let words = last_error();
            assert!(words.contains(&format!("{function} failed with CUDA_ERROR_UNKNOWN (999)")), "{words}");
            pool.check();
            let stats = pool.stats();
            assert_eq!(stats.num_regions, 1, "the second of three stays");
            assert_eq!((stats.pool_bytes, sim.used(0)), (4 * MIB, 4 * MIB));
            assert_eq!(pool.trim(0), 4 * MIB);
            let addresses = [MIB, 3 * MIB, 7 * MIB].map(|bytes| pool.get(bytes));
            addresses.into_iter().for_each(|address| pool.put(address));
        }
        // Before it takes anything out of the pool, and once more afterwards.
        (1..=2).for_each(|nth| sim.fail(Some("cuCtxSynchronize"), nth, CUDA_ERROR_UNKNOWN));
        assert_eq!(pool.try_trim(0), Err(BFC_ERROR_BACKEND_FAILED));
        let words = last_error();
        assert!(words.contains("cuCtxSynchronize failed with CUDA_ERROR_UNKNOWN (999)"), "{words}");
        pool.check();
        assert_eq!((pool.stats().pool_bytes, sim.used(0)), (14 * MIB, 14 * MIB));
        assert_eq!(pool.trim(0), 14 * MIB);
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn a_sticky_error_is_passed_on_in_words() {
    simulated("a_sticky_error_is_passed_on_in_words", |sim| {
        let pool = cuda_pool(0, GIB);
        let address = pool.get(MIB);
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        sim.make_sticky(CUDA_ERROR_ILLEGAL_ADDRESS);
        assert_eq!(pool.alloc(8 * MIB), Err(BFC_ERROR_BACKEND_FAILED));
        let words = last_error();
        assert!(words.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{words}");
        assert_eq!(pool.get(256) - address, MIB, "what is there still serves");
        pool.put(address);
        pool.check();
    });
}

#[test]
fn a_driver_past_its_end_is_no_error_for_what_goes_back() {
    simulated("a_driver_past_its_end_is_no_error_for_what_goes_back", |sim| {
        let pool = cuda_pool(0, GIB);
        let address = pool.get(MIB);
        sim.shutdown();
        assert_eq!(pool.alloc(8 * MIB), Err(BFC_ERROR_SHUTTING_DOWN));
        pool.put(address);
        assert_eq!(pool.try_trim(0), Ok(2 * MIB));
        assert_eq!(pool.destroy(), BFC_OK);
    });
}

/// cuThreadExchangeStreamCaptureMode came with CUDA 10.1.
#[test]
fn a_driver_from_before_capture_modes_will_do() {
    let variables = [("SIMCUDA_DRIVER_VERSION", "10000")];
    simulated_with("a_driver_from_before_capture_modes_will_do", &variables, |sim| {
        let pool = cuda_pool(0, GIB);
        pool.put(pool.get(MIB));
        assert_eq!(pool.trim(0), 2 * MIB);
        assert_eq!(sim.calls("cuThreadExchangeStreamCaptureMode"), 0);
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn a_forked_child_has_nothing_of_it() {
    simulated("a_forked_child_has_nothing_of_it", |sim| {
        let pool = cuda_pool(0, GIB);
        let address = pool.get(MIB);
        // SAFETY: the child only calls the library and ends.
        match unsafe { libc::fork() } {
            0 => {
                let answers = [
                    pool.alloc(256).unwrap_err() == BFC_ERROR_SHUTTING_DOWN,
                    pool.free(address) == BFC_ERROR_SHUTTING_DOWN,
                    pool.destroy() == BFC_ERROR_SHUTTING_DOWN,
                    create(1, Some(&cuda_options(MIB))) == BFC_ERROR_BACKEND_UNAVAILABLE,
                    last_error().contains("forked process"),
                ];
                let wrong = answers.iter().position(|right| !right);
                // SAFETY: it ends the child at once.
                unsafe { libc::_exit(wrong.map_or(0, |which| which as i32 + 1)) };
            }
            child => {
                let mut status = 0;
                // SAFETY: the pointer is valid, and the child is ours.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0, "the child: answer {} is wrong", status >> 8);
            }
        }
        pool.put(address);
        drop(pool);
        sim.assert_clean();
    });
}

/// Any call on the way back may fail.
#[test]
fn a_thread_is_left_as_it_was_where_a_call_fails() {
    simulated("a_thread_is_left_as_it_was_where_a_call_fails", |sim| {
        let gpu = Gpu::new(sim);
        let pool = cuda_pool(0, GIB);
        // The second exchange is the one that sets the mode back.
        for (call, nth) in [("cuCtxPopCurrent_v2", 1), ("cuThreadExchangeStreamCaptureMode", 2)] {
            for entered in [false, true] {
                let current = if entered { gpu.enter(0) } else { 0 };
                sim.fail(Some(call), nth, CUDA_ERROR_UNKNOWN);
                pool.get(pool.stats().largest_free_block_bytes + MIB);
                assert_eq!(gpu.current(), current, "{call}");
                let mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
                assert_eq!(gpu.exchange_capture_mode(mode), mode, "{call}");
                if entered {
                    gpu.leave(0);
                }
                sim.clear_faults();
            }
        }
        drop(pool);
        sim.assert_clean();
    });
}
