//! Small requests with large free chunks available, with growth by need: the pool grows by a small region instead of
//! splitting a chunk that the next large request needs.

use crate::common::*;
use std::thread;

fn by_need(limit: u64, flags: u32) -> Pool {
    Pool::host(limit, |options| {
        (options.flags, options.growth_policy) = (flags, BFC_GROWTH_NEED);
    })
}

/// Returns a pool that holds 128 MiB, and a free chunk of 64 MiB in it.
fn with_large_chunk(limit: u64, flags: u32) -> (Pool, u64) {
    let pool = by_need(limit, flags);
    let [_kept, free] = [64, 64].map(|size| pool.get(size * MIB));
    pool.put(free);
    (pool, free)
}

fn held(pool: &Pool) -> u64 {
    pool.stats().pool_bytes
}

#[test]
fn a_small_request_leaves_large_chunks_whole() {
    for flags in [GROWING, BFC_ALLOW_GROWTH] {
        let (pool, free) = with_large_chunk(GIB, flags);
        pool.get(1);
        pool.get(MIB);
        assert_eq!(held(&pool), 130 * MIB);
        assert_eq!((pool.get(64 * MIB), held(&pool)), (free, 130 * MIB), "no more for the large one");
        pool.check();
        assert_eq!(pool.destroy_forced(), BFC_OK);
    }
}

#[test]
fn other_requests_and_chunks_are_split_as_always() {
    let (pool, free) = with_large_chunk(GIB, GROWING);
    assert_eq!(pool.get(MIB + 1), free, "this is not small");
    assert_eq!(pool.destroy_forced(), BFC_OK);

    let pool = by_need(GIB, GROWING);
    let chunk = pool.get(14 * MIB);
    let kept = pool.get(120 * MIB);
    pool.put(chunk);
    assert_eq!((pool.get(1), held(&pool)), (chunk, 134 * MIB), "this is not large");
    pool.put(chunk);
    pool.put(kept);
}

/// A chunk of the same size class that is too small does not make the request take a large one.
#[test]
fn too_small_a_chunk_beside_it_changes_nothing() {
    let (pool, free) = with_large_chunk(GIB, GROWING | BFC_SPLIT_ALWAYS);
    // The whole first small region.
    let [chunk, ..] = [102_400, MIB, 946_176].map(|bytes| pool.get(bytes));
    assert_eq!(held(&pool), 130 * MIB);
    pool.put(chunk);
    assert!(pool.get(102_656).wrapping_sub(free) >= 64 * MIB);
    assert_eq!(held(&pool), 132 * MIB);
    assert_eq!(pool.destroy_forced(), BFC_OK);
}

#[test]
fn threads_together_keep_within_a_sixteenth() {
    for _ in 0..20 {
        let (pool, _) = with_large_chunk(GIB, GROWING);
        thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| pool.get(MIB));
            }
        });
        let held = held(&pool);
        assert!((held - 128 * MIB) * 16 <= held, "{held}");
        assert_eq!(pool.destroy_forced(), BFC_OK);
    }
}

/// If adjacent regions are merged, a small one would become a part of the large chunk.
#[test]
fn regions_that_become_one_are_not_added() {
    let pool = Pool::custom(Backend::new(GIB).coalescing(), GIB, |options| {
        (options.flags, options.growth_policy) = (GROWING, BFC_GROWTH_NEED);
    });
    let [_kept, free] = [64, 64].map(|size| pool.get(size * MIB));
    pool.put(free);
    let before = held(&pool);
    (0..20).for_each(|_| assert_ne!(pool.get(1000), 0));
    assert_eq!(held(&pool), before);
    pool.check();
    assert_eq!(pool.destroy_forced(), BFC_OK);
}

/// No small region has a certain place at a large alignment.
#[test]
fn a_large_alignment_takes_what_there_is() {
    let (pool, _) = with_large_chunk(GIB, GROWING);
    for alignment in [512, MIB] {
        assert!(pool.alloc_aligned(1000, alignment).is_ok());
    }
    assert_eq!(held(&pool), 130 * MIB, "one small region has both");
    assert!(pool.alloc_aligned(1000, 4 * MIB).is_ok());
    assert_eq!(held(&pool), 130 * MIB);
    assert_eq!(pool.destroy_forced(), BFC_OK);
}

#[test]
fn short_lived_memory_leaves_large_chunks_whole_too() {
    for alignment in [0, 512] {
        let (pool, free) = with_large_chunk(GIB, GROWING);
        let wanted = bfc_request_t { flags: BFC_REQUEST_SHORT_LIVED, alignment, ..request(1000) };
        let small = pool.alloc_ex(&wanted).expect("the pool grows");
        assert!(small.wrapping_sub(free) >= 64 * MIB);
        assert_eq!((pool.get(64 * MIB), held(&pool)), (free, 130 * MIB));
        assert_eq!(pool.destroy_forced(), BFC_OK);
    }
}

#[test]
fn small_regions_are_at_most_a_sixteenth() {
    let (pool, free) = with_large_chunk(GIB, GROWING);
    let mut held_before = held(&pool);
    while pool.get(MIB).wrapping_sub(free) >= 64 * MIB {
        let now = held(&pool);
        assert!(now - held_before <= 8 * MIB, "{} at once", now - held_before);
        assert!((now - 128 * MIB) * 16 <= now, "{now}");
        held_before = now;
    }
    assert_eq!(held_before, (128 + 8) * MIB);
    // From here on, small requests split existing chunks.
    pool.get(MIB);
    assert_eq!(held(&pool), held_before);
    pool.check();
    assert_eq!(pool.destroy_forced(), BFC_OK);
}

#[test]
fn where_the_pool_cannot_grow_a_small_request_splits_a_large_chunk() {
    let (pool, free) = with_large_chunk(128 * MIB, GROWING);
    assert_eq!((pool.get(1), pool.get(1)), (free, free + 256));
    assert_eq!((held(&pool), pool.stats().num_failures), (128 * MIB, 0));
    // A higher limit is room to grow.
    pool.limit(GIB);
    [free, free + 256].into_iter().for_each(|chunk| pool.put(chunk));
    assert!(pool.get(1).wrapping_sub(free) >= 64 * MIB);
    assert_eq!(held(&pool), 130 * MIB);
    assert_eq!(pool.destroy_forced(), BFC_OK);

    let (pool, free) = with_large_chunk(GIB, GROWING);
    let request = bfc_request_t { flags: BFC_REQUEST_NO_GROWTH, ..request(1) };
    assert_eq!((pool.alloc_ex(&request), held(&pool)), (Ok(free), 128 * MIB));
    assert_eq!(pool.destroy_forced(), BFC_OK);
}

#[test]
fn it_is_for_best_fit_and_growth_by_need() {
    let need = |options: &mut bfc_options_t| {
        (options.flags, options.growth_policy) = (GROWING, BFC_GROWTH_NEED);
    };
    let splits = |pool: Pool| {
        let [kept, free] = [64, 64].map(|size| pool.get(size * MIB));
        pool.put(free);
        let before = held(&pool);
        let small = pool.get(1);
        assert_eq!(held(&pool), before);
        [kept, small].into_iter().for_each(|chunk| pool.put(chunk));
        pool.check();
    };
    splits(Pool::host(GIB, |options| options.flags = GROWING));
    splits(Pool::host(GIB, |options| {
        need(options);
        options.backend = BFC_BACKEND_HOST_VMM;
    }));
    splits(by_need(GIB, GROWING | BFC_TWO_ENDS));
}
