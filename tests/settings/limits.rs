//! The limit of a living allocator changes: memory in use stays valid, free memory is released, and waiting requests
//! continue.

use crate::common::child::{expect_success, is_child};
use crate::common::*;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

const GROWTH: u32 = BFC_ALLOW_GROWTH;

fn growing(limit: u64) -> Pool {
    Pool::custom(Backend::new(GIB), limit, |options| options.flags = GROWTH)
}

fn host_vmm(limit: u64) -> Pool {
    Pool::host(limit, |options| (options.backend, options.flags) = (BFC_BACKEND_HOST_VMM, GROWTH))
}

#[test]
fn a_higher_limit_is_room_to_grow() {
    let pool = growing(2 * MIB);
    let first = pool.get(2 * MIB);
    assert_eq!(pool.alloc(MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.limit(3 * MIB);
    let second = pool.get(MIB);
    let stats = pool.stats();
    assert_eq!((stats.bytes_limit, stats.pool_bytes), (3 * MIB, 3 * MIB));
    assert_eq!(pool.alloc(1), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.check();
    [first, second].into_iter().for_each(|address| pool.put(address));
}

#[test]
fn below_what_is_held_growth_stops_and_free_regions_go_back() {
    let pool = growing(GIB);
    let chunks: Vec<u64> = [2, 4, 8, 16].map(|mib| pool.get(mib * MIB)).into();
    assert_eq!(pool.stats().pool_bytes, 30 * MIB);
    pool.limit(10 * MIB);
    assert_eq!((pool.stats().pool_bytes, pool.stats().bytes_limit), (30 * MIB, 10 * MIB), "all is in use");
    assert_eq!(pool.alloc(1), Err(BFC_ERROR_OUT_OF_MEMORY), "nothing more is obtained");
    assert!(chunks.iter().all(|&address| pool.requested_size(address).is_ok()), "nothing is lost");
    // Freed memory is reused, and released by the next trim.
    pool.put(chunks[2]);
    assert_eq!(pool.get(8 * MIB), chunks[2]);
    pool.put(chunks[2]);
    pool.put(chunks[1]);
    assert_eq!(pool.backend().books(|books| books.returned.len()), 0);
    pool.limit(20 * MIB);
    // 8 MiB would leave 22, and both leave less than the limit.
    assert_eq!(pool.stats().pool_bytes, 18 * MIB);
    pool.limit(18 * MIB);
    assert_eq!(pool.stats().pool_bytes, 18 * MIB, "what is held is allowed");
    pool.put(chunks[0]);
    pool.put(chunks[3]);
    pool.check();
    // One region that is larger than the limit is released as a whole, and no other is.
    pool.limit(10 * MIB);
    assert_eq!(pool.stats().pool_bytes, 2 * MIB);
    pool.limit(0);
    assert_eq!((pool.stats().pool_bytes, pool.stats().bytes_limit), (0, 0));
    pool.check();
    pool.backend().assert_all_returned();
}

#[test]
fn limits_at_the_edges() {
    let pool = growing(MIB);
    for limit in [u64::MAX, u64::MAX - 255, 1 << 63] {
        pool.limit(limit);
        assert_eq!(pool.stats().bytes_limit, limit);
        pool.put(pool.get(5 * MIB));
        assert_eq!(pool.alloc(2 * GIB), Err(BFC_ERROR_OUT_OF_MEMORY), "the backend has no more");
        pool.check();
    }
    pool.trim(0);
    for limit in [0, 1, 255] {
        pool.limit(limit);
        assert_eq!(pool.alloc(1), Err(BFC_ERROR_OUT_OF_MEMORY), "{limit}");
    }
    pool.limit(256);
    pool.put(pool.get(1));
    pool.check();
    // An alignment above the limit is no reason to refuse held memory.
    pool.limit(GIB);
    let held = pool.get(64 * MIB);
    let other = pool.get(MIB);
    pool.limit(0);
    pool.put(held);
    assert!(pool.alloc_aligned(MIB, 4096).is_ok(), "{}", last_error());
    pool.put(other);
}

#[test]
fn it_begins_as_if_it_had_been_created_so() {
    for flags in [0, GROWTH] {
        let pool = Pool::custom(Backend::new(GIB), MIB, |options| options.flags = flags);
        pool.limit(64 * MIB);
        let first = pool.get(1000);
        assert_eq!(pool.stats().pool_bytes, if flags == 0 { 64 * MIB } else { 2 * MIB });
        pool.put(first);
    }
    // Without growth a higher limit means one more region.
    let pool = Pool::custom(Backend::new(GIB), 4 * MIB, |_| {});
    let first = pool.get(4 * MIB);
    pool.limit(10 * MIB);
    let second = pool.get(1);
    assert_eq!(pool.backend().books(|books| books.asked.clone()), [4 * MIB, 6 * MIB]);
    [first, second].into_iter().for_each(|address| pool.put(address));
}

/// A fraction of the limit applies to the new limit.
#[test]
fn fragmentation_is_a_share_of_the_new_limit() {
    let pool = Pool::custom(Backend::new(GIB), 100 * MIB, |options| {
        (options.fragmentation_fraction, options.initial_region_bytes) = (0.1, 64 * MIB);
        options.flags = GROWTH;
    });
    let whole = pool.get(15 * MIB);
    pool.put(whole);
    pool.put(pool.get(64 * MIB));
    let slack = |pool: &Pool| {
        let chunk = pool.get(48 * MIB);
        let slack = pool.allocated_size(chunk).unwrap() - 48 * MIB;
        pool.put(chunk);
        slack
    };
    assert_eq!(slack(&pool), 0, "16 MiB are more than a tenth of 100");
    pool.limit(200 * MIB);
    assert_eq!(slack(&pool), 16 * MIB, "and less than a tenth of 200");
}

#[test]
fn who_waits_gets_what_a_higher_limit_allows() {
    let waits = |options: &mut bfc_options_t| (options.flags, options.retry_timeout_ms) = (GROWTH, 100_000);
    let of_granules = Pool::host(2 * MIB, |options| {
        waits(options);
        options.backend = BFC_BACKEND_HOST_VMM;
    });
    for pool in [Pool::custom(Backend::new(GIB), 2 * MIB, waits), of_granules] {
        let first = pool.get(2 * MIB);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| pool.get(3 * MIB));
            thread::sleep(Duration::from_millis(30));
            // Not enough yet.
            pool.limit(4 * MIB);
            thread::sleep(Duration::from_millis(30));
            assert!(!waiting.is_finished());
            pool.limit(8 * MIB);
            pool.put(waiting.join().expect("no panic"));
        });
        assert_eq!(pool.stats().num_failures, 0);
        pool.put(first);
        pool.check();
    }
}

/// A range of granules has room for a higher limit, and is bounded by its addresses.
#[test]
fn a_range_takes_a_higher_limit() {
    let pool = host_vmm(4 * MIB);
    let fill = |address: u64, bytes: u64, value: u8| {
        // SAFETY: live host memory of that many bytes.
        unsafe { (address as *mut u8).write_bytes(value, bytes as usize) };
    };
    let holds = |address: u64, bytes: u64, value: u8| {
        // SAFETY: as above, and written before.
        let found = unsafe { std::slice::from_raw_parts(address as *const u8, bytes as usize) };
        found.iter().all(|&byte| byte == value)
    };
    let first = pool.get(4 * MIB);
    fill(first, 4 * MIB, 1);
    pool.limit(64 * MIB + 12345);
    assert_eq!(pool.stats().bytes_limit, 64 * MIB, "whole granules");
    let second = pool.get(60 * MIB);
    fill(second, 60 * MIB, 2);
    assert_eq!(pool.alloc(1), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.check();
    // In the middle of it, to the byte.
    pool.limit(10 * MIB);
    assert_eq!((pool.stats().bytes_limit, pool.stats().pool_bytes), (10 * MIB, 64 * MIB), "all is in use");
    assert!(holds(first, 4 * MIB, 1) && holds(second, 60 * MIB, 2));
    pool.put(second);
    pool.limit(9 * MIB);
    assert_eq!((pool.stats().bytes_limit, pool.stats().pool_bytes), (8 * MIB, 8 * MIB));
    assert!(holds(first, 4 * MIB, 1));
    pool.check();
    // There are 256 times as many addresses as the first limit.
    for limit in [4 * GIB, u64::MAX] {
        pool.limit(limit);
        assert_eq!(pool.stats().bytes_limit, GIB);
    }
    let most = pool.get(GIB - 4 * MIB);
    assert_eq!(pool.stats().pool_bytes, GIB);
    pool.put(most);
    pool.limit(0);
    assert_eq!((pool.stats().bytes_limit, pool.stats().pool_bytes), (0, 4 * MIB));
    assert!(holds(first, 4 * MIB, 1));
    pool.put(first);
    pool.check();
}

/// A limit for which the system refuses resources changes nothing.
#[test]
fn a_range_that_cannot_take_it_stays_as_it_is() {
    const NAME: &str = "a_range_that_cannot_take_it_stays_as_it_is";
    if !is_child(NAME) {
        expect_success(NAME, &[]);
        return;
    }
    let pool = host_vmm(4 * MIB);
    let first = pool.get(MIB);
    let most = libc::rlimit { rlim_cur: 16 << 20, rlim_max: 16 << 20 };
    // SAFETY: the struct is whole.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &most) }, 0);
    assert_eq!(bfc_set_memory_limit(pool.device(), 64 * MIB), BFC_ERROR_BACKEND_FAILED);
    assert!(last_error().contains("file in memory"), "{}", last_error());
    assert_eq!(pool.stats().bytes_limit, 4 * MIB);
    pool.limit(16 * MIB);
    pool.put(pool.get(14 * MIB));
    pool.put(first);
}

/// While a capture is announced nothing is released, and the limit still holds.
#[test]
fn during_a_capture_the_limit_holds_and_nothing_goes_back() {
    const NAME: &str = "during_a_capture_the_limit_holds_and_nothing_goes_back";
    if !is_child(NAME) {
        expect_success(NAME, &[]);
        return;
    }
    let pool = growing(GIB);
    pool.put(pool.get(8 * MIB));
    assert_eq!(bfc_capture_begin(), BFC_OK);
    pool.limit(MIB);
    assert_eq!((pool.stats().bytes_limit, pool.stats().pool_bytes), (MIB, 8 * MIB));
    assert_eq!(pool.alloc(9 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(bfc_capture_end(), BFC_OK);
    assert_eq!((pool.trim(0), pool.stats().pool_bytes), (8 * MIB, 0));
}

#[test]
fn who_may_not_change_it() {
    assert_eq!(bfc_set_memory_limit(-1, MIB), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(bfc_set_memory_limit(1024, MIB), BFC_ERROR_INVALID_ARGUMENT);
    assert_eq!(bfc_set_memory_limit(fresh_device(), MIB), BFC_ERROR_NO_ALLOCATOR);
    let here = std::sync::Arc::new(AtomicI32::new(-1));
    let device = std::sync::Arc::clone(&here);
    let backend = Backend::scripted(move |books, _, bytes| {
        let status = bfc_set_memory_limit(device.load(Relaxed), 0);
        assert_eq!(status, BFC_ERROR_BUSY);
        Some((backend::RECORDED_FIRST + books.held, bytes))
    });
    let pool = Pool::custom(backend, MIB, |options| options.flags = GROWTH);
    here.store(pool.device(), Relaxed);
    pool.put(pool.get(1));
    assert_eq!(pool.stats().bytes_limit, MIB);
}

/// Whatever other threads do meanwhile, the limit holds for memory obtained afterwards.
#[test]
fn it_changes_while_others_allocate() {
    let pool = growing(16 * MIB);
    thread::scope(|scope| {
        for number in 0..4 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = Random::new(number);
                for _ in 0..400 {
                    match pool.alloc(random.between(1, 2 * MIB)) {
                        Ok(address) => pool.put(address),
                        Err(status) => assert_eq!(status, BFC_ERROR_OUT_OF_MEMORY, "{}", last_error()),
                    }
                }
            });
        }
        let mut random = Random::new(9);
        for _ in 0..100 {
            pool.limit(random.below(16) * MIB);
            pool.check();
            assert!(pool.stats().pool_bytes <= 16 * MIB);
        }
    });
    pool.limit(0);
    pool.check();
    assert_eq!((pool.stats().pool_bytes, pool.backend().held()), (0, 0));
}

/// A pool is not searched for pieces that are smaller than a page.
#[test]
fn a_trim_by_less_than_a_page_ends() {
    let pool = Pool::host(4096 * GIB, |_| {});
    pool.put(pool.get(4000 * GIB));
    for less in [100, 10_000] {
        assert_eq!(pool.trim(4096 * GIB - less), 0, "the region stays");
    }
    pool.check();
}
