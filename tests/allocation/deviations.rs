//! The thirteen deviations from TensorFlow's allocator, by number: what libbfc deliberately does better.

use crate::common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Instant;

const GROWTH: u32 = BFC_ALLOW_GROWTH;
const STAMPS: u32 = BFC_TIMESTAMPS;

/// 1. A size that wraps when rounded is an error; there it becomes 0 and corrupts.
#[test]
fn d01_sizes_that_wrap_are_errors() {
    let pool = Pool::custom(Backend::new(u64::MAX), u64::MAX, |options| options.flags = GROWTH);
    let kept = pool.get(1000);
    let before = pool.stats();
    for bytes in [u64::MAX, u64::MAX - 1, u64::MAX - 254, u64::MAX - 255, u64::MAX - 256, 1 << 63] {
        assert_eq!(pool.alloc(bytes), Err(BFC_ERROR_OUT_OF_MEMORY), "{bytes:#x}");
        assert_eq!(pool.alloc_aligned(bytes, 1 << 20), Err(BFC_ERROR_OUT_OF_MEMORY), "{bytes:#x}");
        assert_eq!(pool.alloc_ex(&request(bytes as usize)), Err(BFC_ERROR_OUT_OF_MEMORY), "{bytes:#x}");
        pool.check();
    }
    let after = pool.stats();
    assert_eq!(after.num_failures, before.num_failures + 18);
    assert_eq!((after.bytes_in_use, after.pool_bytes), (before.bytes_in_use, before.pool_bytes));
    assert_eq!(pool.allocated_size(kept), Ok(1024));
}

/// 2. A sub-allocator that provides more than requested never makes the limit arithmetic wrap.
#[test]
fn d02_more_than_asked_never_wraps_the_limit() {
    let mut backend = Backend::new(u64::MAX);
    backend.extra = 64 * MIB;
    let pool = Pool::custom(backend, 4 * MIB, |options| options.flags = GROWTH);
    let first = pool.get(256);
    let stats = pool.stats();
    assert_eq!((stats.pool_bytes, stats.num_regions), (66 * MIB, 1));
    pool.check();
    // Memory provided beyond the limit is used, but no further byte is requested.
    let rest = pool.get(50 * MIB);
    assert_eq!(pool.alloc(50 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!((pool.backend().requests(), pool.stats().pool_bytes), (1, 66 * MIB));
    pool.check();
    [first, rest].into_iter().for_each(|address| pool.put(address));
    assert_eq!((pool.trim(0), pool.stats().pool_bytes), (66 * MIB, 0));
    pool.check();
    // Even if it provides almost the whole address space.
    let huge = Backend::scripted(|_, _, _| Some((1 << 40, u64::MAX - (1 << 40))));
    let pool = Pool::custom(huge, 4 * MIB, |options| options.flags = GROWTH);
    let first = pool.get(256);
    assert_eq!(pool.alloc(1 << 62), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.backend().requests(), 1);
    pool.check();
    pool.put(first);
    pool.check();
}

/// 2, with odd amounts: a part that is not a whole unit is held and released, and never handed out.
#[test]
fn d02_odd_amounts_are_given_back_as_they_came() {
    let mut backend = Backend::new(u64::MAX);
    backend.extra = 100;
    let pool = Pool::custom(backend, 64 * MIB, |options| options.flags = GROWTH | BFC_GARBAGE_COLLECTION);
    let all = [pool.get(2 * MIB), pool.get(4 * MIB)];
    assert_eq!(pool.stats().pool_bytes, 6 * MIB + 200);
    pool.check();
    all.into_iter().for_each(|address| pool.put(address));
    assert_eq!(pool.trim(0), 6 * MIB + 200);
    pool.backend().assert_all_returned();
}

/// 3. Freeing an interior, foreign or stale pointer is an error; there p+1 to p+255 free p, a pointer
///    below a region reads out of bounds, and a double free aborts.
#[test]
fn d03_only_the_start_of_a_live_chunk_can_be_freed() {
    let pool = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWTH);
    let chunk = pool.get(1000);
    let neighbour = pool.get(1000);
    for offset in [1, 8, 255, 256, 512, 1023] {
        assert_eq!(pool.free(chunk + offset), BFC_ERROR_INVALID_POINTER, "+{offset}");
    }
    let region = pool.range(chunk).expect("live").region;
    for foreign in [region.0 - 1, region.0 - 256, region.0 + region.1, 1, 256, u64::MAX, u64::MAX - 255] {
        assert_eq!(pool.free(foreign), BFC_ERROR_INVALID_POINTER, "{foreign:#x}");
    }
    pool.check();
    assert_eq!(pool.stats().num_frees, 0);
    pool.put(chunk);
    assert_eq!(pool.free(chunk), BFC_ERROR_DOUBLE_FREE);
    pool.put(neighbour);
    // Merged into the chunk before it, so no longer the start of a chunk.
    assert_eq!(pool.free(neighbour), BFC_ERROR_INVALID_POINTER);
    pool.trim(0);
    assert_eq!(pool.free(chunk), BFC_ERROR_INVALID_POINTER, "its region is gone");
    pool.check();
    assert_eq!((pool.stats().num_frees, pool.stats().num_failures), (2, 0));
}

/// 4. The fragmentation of a full pool is 0, and of an empty one too; in TensorFlow it is not a number.
#[test]
fn d04_fragmentation_of_a_full_pool_is_zero() {
    let pool = Pool::custom(Backend::new(GIB), MIB, |_| {});
    let fragmentation = || {
        let map: serde_json::Value = serde_json::from_str(&pool.memory_map()).expect("JSON, so no NaN");
        map["stats"]["fragmentation"].as_f64().expect("a number")
    };
    assert_eq!(fragmentation(), 0.0, "no region yet");
    let halves = [pool.get(MIB / 2), pool.get(MIB / 2)];
    assert_eq!((fragmentation(), pool.stats().largest_free_block_bytes), (0.0, 0));
    assert!(pool.report().contains("fragmentation 0.0%"), "{}", pool.report());
    pool.put(halves[1]);
    let (a, b) = (pool.get(MIB / 4), pool.get(MIB / 4));
    pool.put(halves[0]);
    pool.put(b);
    // 512 and 256 KiB are free.
    assert!((fragmentation() - 1.0 / 3.0).abs() < 1e-9, "{}", fragmentation());
    pool.put(a);
    assert_eq!(fragmentation(), 0.0);
}

/// 5. The split remainder of a stamped chunk is queued too: it merges when its stamp is safe.
#[test]
fn d05_remainders_of_stamped_chunks_merge_later() {
    let pool = Pool::custom(Backend::new(MIB), MIB, |options| options.flags = STAMPS);
    let whole = pool.get(MIB);
    pool.put(whole);
    let part = pool.get(256);
    assert_eq!(part, whole, "a plain allocation ignores stamps");
    assert_eq!(pool.timestamp(), Ok(1));
    // The remainder was freed at 1 as well: nothing freed before that may be served from it.
    pool.put(part);
    pool.check();
    assert_eq!(pool.stats().num_free_chunks, 2, "neither may merge yet");
    pool.set_safe_frontier(2);
    pool.get(256);
    pool.check();
    pool.set_safe_frontier(3);
    pool.put(whole);
    pool.synchronize();
    assert_eq!(pool.get(MIB), whole, "all merged");
    pool.check();
}

/// 5, where a free prefix is split off for the alignment: the memory after the aligned chunk was freed at
/// the same time as the memory before it.
#[test]
fn d05_what_is_behind_an_aligned_chunk_is_stamped_as_well() {
    let pool = Pool::custom(Backend::new(MIB), MIB, |options| options.flags = STAMPS);
    let small = pool.get(256);
    let (large, tail) = (pool.get(256 << 10), pool.get(256));
    pool.put(large); // stamp 1
    pool.put(tail); // stamp 2
    let aligned = pool.alloc_aligned(4096, 4096).expect("there is room");
    assert!(large < aligned && aligned + 4096 < large + (256 << 10), "out of the stamped chunk");
    pool.check();
    // A bound of stamp 1 permits of the stamped chunk only what stamp 1
    // allows, which are both its pieces, and nothing of stamp 2.
    let map: serde_json::Value = serde_json::from_str(&pool.memory_map()).expect("JSON");
    let chunks = map["regions"][0]["chunks"].as_array().expect("a list");
    let stamp_at = |address: u64| {
        let name = format!("{address:#x}");
        chunks.iter().find(|chunk| chunk["address"] == name.as_str()).map(|chunk| chunk["stamp"].clone())
    };
    assert_eq!(stamp_at(large), Some(1.into()), "the prefix");
    assert_eq!(stamp_at(aligned + 4096), Some(1.into()), "the remainder");
    assert_eq!(stamp_at(tail), Some(2.into()), "its neighbour");
    pool.synchronize();
    pool.put(small);
    pool.put(aligned);
    pool.synchronize();
    pool.get(MIB);
    pool.check();
}

/// 5, where the neighbour after the remainder is free and unstamped: they are two free neighbours, one of
/// which must be stamped.
#[test]
fn d05_aligned_remainders_next_to_unstamped_chunks() {
    let pool = Pool::custom(Backend::new(MIB), MIB, |options| options.flags = STAMPS);
    pool.get(256);
    let large = pool.get(256 << 10);
    pool.put(large);
    let aligned = pool.alloc_aligned(4096, 4096).expect("there is room");
    assert!(aligned > large);
    pool.check();
    pool.put(aligned);
    pool.check();
    pool.synchronize();
    pool.get(512 << 10);
    pool.check();
}

/// 5. A chunk merged by force despite its stamp stays queued under the later stamp.
#[test]
fn d05_force_merged_chunks_stay_queued() {
    let pool = Pool::custom(Backend::new(MIB), MIB, |options| options.flags = STAMPS);
    let quarters: Vec<u64> = (0..4).map(|_| pool.get(MIB / 4)).collect();
    quarters.iter().for_each(|&address| pool.put(address)); // stamps 1 to 4
    // A chunk of that size exists only after merging, which a bound on the stamps forbids.
    assert_eq!(pool.alloc_freed_before(MIB / 2, 4), Err(BFC_ERROR_OUT_OF_MEMORY));
    let half = pool.get(MIB / 2);
    assert_eq!(half, quarters[0]);
    pool.check();
    pool.put(half); // stamp 5
    assert_eq!(pool.timestamp(), Ok(5));
    assert_eq!(pool.alloc_freed_before(MIB / 2, 1), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.synchronize();
    assert_eq!(pool.get(MIB), quarters[0], "all merged: nothing was forgotten");
    pool.check();
}

/// 5. Allocation clears the stamp: a reused chunk does not merge by its old one.
#[test]
fn d05_allocation_clears_the_stamp() {
    let pool = Pool::custom(Backend::new(MIB), MIB, |options| options.flags = STAMPS);
    let chunk = pool.get(MIB);
    pool.put(chunk);
    assert_eq!(pool.get(MIB), chunk);
    pool.synchronize();
    assert_eq!(pool.alloc(256), Err(BFC_ERROR_OUT_OF_MEMORY), "it is in use");
    assert_eq!(pool.allocated_size(chunk), Ok(MIB));
    pool.check();
    pool.put(chunk);
    assert_eq!(pool.timestamp(), Ok(2));
    assert_eq!(pool.alloc_freed_before(256, 1), Err(BFC_ERROR_OUT_OF_MEMORY), "stamped 2 now");
    assert_eq!(pool.alloc_freed_before(256, 2), Ok(chunk));
    pool.check();
}

/// 5. Garbage collection and trim never release a region with unsafe chunks.
#[test]
fn d05_regions_with_unsafe_chunks_stay() {
    let flags = GROWTH | STAMPS | BFC_GARBAGE_COLLECTION | BFC_QUARANTINE;
    let pool = Pool::custom(Backend::new(GIB), 4 * MIB, |options| options.flags = flags);
    let chunk = pool.get(MIB);
    pool.put(chunk);
    assert_eq!(pool.trim(0), 0);
    assert_eq!(pool.alloc(4 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.stats().num_regions, 1);
    pool.check();
    pool.synchronize();
    pool.get(4 * MIB);
    assert_eq!(pool.backend().books(|books| books.returned.len()), 1, "now it may be given back");
    pool.check();
}

/// 6. No wakeup is lost between the failed try and the wait: with two threads that hand the only chunk
///    to each other, the request after a lost one would take as long as the timeout.
#[test]
fn d06_no_wakeup_is_lost() {
    // Each round has one free, at a random moment of the other thread's request: no later event would compensate for a
    // lost wakeup. `pool::slot` has a test that frees exactly in the gap.
    const ROUNDS: u64 = 20_000;
    // Far longer than any request takes on a busy machine.
    const TIMEOUT_MS: u32 = 20_000;
    let pool = Pool::custom(Backend::new(256), 256, |options| options.retry_timeout_ms = TIMEOUT_MS);
    let (turn, longest, chunk) = (AtomicU64::new(0), AtomicU64::new(0), pool.get(1));
    let wait_for = |number: u64| {
        while turn.load(Acquire) != number {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                wait_for(2 * round - 1);
                let begun = Instant::now();
                assert_eq!(pool.get(1), chunk);
                longest.fetch_max(begun.elapsed().as_millis() as u64, Relaxed);
                turn.store(2 * round, Release);
            }
        });
        let mut random = Random::new(6);
        for round in 1..=ROUNDS {
            turn.store(2 * round - 1, Release);
            (0..random.below(2000)).for_each(|_| std::hint::spin_loop());
            pool.put(chunk);
            wait_for(2 * round);
        }
    });
    assert!(longest.into_inner() < TIMEOUT_MS.into());
    assert_eq!(pool.stats().num_failures, 0);
    pool.check();
}

/// 7. The pointer table costs at most half of TensorFlow's 8 bytes per unit even if every unit is a
///    chunk, and next to nothing where few chunks start. `memory.rs` compares with the resident memory.
#[test]
fn d07_the_pointer_table_is_resident_only_where_chunks_start() {
    let pool = Pool::custom(Backend::new(u64::MAX), 80 * GIB, |_| {});
    pool.get(256);
    assert!(pool.stats().metadata_bytes < 2 * MIB, "{}", pool.stats().metadata_bytes);
    let dense = Pool::custom(Backend::new(u64::MAX), 256 * MIB, |_| {});
    let before = dense.stats().metadata_bytes;
    (0..MIB).for_each(|_| {
        dense.get(1);
    });
    let grown = dense.stats().metadata_bytes - before;
    // 8 bytes per unit there, plus a chunk structure of more than 100 bytes.
    assert!(grown <= MIB * (100 + 4), "{} bytes a chunk", grown as f64 / MIB as f64);
}

/// 8. A request that may fail writes nothing: without `BFC_REPORT_ON_FAILURE` no report, and without
///    `BFC_LOG` no message. `reports.rs` has the reports themselves.
#[test]
fn d08_a_failing_request_writes_nothing() {
    const NAME: &str = "d08_a_failing_request_writes_nothing";
    if child::is_child(NAME) {
        let pool = Pool::custom(Backend::new(MIB), MIB, |_| {});
        (0..100).for_each(|_| assert_eq!(pool.alloc(2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY)));
        return;
    }
    assert_eq!(child::expect_success(NAME, &[]).errors, "");
}

/// 9. After trim the region hint starts again from its initial value. In TensorFlow it continues from the peak.
#[test]
fn d09_growth_begins_small_again_after_trim() {
    let pool = Pool::custom(Backend::new(64 * GIB), 64 * GIB, |options| options.flags = GROWTH);
    let chunks: Vec<u64> = (0..100).map(|_| pool.get(10 * MIB)).collect();
    chunks.iter().for_each(|&address| pool.put(address));
    assert!(pool.trim(0) >= GIB);
    for expected in [2, 4, 8].map(|mib| mib * MIB) {
        let before = pool.stats().pool_bytes;
        pool.get(expected);
        assert_eq!(pool.stats().pool_bytes - before, expected);
    }
    // Garbage collection, as in the original, leaves the hint.
    let collecting =
        Pool::custom(Backend::new(GIB), 8 * MIB, |options| options.flags = GROWTH | BFC_GARBAGE_COLLECTION);
    [2, 4].map(|mib| collecting.get(mib * MIB)).into_iter().for_each(|address| collecting.put(address));
    collecting.get(7 * MIB);
    assert_eq!(collecting.stats().pool_bytes, 8 * MIB);
    collecting.check();
}

/// 10. A requested alignment is honoured by splitting off a free prefix.
#[test]
fn d10_alignment_is_honoured_and_the_prefix_stays_free() {
    let pool = Pool::custom(Backend::new(GIB), 16 * MIB, |_| {});
    let first = pool.get(256);
    for alignment in [512, 4096, 1 << 16, 1 << 20, 1 << 22] {
        let address = pool.alloc_aligned(1000, alignment).expect("there is room");
        assert_eq!(address % alignment, 0, "{alignment}");
        assert_eq!((pool.requested_size(address), pool.allocated_size(address)), (Ok(1000), Ok(1024)));
        pool.check();
    }
    // The prefixes are free and are the best fit for small requests.
    assert_eq!(pool.get(256), first + 256);
    pool.check();
}

/// 10. Many chunks without a place at the alignment come first, none certainly has one, and the pool cannot grow.
#[test]
fn d10_a_pool_that_cannot_grow_looks_at_every_chunk() {
    const PIECES: usize = 100;
    let sizes: Vec<u64> = (0..PIECES).flat_map(|_| [1, 2, 1]).chain([2, 2, 2]).collect();
    let pool = Pool::custom(Backend::new(GIB), 256 * sizes.iter().sum::<u64>(), |_| ());
    let chunks: Vec<u64> = sizes.iter().map(|&units| pool.get(256 * units)).collect();
    assert_eq!(chunks[0] % 512, 0);
    (0..PIECES).for_each(|piece| pool.put(chunks[3 * piece + 1]));
    let only = chunks[3 * PIECES + 1];
    for flags in [0, BFC_REQUEST_NO_GROWTH] {
        pool.put(only);
        let aligned = bfc_request_t { flags, alignment: 512, ..request(512) };
        assert_eq!(pool.alloc_ex(&aligned), Ok(only));
        assert_eq!(pool.alloc_ex(&aligned), Err(BFC_ERROR_OUT_OF_MEMORY));
    }
    pool.check();
}

/// 10. A backend that ignores the alignment is asked for enough memory to contain an aligned place.
#[test]
fn d10_alignment_needs_nothing_of_the_backend() {
    let mut next = (1u64 << 40) + 256;
    let backend = Backend::scripted(move |_, _, bytes| {
        let base = next;
        next += bytes + 768;
        Some((base, bytes))
    });
    let pool = Pool::custom(backend, GIB, |options| options.flags = GROWTH);
    for alignment in [1 << 12, 1 << 20, 1 << 24] {
        for bytes in [256, 4 * MIB] {
            let address = pool.alloc_aligned(bytes, alignment).expect("there is memory");
            assert_eq!(address % alignment, 0);
        }
    }
    pool.check();
    assert_eq!(pool.alloc_aligned(256, 2 * GIB), Err(BFC_ERROR_OUT_OF_MEMORY), "larger than the pool");
    pool.check();
}

/// 11. The shrinking of a refused extension makes progress by at least 256 bytes per step: in TensorFlow a request
///     of few units at a sub-allocator that always fails is repeated forever.
#[test]
fn d11_shrinking_always_ends() {
    for units in [1, 2, 3, 4, 5, 7, 9, 10, 11, 100] {
        let pool = Pool::custom(Backend::new(0), GIB, |options| {
            (options.flags, options.initial_region_bytes) = (GROWTH, 16 * 256);
        });
        assert_eq!(pool.alloc(units * 256), Err(BFC_ERROR_OUT_OF_MEMORY));
        pool.backend().books(|books| {
            assert!((1..100).contains(&books.asked.len()), "{:?}", books.asked);
            assert!(books.asked.windows(2).all(|pair| pair[1] + 256 <= pair[0]), "{:?}", books.asked);
            assert!(books.asked.iter().all(|&bytes| bytes >= units * 256));
        });
        pool.check();
    }
}

/// 12. When the frontier passes, neighbours merge completely: in TensorFlow the first of two takes the second,
///     whose turn never comes, and the memory after it stays apart.
#[test]
fn d12_neighbours_merge_completely() {
    let pool = Pool::custom(Backend::new(MIB), MIB, |options| options.flags = STAMPS);
    let first = pool.get(256);
    let second = pool.get(256);
    pool.put(first);
    pool.put(second);
    pool.check();
    assert_eq!(pool.stats().num_free_chunks, 3, "two wait, and the rest was never in use");
    pool.synchronize();
    assert_eq!(pool.get(MIB), first, "one chunk again");
    assert_eq!(pool.backend().requests(), 1);
    pool.check();
}

/// 13. The backend's remaining memory may lie between two sizes of the back-off. Then a request asks for
///     exactly what it needs, where TensorFlow fails.
#[test]
fn d13_the_last_step_is_what_is_needed() {
    let room = Arc::new(AtomicU64::new(0));
    let (left, mut next) = (Arc::clone(&room), 1u64 << 40);
    let backend = Backend::scripted(move |books, _, bytes| {
        next += bytes + MIB;
        (books.held + bytes <= left.load(Relaxed)).then_some((next - bytes - MIB, bytes))
    });
    let pool = Pool::custom(backend, 64 * GIB, |options| options.flags = GROWTH);
    for unit in [256, 8192, 300_032] {
        for units in (1..4000).step_by(7) {
            let bytes = unit * units;
            for percent in [0, 1, 5] {
                room.store((bytes + bytes * percent / 100) & !255, Relaxed);
                let address = pool.alloc(bytes);
                assert!(address.is_ok(), "{bytes} bytes and {percent}%: {}", last_error());
                pool.put(address.unwrap());
                pool.trim(0);
            }
            room.store(bytes - 1, Relaxed);
            assert_eq!(pool.alloc(bytes), Err(BFC_ERROR_OUT_OF_MEMORY));
        }
    }
    pool.check();
}

/// 13. Where TensorFlow does not fail nothing is different: the last step comes after garbage collection.
#[test]
fn d13_only_where_tensorflow_fails() {
    let collecting =
        Pool::custom(Backend::new(9 * MIB), GIB, |options| options.flags = GROWTH | BFC_GARBAGE_COLLECTION);
    collecting.put(collecting.get(2 * MIB));
    let served = collecting.get(7 * MIB);
    let asked = collecting.backend().books(|books| books.asked.clone());
    // There would have been room for exactly 7 MiB beside the first region.
    assert_eq!(asked, [2 * MIB, 8 * MIB, 7_549_952, 8 * MIB]);
    assert_eq!(collecting.stats().num_regions, 1);
    collecting.put(served);
    // It is the last size of all, below the limit, and does not determine the next region.
    let pool = Pool::custom(Backend::new(20 * MIB + MIB / 2), 40 * MIB, |options| options.flags = GROWTH);
    pool.get(20 * MIB);
    let asked = pool.backend().books(|books| books.asked.clone());
    assert_eq!((asked[0], *asked.last().unwrap()), (32 * MIB, 20 * MIB));
    assert!(asked[asked.len() - 2] > 20 * MIB + MIB / 2, "{asked:?}");
    pool.get(MIB / 2);
    assert_eq!(pool.alloc(1), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.check();
}
