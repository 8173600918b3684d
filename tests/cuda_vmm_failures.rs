//! Every call of the (simulated) driver made to fail, one after the other, where memory is mapped and remapped by
//! granules: what `cuda_failures.rs` looks at, and that the device never holds more than the limit says, that granules
//! which could not be given back are given back later, and that no live chunk's contents are lost.

mod common;

use common::failing::*;
use common::simcuda::simulated;
use common::simcuda::steer::{MAPPINGS, PHYSICAL, RESERVATIONS, RETAINS};
use common::*;
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
    // No piece is so large: three move.
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

every_call_fails!(KIND);

/// A trim that the driver lets down in its second half: the memory is out of the pool's books, and on the device still.
#[test]
fn what_was_not_given_back_is_used_first_and_given_back_later() {
    simulated("what_was_not_given_back_is_used_first_and_given_back_later", |sim| {
        const LIMIT: u64 = 16 * MIB;
        let calls = [
            ("cuMemRelease", 1),
            ("cuMemRelease", 5),
            // The entries into the context: for the order of streams, to wait, to unmap, to release.
            ("cuThreadExchangeStreamCaptureMode", 7),
            ("cuCtxPushCurrent", 4),
            ("cuCtxGetId", 4),
        ];
        for (function, nth) in calls {
            for later in ["request", "trim", "end"] {
                let mut wanted = options();
                (wanted.backend, wanted.flags) = (BFC_BACKEND_CUDA_VMM, BFC_ALLOW_GROWTH);
                wanted.memory_limit = LIMIT;
                let pool = Pool::create(0, &wanted, None).unwrap();
                pool.put(pool.get(LIMIT));
                // What stays is in use.
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

/// At the end whatever fails once is tried once more.
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
            // The context itself, where it was that call.
            if sim.live(RETAINS) != 0 {
                common::gpu::Gpu::new(sim).release(0);
            }
        }
    });
}
