//! Calls that overlap with another thread's call of the backend: memory that is being released is waited for, a free is
//! never overlooked, and a refused request gives up.

mod common;

use common::backend::Gate;
use common::*;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const GROWTH: u32 = BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS;

/// The time in which a thread arrives inside the library where it cannot say so. If it comes later, it finds what it
/// would have waited for, and the test proves less.
fn let_arrive() {
    thread::sleep(Duration::from_millis(100));
}

fn pool_over(backend: Backend, limit: u64, flags: u32, retry_timeout_ms: u32) -> Pool {
    Pool::custom(backend, limit, |options| {
        (options.flags, options.initial_region_bytes) = (GROWTH | flags, 2 * MIB);
        (options.retry_timeout_ms, options.growth_policy) = (retry_timeout_ms, BFC_GROWTH_TENSORFLOW);
    })
}

/// A pool with free regions of 2, 4 and 2 MiB, which are its limit. The `nth` return of a region, counted from 1, waits
/// at the gate.
fn with_free_regions(flags: u32, nth: u32) -> (Pool, Arc<Gate>) {
    let (gate, returns) = (Arc::new(Gate::default()), AtomicU32::new(0));
    let at = Arc::clone(&gate);
    let mut backend = Backend::new(GIB).on_return(move || {
        if returns.fetch_add(1, Relaxed) + 1 == nth {
            at.pass();
        }
    });
    // Another request comes while a region is on its way.
    backend.delay = Duration::from_millis(20);
    let pool = pool_over(backend, 8 * MIB, flags, 0);
    let pieces = [2, 4, 2].map(|size| pool.get(size * MIB));
    pieces.into_iter().for_each(|piece| pool.put(piece));
    assert_eq!((pool.stats().num_regions, pool.stats().pool_bytes), (3, 8 * MIB));
    gate.close();
    (pool, gate)
}

/// One call stops where it returns a region, another comes, and both get what they asked for.
fn meet(flags: u32, nth: u32, first: impl FnOnce(&Pool) -> u64 + Send) {
    let (pool, gate) = with_free_regions(flags, nth);
    thread::scope(|scope| {
        let first = scope.spawn(|| first(&pool));
        gate.wait_for_somebody();
        let second = scope.spawn(|| pool.get(MIB));
        let_arrive();
        gate.open();
        [first.join().expect("no panic"), second.join().expect("no panic")]
            .into_iter()
            .for_each(|address| pool.put(address));
    });
    pool.check();
    assert_eq!((pool.stats().bytes_in_use, pool.stats().num_failures, pool.destroy()), (0, 0, BFC_OK));
}

#[test]
fn memory_that_a_trim_releases_is_waited_for() {
    meet(0, 1, |pool| {
        assert_eq!(pool.trim(0), 8 * MIB);
        0
    });
}

/// The request that releases the regions gets what it released them for, too.
#[test]
fn memory_that_a_request_releases_is_waited_for() {
    for nth in [1, 3] {
        meet(BFC_GARBAGE_COLLECTION, nth, |pool| pool.get(5 * MIB));
    }
}

/// Each trim counts what remains, not what the other one is releasing.
#[test]
fn two_trims_keep_what_they_were_told() {
    let (pool, gate) = with_free_regions(0, 1);
    thread::scope(|scope| {
        let first = scope.spawn(|| pool.trim(4 * MIB));
        gate.wait_for_somebody();
        assert_eq!(pool.trim(4 * MIB), 0);
        gate.open();
        assert_eq!(first.join().expect("no panic"), 4 * MIB);
    });
    assert_eq!((pool.stats().pool_bytes, pool.trim(0)), (4 * MIB, 4 * MIB));
}

/// The end of the allocator wakes requests that wait for memory which the backend is still taking back.
#[test]
fn destruction_wakes_who_waits_for_memory_that_is_released() {
    let (pool, gate) = with_free_regions(0, 1);
    thread::scope(|scope| {
        let trimmer = scope.spawn(|| pool.try_trim(0));
        gate.wait_for_somebody();
        let asker = scope.spawn(|| pool.alloc(MIB));
        let_arrive();
        let destroyer = scope.spawn(|| pool.destroy_forced());
        assert_eq!(asker.join().expect("no panic"), Err(BFC_ERROR_SHUTTING_DOWN));
        gate.open();
        assert_eq!(trimmer.join().expect("no panic"), Err(BFC_ERROR_SHUTTING_DOWN));
        assert_eq!(destroyer.join().expect("no panic"), BFC_OK);
    });
}

/// What is freed while the backend considers a request serves it when the backend refuses. With a timeout the request
/// would otherwise sleep for its whole length, because no other free wakes it.
#[test]
fn a_free_during_a_refusal_is_seen() {
    for retry_timeout_ms in [0, 600_000] {
        let pool = pool_over(Backend::new(2 * MIB), 16 * MIB, 0, retry_timeout_ms);
        let live = pool.get(2 * MIB);
        let gate = &pool.backend().gate;
        gate.close();
        thread::scope(|scope| {
            let asker = scope.spawn(|| pool.get(MIB));
            gate.wait_for_somebody();
            pool.put(live);
            gate.open();
            assert_eq!(asker.join().expect("no panic"), live);
        });
        assert_eq!(pool.stats().num_failures, 0);
        pool.check();
    }
}

/// A request that waits for another one's region is served by memory that is freed before the region arrives.
#[test]
fn a_free_serves_who_waits_for_a_region() {
    let pool = pool_over(Backend::new(GIB), 16 * MIB, 0, 0);
    let live = pool.get(2 * MIB);
    let gate = &pool.backend().gate;
    gate.close();
    thread::scope(|scope| {
        let first = scope.spawn(|| pool.get(4 * MIB));
        gate.wait_for_somebody();
        let second = scope.spawn(|| pool.get(MIB));
        let_arrive();
        pool.put(live);
        assert_eq!(second.join().expect("no panic"), live);
        assert!(!first.is_finished(), "its region has not arrived");
        gate.open();
        first.join().expect("no panic");
    });
    pool.check();
}

/// Requests that are refused while others are, or while others allocate and free all the time, are not made again.
#[test]
fn who_is_refused_gives_up() {
    let mut backend = Backend::new(2 * MIB);
    backend.delay = Duration::from_millis(2);
    let pool = pool_over(backend, 64 * MIB, BFC_GARBAGE_COLLECTION, 0);
    let live = pool.get(MIB);
    let is_over = AtomicBool::new(false);
    let before = pool.backend().requests();
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                pool.put(pool.get(1000));
            }
        });
        let askers = [(); 2].map(|()| scope.spawn(|| pool.alloc(8 * MIB)));
        for asker in askers {
            assert_eq!(asker.join().expect("no panic"), Err(BFC_ERROR_OUT_OF_MEMORY));
        }
        is_over.store(true, Relaxed);
    });
    // A smaller region would not suffice, so there is one request each, or one for both.
    let asked = pool.backend().requests() - before;
    assert!((1..=2).contains(&asked), "{asked}");
    assert_eq!(pool.stats().num_failures, 2);
    pool.put(live);
    pool.check();
}

/// The backend refuses two requests, each made while the other one's refusal is being logged. Nothing is freed, so neither
/// asks a second time because of the other.
#[test]
fn those_who_are_refused_together_give_up() {
    const NAME: &str = "those_who_are_refused_together_give_up";
    if !child::is_child(NAME) {
        child::expect_success(NAME, &[("BFC_LOG", "debug")]);
        return;
    }
    extern "C" fn tell_slowly(_: *mut c_void, _: i32, message: *const c_char) {
        // SAFETY: the library passes a C string.
        let message = unsafe { CStr::from_ptr(message) };
        if message.to_string_lossy().contains("refused") {
            thread::sleep(Duration::from_millis(4));
        }
    }
    assert_eq!(bfc_set_log_callback(Some(tell_slowly), std::ptr::null_mut()), BFC_OK);
    let pool = pool_over(Backend::new(0), 16 * MIB, 0, 0);
    thread::scope(|scope| {
        for asker in [(); 2].map(|()| scope.spawn(|| pool.alloc(MIB))) {
            assert_eq!(asker.join().expect("no panic"), Err(BFC_ERROR_OUT_OF_MEMORY));
        }
    });
    // From 2 MiB down to 1 MiB by a tenth, each.
    let asked = pool.backend().requests();
    assert!((8..=2 * 8).contains(&asked), "{asked}");
    assert_eq!(pool.stats().num_failures, 2);
    bfc_set_log_callback(None, std::ptr::null_mut());
}

/// What no free would serve fails at once, even if requests wait for memory.
#[test]
fn what_no_free_would_serve_does_not_wait() {
    let pool = Pool::host(MIB, |options| options.retry_timeout_ms = 600_000);
    let begun = Instant::now();
    assert_eq!(pool.alloc(u64::MAX), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.alloc_aligned(1, 3), Err(BFC_ERROR_INVALID_ARGUMENT));
    assert!(begun.elapsed() < Duration::from_secs(60));
}
