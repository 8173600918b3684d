//! `BFC_DEBUG=guard` on the simulated driver: a simulation, which shows the calls of the driver and their
//! order, and not the behaviour of a device. `tests/conformance/guard.rs` has what every backend does.

use crate::common::gpu::Gpu;
use crate::common::guarded::counter;
use crate::common::simcuda::steer::SYNCHRONIZE_WAITS;
use crate::common::simcuda::{Simulation, simulated_with};
use crate::common::*;
use cuda_sys::*;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const FRESH: u64 = u64::MAX;
const POISON: u64 = 0xDBDB_DBDB_DBDB_DBDB;

/// The backend of the pools of this process.
static BACKEND: AtomicU32 = AtomicU32::new(BFC_BACKEND_CUDA);

/// Runs a body with both backends of the device.
#[track_caller]
fn guarded(test: &str, body: impl Fn(Simulation, &log::Collected)) {
    simulated_with(test, &[("BFC_DEBUG", "guard"), ("BFC_LOG", "debug")], |sim| {
        for backend in [BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM] {
            sim.configure(1, 1 << 30);
            BACKEND.store(backend, Relaxed);
            body(sim, &log::Collected::start());
        }
    });
}

fn pool() -> Pool {
    let backend = BACKEND.load(Relaxed);
    Pool::on_device(0, |options| (options.backend, options.memory_limit) = (backend, 64 * MIB))
}

/// Creates a stream of the primary context, which becomes current, as with the CUDA runtime.
fn stream(gpu: Gpu, blocking: bool) -> u64 {
    gpu.enter(0);
    gpu.stream(blocking)
}

/// Ends the program's part, after its pools.
fn leave(gpu: Gpu, streams: &[u64]) {
    for &stream in streams {
        gpu.destroy_stream(stream);
        gpu.release(0);
    }
    assert_eq!(gpu.sim.mismatches(), 0);
    gpu.sim.assert_clean();
}

fn errors(log: &log::Collected) -> Vec<String> {
    let errors = log.messages().into_iter().filter(|&(level, _)| level <= BFC_LOG_WARN);
    errors.map(|(_, words)| words).collect()
}

/// The work is queued and held. The free waits for it, and finds its damage.
#[test]
fn a_kernel_that_overruns_is_found_at_the_free() {
    guarded("a_kernel_that_overruns_is_found_at_the_free", |sim, log| {
        let (pool, gpu) = (pool(), Gpu::new(sim));
        let stream = stream(gpu, false);
        scope_begin("softmax", 42);
        let address = pool.alloc_on(1024, stream).unwrap();
        bfc_scope_end();
        gpu.hold(stream);
        gpu.fill(stream, address, 1024 + 16, 7);
        assert_eq!((gpu.pending(stream), errors(log)), (1, vec![]));
        pool.put_on(address, stream);
        assert_eq!(gpu.pending(stream), 0, "the device was synchronised");
        let words = errors(log).pop().expect("found");
        let who = format!(
            "{address:#x} (allocation 1, 1024 bytes in a chunk of 1280, operation \"softmax\", step 42)"
        );
        for part in [&*who, "after the end of", "16 of 256 guard bytes", "07 00 00 00 00 00 00 00 07 00"] {
            // Patterns are of 8 bytes, little-endian; zeros are damage too.
            assert!(words.contains(part), "{part:?} in {words:?}");
        }
        assert_eq!((counter(&pool, "guard_violations"), counter(&pool, "guards_unchecked")), (1, 0));
        gpu.expect(stream, address, 1280, POISON);
        sim.release(pointer(stream));
        assert_eq!((sim.mismatches(), pool.stats().bytes_in_use), (0, 0));
        // A check finds what a kernel has written too.
        let last = pool.get(512);
        gpu.fill(stream, last, 512 + 8, 9);
        assert_eq!(bfc_check(0), BFC_OK);
        assert_eq!((counter(&pool, "guard_violations"), errors(log).len()), (2, 2));
        pool.put(last);
        drop(pool);
        leave(gpu, &[stream]);
    });
}

/// Only the order of the calls: before anything is read or written, and before it counts as written.
#[test]
fn the_device_is_idle_before_it_is_looked_at() {
    guarded("the_device_is_idle_before_it_is_looked_at", |sim, _| {
        let (pool, gpu) = (pool(), Gpu::new(sim));
        let held = stream(gpu, false);
        pool.put(pool.get(1000));
        let of = |work: &dyn Fn()| {
            sim.clear_log();
            work();
            let names = ["cuCtxSynchronize", "cuMemsetD8_v2", "cuMemcpyDtoH_v2", "cuStreamSynchronize"];
            let log = sim.log_text();
            let found = log.lines().filter_map(|line| names.into_iter().find(|name| line.contains(name)));
            found.collect::<Vec<_>>()
        };
        let address = std::cell::Cell::new(0);
        let allocation = of(&|| address.set(pool.get(1000)));
        let (sync, set, done, read) =
            ("cuCtxSynchronize", "cuMemsetD8_v2", "cuStreamSynchronize", "cuMemcpyDtoH_v2");
        assert_eq!(allocation, [sync, set, done, set, done]);
        let free = of(&|| pool.put(address.get()));
        assert_eq!(free, [sync, read, set, done]);
        drop(pool);
        leave(gpu, &[held]);
    });
}

/// Begins a capture, does some work, and ends it; the capture must be valid.
fn captured(gpu: Gpu, stream: u64, work: impl FnOnce()) {
    gpu.begin_capture(stream);
    work();
    gpu.destroy_graph(gpu.end_capture(stream));
}

#[test]
fn a_capture_is_left_alone() {
    guarded("a_capture_is_left_alone", |sim, log| {
        let (pool, gpu) = (pool(), Gpu::new(sim));
        for blocking in [false, true] {
            let stream = stream(gpu, blocking);
            let known = pool.alloc_on(1000, stream).unwrap();
            let neighbour = pool.get(1000);
            let unchecked = counter(&pool, "guards_unchecked");
            let mut inside = 0;
            captured(gpu, stream, || {
                let calls = ["cuCtxSynchronize", "cuMemsetD8", "cuMemcpyDtoH"].map(|name| sim.calls(name));
                inside = pool.alloc_on(1000, stream).unwrap();
                pool.put_on(known, stream);
                assert_eq!(bfc_check(0), BFC_OK);
                assert_eq!(
                    ["cuCtxSynchronize", "cuMemsetD8", "cuMemcpyDtoH"].map(|name| sim.calls(name)),
                    calls
                );
            });
            assert_eq!(counter(&pool, "guards_unchecked"), unchecked + 1);
            let said = log.with("guards were not checked: a stream is captured").len();
            assert!(said >= 2, "{:#?}", log.messages());
            // Memory without guards causes no reports, and neither do its neighbours.
            gpu.fill(stream, inside, 1032, 3);
            pool.put(neighbour);
            pool.put_on(inside, stream);
            assert_eq!(counter(&pool, "guards_unchecked"), unchecked + 2);
            // And everything is guarded again.
            let address = pool.alloc_on(1000, stream).unwrap();
            gpu.expect(stream, address, 1000, FRESH);
            pool.put_on(address, stream);
            assert_eq!(counter(&pool, "guards_unchecked"), unchecked + 2);
            pool.forget(stream);
            gpu.destroy_stream(stream);
            gpu.release(0);
        }
        assert_eq!((counter(&pool, "guard_violations"), errors(log)), (0, vec![]));
        drop(pool);
        leave(gpu, &[]);
    });
}

/// Another thread's capture may begin at any time once it is announced: nothing waits for the device, so no memory is
/// filled or checked.
#[test]
fn where_a_capture_is_announced_nothing_waits() {
    guarded("where_a_capture_is_announced_nothing_waits", |sim, log| {
        let (pool, gpu) = (pool(), Gpu::new(sim));
        let stream = stream(gpu, false);
        let before = pool.get(1000);
        assert_eq!(pool.begin_private(1, stream), BFC_OK, "{}", last_error());
        sim.clear_log();
        pool.put(before);
        pool.put(pool.get(1000));
        assert_eq!(bfc_check(0), BFC_OK);
        assert_eq!(sim.calls("cuCtxSynchronize"), 0, "{}", sim.log_text());
        assert_eq!(pool.end_private(1, stream), BFC_OK);
        pool.put(pool.get(1000));
        assert_ne!(sim.calls("cuCtxSynchronize"), 0);
        assert_eq!((bfc_check(0), errors(log)), (BFC_OK, vec![]));
        assert_ne!(counter(&pool, "guards_unchecked"), 0);
        gpu.destroy_stream(stream);
    });
}

/// A free waits for a kernel longer than an announcement waits for the free. The capture has begun by the time the
/// guards could be written.
#[test]
fn a_long_wait_breaks_no_capture() {
    guarded("a_long_wait_breaks_no_capture", |sim, log| {
        let (pool, gpu) = (pool(), Gpu::new(sim));
        let (working, captured) = (stream(gpu, true), stream(gpu, true));
        let context = gpu.current();
        let address = pool.get(1000);
        gpu.hold(working);
        gpu.fill(working, address, 1000, 1);
        sim.set(SYNCHRONIZE_WAITS, 1);
        let (calls, unchecked) = (sim.calls("cuCtxSynchronize"), counter(&pool, "guards_unchecked"));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                gpu.set_current(context);
                pool.put(address);
            });
            while sim.calls("cuCtxSynchronize") == calls {
                std::thread::yield_now();
            }
            assert_eq!(bfc_capture_begin(), BFC_OK);
            gpu.begin_capture(captured);
            sim.release_all();
        });
        sim.set(SYNCHRONIZE_WAITS, 0);
        gpu.destroy_graph(gpu.end_capture(captured));
        assert_eq!(bfc_capture_end(), BFC_OK);
        assert_eq!((bfc_check(0), errors(log)), (BFC_OK, vec![]));
        assert_eq!(counter(&pool, "guards_unchecked"), unchecked + 1);
        drop(pool);
        leave(gpu, &[working, captured]);
    });
}

/// A graph uses the memory of its private pool whenever it is launched: nothing is written there.
#[test]
fn private_pools_are_left_alone() {
    guarded("private_pools_are_left_alone", |sim, log| {
        let (pool, gpu) = (pool(), Gpu::new(sim));
        let stream = stream(gpu, false);
        let common = pool.get(1000);
        assert_eq!(pool.begin_private(1, stream), BFC_OK, "{}", last_error());
        let [one, two, three] = [0; 3].map(|_| pool.alloc_on(1024, stream).unwrap());
        assert_eq!(pool.end_private(1, stream), BFC_OK);
        for address in [one, two, three] {
            gpu.fill(stream, address, 1280, 7);
        }
        pool.put_on(one, stream);
        pool.put_on(two, stream);
        let after = pool.get(1000);
        pool.put(common);
        for address in [one, two, three] {
            gpu.expect(stream, address, 1280, 7);
        }
        pool.put(after);
        assert_eq!(bfc_check(0), BFC_OK);
        assert_eq!((sim.mismatches(), errors(log)), (0, vec![]));
        assert_eq!(pool.release_private(1), BFC_OK);
        pool.put_on(three, stream);
        assert_eq!(counter(&pool, "guards_unchecked"), 3);
        let address = pool.get(1000);
        gpu.expect(stream, address, 1000, FRESH);
        pool.put(address);
        assert_eq!((counter(&pool, "guard_violations"), errors(log)), (0, vec![]));
        drop(pool);
        leave(gpu, &[stream]);
    });
}

/// Programs on streams whose work is held: live memory is never written to, and no damage is reported.
#[test]
fn no_false_alarm_in_random_programs_of_streams() {
    guarded("no_false_alarm_in_random_programs_of_streams", |sim, log| {
        // Some non-blocking streams, and one blocking stream, for which the default stream waits, on which the library
        // fills.
        let gpu = Gpu::new(sim);
        let streams = [false, false, true].map(|blocking| stream(gpu, blocking));
        let most = if BACKEND.load(Relaxed) == BFC_BACKEND_CUDA { 64_000 } else { 4 * MIB };
        for seed in 0..12 {
            let pool = pool();
            pool.limit(24 * MIB);
            streams.iter().for_each(|&stream| gpu.hold(stream));
            let mut random = Random::new(seed);
            let mut live: Vec<(u64, u64, usize)> = Vec::new();
            for round in 0..400 {
                let which = random.index(3);
                match random.below(16) {
                    0 => drop(gpu.step(streams[which], random.below(4))),
                    1 => assert_eq!(bfc_check(0), BFC_OK),
                    2 => drop(pool.trim(random.below(24 * MIB))),
                    3..=8 if live.len() < 30 => {
                        let size = 8 * random.between(1, most / 8);
                        let Ok(address) = pool.alloc_on(size, streams[which]) else { continue };
                        gpu.expect(streams[which], address, size, FRESH);
                        gpu.fill(streams[which], address, size, address ^ size);
                        live.push((address, size, which));
                    }
                    _ if !live.is_empty() => {
                        let (address, size, which) = live.swap_remove(random.index(live.len()));
                        gpu.expect(streams[which], address, size, address ^ size);
                        match round % 3 {
                            0 => pool.put(address),
                            _ => pool.put_on(address, streams[which]),
                        }
                    }
                    _ => {}
                }
            }
            streams.iter().for_each(|&stream| assert_eq!(sim.release(pointer(stream)), 0));
            let counts = ["guard_violations", "guards_unchecked"].map(|name| counter(&pool, name));
            assert_eq!((sim.mismatches(), counts), (0, [0; 2]), "{seed}: {:?}", errors(log));
            // Other messages are about requests that find little memory.
            assert_eq!(log.with("guard"), [""; 0]);
        }
        leave(gpu, &streams);
    });
}

/// Any call of the driver may fail: every call of the library returns the same as without the debug mode, and the
/// memory is free again.
#[test]
fn a_failing_driver_loses_nothing() {
    guarded("a_failing_driver_loses_nothing", |sim, log| {
        let pool = pool();
        let wall = pool.get(100);
        let program = || {
            let before = pool.stats();
            let addresses = [1000, 5000, 300].map(|size| pool.get(size));
            pool.put(addresses[1]);
            assert_eq!(bfc_check(0), BFC_OK);
            pool.put(addresses[0]);
            pool.put(addresses[2]);
            let after = pool.stats();
            assert_eq!((after.bytes_in_use, after.num_failures), (before.bytes_in_use, 0));
            assert_eq!(after.num_allocs - before.num_allocs, 3);
        };
        program();
        for code in [CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_VALUE] {
            for nth in 1.. {
                let struck = sim.struck();
                sim.fail(None, nth, code);
                program();
                if sim.struck() == struck {
                    assert!(nth > 60, "only {nth} calls were made to fail");
                    break;
                }
                let unchecked = counter(&pool, "guards_unchecked");
                program();
                assert_eq!(
                    counter(&pool, "guards_unchecked"),
                    unchecked,
                    "all is as before after call {nth}"
                );
            }
            sim.clear_faults();
        }
        assert_eq!(counter(&pool, "guard_violations"), 0, "{:#?}", errors(log));
        let said = errors(log);
        assert_eq!(said.len(), 1, "said aloud once: {said:#?}");
        assert!(said[0].contains("guards were not") && said[0].contains("(999)"), "{said:?}");
        assert!(counter(&pool, "guards_unchecked") > 10);
        // A success does not change the last error message.
        assert_eq!(pool.free(1), BFC_ERROR_INVALID_POINTER);
        let words = last_error();
        sim.fail(Some("cuCtxSynchronize"), 1, CUDA_ERROR_UNKNOWN);
        pool.put(pool.get(10));
        assert_eq!(last_error(), words);
        pool.put(wall);
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn a_driver_past_its_end_is_no_error() {
    guarded("a_driver_past_its_end_is_no_error", |sim, log| {
        let pool = pool();
        let address = pool.get(1000);
        sim.shutdown();
        pool.put(address);
        assert_eq!((errors(log), pool.stats().bytes_in_use), (vec![], 0));
        assert_eq!(pool.destroy(), BFC_OK);
    });
}
