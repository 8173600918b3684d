//! `BFC_REQUEST_HELD_ONLY`: a request that takes nothing from the backend and waits for nobody; and sizes at an alignment of
//! 512, which the interposer asks for.

mod common;

use common::*;
use std::thread;

const NONE: Result<u64, Status> = Err(BFC_ERROR_OUT_OF_MEMORY);

fn held(bytes: u64) -> bfc_request_t {
    bfc_request_t { flags: BFC_REQUEST_HELD_ONLY, ..request(bytes as usize) }
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
    // Others may have it, and none of it was a failure.
    assert_eq!(pool.stats().num_failures, 0);
    pool.put(pool.get(64 * MIB));
    assert!(pool.alloc_ex(&held(64 * MIB)).is_ok());
    pool.check();
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
        // Another thread stands in the backend and would be waited for; and there is time to wait for a free.
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
        flags: BFC_REQUEST_HELD_ONLY | BFC_REQUEST_ON_STREAM,
        ..request(bytes)
    };
    let all = pool.get_on(MIB, a);
    pool.put_on(all, a);
    assert_eq!(pool.alloc_ex(&on(1000, b)), NONE);
    pool.synchronized(a);
    assert_eq!(pool.alloc_ex(&on(1000, b)), Ok(all));
    pool.check();
}

/// A program that always asks for 512 has no rests of 256 bytes between its chunks.
#[test]
fn at_an_alignment_of_512_sizes_are_multiples_of_512() {
    let pool = Pool::host(MIB, |options| options.flags = BFC_SPLIT_ALWAYS);
    for (bytes, expected) in [(1, 512), (512, 512), (513, 1024), (1280, 1536)] {
        for alignment in [512, 4096] {
            let address = pool.alloc_aligned(bytes, alignment).expect("room");
            assert_eq!(pool.allocated_size(address), Ok(expected), "{bytes} at {alignment}");
            assert_eq!(pool.requested_size(address), Ok(bytes));
        }
        let address = pool.get(bytes);
        assert_eq!(pool.allocated_size(address), Ok(bytes.next_multiple_of(256)), "{bytes}");
    }
    pool.check();
}
