//! Host memory that queued work of the only stream may still use is not given back, moved or discarded.

use crate::common::*;

/// The default stream, the thread's own, and another.
const DEFAULT: u64 = 0;
const PER_THREAD: u64 = 2;
const A: u64 = 0x1000;

/// On host memory, with one stream only: three regions or ranges of 2, 4 and 2 MiB, of which the first and the last were
/// freed, and nobody declared the work done.
fn each_pool_with_queued_work(check: impl Fn(&Pool, u64)) {
    for backend in [BFC_BACKEND_HOST, BFC_BACKEND_HOST_VMM] {
        for stream in [A, DEFAULT, PER_THREAD] {
            println!("backend {backend}, stream {stream:#x}");
            let change = |options: &mut bfc_options_t| {
                options.backend = backend;
                options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION;
                options.initial_region_bytes = 2 * MIB;
            };
            let pool = Pool::host(8 * MIB, change);
            let [first, _, last] = [2, 4, 2].map(|mib| pool.get_on(mib * MIB, stream));
            pool.put_on(first, stream);
            pool.put_on(last, stream);
            check(&pool, stream);
            pool.check();
        }
    }
}

#[test]
fn a_trim_leaves_what_the_only_stream_may_still_use() {
    each_pool_with_queued_work(|pool, stream| {
        assert_eq!(pool.trim(0), 0);
        let again = pool.get_on(2 * MIB, stream);
        pool.synchronized(stream);
        assert_eq!(pool.trim(0), 2 * MIB, "what was freed before");
        pool.put_on(again, stream);
        assert_eq!(pool.trim(0), 0);
        pool.synchronized(stream);
        assert_eq!(pool.trim(0), 2 * MIB);
        assert_eq!(pool.stats().pool_bytes, 4 * MIB);
    });
}

/// The pool follows its plan, or has the fast path, as long as nothing would be released anyway.
#[test]
fn what_releases_nothing_leaves_the_only_stream_alone() {
    let fresh = || {
        let pool = Pool::host(8 * MIB, |options| options.flags = BFC_ALLOW_GROWTH);
        let live = pool.get_on(MIB, A);
        pool.put_on(pool.get_on(MIB, A), A);
        (pool, live)
    };
    let is_apart = |pool: &Pool| pool.memory_map().contains("\"stream\"");
    for release in [|pool: &Pool| assert_eq!(pool.trim(u64::MAX), 0), |pool: &Pool| pool.limit(4 * MIB)] {
        let (pool, _live) = fresh();
        release(&pool);
        assert!(!is_apart(&pool));
        pool.trim(0);
        assert!(is_apart(&pool), "now the page of a free chunk would be discarded");
    }
}

#[test]
fn a_lower_limit_leaves_what_the_only_stream_may_still_use() {
    each_pool_with_queued_work(|pool, stream| {
        pool.limit(4 * MIB);
        assert_eq!(pool.stats().pool_bytes, 8 * MIB);
        pool.synchronized(stream);
        assert_eq!(pool.trim(0), 4 * MIB);
    });
}

/// Neither collection nor a move of granules takes memory that queued work may use, in a request of the same stream too.
#[test]
fn a_request_leaves_what_the_only_stream_may_still_use() {
    each_pool_with_queued_work(|pool, stream| {
        assert_eq!(pool.alloc_on(4 * MIB, stream), Err(BFC_ERROR_OUT_OF_MEMORY));
        let message = last_error();
        assert!(message.contains("bfc_stream_synchronized"), "{message}");
        pool.get_on(2 * MIB, stream);
        pool.put_on(pool.get_on(2 * MIB, stream), stream);
        pool.synchronized(stream);
        assert_eq!(pool.alloc_on(4 * MIB, stream), Err(BFC_ERROR_OUT_OF_MEMORY), "only 2 MiB are free");
    });
    each_pool_with_queued_work(|pool, stream| {
        pool.synchronized(stream);
        pool.get_on(4 * MIB, stream);
    });
}

/// Pages of free memory are not discarded either.
#[test]
fn a_trim_leaves_the_contents_of_what_the_only_stream_may_still_use() {
    let pool = Pool::host(8 * MIB, |_| {});
    let (address, _live) = (pool.get_on(4 * MIB, A), pool.get_on(1, A));
    let word = address as *mut u64;
    // SAFETY: the chunk is live. Later it stands for work queued before the free.
    unsafe { word.write_volatile(7) };
    pool.put_on(address, A);
    pool.trim(0);
    // SAFETY: the region is still mapped.
    assert_eq!(unsafe { word.read_volatile() }, 7);
    pool.synchronized(A);
    pool.trim(0);
    // SAFETY: as above.
    assert_eq!(unsafe { word.read_volatile() }, 0, "discarded");
}
