//! A program that ends the context of its device memory, on the simulated driver: a simulation, whose rules
//! about primary contexts are those of NVIDIA's manual (its README) and were compared with no real driver.
//!
//! Here: what the pool forgets, and how it begins again.

use crate::common::gpu::Gpu;
use crate::common::lost::*;
use crate::common::simcuda::steer::{POISON, RETAINS, REUSE_ADDRESSES};
use crate::common::simcuda::{Simulation, simulated, simulated_with};
use crate::common::*;
use cuda_sys::*;

/// The context exists again, with the same handle, before the reset is reported: the memory in it is the program's.
#[test]
fn another_life_of_the_context_is_noticed_without_a_word() {
    simulated("another_life_of_the_context_is_noticed_without_a_word", |sim| {
        for told in [false, true] {
            let (pool, gpu) = (cuda_pool(0), Gpu::new(sim));
            let old = pool.get(MIB);
            let free = pool.get(2 * MIB + MIB / 2);
            pool.put(free);
            gpu.enter(0);
            gpu.reset(0);
            gpu.enter(0);
            // At the addresses of the pool's memory: of the region in use, and of the free one.
            let theirs = [2, 4].map(|mib| gpu.alloc(mib * MIB));
            assert_eq!(theirs, [old, free]);
            if told {
                lost(0);
                assert_empty(&pool);
            }
            // The call needs a region, or would release some, which now belong to the program.
            assert_eq!(pool.trim(0), 0);
            let new = pool.get(64 * MIB);
            assert_refused(&pool, old);
            pool.check();
            assert_eq!(sim.used(0), pool.stats().pool_bytes + 6 * MIB, "theirs is there");
            pool.put(new);
            assert_eq!(pool.destroy(), BFC_OK);
            theirs.into_iter().for_each(|address| gpu.free(address));
            gpu.leave(0);
            gpu.leave(0);
            sim.assert_clean();
        }
    });
}

/// A request that finds no memory notices the loss itself, and is served.
#[test]
fn a_request_that_meets_the_loss_is_served() {
    simulated("a_request_that_meets_the_loss_is_served", |sim| {
        let (pool, gpu) = (cuda_pool(0), Gpu::new(sim));
        for round in 0..5 {
            let old = [MIB, 4 * MIB].map(|bytes| pool.get(bytes));
            gpu.reset(0);
            // The loss is not known yet, so free memory is handed out.
            let unknown = pool.get(256);
            let served = pool.get((32 << round) * MIB);
            assert_eq!(pool.stats().num_regions, 1, "round {round}");
            [old[0], old[1], unknown].into_iter().for_each(|address| {
                assert!(address == served || pool.free(address) == BFC_ERROR_INVALID_POINTER);
            });
            pool.check();
            assert_eq!(pool.stats().num_failures, 0);
            pool.put(served);
        }
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn what_is_there_is_not_forgotten() {
    simulated("what_is_there_is_not_forgotten", |sim| {
        let (pool, gpu) = (cuda_pool(0), Gpu::new(sim));
        lost(0);
        let kept = pool.get(MIB);
        lost(0);
        pool.put(kept);
        // A context of the program's own does not matter.
        let (own, kept) = (gpu.own_context(0), pool.get(MIB));
        gpu.destroy_context(own);
        lost(0);
        pool.get(5 * MIB);
        pool.put(kept);
        // A late report finds that the loss was noticed, and that a new life has begun.
        gpu.reset(0);
        lost(0);
        let new = pool.get(MIB);
        lost(0);
        pool.put(new);
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn a_context_that_somebody_released_too_often() {
    simulated("a_context_that_somebody_released_too_often", |sim| {
        for told in [true, false] {
            let (pool, gpu) = (cuda_pool(0), Gpu::new(sim));
            let old = pool.get(MIB);
            gpu.release(0);
            assert_eq!((sim.live(RETAINS), sim.used(0)), (0, 0));
            if told {
                lost(0);
            }
            let new = pool.get(8 * MIB);
            assert_eq!((sim.live(RETAINS), sim.used(0)), (1, pool.stats().pool_bytes));
            assert!(old == new || pool.free(old) == BFC_ERROR_INVALID_POINTER);
            pool.put(new);
            assert_eq!(pool.destroy(), BFC_OK);
            sim.assert_clean();
        }
    });
}

#[test]
fn only_the_device_that_was_reset() {
    simulated_with("only_the_device_that_was_reset", &[("SIMCUDA_DEVICES", "2")], |sim| {
        let pools = [0, 1].map(cuda_pool);
        let live = [&pools[0], &pools[1]].map(|pool| pool.get(MIB));
        Gpu::new(sim).reset(1);
        lost(0);
        lost(1);
        assert_empty(&pools[1]);
        assert_refused(&pools[1], live[1]);
        assert_eq!((owner(live[0]), pools[0].requested_size(live[0])), (Ok(0), Ok(MIB)));
        pools[0].put(live[0]);
        pools[1].put(pools[1].get(MIB));
        pools.iter().for_each(Pool::check);
        drop(pools);
        sim.assert_clean();
    });
}

/// Freed memory of a lost context is poisoned, not unmapped, so that a stray access by the library would be
/// seen as a change and not as a crash.
#[test]
fn nothing_is_written_to_what_is_gone() {
    simulated("nothing_is_written_to_what_is_gone", |sim| {
        sim.set(POISON, 1);
        let (pool, gpu) = (cuda_pool(0), Gpu::new(sim));
        let old = pool.get(MIB);
        gpu.reset(0);
        // SAFETY: the simulation keeps it mapped.
        let word = || unsafe { (old as *const u64).read_volatile() };
        let poison = word();
        lost(0);
        assert_eq!((pool.free(old), word()), (BFC_ERROR_INVALID_POINTER, poison));
        drop(pool);
        sim.assert_clean();
    });
}

/// cuCtxGetId came with CUDA 12.0. Before, the memory in the context shows the loss, or the program's report is
/// accepted.
#[test]
fn a_driver_that_numbers_no_contexts_will_do() {
    let variables = [("SIMCUDA_DRIVER_VERSION", "11080")];
    simulated_with("a_driver_that_numbers_no_contexts_will_do", &variables, |sim| {
        sim.set(REUSE_ADDRESSES, 0);
        let (pool, gpu) = (cuda_pool(0), Gpu::new(sim));
        let old = pool.get(MIB);
        lost(0);
        gpu.reset(0);
        assert_eq!(pool.requested_size(old), Ok(MIB), "it was there when that was said");
        let new = pool.get(16 * MIB);
        assert_refused(&pool, old);
        // The context is active again before the loss is reported: none of the library's memory is in it.
        gpu.reset(0);
        gpu.enter(0);
        lost(0);
        assert_refused(&pool, new);
        pool.put(pool.get(MIB));
        gpu.leave(0);
        assert_eq!(sim.calls("cuCtxGetId"), 0);
        drop(pool);
        sim.assert_clean();
    });
}

/// Without a report, a failing request checks what still exists.
#[test]
fn without_numbers_what_is_missing_tells() {
    let test = "without_numbers_what_is_missing_tells";
    simulated_with(test, &[("SIMCUDA_DRIVER_VERSION", "11080")], |sim| {
        sim.set(REUSE_ADDRESSES, 0);
        let (pool, gpu) = (cuda_pool(0), Gpu::new(sim));
        let old = pool.get(MIB);
        gpu.reset(0);
        gpu.enter(0);
        assert_eq!(pool.alloc(64 * GIB), Err(BFC_ERROR_OUT_OF_MEMORY), "{}", last_error());
        assert_refused(&pool, old);
        assert_empty(&pool);
        pool.put(pool.get(MIB));
        gpu.leave(0);
        drop(pool);
        sim.assert_clean();
    });
}

#[test]
fn there_is_nothing_to_lose_on_the_host() {
    for backend in [BFC_BACKEND_HOST, BFC_BACKEND_HOST_VMM] {
        let pool = Pool::host(16 * MIB, |options| options.backend = backend);
        let kept = pool.get(MIB);
        assert_eq!(bfc_device_lost(pool.device()), BFC_ERROR_UNSUPPORTED);
        let words = last_error();
        assert!(words.contains("bfc_device_lost") && words.contains("host"), "{words}");
        pool.put(kept);
    }
    let pool = Pool::custom(Backend::new(16 * MIB), 16 * MIB, |_| ());
    assert_eq!(bfc_device_lost(pool.device()), BFC_ERROR_UNSUPPORTED);
    assert_eq!(bfc_device_lost(-1), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(bfc_device_lost(fresh_device()), BFC_ERROR_NO_ALLOCATOR);
}

/// A failing query proves nothing.
fn one_question_fails(sim: Simulation) {
    for call in ["cuMemGetAddressRange_v2", "cuDevicePrimaryCtxGetState", "cuCtxPushCurrent_v2"] {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let (a, b) = (gpu.stream(false), gpu.stream(false));
        let pool = Pool::on_device(0, |wanted| wanted.memory_limit = MIB);
        gpu.hold(a);
        let chunk = pool.get_on(MIB / 2, a);
        gpu.fill(a, chunk, MIB / 2, 1);
        pool.put_on(chunk, a);
        let live = pool.get_on(MIB / 4, b);
        pool.put_on(pool.get_on(MIB / 4, b), b);
        sim.fail(Some(call), 1, CUDA_ERROR_UNKNOWN);
        assert!(pool.alloc(64 * MIB).is_err(), "{call}");
        sim.clear_faults();
        assert_eq!(pool.free(live), BFC_OK, "{call}: live memory was forgotten: {}", last_error());
        sim.release_all();
        drop(pool);
        [a, b].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.leave(0);
        sim.assert_clean();
    }
}

#[test]
fn one_failing_question_is_not_the_end_of_a_context() {
    simulated("one_failing_question_is_not_the_end_of_a_context", one_question_fails);
}

#[test]
fn one_failing_question_is_not_the_end_of_a_context_without_a_number() {
    let old = [("SIMCUDA_DRIVER_VERSION", "11080")];
    simulated_with(
        "one_failing_question_is_not_the_end_of_a_context_without_a_number",
        &old,
        one_question_fails,
    );
}

/// References of others are left alone, whatever happens to the library's own.
#[test]
fn a_renewal_that_fails_releases_nobody_else_s_reference() {
    simulated("a_renewal_that_fails_releases_nobody_else_s_reference", |sim| {
        let (gpu, pool) = (Gpu::new(sim), cuda_pool(0));
        for goes_on in [true, false] {
            pool.get(MIB);
            // The program releases a reference that it has not retained.
            gpu.release(0);
            lost(0);
            sim.fail(Some("cuDevicePrimaryCtxRetain"), 2, CUDA_ERROR_UNKNOWN);
            assert_eq!(pool.alloc(MIB), Err(BFC_ERROR_BACKEND_FAILED));
            gpu.enter(0);
            assert_eq!(sim.live(RETAINS), 1, "the program's");
            if goes_on {
                pool.get(MIB);
                assert_eq!(sim.live(RETAINS), 2);
                gpu.leave(0);
            }
        }
        drop(pool);
        assert_eq!(sim.live(RETAINS), 1, "the program's");
        gpu.leave(0);
        sim.assert_clean();
    });
}
