//! Calls without host memory: each allocation of one call fails, one after the other.

mod common;
mod plan_files;

use common::gpu::Gpu;
use common::simcuda::simulated;
use common::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// The number of allocations of this thread that still succeed. Negative: all.
    static LEFT: Cell<i64> = const { Cell::new(-1) };
    /// Whether all allocations after the failing one fail too.
    static ALL_FAIL: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, which fails when a test requests it.
struct Failing;

#[global_allocator]
static ALLOCATOR: Failing = Failing;

// SAFETY: the system's allocator does the work, and NULL is always a valid result.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let left = LEFT.get();
        if left > 0 || left == 0 && !ALL_FAIL.get() {
            LEFT.set(left - 1);
        }
        if left == 0 {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(place, layout) }
    }
}

/// Runs work while its nth allocation, counted from 0, and all later ones fail. Also returns whether one did.
fn with_failing_from<T>(nth: i64, work: impl FnOnce() -> T) -> (T, bool) {
    ALL_FAIL.set(true);
    LEFT.set(nth);
    let result = work();
    let struck = LEFT.get() == 0;
    LEFT.set(-1);
    ALL_FAIL.set(false);
    (result, struck)
}

/// Runs work while its nth allocation, counted from 0, fails. Also returns whether there was one.
fn with_failing<T>(nth: i64, work: impl FnOnce() -> T) -> (T, bool) {
    LEFT.set(nth);
    let result = work();
    let struck = LEFT.get() < 0;
    LEFT.set(-1);
    (result, struck)
}

#[test]
fn a_pool_begin_that_fails_has_changed_nothing() {
    simulated("a_pool_begin_that_fails_has_changed_nothing", |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        let mut failed = 0;
        for nth in 0.. {
            let streams = [gpu.stream(false), gpu.stream(false)];
            let mut wanted = options();
            (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_CUDA, BFC_ALLOW_GROWTH, GIB);
            let pool = Pool::create(0, &wanted, None).unwrap_or_else(|_| panic!("{}", last_error()));
            streams.into_iter().for_each(|stream| pool.put_on(pool.get_on(1000, stream), stream));
            let (begun, struck) = with_failing(nth, || pool.begin_private(1, streams[0]));
            if begun != BFC_OK {
                assert_eq!((begun, struck), (BFC_ERROR_OUT_OF_MEMORY, true), "allocation {nth}");
                assert_eq!(pool.begin_private(1, streams[0]), BFC_OK, "allocation {nth}: {}", last_error());
                failed += 1;
            }
            assert_eq!(pool.end_private(1, streams[0]), BFC_OK);
            pool.check();
            drop(pool);
            streams.into_iter().for_each(|stream| gpu.destroy_stream(stream));
            if !struck {
                break;
            }
        }
        assert!(failed > 0, "some of it cannot be done without");
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A plan for which there is no memory is not reported as invalid.
#[test]
fn a_creation_with_a_plan_that_fails_has_created_nothing() {
    let entries: Vec<_> = (0..100).map(|at| (256, Some(at * 256))).collect();
    let file = plan_files::InMemory::with(&plan_files::plan(100 * 256, 50, &entries));
    let (device, mut failed) = (fresh_device(), 0);
    for nth in 0.. {
        let mut wanted = options();
        (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, MIB);
        wanted.plan = file.path.as_ptr();
        let (created, struck) = with_failing_from(nth, || create(device, Some(&wanted)));
        if created == BFC_OK {
            if !struck {
                break;
            }
            // That allocation is optional.
            assert_eq!(bfc_destroy(device), BFC_OK);
            continue;
        }
        assert_eq!((created, struck), (BFC_ERROR_OUT_OF_MEMORY, true), "allocation {nth}: {}", last_error());
        failed += 1;
    }
    assert!(failed > 5, "{failed}");
    assert_eq!(alloc(device, 256).map(|address| free(device, address)), Ok(BFC_OK));
    assert_eq!((bfc_check(device), bfc_destroy(device)), (BFC_OK, BFC_OK));
}

/// Reports are written from a copy, and in place if there is no memory for one.
#[test]
fn reports_need_no_host_memory() {
    let mut wanted = options();
    (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_HOST, BFC_ALLOW_GROWTH, GIB);
    let pool = Pool::create(fresh_device(), &wanted, None).unwrap_or_else(|_| panic!("{}", last_error()));
    let live: Vec<u64> = (1..200).map(|size| pool.get_on(size * 300, size % 3)).collect();
    live.iter().step_by(5).for_each(|&address| pool.put(address));
    let map = |buffer: &mut [u8]| {
        let mut length = 0;
        // SAFETY: the buffer has that many bytes, and the length is writable.
        let status =
            unsafe { bfc_memory_map(pool.device(), buffer.as_mut_ptr().cast(), buffer.len(), &mut length) };
        (status, length)
    };
    let (mut expected, mut buffer) = (vec![0u8; 1 << 20], vec![0u8; 1 << 20]);
    let (status, expected_length) = map(&mut expected);
    assert_eq!(status, BFC_OK);
    for nth in 0.. {
        let ((status, length), struck) = with_failing(nth, || map(&mut buffer));
        assert_eq!(status, BFC_OK, "allocation {nth}");
        assert!(buffer[..length] == expected[..expected_length], "allocation {nth}");
        if !struck {
            assert!(nth > 3, "a copy takes memory");
            break;
        }
    }
}

/// The tables for one more chunk grow one after the other. A request that can grow only some of them leaves the others
/// usable.
#[test]
fn tables_that_grew_halfway_are_usable() {
    for flags in [0, BFC_TIMESTAMPS] {
        for nth in 0..6 {
            let mut wanted = options();
            (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, GIB);
            wanted.flags = BFC_ALLOW_GROWTH | flags;
            let pool =
                Pool::create(fresh_device(), &wanted, None).unwrap_or_else(|_| panic!("{}", last_error()));
            let (mut live, mut failed) = (Vec::new(), 0);
            for size in 1..1000 {
                let stream = if flags == 0 { size % 3 } else { 0 };
                let (answer, struck) = with_failing_from(nth, || {
                    if flags == 0 { pool.alloc_on(size * 300, stream) } else { pool.alloc(size * 300) }
                });
                match answer {
                    Ok(address) => live.push((address, stream)),
                    Err(status) => {
                        assert_eq!((status, struck), (BFC_ERROR_OUT_OF_MEMORY, true), "{}", last_error());
                        failed += 1;
                        pool.check();
                    }
                }
                if size % 3 != 0 && !live.is_empty() {
                    let (address, stream) = live.swap_remove(live.len() / 2);
                    if flags == 0 { pool.put_on(address, stream) } else { pool.put(address) }
                }
            }
            assert!(nth > 0 || failed > 0, "tables grow");
            pool.check();
        }
    }
}
