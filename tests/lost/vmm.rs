//! A program that ends the context while it has granules of `BFC_BACKEND_CUDA_VMM`, on the simulated driver: a
//! simulation. The manual does not say what a reset does to virtual memory, so each test runs in three variants
//! (`SIMCUDA_RESET_ENDS`): it stays, mappings and physical memory end, or reserved ranges end too.

use crate::common::gpu::Gpu;
use crate::common::lost::*;
use crate::common::simcuda::steer::{MAPPINGS, PHYSICAL, RESERVATIONS, RESET_ENDS, RETAINS};
use crate::common::simcuda::{Simulation, simulated};
use crate::common::*;
use cuda_sys::*;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::Mutex;

const GRANULE: u64 = 2 * MIB;

/// The existing resources, according to the driver.
fn there(sim: Simulation) -> [u64; 4] {
    [PHYSICAL, MAPPINGS, RESERVATIONS, RETAINS].map(|kind| sim.live(kind))
}

fn vmm(limit: u64) -> Pool {
    Pool::on_device(0, |options| (options.backend, options.memory_limit) = (BFC_BACKEND_CUDA_VMM, limit))
}

/// The resources of a pool if all of its granules are allocated by the driver.
#[track_caller]
fn agree(sim: Simulation, pool: &Pool) {
    pool.check();
    let granules = pool.stats().pool_bytes / GRANULE;
    assert_eq!((there(sim), sim.used(0)), ([granules, granules, 1, 1], granules * GRANULE));
}

/// Runs a body in each variant.
#[track_caller]
fn each_way(test: &str, body: impl Fn(Simulation)) {
    simulated(test, |sim| {
        for ends in 0..=2 {
            sim.configure(1, GIB);
            sim.set(RESET_ENDS, ends);
            body(sim);
            assert_eq!((ends, there(sim)), (ends, [0; 4]));
            sim.assert_clean();
        }
    });
}

/// Unmapped and free granules and live chunks.
fn in_use(pool: &Pool) -> Vec<u64> {
    let mut live: Vec<u64> = (0..6).map(|_| pool.get(3 * MIB)).collect();
    [4, 2, 0].into_iter().for_each(|place| pool.put(live.swap_remove(place)));
    pool.trim(12 * MIB);
    pool.put(pool.get(MIB));
    live
}

#[test]
fn a_pool_forgets_its_granules_and_begins_anew() {
    each_way("a_pool_forgets_its_granules_and_begins_anew", |sim| {
        for told in [true, false] {
            let (pool, gpu) = (vmm(64 * MIB), Gpu::new(sim));
            for round in 0..4 {
                let live = in_use(&pool);
                agree(sim, &pool);
                gpu.reset(0);
                if told {
                    let calls =
                        ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree"].map(|name| sim.calls(name));
                    lost(0);
                    assert_empty(&pool);
                    live.iter().for_each(|&address| assert_refused(&pool, address));
                    assert_eq!(pool.trim(0), 0);
                    pool.report();
                    pool.memory_map();
                    let after =
                        ["cuMemUnmap", "cuMemRelease", "cuMemAddressFree"].map(|name| sim.calls(name));
                    assert_eq!(after, calls, "no more calls but to begin anew");
                }
                // All of it, so that no device memory is leaked.
                let all = pool.get(64 * MIB);
                agree(sim, &pool);
                if sim.get(RESET_ENDS) < 2 {
                    assert!(!live.contains(&all));
                    live.iter().for_each(|&address| assert_refused(&pool, address));
                }
                pool.put(all);
                assert_eq!((pool.stats().num_failures, pool.trim(0)), (0, 64 * MIB), "round {round}");
            }
            assert_eq!(pool.destroy(), BFC_OK);
        }
    });
}

/// Destroyed after the context has ended, which was noticed, reported, or neither.
#[test]
fn a_pool_is_destroyed_after_a_reset() {
    each_way("a_pool_is_destroyed_after_a_reset", |sim| {
        let gpu = Gpu::new(sim);
        for (told, holds, again) in [
            (true, true, false),
            (false, true, false),
            (false, false, false),
            (true, true, true),
            (true, true, false),
        ] {
            let pool = vmm(64 * MIB);
            if holds {
                in_use(&pool);
            } else {
                pool.put(pool.get(MIB));
                pool.trim(0);
            }
            gpu.reset(0);
            if again {
                gpu.enter(0);
            }
            if told {
                lost(0);
            }
            assert_eq!(pool.destroy_forced(), BFC_OK);
            if again {
                gpu.leave(0);
            }
            assert_eq!(there(sim), [0; 4]);
        }
    });
}

/// Memory of others that is at the old addresses by then is left alone.
#[test]
fn somebody_else_at_the_old_addresses() {
    simulated("somebody_else_at_the_old_addresses", |sim| {
        sim.set(RESET_ENDS, 2);
        let (pool, gpu) = (vmm(64 * MIB), Gpu::new(sim));
        let old = pool.get(GRANULE);
        gpu.reset(0);
        gpu.enter(0);
        // A range that covers the library's, and a granule where the library's was.
        let theirs = gpu.map_granule(0, old, 32 * GRANULE);
        assert_eq!(theirs, old);
        lost(0);
        let new = pool.get(GRANULE);
        assert_ne!(new, old);
        assert_refused(&pool, old);
        assert_eq!(there(sim), [2, 2, 2, 2]);
        pool.put(new);
        assert_eq!(pool.destroy(), BFC_OK);
        assert_eq!((there(sim), sim.misuse_texts()), ([1, 1, 1, 1], vec![]));
        gpu.leave(0);
    });
}

/// The new range is refused, or refused at that size. Then it is requested again.
#[test]
fn a_renewal_that_fails_is_tried_again() {
    each_way("a_renewal_that_fails_is_tried_again", |sim| {
        let (pool, gpu) = (vmm(64 * MIB), Gpu::new(sim));
        let calls = [
            ("cuDevicePrimaryCtxRetain", BFC_ERROR_BACKEND_FAILED),
            ("cuCtxGetId", BFC_ERROR_BACKEND_FAILED),
            ("cuMemAddressReserve", BFC_ERROR_BACKEND_FAILED),
        ];
        for (function, status) in calls {
            let live = in_use(&pool);
            gpu.reset(0);
            lost(0);
            sim.fail(Some(function), 1, CUDA_ERROR_UNKNOWN);
            assert_eq!(pool.alloc(MIB), Err(status), "{function}");
            let words = last_error();
            assert!(words.contains(function) && words.contains("was reset or destroyed"), "{words}");
            assert_empty(&pool);
            sim.clear_faults();
            sim.clear_log();
            live.iter().for_each(|&address| assert_refused(&pool, address));
            pool.put(pool.get(64 * MIB));
            agree(sim, &pool);
            pool.trim(0);
        }
        // Fewer addresses are sufficient.
        gpu.reset(0);
        lost(0);
        sim.fail(Some("cuMemAddressReserve"), 1, CUDA_ERROR_OUT_OF_MEMORY);
        pool.put(pool.get(MIB));
        agree(sim, &pool);
        // And none.
        gpu.reset(0);
        lost(0);
        sim.fail(Some("cuMemAddressReserve"), 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(pool.alloc(MIB), Err(BFC_ERROR_BACKEND_FAILED));
        assert_eq!(pool.destroy(), BFC_OK);
    });
}

/// Granules that were reported as obtained and not yet as returned.
#[derive(Default)]
struct Registered(Mutex<BTreeSet<u64>>);

unsafe extern "C" fn register(user_data: *mut c_void, _: i32, base: *mut c_void, bytes: usize, event: i32) {
    // SAFETY: the tests pass a reference that lives forever.
    let registered = unsafe { &*user_data.cast::<Registered>() };
    let (base, bytes) = (base as u64, bytes as u64);
    assert!(base.is_multiple_of(GRANULE) && bytes.is_multiple_of(GRANULE));
    let mut granules = registered.0.lock().unwrap();
    for granule in (base..base + bytes).step_by(GRANULE as usize) {
        let fits =
            if event == BFC_REGION_OBTAINED { granules.insert(granule) } else { granules.remove(&granule) };
        assert!(fits, "{granule:#x}, event {event}");
    }
}

/// Threads grow, trim and remap while the device is reset repeatedly, so that resets happen at every stage.
#[test]
fn threads_come_through_resets() {
    simulated("threads_come_through_resets", |sim| {
        for ends in 0..=2 {
            sim.configure(1, GIB);
            sim.set(RESET_ENDS, ends);
            threads_and_resets(sim);
            let [physical, mappings, reservations, retains] = there(sim);
            assert_eq!([physical, mappings, reservations], [0; 3], "{ends}");
            // A reset while the context is retained again looks as if another caller had released the library's
            // reference: it is retained twice.
            assert!(retains <= 5, "{ends}: {retains}");
            // A reset between two calls of the library destroys what the first has created or used. This, and
            // everything that follows, is the program's fault. An event ends with its context, whatever happens to
            // virtual memory.
            let goes_along =
                |text: &str| text.starts_with("Event") || ends != 0 && text.starts_with("Physical");
            let forgiven = |text: &String| goes_along(text) && text.contains("destroyed");
            let misuses = sim.misuse_texts();
            assert!(misuses.iter().all(forgiven), "{ends}: {misuses:#?}");
        }
    });
}

fn threads_and_resets(sim: Simulation) {
    let pool = Pool::on_device(0, |options| {
        (options.backend, options.memory_limit) = (BFC_BACKEND_CUDA_VMM, 64 * MIB);
        (options.flags, options.retry_timeout_ms) = (BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS, 1);
    });
    let registered: &'static Registered = Box::leak(Box::default());
    let user_data = std::ptr::from_ref(registered).cast_mut().cast();
    // SAFETY: it lives forever, and may be called from any thread.
    assert_eq!(unsafe { bfc_set_region_callback(0, Some(register), user_data) }, BFC_OK);
    let threads = Threads {
        count: 3,
        most_live: 8,
        most_bytes: 10 * MIB,
        keep: 64 * MIB,
        // It may belong to another thread by now, if ranges are reused.
        frees: &[BFC_OK, BFC_ERROR_INVALID_POINTER, BFC_ERROR_DOUBLE_FREE],
        resets: 100,
    };
    let served = reset_among_threads(Gpu::new(sim), &pool, &threads);
    assert!(served > 300);
    Gpu::new(sim).reset(0);
    lost(0);
    assert_empty(&pool);
    assert!(registered.0.lock().unwrap().is_empty());
    pool.put(pool.get(64 * MIB));
    assert_eq!(pool.destroy(), BFC_OK);
}

/// Growth, a remapping and trims around resets, reported and not.
fn program(gpu: Gpu) -> Vec<Status> {
    let mut failed = Vec::new();
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_CUDA_VMM, 16 * MIB);
    let pool = match Pool::create(0, &wanted, None) {
        Ok(pool) => pool,
        Err(status) => return vec![status],
    };
    for round in 0..2 {
        let got = [4 * MIB, 3 * MIB, 5 * MIB].map(|bytes| pool.alloc(bytes));
        if let Ok(first) = got[0] {
            pool.put(first);
        }
        failed.extend(got.into_iter().chain([pool.alloc(8 * MIB)]).filter_map(Result::err));
        let _ = pool.try_trim(0);
        pool.check();
        gpu.lenient().reset(0);
        if round != 1 {
            assert_eq!(bfc_device_lost(0), BFC_OK);
        }
        pool.check();
    }
    assert_eq!(pool.destroy_forced(), BFC_OK);
    failed
}

/// Even if memory is leaked, nothing is released that is not known to belong to the library.
#[test]
fn every_call_around_a_reset_may_fail() {
    simulated("every_call_around_a_reset_may_fail", |sim| {
        let gpu = Gpu::new(sim);
        for ends in 0..=2 {
            let (mut nth, mut lost) = (0, 0);
            loop {
                sim.configure(1, GIB);
                sim.set(RESET_ENDS, ends);
                Gpu::new(sim);
                if nth != 0 {
                    sim.fail(None, nth, CUDA_ERROR_UNKNOWN);
                }
                let failed = program(gpu);
                let struck = sim.struck();
                sim.clear_faults();
                assert_eq!(sim.misuse_texts(), [""; 0], "call {nth}");
                let fine = [BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_BACKEND_FAILED];
                assert!(failed.iter().all(|status| fine.contains(status)), "call {nth}: {failed:?}");
                if struck == 0 && nth != 0 {
                    break;
                }
                if nth == 0 {
                    assert_eq!((failed, there(sim)), (vec![], [0; 4]));
                }
                lost += u64::from(there(sim) != [0; 4]);
                nth += 1;
            }
            println!("ends {ends}: {nth} calls, {lost} times something was left");
            assert!(nth > 100, "only {nth} calls were made to fail");
        }
    });
}
