//! Every call of the (simulated) driver made to fail, one after the other, while memory is mapped and remapped in
//! granules: the checks of `failures.rs`, and that the device never holds more than the limit, that granules
//! which could not be released are released later, and that no live chunk's contents are lost.

use crate::common::failing::*;
use crate::common::simcuda::simulated;
use crate::common::simcuda::steer::{MAPPINGS, PHYSICAL, RESERVATIONS, RETAINS};
use crate::common::*;
use cuda_sys::*;

const KIND: Kind = Kind { backend: BFC_BACKEND_CUDA_VMM, unit: MIB / 4, filled: 4096, programs: &ALL };

const ALL: [(&str, Work); 5] = [PROGRAMS[0], PROGRAMS[1], PROGRAMS[2], PROGRAMS[3], ("remapping", remapping)];

/// Granules that move, twice, while their neighbours are in use, and a trim between them.
fn remapping(program: &mut Program) {
    let [a, b, _] = program.streams;
    program.create(64, BFC_ALLOW_GROWTH);
    let mut chunks: Vec<_> = (0..8).map(|_| program.get(a, 8)).collect();
    for place in [1, 3, 5] {
        let gone = chunks[place].take();
        program.put(a, gone);
    }
    // No piece is large enough: three move.
    let large = program.get(b, 24);
    program.put(b, large);
    let gone = chunks[7].take();
    program.put(a, gone);
    let larger = program.get(a, 28);
    program.put(a, larger);
    program.trim();
    let again = program.get(b, 20);
    for chunk in chunks {
        program.put(a, chunk);
    }
    program.put(b, again);
    program.trim();
}

crate::every_call_fails!(KIND);

/// A trim that fails in the driver in its second half: the memory is no longer counted by the pool, and still allocated
/// on the device.
#[test]
fn what_was_not_given_back_is_used_first_and_given_back_later() {
    simulated("what_was_not_given_back_is_used_first_and_given_back_later", |sim| {
        const LIMIT: u64 = 16 * MIB;
        let function = "cuMemRelease";
        for nth in [1, 5] {
            for later in ["request", "trim", "end"] {
                let mut wanted = options();
                (wanted.backend, wanted.flags) = (BFC_BACKEND_CUDA_VMM, BFC_ALLOW_GROWTH);
                wanted.memory_limit = LIMIT;
                let pool = Pool::create(0, &wanted, None).unwrap();
                pool.put(pool.get(LIMIT));
                // The remaining memory is in use.
                let kept = pool.get(MIB);
                pool.put(pool.get(LIMIT - 2 * MIB));
                sim.fail(Some(function), nth, CUDA_ERROR_UNKNOWN);
                assert_eq!(pool.trim(0), LIMIT - 2 * MIB, "{function}");
                assert_eq!((sim.struck(), pool.stats().pool_bytes), (1, 2 * MIB), "{function}");
                assert!(sim.used(0) > 2 * MIB, "{function} had nothing to do with it");
                sim.clear_faults();
                match later {
                    "request" => {
                        let creates = sim.calls("cuMemCreate");
                        let refused = (sim.used(0) - 2 * MIB) / (2 * MIB);
                        let all = pool.get(LIMIT - 2 * MIB);
                        assert_eq!((sim.used(0), pool.stats().pool_bytes), (LIMIT, LIMIT), "{function}");
                        assert_eq!(sim.calls("cuMemCreate") - creates, 7 - refused);
                        pool.put(all);
                    }
                    "trim" => {
                        pool.put(pool.get(3 * MIB));
                        pool.trim(0);
                        assert_eq!((sim.used(0), pool.stats().pool_bytes), (2 * MIB, 2 * MIB), "{function}");
                    }
                    _ => {}
                }
                pool.check();
                pool.put(kept);
                assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
                let left = [PHYSICAL, MAPPINGS, RESERVATIONS, RETAINS].map(|kind| sim.live(kind));
                assert_eq!((left, sim.misuse_texts()), ([0; 4], vec![]), "{function}, {later}");
            }
        }
    });
}

/// A trim enters the context for the order of streams, to wait, and for each piece that it unmaps and releases.
#[test]
fn a_piece_is_unmapped_and_released_at_once() {
    simulated("a_piece_is_unmapped_and_released_at_once", |sim| {
        for pieces in 1..4 {
            let mut wanted = options();
            (wanted.backend, wanted.flags) = (BFC_BACKEND_CUDA_VMM, BFC_ALLOW_GROWTH);
            (wanted.memory_limit, wanted.initial_region_bytes) = (64 * MIB, 64 * MIB);
            let pool = Pool::create(0, &wanted, None).unwrap();
            let chunks: Vec<u64> = (0..8).map(|_| pool.get(8 * MIB)).collect();
            chunks.iter().step_by(2).take(pieces).for_each(|&chunk| pool.put(chunk));
            let entries = || ["cuCtxPushCurrent", "cuCtxGetId"].map(|function| sim.calls(function));
            let [pushes, ids] = entries();
            assert_eq!(pool.trim(0), pieces as u64 * 8 * MIB);
            let expected = 2 + pieces as u64;
            assert_eq!(entries(), [pushes + expected, ids + expected], "{pieces} pieces");
            assert_eq!(pool.destroy_forced(), BFC_OK);
        }
    });
}

/// Granules that could be mapped neither at the new place nor at the old one, and the context cannot be entered to
/// release them.
#[test]
fn what_is_left_of_a_remapping_is_used_first_and_given_back_later() {
    simulated("what_is_left_of_a_remapping_is_used_first_and_given_back_later", |sim| {
        const LIMIT: u64 = 16 * MIB;
        for function in ["cuThreadExchangeStreamCaptureMode", "cuCtxPushCurrent", "cuCtxGetId"] {
            let mut left_over = 0;
            for nth in 1.. {
                let mut wanted = options();
                (wanted.backend, wanted.flags) = (BFC_BACKEND_CUDA_VMM, BFC_ALLOW_GROWTH);
                wanted.memory_limit = LIMIT;
                let pool = Pool::create(0, &wanted, None).unwrap();
                let chunks = [(); 4].map(|()| pool.get(LIMIT / 4));
                [chunks[0], chunks[2]].into_iter().for_each(|chunk| pool.put(chunk));
                (1..=3).for_each(|nth| sim.fail(Some("cuMemMap"), nth, CUDA_ERROR_UNKNOWN));
                sim.fail(Some(function), nth, CUDA_ERROR_UNKNOWN);
                let before = sim.calls(function);
                let refused = pool.alloc(LIMIT / 2);
                let is_over = sim.calls(function) - before < nth;
                sim.clear_faults();
                assert!(refused.is_err(), "{function} {nth}");
                let (held, used) = (pool.stats().pool_bytes, sim.used(0));
                assert!(held <= used && used <= LIMIT, "{function} {nth}: {held} and {used}");
                left_over += u64::from(held < used);
                let creates = sim.calls("cuMemCreate");
                pool.get(LIMIT / 2);
                assert_eq!((sim.used(0), pool.stats().pool_bytes), (LIMIT, LIMIT), "{function} {nth}");
                assert_eq!(sim.calls("cuMemCreate") - creates, (LIMIT - used) / (2 * MIB));
                assert_eq!(pool.destroy_forced(), BFC_OK, "{}", last_error());
                let left = [PHYSICAL, MAPPINGS, RESERVATIONS, RETAINS].map(|kind| sim.live(kind));
                assert_eq!((left, sim.misuse_texts()), ([0; 4], vec![]), "{function} {nth}");
                if is_over {
                    break;
                }
            }
            assert!(left_over != 0, "{function} never failed when the rest was to be released");
        }
    });
}

/// At the end everything that fails once is tried again.
#[test]
fn one_refusal_does_not_keep_the_rest() {
    simulated("one_refusal_does_not_keep_the_rest", |sim| {
        let kinds = [PHYSICAL, MAPPINGS, RESERVATIONS];
        for nth in 1.. {
            let mut wanted = options();
            (wanted.backend, wanted.flags) = (BFC_BACKEND_CUDA_VMM, BFC_ALLOW_GROWTH);
            wanted.memory_limit = 16 * MIB;
            let pool = Pool::create(0, &wanted, None).unwrap();
            pool.get(7 * MIB);
            sim.fail(None, nth, CUDA_ERROR_UNKNOWN);
            assert_eq!(pool.destroy_forced(), BFC_OK, "{}", last_error());
            let struck = sim.struck() != 0;
            sim.clear_faults();
            assert_eq!(kinds.map(|kind| sim.live(kind)), [0; 3], "call {nth}: {}", sim.log_text());
            if !struck {
                assert!(nth > 15, "{nth} calls");
                break;
            }
            // The context itself, if it was that call.
            if sim.live(RETAINS) != 0 {
                crate::common::gpu::Gpu::new(sim).release(0);
            }
        }
    });
}
