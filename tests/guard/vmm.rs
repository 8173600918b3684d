//! `BFC_DEBUG=guard` for memory that may be unmapped and moved while free: `BFC_BACKEND_HOST_VMM`, and
//! `BFC_BACKEND_CUDA_VMM` on the simulated driver, which is a simulation. The simulated device's memory is the host's,
//! so a program may write to both. `tests/conformance/guard.rs` has what every backend does.

use crate::common::gpu::Gpu;
use crate::common::guarded::*;
use crate::common::lost::{assert_refused, lost};
use crate::common::simcuda::simulated_with;
use crate::common::simcuda::steer::RESET_ENDS;
use crate::common::*;

const GRANULE: u64 = 2 * MIB;
const BACKENDS: [u32; 2] = [BFC_BACKEND_HOST_VMM, BFC_BACKEND_CUDA_VMM];

/// Runs a body in a process of its own with each backend.
#[track_caller]
fn each(test: &str, body: impl Fn(u32, &log::Collected)) {
    simulated_with(test, &[("BFC_DEBUG", "guard")], |sim| {
        for backend in BACKENDS {
            body(backend, &log::Collected::start());
            sim.assert_clean();
        }
    });
}

fn vmm(backend: u32, limit: u64, change: impl FnOnce(&mut bfc_options_t)) -> Pool {
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (backend, limit);
    wanted.flags = BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS;
    change(&mut wanted);
    let device = if backend == BFC_BACKEND_CUDA_VMM { 0 } else { fresh_device() };
    Pool::create(device, &wanted, None).unwrap_or_else(|status| panic!("status {status}: {}", last_error()))
}

/// Returns the request for a chunk of this many granules.
fn granules(count: u64) -> u64 {
    count * GRANULE - 64
}

/// The guard before a chunk was lost with the preceding granule, and other memory was mapped there.
#[test]
fn a_guard_that_was_unmapped_is_missed_by_nobody() {
    each("a_guard_that_was_unmapped_is_missed_by_nobody", |backend, log| {
        let pool = vmm(backend, 16 * MIB, |_| ());
        let [wall, gone, behind] = [0; 3].map(|_| pool.get(granules(1)));
        pool.put(gone);
        assert_eq!(pool.trim(0), GRANULE);
        pool.check();
        // The granule is a different one now, and its end is free.
        let small = pool.get(1000);
        assert_eq!(small, gone);
        pool.check();
        pool.put(behind);
        assert_quiet(&pool, log);
        // A chunk that is handed out after an unmapped one.
        pool.put(small);
        pool.trim(0);
        let [unmapped, behind] = [0; 2].map(|_| pool.get(granules(1)));
        pool.put(unmapped);
        pool.trim(0);
        pool.put(behind);
        let behind = pool.alloc_aligned(granules(1), 4 * MIB).unwrap();
        pool.put(pool.get(GRANULE / 2));
        pool.put(behind);
        pool.put(wall);
        assert_quiet(&pool, log);
        assert_eq!(counter(&pool, "guards_unchecked"), 0);
    });
}

/// The limit is reached: free granules move to the end, and from there to a place before a chunk.
#[test]
fn a_guard_that_moved_away_is_missed_by_nobody() {
    each("a_guard_that_moved_away_is_missed_by_nobody", |backend, log| {
        let pool = vmm(backend, 24 * MIB, |_| ());
        let pairs = [0; 3].map(|_| [3, 1].map(|count| pool.get(granules(count))));
        pairs.iter().for_each(|pair| pool.put(pair[0]));
        let large = pool.get(granules(9));
        assert!(large > pairs[2][1]);
        pool.check();
        pool.put(large);
        // Two free, one in use, and so on: no place for three.
        let pieces = [0; 9].map(|_| pool.get(granules(1)));
        let (kept, gone): (Vec<_>, Vec<_>) = pieces.chunks(3).map(|three| (three[2], &three[..2])).unzip();
        gone.concat().into_iter().for_each(|piece| pool.put(piece));
        let back = [0; 2].map(|_| pool.get(granules(3) - 4096));
        back.iter().for_each(|&address| assert!(address < pairs[2][1], "in an unmapped range"));
        assert_eq!(pool.stats().pool_bytes, 24 * MIB);
        pool.check();
        pairs.iter().for_each(|pair| pool.put(pair[1]));
        back.into_iter().chain(kept).for_each(|address| pool.put(address));
        assert_quiet(&pool, log);
        assert_eq!(counter(&pool, "guards_unchecked"), 0);
        // A guard that is trusted again is checked.
        let [front, behind] = [1000, 1000].map(|bytes| pool.get(bytes));
        pool.put(front);
        write(behind - 8, &[1; 8]);
        pool.put(behind);
        assert_eq!(counter(&pool, "guard_violations"), 1);
    });
}

/// A free checks the guard before its chunk, which is in free memory. A concurrent trim must wait.
#[test]
fn what_is_looked_at_is_not_unmapped() {
    let variables = [("BFC_DEBUG", "guard")];
    simulated_with("what_is_looked_at_is_not_unmapped", &variables, |sim| {
        let log = log::Collected::start();
        let pool = vmm(BFC_BACKEND_CUDA_VMM, 16 * MIB, |_| ());
        let [front, behind] = [0; 2].map(|_| pool.get(granules(1)));
        pool.put(front);
        sim.delay(c"cuMemcpyDtoH_v2".as_ptr(), 300_000_000);
        let reads = sim.calls("cuMemcpyDtoH_v2");
        std::thread::scope(|scope| {
            scope.spawn(|| pool.put(behind));
            let since = std::time::Instant::now();
            while sim.calls("cuMemcpyDtoH_v2") == reads {
                assert!(since.elapsed().as_secs() < 60);
                std::thread::yield_now();
            }
            assert_eq!(pool.trim(0), 2 * GRANULE, "all, once the other is free");
        });
        sim.clear_faults();
        assert_quiet(&pool, &log);
        assert_eq!(counter(&pool, "guards_unchecked"), 0);
        drop(pool);
        sim.assert_clean();
    });
}

/// The context is lost: guards of lost memory are not checked, and those of the next life are written.
#[test]
fn after_a_reset_there_are_guards_again() {
    simulated_with("after_a_reset_there_are_guards_again", &[("BFC_DEBUG", "guard")], |sim| {
        for ends in 0..=2 {
            for backend in [BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM] {
                sim.configure(1, 1 << 30);
                sim.set(RESET_ENDS, ends);
                let (log, gpu) = (log::Collected::start(), Gpu::new(sim));
                let mut wanted = options();
                (wanted.backend, wanted.memory_limit, wanted.flags) = (backend, 16 * MIB, BFC_ALLOW_GROWTH);
                let pool = Pool::create(0, &wanted, None).unwrap();
                for told in [true, false, false] {
                    let [first, second, third] = [1000, 2000, GRANULE].map(|bytes| pool.get(bytes));
                    pool.put(second);
                    gpu.reset(0);
                    if told {
                        lost(0);
                        assert_refused(&pool, first);
                    }
                    // The library notices the loss when it checks the guards.
                    let new = pool.get(500);
                    assert!(bytes(new, 500).iter().all(|&byte| byte == 0xFF), "it is there");
                    assert!(third == new || pool.free(third) == BFC_ERROR_INVALID_POINTER);
                    pool.check();
                    write(new + 500, &[1]);
                    let before = counter(&pool, "guard_violations");
                    pool.put(new);
                    assert_eq!(counter(&pool, "guard_violations"), before + 1);
                    assert_eq!(pool.stats().bytes_in_use, 0);
                }
                assert_eq!(counter(&pool, "guards_unchecked"), 0, "{:#?}", log.messages());
                drop(pool);
                sim.assert_clean();
            }
        }
    });
}
