//! A program that ends the context of its device memory, on the simulated driver: the tests over every kind of memory.
//!
//! The manual does not say what a reset does to virtual memory, so a pool of granules is tested in three variants
//! (`SIMCUDA_RESET_ENDS`): it stays, mappings and physical memory end, or reserved ranges end too.

use crate::common::gpu::Gpu;
use crate::common::lost::*;
use crate::common::simcuda::steer::{
    ALLOCATIONS, EVENTS, MAPPINGS, PHYSICAL, RESERVATIONS, RESET_ENDS, RETAINS, REUSE_ADDRESSES,
};
use crate::common::simcuda::{Simulation, simulated};
use crate::common::*;
use cuda_sys::*;

const GRANULE: u64 = 2 * MIB;

/// A kind of memory that a reset ends.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Kind {
    backend: u32,
    /// What a reset does to virtual memory.
    ends: i64,
}

const REGIONS: Kind = Kind { backend: BFC_BACKEND_CUDA, ends: 0 };
const GRANULES: Kind = Kind { backend: BFC_BACKEND_CUDA_VMM, ends: 2 };
const KINDS: [Kind; 4] = [REGIONS, Kind { ends: 0, ..GRANULES }, Kind { ends: 1, ..GRANULES }, GRANULES];

impl Kind {
    fn pool(self, limit: u64) -> Pool {
        Pool::on_device(0, |options| (options.backend, options.memory_limit) = (self.backend, limit))
    }

    fn has_granules(self) -> bool {
        self.backend == BFC_BACKEND_CUDA_VMM
    }

    /// The existing resources, according to the driver.
    fn there(self, sim: Simulation) -> [u64; 4] {
        let kinds = match self.has_granules() {
            true => [PHYSICAL, MAPPINGS, RESERVATIONS, RETAINS],
            false => [ALLOCATIONS, EVENTS, RESERVATIONS, RETAINS],
        };
        kinds.map(|kind| sim.live(kind))
    }

    /// Checks that the driver has allocated what the pool has, and nothing else.
    #[track_caller]
    fn agree(self, sim: Simulation, pool: &Pool) {
        pool.check();
        let stats = pool.stats();
        let granules = stats.pool_bytes / GRANULE;
        let there =
            if self.has_granules() { [granules, granules, 1, 1] } else { [stats.num_regions, 0, 0, 1] };
        assert_eq!((self.there(sim), sim.used(0)), (there, stats.pool_bytes), "{self:?}");
    }
}

/// Runs a body with each kind of memory, at whose end nothing is left.
#[track_caller]
fn each_kind(test: &str, body: impl Fn(Simulation, Kind)) {
    simulated(test, |sim| {
        for kind in KINDS {
            sim.configure(1, GIB);
            sim.set(RESET_ENDS, kind.ends);
            sim.set(REUSE_ADDRESSES, i64::from(kind.has_granules()));
            body(sim, kind);
            assert_eq!((kind, kind.there(sim)), (kind, [0; 4]));
            sim.assert_clean();
        }
    });
}

/// Unmapped and free granules, or released and free regions, and live chunks.
fn in_use(pool: &Pool) -> Vec<u64> {
    let mut live: Vec<u64> = (0..6).map(|_| pool.get(3 * MIB)).collect();
    [4, 2, 0].into_iter().for_each(|place| pool.put(live.swap_remove(place)));
    pool.trim(12 * MIB);
    pool.put(pool.get(MIB));
    live
}

/// Calls that would touch what a reset has ended.
fn releases(sim: Simulation) -> [u64; 5] {
    ["cuMemFree", "cuEventDestroy", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree"]
        .map(|name| sim.calls(name))
}

#[test]
fn a_pool_forgets_what_the_program_reset() {
    each_kind("a_pool_forgets_what_the_program_reset", |sim, kind| {
        for told in [true, false] {
            let (pool, gpu) = (kind.pool(64 * MIB), Gpu::new(sim));
            for round in 0..4 {
                let live = in_use(&pool);
                kind.agree(sim, &pool);
                let (allocs, peak) = (pool.stats().num_allocs, pool.stats().peak_bytes_in_use);
                gpu.reset(0);
                assert_eq!(sim.live(RETAINS), 1, "a reset releases nothing");
                if told {
                    let before = releases(sim);
                    lost(0);
                    assert_eq!(releases(sim), before);
                    assert_empty(&pool);
                    assert_eq!(pool.stats().peak_bytes_in_use, peak);
                    live.iter().for_each(|&address| assert_refused(&pool, address));
                    let calls = sim.all_calls();
                    assert_eq!((pool.trim(0), pool.occupancy().is_empty()), (0, false));
                    pool.report();
                    pool.memory_map();
                    assert_eq!(sim.all_calls(), calls, "nothing to ask the driver about");
                }
                // All of it, so that no device memory is leaked.
                let all = pool.get(64 * MIB);
                kind.agree(sim, &pool);
                assert_eq!(pool.allocation_id(all), Ok(allocs + 1));
                if kind.ends < 2 {
                    assert!(!live.contains(&all), "from the driver, anew");
                    live.iter().for_each(|&address| assert_refused(&pool, address));
                }
                pool.put(all);
                assert_eq!((pool.stats().num_failures, pool.trim(0)), (0, 64 * MIB), "round {round}");
            }
            assert_eq!(pool.destroy(), BFC_OK);
        }
    });
}

/// Destroyed after the context has ended, which was noticed, reported, or neither, and created again.
#[test]
fn a_pool_is_destroyed_and_created_after_a_reset() {
    each_kind("a_pool_is_destroyed_and_created_after_a_reset", |sim, kind| {
        let gpu = Gpu::new(sim);
        for (told, holds, again, forced) in [
            (true, true, false, false),
            (true, true, false, true),
            (false, true, false, true),
            (false, false, false, true),
            (true, true, true, true),
            (true, true, false, true),
        ] {
            let pool = kind.pool(64 * MIB);
            let live = if holds { in_use(&pool) } else { Vec::new() };
            if !holds {
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
            assert_eq!(bfc_device_lost(1), BFC_ERROR_NO_ALLOCATOR);
            let frees = sim.calls("cuMemFree");
            assert_eq!(if forced { pool.destroy_forced() } else { pool.destroy() }, BFC_OK);
            assert_eq!(sim.calls("cuMemFree"), frees, "there was nothing to free");
            if again {
                gpu.leave(0);
            }
            assert_eq!(kind.there(sim), [0; 4]);
            let pool = kind.pool(64 * MIB);
            live.iter().for_each(|&address| assert_eq!(pool.free(address), BFC_ERROR_INVALID_POINTER));
            pool.put(pool.get(MIB));
        }
    });
}

/// Memory of others that is at the old addresses by then is left alone.
#[test]
fn somebody_else_at_the_old_addresses() {
    simulated("somebody_else_at_the_old_addresses", |sim| {
        sim.set(RESET_ENDS, 2);
        let (pool, gpu) = (GRANULES.pool(64 * MIB), Gpu::new(sim));
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
        assert_eq!(GRANULES.there(sim), [2, 2, 2, 2]);
        pool.put(new);
        assert_eq!(pool.destroy(), BFC_OK);
        assert_eq!((GRANULES.there(sim), sim.misuse_texts()), ([1, 1, 1, 1], vec![]));
        gpu.leave(0);
    });
}

/// The context is not retained again, or the new range is refused, or refused at that size. Then that is tried again.
#[test]
fn a_context_that_does_not_come_back() {
    each_kind("a_context_that_does_not_come_back", |sim, kind| {
        let (pool, gpu) = (kind.pool(64 * MIB), Gpu::new(sim));
        let calls = [
            ("cuDevicePrimaryCtxRetain", CUDA_ERROR_UNKNOWN, BFC_ERROR_BACKEND_FAILED),
            ("cuDevicePrimaryCtxRetain", CUDA_ERROR_OUT_OF_MEMORY, BFC_ERROR_OUT_OF_MEMORY),
            ("cuCtxPushCurrent", CUDA_ERROR_UNKNOWN, BFC_ERROR_BACKEND_FAILED),
            ("cuCtxGetId", CUDA_ERROR_UNKNOWN, BFC_ERROR_BACKEND_FAILED),
            ("cuMemAddressReserve", CUDA_ERROR_UNKNOWN, BFC_ERROR_BACKEND_FAILED),
        ];
        let calls = &calls[..if kind.has_granules() { 5 } else { 4 }];
        for &(function, code, status) in calls {
            let live = in_use(&pool);
            gpu.reset(0);
            lost(0);
            let references = sim.live(RETAINS);
            sim.fail(Some(function), 1, code);
            assert_eq!(pool.alloc(MIB), Err(status), "{function}");
            let words = last_error();
            assert!(words.contains(function) && words.contains("was reset or destroyed"), "{words}");
            assert_empty(&pool);
            assert_eq!((sim.struck(), sim.live(RETAINS)), (1, references));
            sim.clear_faults();
            sim.clear_log();
            live.iter().for_each(|&address| assert_refused(&pool, address));
            pool.put(pool.get(64 * MIB));
            kind.agree(sim, &pool);
            pool.trim(0);
        }
        assert_eq!(pool.stats().num_failures, calls.len() as u64);
        if kind.has_granules() {
            // Fewer addresses are sufficient.
            gpu.reset(0);
            lost(0);
            sim.fail(Some("cuMemAddressReserve"), 1, CUDA_ERROR_OUT_OF_MEMORY);
            pool.put(pool.get(MIB));
            kind.agree(sim, &pool);
        }
        gpu.reset(0);
        lost(0);
        let last = if kind.has_granules() { "cuMemAddressReserve" } else { "cuDevicePrimaryCtxRetain" };
        sim.fail(Some(last), 1, CUDA_ERROR_UNKNOWN);
        assert_eq!(pool.alloc(MIB), Err(BFC_ERROR_BACKEND_FAILED));
        // The library's reference is still released.
        assert_eq!(pool.destroy(), BFC_OK);
    });
}

/// Threads grow, trim and remap while the device is reset repeatedly, so that resets happen at every stage. Their misuse
/// of the driver meanwhile is the program's fault. The library must survive it: it never hangs, keeps its statistics
/// consistent, and touches nothing of a context that is not its own.
#[test]
fn threads_come_through_resets() {
    simulated("threads_come_through_resets", |sim| {
        for kind in KINDS {
            sim.configure(1, GIB);
            sim.set(RESET_ENDS, kind.ends);
            sim.set(REUSE_ADDRESSES, i64::from(kind.has_granules()));
            threads_and_resets(sim, kind);
            let [memory, others, ranges, retains] = kind.there(sim);
            assert_eq!([memory, others, ranges], [0; 3], "{kind:?}");
            // A reset while the context is retained again looks as if another caller had released the library's
            // reference: it is retained twice.
            assert!(retains <= if kind.has_granules() { 5 } else { 10 }, "{kind:?}: {retains}");
            // A reset between two calls of the library destroys what the first has created or used. This, and
            // everything that follows, is the program's fault. An event ends with its context, whatever happens to
            // virtual memory.
            let goes_along =
                |text: &str| text.starts_with("Event") || kind.ends != 0 && text.starts_with("Physical");
            let forgiven =
                |text: &String| kind.has_granules() && goes_along(text) && text.contains("destroyed");
            let misuses = sim.misuse_texts();
            assert!(misuses.iter().all(forgiven), "{kind:?}: {misuses:#?}");
        }
    });
}

fn threads_and_resets(sim: Simulation, kind: Kind) {
    let pool = Pool::on_device(0, |options| {
        (options.backend, options.memory_limit, options.retry_timeout_ms) = (kind.backend, 64 * MIB, 1);
        if kind.has_granules() {
            options.flags = BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS;
        }
    });
    let told = listen(&pool, kind.has_granules().then_some(GRANULE));
    let regions = Threads {
        count: 4,
        most_live: 12,
        most_bytes: 6 * MIB,
        keep: 1,
        frees: &[BFC_OK, BFC_ERROR_INVALID_POINTER],
        resets: 300,
    };
    let granules = Threads {
        count: 3,
        most_live: 8,
        most_bytes: 10 * MIB,
        keep: 64 * MIB,
        // It may belong to another thread by now, if ranges are reused.
        frees: &[BFC_OK, BFC_ERROR_INVALID_POINTER, BFC_ERROR_DOUBLE_FREE],
        resets: 100,
    };
    let threads = if kind.has_granules() { granules } else { regions };
    let served = reset_among_threads(Gpu::new(sim), &pool, &threads);
    assert!(served > 3 * threads.resets);
    Gpu::new(sim).reset(0);
    lost(0);
    assert_empty(&pool);
    assert!(told.held.lock().unwrap().is_empty());
    pool.put(pool.get(64 * MIB));
    assert_eq!(pool.destroy(), BFC_OK);
}

/// Growth, a remapping and trims around resets, reported and not.
fn program(gpu: Gpu, kind: Kind) -> Vec<Status> {
    let mut failed = Vec::new();
    let mut wanted = options();
    // Within the limit, the last request remaps granules.
    let (limit, last) = if kind.has_granules() { (16 * MIB, 8 * MIB) } else { (GIB, 64 * MIB) };
    (wanted.backend, wanted.memory_limit) = (kind.backend, limit);
    let pool = match Pool::create(0, &wanted, None) {
        Ok(pool) => pool,
        Err(status) => return vec![status],
    };
    for round in 0..3 {
        let got = [4 * MIB, 3 * MIB, 5 * MIB].map(|bytes| pool.alloc(bytes));
        if let Ok(first) = got[0] {
            pool.put(first);
        }
        failed.extend(got.into_iter().chain([pool.alloc(last)]).filter_map(Result::err));
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
        let codes = [CUDA_ERROR_UNKNOWN, CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_INVALID_CONTEXT];
        let runs = codes.map(|code| (REGIONS, code)).into_iter();
        for (kind, code) in runs.chain(KINDS[1..].iter().map(|&kind| (kind, CUDA_ERROR_UNKNOWN))) {
            let (mut nth, mut unreleased) = (0, 0);
            loop {
                sim.configure(1, GIB);
                sim.set(RESET_ENDS, kind.ends);
                Gpu::new(sim);
                if nth != 0 {
                    sim.fail(None, nth, code);
                }
                let failed = program(gpu, kind);
                let struck = sim.struck();
                sim.clear_faults();
                assert_eq!(sim.misuse_texts(), [""; 0], "call {nth}");
                let fine = [BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_BACKEND_FAILED];
                assert!(failed.iter().all(|status| fine.contains(status)), "call {nth}: {failed:?}");
                if struck == 0 && nth != 0 {
                    break;
                }
                if nth == 0 {
                    assert_eq!((failed, kind.there(sim)), (vec![], [0; 4]));
                }
                assert!(sim.live(RETAINS) <= 1, "{kind:?}, call {nth}, code {code}");
                unreleased += sim.live(RETAINS);
                nth += 1;
            }
            let least = if kind.has_granules() { 100 } else { 50 };
            assert!(nth > least, "only {nth} calls were made to fail");
            // The release itself, at the end and after each of the three resets.
            assert!(unreleased <= 4, "{unreleased}, {kind:?}, code {code}");
        }
    });
}
