//! `BFC_REQUEST_NO_GROWTH`: a request that takes nothing from the backend and never waits; and sizes and alignments of
//! 512, which the interposer requests.

use crate::common::*;
use std::thread;

const NONE: Result<u64, Status> = Err(BFC_ERROR_OUT_OF_MEMORY);

fn held(bytes: u64) -> bfc_request_t {
    bfc_request_t { flags: BFC_REQUEST_NO_GROWTH, ..request(bytes as usize) }
}

#[test]
fn it_takes_what_is_free_and_nothing_from_the_backend() {
    let pool = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = GROWING);
    assert_eq!(pool.alloc_ex(&held(1000)), NONE, "the pool holds nothing yet");
    assert_eq!(pool.backend().requests(), 0);
    assert!(last_error().contains("holds"), "{}", last_error());
    let first = pool.get(1000);
    let asked = pool.backend().requests();
    let second = pool.alloc_ex(&held(5000)).expect("the region has room");
    assert_eq!(second, first + 1024);
    assert_eq!(pool.alloc_ex(&held(64 * MIB)), NONE);
    assert_eq!(pool.backend().requests(), asked);
    // Other requests may use it, and none of it was a failure.
    assert_eq!(pool.stats().num_failures, 0);
    pool.put(pool.get(64 * MIB));
    assert!(pool.alloc_ex(&held(64 * MIB)).is_ok());
    pool.check();
}

/// One request of a caller that tries in several ways is one failure, or none if one of them serves it.
#[test]
fn attempts_count_as_one_failure_once_the_caller_says_so() {
    for flags in [BFC_REQUEST_ATTEMPT, BFC_REQUEST_NO_GROWTH] {
        let pool = Pool::custom(Backend::new(4 * MIB), 4 * MIB, |options| options.flags = GROWING);
        let attempt = bfc_request_t { flags, ..request(64 * MIB as usize) };
        let others = [
            bfc_request_t { bytes: usize::MAX, ..attempt },
            bfc_request_t { alignment: 1 << 40, ..attempt },
            attempt,
        ];
        others.iter().for_each(|request| assert_eq!(pool.alloc_ex(request), NONE));
        let (said, counted) = (last_error(), pool.stats().num_failures);
        assert_eq!(counted, 0, "{flags:#x}");
        // SAFETY: a request of the size that it states.
        assert_eq!(unsafe { bfc_alloc_failed(pool.device(), &attempt) }, BFC_OK);
        assert_eq!((pool.stats().num_failures, last_error()), (1, said));
        assert!(pool.alloc_ex(&bfc_request_t { bytes: 1000, flags: BFC_REQUEST_ATTEMPT, ..attempt }).is_ok());
        assert_eq!(pool.stats().num_failures, 1);
        pool.check();
    }
}

#[test]
fn only_a_request_that_could_be_made_can_fail() {
    let pool = Pool::host(MIB, |_| {});
    // SAFETY: NULL, or a request of the size that it states.
    let failed = |request: *const bfc_request_t| unsafe { bfc_alloc_failed(pool.device(), request) };
    assert_eq!(failed(std::ptr::null()), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(failed(&bfc_request_t { flags: 1 << 31, ..request(1) }), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(failed(&bfc_request_t { alignment: 3, ..request(1) }), BFC_ERROR_INVALID_ARGUMENT);
    let device = pool.device();
    assert_eq!(pool.stats().num_failures, 0);
    drop(pool);
    // SAFETY: as above.
    assert_eq!(unsafe { bfc_alloc_failed(device, &request(1)) }, BFC_ERROR_NO_ALLOCATOR);
}

#[test]
fn it_waits_for_nobody() {
    let backend = Backend::new(GIB);
    backend.gate.close();
    let pool = Pool::custom(backend, GIB, |options| {
        (options.flags, options.retry_timeout_ms) = (GROWING, 60_000);
    });
    thread::scope(|scope| {
        scope.spawn(|| pool.get(1000));
        // Another thread is in the backend and the request would wait for it, and there is time to wait for a free.
        pool.backend().gate.wait_for_somebody();
        assert_eq!(pool.alloc_ex(&held(1000)), NONE);
        pool.backend().gate.open();
    });
    assert!(pool.alloc_ex(&held(1000)).is_ok());
    pool.check();
}

#[test]
fn quarantine_holds_for_it_too() {
    let stamped = GROWING | BFC_TIMESTAMPS | BFC_QUARANTINE;
    let pool = Pool::custom(Backend::new(MIB), MIB, |options| options.flags = stamped);
    let all = pool.get(MIB);
    pool.put(all);
    assert_eq!(pool.alloc_ex(&held(1000)), NONE);
    pool.synchronize();
    assert_eq!(pool.alloc_ex(&held(1000)), Ok(all));
    pool.check();
}

#[test]
fn in_the_order_of_streams_it_asks_what_is_done() {
    let pool = Pool::host(MIB, |options| options.flags = BFC_SPLIT_ALWAYS);
    let (a, b) = (0x1000, 0x2000);
    let on = |bytes, stream| bfc_request_t {
        stream: pointer(stream),
        flags: BFC_REQUEST_NO_GROWTH | BFC_REQUEST_ON_STREAM,
        ..request(bytes)
    };
    let all = pool.get_on(MIB, a);
    pool.put_on(all, a);
    assert_eq!(pool.alloc_ex(&on(1000, b)), NONE);
    pool.synchronized(a);
    assert_eq!(pool.alloc_ex(&on(1000, b)), Ok(all));
    pool.check();
}

/// An alignment determines where a chunk begins, not its size: as in XLA a request of 256 bytes takes 256.
#[test]
fn an_alignment_does_not_round_the_size() {
    let pool = Pool::host(MIB, |options| options.flags = BFC_SPLIT_ALWAYS);
    for (bytes, expected) in [(1_usize, 256), (256, 256), (512, 512), (513, 768), (1280, 1280)] {
        for alignment in [0, 256, 512, 4096_usize] {
            let address = pool.alloc_ex(&bfc_request_t { alignment, ..request(bytes) }).expect("room");
            assert!(address.is_multiple_of(alignment.max(256) as u64));
            assert_eq!(pool.allocated_size(address), Ok(expected), "{bytes} at {alignment}");
            assert_eq!(pool.requested_size(address), Ok(bytes as u64));
        }
    }
    pool.check();
}

/// Gaps that alignments leave between chunks are usable memory: other requests get them, and they merge with the chunks
/// again.
#[test]
fn what_an_alignment_skips_is_not_lost() {
    let pool = Pool::host(MIB, |options| options.flags = BFC_SPLIT_ALWAYS);
    let aligned: Vec<u64> = std::iter::from_fn(|| pool.alloc_aligned(256, 512).ok())
        .inspect(|at| assert_eq!(at % 512, 0))
        .collect();
    assert_eq!(aligned.len(), 2048);
    let between: Vec<u64> = std::iter::from_fn(|| pool.alloc_aligned(256, 0x100).ok()).collect();
    assert_eq!((between.len(), pool.stats().bytes_in_use), (2048, MIB));
    for address in aligned.into_iter().chain(between) {
        pool.put(address);
    }
    assert_eq!((pool.stats().num_chunks, pool.stats().largest_free_block_bytes), (1, MIB));
    pool.check();
}

/// With this flag no remainders of 256 bytes are left between chunks at 512.
#[test]
fn sizes_are_multiples_of_512_on_request() {
    let pool = Pool::host(MIB, |options| options.flags = BFC_SPLIT_ALWAYS);
    let flags = BFC_REQUEST_SIZE_512;
    for (bytes, expected) in [(1_usize, 512), (512, 512), (513, 1024), (1280, 1536)] {
        for alignment in [0, 512, 4096_usize] {
            let request = bfc_request_t { alignment, flags, ..request(bytes) };
            let address = pool.alloc_ex(&request).expect("room");
            assert_eq!(pool.allocated_size(address), Ok(expected), "{bytes} at {alignment}");
            assert_eq!(pool.requested_size(address), Ok(bytes as u64));
        }
    }
    let largest = bfc_request_t { flags, ..request((1 << 46) - 256) };
    assert_eq!(pool.alloc_ex(&largest), NONE);
    pool.check();
}

/// A caller that can retry with growth leaves large chunks to large requests. One that cannot uses any held memory.
#[test]
fn a_small_attempt_leaves_large_chunks_whole() {
    let pool = Pool::host(GIB, |options| (options.flags, options.growth_policy) = (GROWING, BFC_GROWTH_NEED));
    let [_kept, free] = [64, 64].map(|size| pool.get(size * MIB));
    pool.put(free);
    let attempt = |flags| pool.alloc_ex(&bfc_request_t { flags, ..request(1000) });
    assert_eq!(attempt(BFC_REQUEST_NO_GROWTH | BFC_REQUEST_ATTEMPT), NONE);
    assert_eq!(attempt(BFC_REQUEST_NO_GROWTH), Ok(free));
    pool.put(free);
    let small = attempt(BFC_REQUEST_ATTEMPT).expect("the pool grows");
    assert!(small.wrapping_sub(free) >= 64 * MIB);
    assert_eq!(pool.destroy_forced(), BFC_OK);
}
