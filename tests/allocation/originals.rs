//! The original's own tests, under their own names, against the C ABI.
//!
//! From TensorFlow: `gpu_bfc_allocator_test.cc`, `bfc_allocator_test.cc` and `allocator_retry_test.cc`.
//! From ONNX Runtime: `bfc_arena_test.cc`, as far as they apply: `Reserve` (memory outside the bins) has no
//! equal in this ABI, and the doubling is TensorFlow's, without the cap of 1 GiB. The behaviour is
//! reproduced, not the code.

use crate::common::*;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Barrier};

const GROWTH: u32 = BFC_ALLOW_GROWTH;

/// One region of 1 GiB, as in most of the original's tests.
fn one_gib(flags: u32) -> Pool {
    Pool::custom(Backend::new(4 * GIB), GIB, |options| options.flags = flags)
}

/// `num_allocs`, `bytes_in_use`, `peak_bytes_in_use`, `largest_alloc_size`.
#[track_caller]
fn check_stats(pool: &Pool, expected: [u64; 4]) {
    let stats = pool.stats();
    let ours = [stats.num_allocs, stats.bytes_in_use, stats.peak_bytes_in_use, stats.largest_alloc_size];
    assert_eq!(ours, expected);
    pool.check();
}

/// Sorted by address, each ends before the next begins.
#[track_caller]
fn check_no_overlap(pool: &Pool, addresses: &[u64]) {
    let mut spans = spans::Spans::default();
    for &address in addresses {
        let requested = pool.requested_size(address).expect("a live allocation");
        assert!(requested > 0);
        spans.insert(address, requested, ());
    }
}

#[test]
fn no_dups() {
    let pool = one_gib(0);
    check_stats(&pool, [0, 0, 0, 0]);
    let addresses: Vec<u64> = (1..1024).map(|bytes| pool.get(bytes)).collect();
    check_stats(&pool, [1023, 654_336, 654_336, 1024]);
    check_no_overlap(&pool, &addresses);
    addresses.iter().for_each(|&address| pool.put(address));
    check_stats(&pool, [1023, 0, 654_336, 1024]);
}

/// Random sizes, every second is freed, too large a request fails, random sizes again.
fn allocations_and_deallocations_with(pool: &Pool, count: usize, largest: [u64; 2], too_much: u64) {
    let mut random = Random::new(123);
    let mut addresses: Vec<u64> = (0..count).map(|_| pool.get(random.between(100, largest[0]))).collect();
    let mut place = 0;
    addresses.retain(|&address| {
        place += 1;
        let keep = place % 2 == 0;
        if !keep {
            pool.put(address);
        }
        keep
    });
    pool.check();
    let in_use = pool.stats().bytes_in_use;
    assert_eq!(pool.alloc(too_much), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.stats().bytes_in_use, in_use, "a failing request changes nothing");
    addresses.extend((0..count).map(|_| pool.get(random.between(100, largest[1]))));
    check_no_overlap(pool, &addresses);
    pool.check();
    addresses.iter().for_each(|&address| pool.put(address));
    assert_eq!(pool.stats().bytes_in_use, 0);
    pool.check();
}

#[test]
fn allocations_and_deallocations() {
    allocations_and_deallocations_with(&one_gib(0), 255, [MIB, MIB], GIB + 1);
}

#[test]
fn allocations_and_deallocations_with_growth() {
    let pool = Pool::custom(Backend::new(8 * GIB), 2 * GIB, |options| options.flags = GROWTH);
    allocations_and_deallocations_with(&pool, 9, [128 * MIB, 64 * MIB], 2 * GIB + 1);
}

fn exercise_coalescing_with(flags: u32) {
    let pool = one_gib(flags);
    let first = pool.get(4096);
    pool.put(first);
    for _ in 0..1024 {
        let four = [4 << 10, 8 << 20, 16 << 10, 40 << 20].map(|bytes| pool.get(bytes));
        four.iter().for_each(|&address| pool.put(address));
    }
    // With growth 40 MiB get a region of 64 MiB, which is not split for them.
    let forty = if flags & GROWTH == 0 { 40 << 20 } else { 64 << 20 };
    check_stats(&pool, [4097, 0, (4 << 10) + (8 << 20) + (16 << 10) + forty, forty]);
    // Everything is one chunk again, at least within the first region, and its lowest address comes first.
    assert_eq!(pool.get(4096), first);
    let stats = pool.stats();
    assert_eq!(stats.num_chunks, stats.num_regions + 1);
}

#[test]
fn exercise_coalescing() {
    exercise_coalescing_with(0);
    exercise_coalescing_with(GROWTH);
}

#[test]
fn allocate_zero_buf_size() {
    let pool = one_gib(0);
    assert_eq!(pool.alloc(0), Ok(0));
    assert_eq!(pool.alloc_aligned(0, 4096), Ok(0));
    assert_eq!(pool.alloc_ex(&request(0)), Ok(0));
    assert_eq!(pool.free(0), BFC_OK);
    check_stats(&pool, [0, 0, 0, 0]);
}

#[test]
fn allocated_vs_requested() {
    let pool = one_gib(0);
    let address = pool.get(4);
    assert_eq!((pool.requested_size(address), pool.allocated_size(address)), (Ok(4), Ok(256)));
    pool.put(address);
    pool.check();
}

#[test]
fn test_custom_memory_limit() {
    let pool = Pool::custom(Backend::new(GIB), 2 * MIB, |_| {});
    pool.get(256);
    assert_eq!(pool.alloc(8 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.stats().bytes_limit, 2 * MIB);
    pool.check();
}

#[test]
fn bin_debug_info() {
    let pool = one_gib(0);
    let bins = || -> Vec<[u64; 5]> {
        let map: serde_json::Value = serde_json::from_str(&pool.memory_map()).expect("JSON");
        let bins = map["bins"].as_array().expect("a list").iter();
        let names = ["chunks", "chunks_in_use", "bytes", "bytes_in_use", "bytes_requested"];
        bins.map(|bin| names.map(|name| bin[name].as_u64().expect(name))).collect()
    };
    let mut addresses = Vec::new();
    for power in 0..5 {
        addresses.push(pool.get(256 << power));
        addresses.push(pool.get((256 << power) - 1));
    }
    let used: u64 = (0..5).map(|power| 2 * (256 << power)).sum();
    let found = bins();
    assert_eq!(found.len(), 21);
    for (bin, counts) in found.iter().enumerate() {
        let size = 256u64 << bin;
        let expected = match bin {
            0..5 => [2, 2, 2 * size, 2 * size, 2 * size - 1],
            20 => [1, 0, GIB - used, 0, 0],
            _ => [0; 5],
        };
        assert_eq!(*counts, expected, "bin {bin}");
    }
    // The smaller ones of each pair are freed, so free memory is between used memory.
    addresses.iter().step_by(2).for_each(|&address| pool.put(address));
    pool.check();
    let found = bins();
    let in_use: Vec<u64> = found.iter().map(|bin| bin[1]).collect();
    assert_eq!(in_use[..6], [1, 1, 1, 1, 1, 0]);
    assert_eq!(found.iter().map(|bin| bin[2]).sum::<u64>(), GIB);
    addresses.iter().skip(1).step_by(2).for_each(|&address| pool.put(address));
    assert_eq!(bins()[20], [1, 0, GIB, 0, 0]);
    pool.check();
}

/// 128 chunks of 4 MiB fill 512 MiB in as many regions; 127 are freed.
fn fragmented(backend: Backend) -> Pool {
    let pool = Pool::custom(backend, 512 * MIB, |options| {
        (options.flags, options.initial_region_bytes) = (GROWTH, 4 * MIB);
    });
    let addresses: Vec<u64> = (0..128).map(|_| pool.get(4 * MIB)).collect();
    assert_eq!(pool.alloc(256), Err(BFC_ERROR_OUT_OF_MEMORY));
    addresses[..127].iter().for_each(|&address| pool.put(address));
    pool.check();
    pool
}

#[test]
fn physical_allocator_ooms_fragmentation() {
    let pool = fragmented(Backend::new(512 * MIB));
    assert_eq!(pool.alloc(508 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert!(last_error().contains("fragmentation"), "{}", last_error());
    assert!(pool.stats().num_regions > 1);
    pool.check();
}

#[test]
fn virtual_allocator_promotes_reuse() {
    let pool = fragmented(Backend::new(512 * MIB).coalescing());
    assert_eq!(pool.stats().num_regions, 1);
    let large = pool.get(508 * MIB);
    assert_eq!(large, pool.backend().first, "the front of the range");
    pool.check();
}

#[test]
fn test_region_deallocation() {
    let pool = Pool::custom(Backend::new(GIB), 8 * MIB, |options| {
        options.flags = GROWTH | BFC_GARBAGE_COLLECTION;
    });
    // 2 MiB, then the hint doubles: three regions.
    let addresses: Vec<u64> = (0..14).map(|_| pool.get(MIB / 2)).collect();
    assert_eq!(pool.stats().num_regions, 3);
    addresses[1..].iter().for_each(|&address| pool.put(address));
    // Does not fit beside what is held, but does once the free regions are gone.
    let large = pool.get(6 * MIB);
    let stats = pool.stats();
    assert_eq!((stats.num_regions, pool.backend().books(|books| books.returned.len())), (2, 2));
    pool.check();
    pool.put(large);
    pool.trim(0);
    let stats = pool.stats();
    assert_eq!((stats.num_regions, stats.num_chunks, stats.num_free_chunks), (1, 2, 1));
    assert_eq!(pool.allocated_size(addresses[0]), Ok(MIB / 2));
    pool.check();
}

#[test]
fn extend_terminates_when_sub_allocator_always_fails() {
    for bytes in [256, 300 << 10, GIB] {
        let pool =
            Pool::custom(Backend::new(0), 8 * GIB, |options| options.flags = GROWTH | BFC_GARBAGE_COLLECTION);
        assert_eq!(pool.alloc(bytes), Err(BFC_ERROR_OUT_OF_MEMORY));
        let requests = pool.backend().requests();
        assert!((1..1000).contains(&requests), "{requests} requests");
        pool.check();
    }
}

#[test]
fn respects_requested_alignment() {
    let pool = one_gib(0);
    for alignment in [32, 64, 128, 256, 512, 1024, 2048, 4096] {
        pool.get(256);
        let address = pool.alloc_aligned(1234, alignment).expect("there is room");
        assert_eq!(address % alignment, 0);
        pool.check();
    }
}

#[test]
fn stress_alloc_free() {
    let pool = Pool::custom(Backend::new(16 * MIB), 16 * MIB, |_| {});
    let mut random = Random::new(7);
    for _ in 0..20 {
        let mut wanted = Vec::new();
        for alignment in [64u64, 256, 512, 1024, 4096] {
            for bytes in [1u64, 128, 256, 700, 1024, 4096, 8192] {
                wanted.extend([(bytes, alignment); 10]);
            }
        }
        random.shuffle(&mut wanted);
        let mut addresses = Vec::new();
        for (bytes, alignment) in wanted {
            let address = pool.alloc_aligned(bytes, alignment).expect("16 MiB are enough");
            assert_eq!(address % alignment, 0);
            addresses.push(address);
        }
        check_no_overlap(&pool, &addresses);
        pool.check();
        random.shuffle(&mut addresses);
        addresses.iter().for_each(|&address| pool.put(address));
        pool.check();
        assert_eq!((pool.stats().bytes_in_use, pool.stats().num_chunks), (0, 1));
    }
}

#[test]
fn get_and_clear_memory_stats() {
    let pool = one_gib(0);
    let kept = pool.get(1000);
    let largest = pool.get(5 * MIB);
    pool.put(largest);
    check_stats(&pool, [2, 1024, 5 * MIB + 1024, 5 * MIB]);
    assert_eq!(bfc_reset_stats(pool.device()), BFC_OK);
    check_stats(&pool, [0, 1024, 1024, 0]);
    let stats = pool.stats();
    assert_eq!((stats.num_frees, stats.num_failures), (0, 0));
    assert_eq!((stats.bytes_requested, stats.peak_bytes_requested), (1000, 1000));
    assert_eq!((stats.pool_bytes, stats.peak_pool_bytes), (GIB, GIB));
    pool.put(kept);
    check_stats(&pool, [0, 0, 1024, 0]);
}

#[test]
fn force_allow_growth() {
    const NAME: &str = "force_allow_growth";
    if child::is_child(NAME) {
        // Without growth the first region is the whole limit, with growth it is 2 MiB.
        let first_region = |flags| {
            let pool = Pool::custom(Backend::new(GIB), 64 * MIB, |options| options.flags = flags);
            pool.get(256);
            pool.stats().pool_bytes
        };
        println!("sizes {} {}", first_region(BFC_GARBAGE_COLLECTION), first_region(GROWTH));
        return;
    }
    let (whole, small) = (64 * MIB, 2 * MIB);
    for (value, expected) in [
        ("true", [small, small]),
        ("1", [small, small]),
        ("false", [whole, whole]),
        ("0", [whole, whole]),
        ("2", [whole, small]),
        ("bogus", [whole, small]),
        ("", [whole, small]),
    ] {
        let ended = child::expect_success(NAME, &[("BFC_FORCE_ALLOW_GROWTH", value), ("BFC_LOG", "warn")]);
        let [without, with] = expected;
        assert!(ended.text.contains(&format!("sizes {without} {with}")), "{value}: {}", ended.text);
        let garbage = ["2", "bogus"].contains(&value);
        assert_eq!(ended.errors.contains("BFC_FORCE_ALLOW_GROWTH"), garbage, "{value}: {}", ended.errors);
    }
}

/// Room for two allocations, and three consumers: a consumer that finds no room waits, if it may. Returns how many
/// failed.
fn consume(timeout_ms: u32) -> u32 {
    let pool = Pool::custom(Backend::new(512), 512, |options| options.retry_timeout_ms = timeout_ms);
    let (failures, start) = (AtomicU32::new(0), Barrier::new(3));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                start.wait();
                for _ in 0..50 {
                    match pool.alloc(200) {
                        Ok(address) => {
                            // Longer than the others need to notice.
                            std::thread::sleep(std::time::Duration::from_millis(2));
                            pool.put(address);
                        }
                        Err(BFC_ERROR_OUT_OF_MEMORY) => {
                            failures.fetch_add(1, Relaxed);
                        }
                        Err(status) => panic!("status {status}"),
                    }
                }
            });
        }
    });
    pool.check();
    let failures = failures.into_inner();
    assert_eq!(pool.stats().num_failures, u64::from(failures));
    failures
}

#[test]
fn retry_success() {
    assert_eq!(consume(10_000), 0, "all get memory in time");
}

#[test]
fn retry_no_retry() {
    assert!(consume(0) > 0, "three do not fit at once");
}

/// The wait is not longer than requested, and a free ends it early.
#[test]
fn retry_exceeded() {
    let pool = Arc::new(Pool::custom(Backend::new(256), 256, |options| options.retry_timeout_ms = 300));
    let only = pool.get(1);
    let before = std::time::Instant::now();
    assert_eq!(pool.alloc(1), Err(BFC_ERROR_OUT_OF_MEMORY));
    let waited = before.elapsed().as_millis();
    assert!((300..5000).contains(&waited), "{waited} ms");
    let other = Arc::clone(&pool);
    let waiter = std::thread::spawn(move || other.alloc(1));
    std::thread::sleep(std::time::Duration::from_millis(50));
    pool.put(only);
    assert_eq!(waiter.join().expect("no panic"), Ok(only));
}

/// The timeout is for the whole wait: frees that do not help wake the request, and do not prolong it.
#[test]
fn retry_exceeded_in_spite_of_frees() {
    let pool = Pool::custom(Backend::new(1024), 1024, |options| {
        (options.retry_timeout_ms, options.flags) = (400, BFC_SPLIT_ALWAYS);
    });
    let held: Vec<u64> = (0..4).map(|_| pool.get(256)).collect();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Acquire) {
                pool.put(held[1]);
                assert_eq!(pool.get(256), held[1]);
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        });
        let before = std::time::Instant::now();
        let answer = pool.alloc(512);
        done.store(true, std::sync::atomic::Ordering::Release);
        let waited = before.elapsed().as_millis();
        assert_eq!(answer, Err(BFC_ERROR_OUT_OF_MEMORY));
        assert!((400..10_000).contains(&waited), "{waited} ms");
    });
    assert_eq!(pool.stats().num_failures, 1);
}

/// ONNX Runtime's `Shrink`: regions without a chunk in use are released, the others stay.
#[test]
fn shrink_gives_wholly_free_regions_back() {
    let pool = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWTH);
    let addresses: Vec<u64> = (0..10).map(|_| pool.get(2 * MIB)).collect();
    let before = pool.stats();
    assert_eq!((before.num_regions, before.pool_bytes), (4, 30 * MIB));
    assert_eq!((pool.trim(0), pool.stats().pool_bytes), (0, 30 * MIB), "every region is in use");
    // One chunk each keeps the regions of 2, 4 and 8 MiB; the last, of 16 MiB, loses all its chunks.
    let keep = [0, 1, 3];
    (0..10).filter(|place| !keep.contains(place)).for_each(|place| pool.put(addresses[place]));
    assert_eq!(pool.trim(0), 16 * MIB);
    let after = pool.stats();
    assert_eq!((after.num_regions, after.pool_bytes, after.bytes_in_use), (3, 14 * MIB, 6 * MIB));
    pool.check();
    keep.iter().for_each(|&place| assert_eq!(pool.allocated_size(addresses[place]), Ok(2 * MIB)));
    keep.iter().for_each(|&place| pool.put(addresses[place]));
    assert_eq!((pool.trim(0), pool.stats().pool_bytes), (14 * MIB, 0));
    pool.check();
    pool.get(100);
    assert_eq!(pool.stats().pool_bytes, 2 * MIB, "growth begins small again");
}

/// ONNX Runtime's `TestBackoffDoesntHang`: the device has a little less than the next region wants.
#[test]
fn backoff_does_not_hang() {
    let capacity = 10 * MIB + 12_345 * 256;
    let pool = Pool::custom(Backend::new(capacity), 1 << 40, |options| options.flags = GROWTH);
    let mut served = 0;
    while pool.alloc(600 << 10).is_ok() {
        served += 1;
    }
    assert!(served >= 15, "{served} of about 21");
    assert!(pool.stats().pool_bytes > capacity - (600 << 10), "no more than one request is left");
    assert!(pool.backend().requests() < 1000);
    pool.check();
}

/// ONNX Runtime's `StreamAwareArena`, as far as stamps express it: with quarantine no chunk is handed out
/// before the work that was queued before its free is known to have completed. Stamps and streams exclude each other.
#[test]
fn no_reuse_until_synchronised() {
    let pool =
        Pool::custom(Backend::new(MIB), MIB, |options| options.flags = BFC_TIMESTAMPS | BFC_QUARANTINE);
    let whole = pool.get(MIB);
    pool.put(whole);
    assert_eq!(pool.alloc(256), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.stats().largest_free_block_bytes, 0, "nothing that a request could get");
    pool.check();
    pool.synchronize();
    assert_eq!(pool.get(256), whole);
    pool.check();
    let stream = pointer(0x51);
    assert_eq!(bfc_free_async(pool.device(), pointer(whole), stream), BFC_ERROR_UNSUPPORTED);
    assert_eq!(bfc_record_stream(pool.device(), pointer(whole), stream), BFC_ERROR_UNSUPPORTED);
    assert_eq!(pool.allocated_size(whole), Ok(256), "nothing was freed");
}

/// ONNX Runtime's `StreamAwareArena` again, with streams: `TwoStreamAllocation`, `TestSecureTheChunk` and
/// `TestSecureTheChunk_NoStreamSync`, where a wait of the host takes the place of a notification.
#[test]
fn streams_share_what_is_synchronised() {
    let (first, second) = (0x51, 0x52);
    let pool = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWTH);
    let (a, b) = (pool.get_on(4096, first), pool.get_on(4096, second));
    assert_ne!(a, b);
    pool.put(a);
    let other = pool.get_on(4096, second);
    assert_ne!(other, a, "the first stream may still work with it");
    assert_eq!(pool.get_on(4096, first), a, "which is no matter to itself");
    pool.put(a);
    pool.synchronized(first);
    assert_eq!(pool.get_on(4096, second), a);
    pool.check();
}
