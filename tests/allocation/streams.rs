//! The header's statements about streams, on backends without a device: there a stream is any token, and its work ends
//! when `bfc_stream_synchronized` declares it.

use crate::common::*;

const MIB: u64 = 1 << 20;
/// Two streams.
const A: u64 = 0x1000;
const B: u64 = 0x2000;
/// The default stream by its two names, and the thread's own.
const DEFAULT: u64 = 0;
const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

/// One region of 1 MiB, from which every remainder is split off.
fn pool() -> Pool {
    Pool::host(MIB, |options| options.flags = BFC_SPLIT_ALWAYS)
}

/// Allocates the rest, so that a request can only get freed memory. Returns its size.
fn fill(pool: &Pool, stream: u64) -> u64 {
    let left = pool.stats().largest_free_block_bytes;
    if left != 0 {
        pool.get_on(left, stream);
    }
    left
}

/// Returns a chunk of 64 KiB that was freed on `freed_on`, in a pool without any other memory. Allocated on A.
fn freed(pool: &Pool, freed_on: u64) -> u64 {
    let address = pool.get_on(64 * KIB, A);
    fill(pool, A);
    pool.put_on(address, freed_on);
    address
}

const NONE: Result<u64, Status> = Err(BFC_ERROR_OUT_OF_MEMORY);

#[test]
fn what_was_freed_on_the_same_stream_is_reusable_at_once() {
    let pool = pool();
    let address = freed(&pool, A);
    assert_eq!(pool.alloc_on(64 * KIB, A), Ok(address));
    pool.check();
}

#[test]
fn what_was_freed_on_another_stream_waits_for_its_synchronisation() {
    let pool = pool();
    let address = freed(&pool, A);
    assert_eq!(pool.alloc_on(64 * KIB, B), NONE);
    pool.synchronized(B);
    assert_eq!(pool.alloc_on(64 * KIB, B), NONE, "that is another");
    pool.synchronized(A);
    assert_eq!(pool.alloc_on(64 * KIB, B), Ok(address));
    pool.check();
}

/// The declaration covers the work queued so far, and no later work.
#[test]
fn a_synchronisation_says_nothing_of_later_frees() {
    let pool = pool();
    let (first, second) = (pool.get_on(64 * KIB, A), pool.get_on(64 * KIB, A));
    pool.get_on(256, B);
    fill(&pool, A);
    pool.put_on(first, A);
    pool.synchronized(A);
    pool.put_on(second, A);
    assert_eq!(pool.alloc_on(64 * KIB, B), Ok(first));
    assert_eq!(pool.alloc_on(64 * KIB, B), NONE);
}

#[test]
fn memory_that_nobody_ever_had_is_anybodys() {
    let pool = pool();
    let first = pool.get_on(64 * KIB, A);
    pool.put_on(first, A);
    // The whole pool is free, and 64 KiB of it belonged to A.
    assert_eq!(pool.get_on(256, B), first + 64 * KIB);
    assert_eq!(pool.alloc_on(MIB - 64 * KIB - 256, B), Ok(first + 64 * KIB + 256));
    assert_eq!(pool.alloc_on(256, B), NONE);
    pool.check();
}

/// Merges for a stream that may use all of them, and only for it.
#[test]
fn a_run_of_neighbours_counts_as_one_chunk() {
    let pool = pool();
    let chunks: Vec<u64> = (0..4).map(|number| pool.get_on(64 * KIB, [A, B][number % 2])).collect();
    fill(&pool, A);
    pool.put_on(chunks[1], B);
    pool.synchronized(B);
    pool.put_on(chunks[0], A);
    pool.put_on(chunks[2], A);
    pool.put_on(chunks[3], B);
    pool.check();
    // Of A, of any stream, of A, and one of B.
    assert_eq!(pool.stats().largest_free_block_bytes, 192 * KIB);
    assert_eq!(pool.alloc_on(192 * KIB, B), NONE);
    assert_eq!(pool.alloc_on(192 * KIB, A), Ok(chunks[0]));
    assert_eq!(pool.allocated_size(chunks[0]), Ok(192 * KIB));
    pool.check();
    pool.put_on(chunks[0], A);
    pool.synchronized(A);
    pool.synchronized(B);
    assert_eq!(pool.alloc_on(256 * KIB, DEFAULT), Ok(chunks[0]), "reusable memory is one chunk");
    pool.check();
}

#[test]
fn the_best_fit_of_what_a_stream_may_use() {
    let pool = pool();
    let chunks: Vec<u64> = [8, 1, 6, 1, 4, 1].into_iter().map(|kib| pool.get_on(kib * KIB, A)).collect();
    pool.get_on(256, B);
    fill(&pool, A);
    pool.put_on(chunks[0], A);
    pool.put_on(chunks[2], B);
    pool.put_on(chunks[4], A);
    assert_eq!(pool.alloc_on(3 * KIB, A), Ok(chunks[4]));
    assert_eq!(pool.alloc_on(5 * KIB, A), Ok(chunks[0]), "6 KiB would fit better, and are B's");
    assert_eq!(pool.alloc_on(5 * KIB, B), Ok(chunks[2]));
}

#[test]
fn a_recorded_stream_is_waited_for_everywhere() {
    let pool = pool();
    let address = pool.get_on(64 * KIB, A);
    assert_eq!(pool.record(address, B), BFC_OK);
    assert_eq!(pool.record(address, B), BFC_OK, "twice is as once");
    fill(&pool, A);
    pool.put_on(address, A);
    assert_eq!(pool.alloc_on(64 * KIB, A), NONE, "B may still use it");
    assert_eq!(pool.alloc_on(64 * KIB, B), NONE, "A may");
    pool.synchronized(B);
    assert_eq!(pool.alloc_on(64 * KIB, B), NONE, "A still may");
    assert_eq!(pool.alloc_on(64 * KIB, A), Ok(address));
    // It was recorded for that allocation, not for the address.
    pool.put_on(address, A);
    assert_eq!(pool.alloc_on(64 * KIB, A), Ok(address));
    pool.check();
}

/// The work that B had queued by the free counts, not the work queued by the record.
#[test]
fn a_recorded_stream_is_waited_for_from_the_free_on() {
    let pool = pool();
    let address = pool.get_on(64 * KIB, A);
    assert_eq!(pool.record(address, B), BFC_OK);
    fill(&pool, A);
    pool.synchronized(B);
    pool.put_on(address, A);
    assert_eq!(pool.alloc_on(64 * KIB, A), NONE);
    pool.synchronized(B);
    assert_eq!(pool.alloc_on(64 * KIB, A), Ok(address));
}

/// A record made while the pool knew only one stream is not forgotten when there are two.
#[test]
fn a_record_on_the_only_stream_counts_when_another_comes() {
    let pool = pool();
    let address = pool.get_on(64 * KIB, A);
    assert_eq!(pool.record(address, A), BFC_OK);
    fill(&pool, A);
    pool.put_on(address, B);
    assert_eq!(pool.alloc_on(64 * KIB, B), NONE);
    pool.synchronized(A);
    assert_eq!(pool.alloc_on(64 * KIB, B), Ok(address));
}

#[test]
fn only_what_lives_can_be_recorded() {
    let pool = pool();
    let address = pool.get_on(64 * KIB, A);
    for wrong in [0, address + 1, address + 256, 0x5000] {
        assert_eq!(pool.record(wrong, B), BFC_ERROR_INVALID_POINTER, "{wrong:#x}");
    }
    pool.put_on(address, A);
    assert_eq!(pool.record(address, B), BFC_ERROR_INVALID_POINTER);
    pool.check();
}

#[test]
fn a_forgotten_handle_may_be_another_streams() {
    let pool = pool();
    let address = freed(&pool, A);
    pool.forget(A);
    assert_eq!(pool.alloc_on(64 * KIB, A), NONE, "it is a stream that never had anything");
    assert_eq!(pool.alloc_on(64 * KIB, B), NONE, "and the first one's work is not done");
    pool.synchronized(A);
    assert_eq!(pool.alloc_on(64 * KIB, B), Ok(address));
    pool.check();
}

#[test]
fn a_stream_that_was_never_used_can_be_forgotten() {
    let pool = pool();
    for stream in [A, DEFAULT, LEGACY, PER_THREAD] {
        pool.forget(stream);
        pool.synchronized(stream);
    }
    let address = freed(&pool, B);
    pool.forget(A);
    pool.forget(A);
    assert_eq!(pool.alloc_on(64 * KIB, B), Ok(address));
    pool.check();
}

/// Live memory that was allocated there is freed with the plain call, or on other streams.
#[test]
fn what_outlives_its_stream_can_be_freed() {
    let pool = pool();
    let (first, second) = (pool.get_on(64 * KIB, A), pool.get_on(64 * KIB, A));
    pool.get_on(256, B);
    fill(&pool, B);
    pool.forget(A);
    pool.put(first);
    pool.put_on(second, B);
    assert_eq!(pool.alloc_on(64 * KIB, B), Ok(second), "it was B's in the end");
    assert_eq!(pool.alloc_on(64 * KIB, B), NONE, "as it was A's in the end");
    pool.synchronized(A);
    assert_eq!(pool.alloc_on(64 * KIB, B), Ok(first));
    pool.check();
}

#[test]
fn a_plain_free_counts_on_the_stream_of_the_allocation() {
    let pool = pool();
    let address = pool.get_on(64 * KIB, A);
    pool.get_on(256, B);
    fill(&pool, B);
    pool.put(address);
    assert_eq!(pool.alloc_on(64 * KIB, B), NONE);
    assert_eq!(pool.alloc(64 * KIB), NONE, "no stream is another one");
    assert_eq!(pool.alloc_on(64 * KIB, A), Ok(address));
}

#[test]
fn a_chunk_may_be_freed_by_either_call() {
    let pool = pool();
    let plain = pool.get(64 * KIB);
    let ordered = pool.get_on(64 * KIB, A);
    fill(&pool, A);
    pool.put_on(plain, A);
    assert_eq!(pool.alloc(64 * KIB), NONE, "it was freed in the order of a stream");
    assert_eq!(pool.alloc_on(64 * KIB, A), Ok(plain));
    pool.put(ordered);
    assert_eq!(pool.alloc_on(64 * KIB, A), Ok(ordered));
    pool.check();
}

/// 'No stream' does not mean 'synchronized'.
#[test]
fn what_was_freed_without_a_stream_waits_too() {
    let pool = pool();
    let address = pool.get(64 * KIB);
    pool.get_on(256, A);
    fill(&pool, A);
    pool.put(address);
    for stream in [A, DEFAULT, LEGACY, PER_THREAD] {
        assert_eq!(pool.alloc_on(64 * KIB, stream), NONE, "{stream:#x}");
    }
    assert_eq!(pool.alloc(64 * KIB), Ok(address), "its own order is the caller's");
    pool.put(address);
    pool.synchronized(A);
    assert_eq!(pool.alloc_on(64 * KIB, A), NONE);
    pool.synchronized(DEFAULT);
    assert_eq!(pool.alloc_on(64 * KIB, A), Ok(address), "the default stream includes it");
    pool.check();
}

#[test]
fn the_default_stream_has_two_names() {
    let pool = pool();
    let address = freed(&pool, DEFAULT);
    assert_eq!(pool.alloc_on(64 * KIB, LEGACY), Ok(address));
    pool.put_on(address, LEGACY);
    assert_eq!(pool.alloc_on(64 * KIB, DEFAULT), Ok(address));
    pool.put_on(address, DEFAULT);
    assert_eq!(pool.alloc_on(64 * KIB, PER_THREAD), NONE, "the thread's own is another");
    pool.synchronized(LEGACY);
    assert_eq!(pool.alloc_on(64 * KIB, PER_THREAD), Ok(address));
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    let pool = pool();
    let address = freed(&pool, PER_THREAD);
    let elsewhere = || {
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let before = pool.alloc_on(64 * KIB, PER_THREAD);
                // It can only declare its own.
                pool.synchronized(PER_THREAD);
                (before, pool.alloc_on(64 * KIB, PER_THREAD))
            });
            other.join().unwrap()
        })
    };
    assert_eq!(elsewhere(), (NONE, NONE));
    assert_eq!(pool.alloc_on(64 * KIB, PER_THREAD), Ok(address));
    pool.put_on(address, PER_THREAD);
    pool.synchronized(PER_THREAD);
    assert_eq!(elsewhere().0, Ok(address));
    pool.check();
}

/// If no event must be recorded for it, it is a stream like any other: as the only stream, the pair places like the
/// plain pair.
#[test]
fn a_threads_default_stream_alone_places_as_the_plain_pair() {
    let growing = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
    let program = |get: &dyn Fn(&Pool, u64) -> u64, put: &dyn Fn(&Pool, u64)| {
        let pool = Pool::host(8 * MIB, |options| options.flags = growing);
        let held = [2 * MIB, 4 * MIB].map(|bytes| get(&pool, bytes));
        held.iter().for_each(|&address| put(&pool, address));
        // Only in a region that replaces the two.
        let large = get(&pool, 7 * MIB);
        put(&pool, large);
        (pool.stats().num_regions, pool.stats().num_allocs)
    };
    let plain = program(&|pool, bytes| pool.get(bytes), &|pool, address| pool.put(address));
    for stream in [PER_THREAD, LEGACY, A] {
        let put = |pool: &Pool, address| {
            pool.put_on(address, stream);
            // A region that queued work may use is not replaced.
            pool.synchronized(stream);
        };
        let ordered = program(&|pool, bytes| pool.get_on(bytes, stream), &put);
        assert_eq!(ordered, plain, "stream {stream:#x}");
    }
}

/// Streams of threads that have ended are not kept forever.
#[test]
fn threads_come_and_go() {
    let pool = pool();
    let work = || {
        let address = pool.get_on(64 * KIB, PER_THREAD);
        pool.put_on(address, PER_THREAD);
        pool.synchronized(PER_THREAD);
    };
    (0..8).for_each(|_| std::thread::scope(|scope| scope.spawn(work).join().unwrap()));
    let before = pool.stats().metadata_bytes;
    (0..200).for_each(|_| std::thread::scope(|scope| scope.spawn(work).join().unwrap()));
    let after = pool.stats().metadata_bytes;
    assert!(after <= before + 64 * KIB, "{before} bytes of books have become {after}");
    pool.check();
}

#[test]
fn nothing_is_allocated_for_nothing_and_freed() {
    let pool = pool();
    assert_eq!(pool.alloc_on(0, A), Ok(0));
    assert_eq!(pool.free_on(0, A), BFC_OK);
    // SAFETY: NULL is the tested value.
    let refused = unsafe { bfc_alloc_async(pool.device(), 1, pointer(A), std::ptr::null_mut()) };
    assert_eq!(refused, BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(pool.stats().num_allocs, 0);
    assert_eq!(pool.alloc_on(u64::MAX, A), NONE, "{}", last_error());
    assert_eq!(pool.alloc_on(2 * MIB, A), NONE);
    pool.check();
}

#[test]
fn a_free_that_is_wrong_changes_nothing() {
    let (pool, other) = (pool(), pool());
    let address = pool.get_on(64 * KIB, A);
    let foreign = other.get_on(64 * KIB, A);
    for stream in [A, B, DEFAULT, PER_THREAD] {
        for wrong in [address + 1, address + 256, foreign, 0x5000] {
            assert_eq!(pool.free_on(wrong, stream), BFC_ERROR_INVALID_POINTER, "{wrong:#x}");
        }
    }
    assert_eq!(pool.free_on(foreign, A), BFC_ERROR_INVALID_POINTER);
    assert!(last_error().contains(&format!("belongs to device {}", other.device())), "{}", last_error());
    pool.put_on(address, A);
    for stream in [A, B] {
        assert_eq!(pool.free_on(address, stream), BFC_ERROR_DOUBLE_FREE);
    }
    assert_eq!(pool.free(address), BFC_ERROR_DOUBLE_FREE);
    assert_eq!((pool.stats().num_frees, pool.stats().bytes_in_use), (1, 0));
    assert_eq!(pool.alloc_on(64 * KIB, A), Ok(address), "still A's");
    pool.check();
}

#[test]
fn a_wrong_device_is_refused() {
    let nobody = fresh_device();
    let stream = pointer(A);
    for (device, expected) in [
        (-1, BFC_ERROR_INVALID_ARGUMENT),
        (1024, BFC_ERROR_INVALID_ARGUMENT),
        (nobody, BFC_ERROR_NO_ALLOCATOR),
    ] {
        assert_eq!(alloc_async(device, 1, A), Err(expected));
        let answers = [
            bfc_free_async(device, pointer(4096), stream),
            bfc_record_stream(device, pointer(4096), stream),
            bfc_forget_stream(device, stream),
            bfc_stream_synchronized(device, stream),
        ];
        assert_eq!(answers, [expected; 4], "device {device}");
    }
    assert_eq!(bfc_free_async(nobody, pointer(0), stream), BFC_OK, "NULL even if nothing was created");
}

#[test]
fn timestamps_exclude_streams() {
    let pool = Pool::host(MIB, |options| options.flags = BFC_TIMESTAMPS);
    let address = pool.get(256);
    let ordered = bfc_request_t { stream: pointer(A), flags: BFC_REQUEST_ON_STREAM, ..request(256) };
    assert_eq!(pool.alloc_on(256, A), Err(BFC_ERROR_UNSUPPORTED));
    assert_eq!(pool.alloc_ex(&ordered), Err(BFC_ERROR_UNSUPPORTED));
    let stream = pointer(A);
    let answers = [
        bfc_free_async(pool.device(), pointer(address), stream),
        bfc_record_stream(pool.device(), pointer(address), stream),
        bfc_forget_stream(pool.device(), stream),
        bfc_stream_synchronized(pool.device(), stream),
    ];
    assert_eq!(answers, [BFC_ERROR_UNSUPPORTED; 4]);
    assert_eq!(pool.allocated_size(address), Ok(256), "nothing was freed");
    pool.check();
}

#[test]
fn alignment_in_the_order_of_a_stream() {
    let pool = pool();
    let on = |bytes: usize, alignment: usize, stream: u64| {
        let stream = pointer(stream);
        pool.alloc_ex(&bfc_request_t { alignment, stream, flags: BFC_REQUEST_ON_STREAM, ..request(bytes) })
    };
    let first = pool.get_on(256, B);
    let address = pool.get_on(64 * KIB, A);
    fill(&pool, A);
    pool.put_on(address, A);
    assert_eq!(on(4096, 16384, B), NONE);
    let aligned = on(4096, 16384, A).unwrap();
    assert!(aligned.is_multiple_of(16384) && aligned > first && aligned + 4096 <= address + 64 * KIB);
    pool.check();
    // The parts split off before and after still belong to A.
    assert_eq!(pool.alloc_on(256, B), NONE);
    assert_eq!(pool.alloc_on(256, A), Ok(address));
    assert_eq!(on(1, 3, A), Err(BFC_ERROR_INVALID_ARGUMENT));
    pool.check();
    // Without the flag the stream is not read.
    let ignored = bfc_request_t { stream: pointer(B), ..request(256) };
    assert_eq!(pool.alloc_ex(&ignored), NONE, "that is a plain request");
}

#[test]
fn statistics_count_as_ever() {
    let pool = pool();
    let addresses = [(1000, A), (2000, B), (3000, DEFAULT)].map(|(bytes, stream)| pool.get_on(bytes, stream));
    pool.get(4000);
    let stats = pool.stats();
    assert_eq!((stats.num_allocs, stats.num_frees), (4, 0));
    assert_eq!((stats.bytes_requested, stats.bytes_in_use), (10_000, 1024 + 2048 + 3072 + 4096));
    assert_eq!(pool.requested_size(addresses[1]), Ok(2000));
    assert_eq!(pool.allocation_id(addresses[2]), Ok(3));
    assert_eq!(pool.alloc_on(MIB, A), NONE);
    pool.put_on(addresses[0], B);
    pool.put(addresses[1]);
    let stats = pool.stats();
    assert_eq!((stats.num_frees, stats.num_failures, stats.bytes_requested), (2, 1, 7000));
    assert_eq!(stats.peak_bytes_in_use, 1024 + 2048 + 3072 + 4096);
    // Both belong to B and count as one. The rest was never used.
    assert_eq!(stats.largest_free_block_bytes, MIB - 10 * KIB);
    assert_eq!(stats.num_chunks - stats.num_free_chunks, 2);
    assert!(
        pool.occupancy().contains('_') && pool.memory_map().contains("\"free\""),
        "{}",
        pool.memory_map()
    );
    pool.check();
}

#[test]
fn operations_have_names_in_the_order_of_streams_too() {
    let pool = pool();
    pool.get_on(1000, B);
    assert_eq!(scope_begin("attention", 7), BFC_OK);
    let address = pool.get_on(1000, A);
    assert_eq!(bfc_scope_end(), BFC_OK);
    assert!(pool.memory_map().contains("attention"), "{}", pool.memory_map());
    pool.put_on(address, A);
    assert_eq!(pool.alloc_on(1000, A), Ok(address));
    assert_eq!(pool.memory_map().matches("attention").count(), 0, "that was another operation's");
    pool.check();
}

/// A region is released to its source only when no work may touch it.
#[test]
fn a_trim_leaves_what_is_still_used() {
    let pool = Pool::custom(Backend::new(1 << 30), 1 << 30, |options| {
        (options.flags, options.initial_region_bytes) = (BFC_ALLOW_GROWTH, MIB);
    });
    let (first, second) = (pool.get_on(MIB, A), pool.get_on(2 * MIB, B));
    pool.put_on(first, A);
    pool.put_on(second, B);
    assert_eq!(pool.trim(0), 0);
    pool.synchronized(A);
    assert_eq!(pool.trim(0), MIB);
    pool.synchronized(B);
    assert_eq!(pool.trim(0), 2 * MIB);
    pool.check();
}

/// A request that waits for memory is woken when a stream is synchronized.
#[test]
fn a_synchronisation_wakes_those_who_wait() {
    let pool = Pool::host(MIB, |options| options.retry_timeout_ms = 30_000);
    let address = pool.get_on(MIB, A);
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| pool.alloc_on(MIB, B));
        std::thread::sleep(std::time::Duration::from_millis(50));
        pool.put_on(address, A);
        std::thread::sleep(std::time::Duration::from_millis(50));
        pool.synchronized(A);
        assert_eq!(waiter.join().unwrap(), Ok(address));
    });
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

/// Random programs on one stream, or on none, or on both in turn with everything synchronized: the same addresses.
#[test]
fn what_is_synchronised_places_as_one_stream() {
    for seed in 0..20 {
        let run = |order: u32| {
            let pool = Pool::custom(Backend::starting_at(1 << 40, 1 << 30), 64 * MIB, |options| {
                (options.flags, options.initial_region_bytes) = (BFC_ALLOW_GROWTH, 4 * MIB);
            });
            let mut random = Random::new(seed);
            let (mut live, mut addresses) = (Vec::new(), Vec::new());
            for step in 0..600 {
                let stream = [A, B][step % 2];
                if live.is_empty() || random.below(20) > live.len() as u64 {
                    let bytes = 1 + random.below(2 * MIB);
                    let address = match order {
                        0 => pool.get(bytes),
                        1 => pool.get_on(bytes, A),
                        _ => pool.get_on(bytes, stream),
                    };
                    addresses.push(address);
                    live.push(address);
                } else {
                    let address = live.swap_remove(random.below(live.len() as u64) as usize);
                    match order {
                        0 => pool.put(address),
                        1 => pool.put_on(address, A),
                        _ => {
                            pool.put_on(address, stream);
                            pool.synchronized(stream);
                        }
                    }
                }
            }
            pool.check();
            addresses
        };
        let plain = run(0);
        assert_eq!(run(1), plain, "seed {seed}: one stream");
        assert_eq!(run(2), plain, "seed {seed}: two streams, synchronised");
    }
}

/// Streams without memory whose work has completed need not be forgotten, so they are not kept forever either.
#[test]
fn idle_streams_come_and_go() {
    let pool = pool();
    // Streams that have memory are kept.
    let held: Vec<u64> = (0..100).map(|number| pool.get_on(256, A + number)).collect();
    let waiting = pool.get_on(64 * KIB, B);
    fill(&pool, B);
    pool.put_on(waiting, B);
    let before = pool.stats().metadata_bytes;
    let one_time = |number: u64| {
        pool.put_on(held[0], 0x10_0000 + number);
        pool.synchronized(0x10_0000 + number);
        assert_eq!(pool.alloc_on(256, A), Ok(held[0]));
    };
    (0..40_000).for_each(one_time);
    let after = pool.stats().metadata_bytes;
    assert!(after < before + 512 * KIB, "{before} bytes of metadata have become {after}");
    pool.check();
    assert_eq!(pool.alloc_on(64 * KIB, A), NONE, "it waits for B");
    assert_eq!(pool.alloc_on(64 * KIB, B), Ok(waiting));
    held.iter().zip(A..).for_each(|(&address, stream)| pool.put_on(address, stream));
    pool.check();
}
