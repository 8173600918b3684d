//! `BFC_REQUEST_SHORT_LIVED` and `BFC_TWO_ENDS`: memory that is freed soon is placed at the upper end of free memory.

use crate::common::*;

const UNIT: u64 = 256;

fn short(bytes: u64) -> bfc_request_t {
    bfc_request_t { flags: BFC_REQUEST_SHORT_LIVED, ..request(bytes as usize) }
}

/// Returns a pool of one region, its first address, and its end.
fn fixed(limit: u64, flags: u32) -> (Pool, u64, u64) {
    let pool = Pool::host(limit, |options| options.flags = flags);
    let first = pool.get(UNIT);
    pool.put(first);
    (pool, first, first + limit)
}

#[test]
fn a_short_lived_request_gets_the_upper_end() {
    let (pool, first, end) = fixed(MIB, 0);
    let above = pool.alloc_ex(&short(1000)).expect("room");
    assert_eq!(above, end - 1024);
    assert_eq!((pool.get(1000), pool.allocated_size(above)), (first, Ok(1024)));
    assert_eq!(pool.alloc_ex(&short(2048)), Ok(end - 1024 - 2048));
    // The best fit comes first: here the gap that was left at the lower end, and its own upper end.
    let (hole, wall) = (pool.get(8192), pool.get(UNIT));
    pool.put(hole);
    assert_eq!(pool.alloc_ex(&short(4096)), Ok(hole + 4096));
    assert_eq!(wall, hole + 8192);
    pool.check();
}

#[test]
fn what_is_not_split_begins_where_the_chunk_does() {
    let (pool, first, _) = fixed(MIB, 0);
    let (hole, _wall) = (pool.get(1024), pool.get(UNIT));
    pool.put(hole);
    assert_eq!(pool.alloc_ex(&short(768)), Ok(first), "a remainder of 256 bytes is not split off");
    assert_eq!(pool.allocated_size(first), Ok(1024));
    pool.check();
}

#[test]
fn other_wishes_come_first() {
    let pool = fixed(MIB, 0).0;
    let aligned = bfc_request_t { alignment: 4096, ..short(1000) };
    assert_eq!(pool.alloc_ex(&aligned).map(|address| address % 4096), Ok(0));
    // Once a second stream is used, memory belongs to streams.
    let on_stream = |stream| {
        let flags = BFC_REQUEST_SHORT_LIVED | BFC_REQUEST_ON_STREAM;
        pool.alloc_ex(&bfc_request_t { stream: stream as _, flags, ..request(1000) })
    };
    assert!(on_stream(1).is_ok() && on_stream(2).is_ok());
    let stamped = fixed(MIB, BFC_TIMESTAMPS).0;
    let lowest = stamped.get(UNIT);
    assert_eq!(stamped.alloc_ex(&short(1000)), Ok(lowest + UNIT));
    pool.check();
    stamped.check();
}

#[test]
fn a_size_that_is_freed_soon_is_learnt() {
    let (pool, first, end) = fixed(MIB, BFC_TWO_ENDS);
    for _ in 0..4 {
        let brief = pool.get(4000);
        assert_eq!(brief, first);
        pool.put(brief);
    }
    let brief = pool.get(4000);
    assert_eq!(brief, end - 4096);
    // Sizes that were not seen yet are placed at the lower end, and so is a size once an allocation of it lived longer.
    let stay: Vec<u64> = (0..40).map(|_| pool.get(UNIT)).collect();
    assert_eq!(stay[0], first);
    pool.put(brief);
    assert_eq!(pool.get(4000), first + 40 * UNIT);
    pool.check();
}

#[test]
fn any_remainder_is_split_off() {
    let (pool, first, _) = fixed(MIB, BFC_TWO_ENDS);
    let (hole, _wall) = (pool.get(1024), pool.get(UNIT));
    pool.put(hole);
    assert_eq!((pool.get(768), pool.allocated_size(first)), (first, Ok(768)));
    pool.check();
}

#[test]
fn without_room_for_it_nothing_is_lost() {
    let (pool, first, _) = fixed(64 * 1024, BFC_TWO_ENDS);
    let all: Vec<u64> = (0..256).map(|_| pool.alloc_ex(&short(UNIT)).expect("room")).collect();
    assert_eq!(pool.alloc_ex(&short(UNIT)), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(all.iter().min(), Some(&first));
    all.into_iter().for_each(|address| pool.put(address));
    assert_eq!(pool.get(64 * 1024), first);
    pool.check();
}

#[test]
fn it_has_no_effect_where_granules_move() {
    let pool = Pool::in_small_regions(
        BFC_BACKEND_HOST_VMM,
        fresh_device(),
        64 * MIB,
        BFC_TWO_ENDS | BFC_ALLOW_GROWTH,
    );
    let first = pool.get(1000);
    assert_eq!(pool.alloc_ex(&short(1000)), Ok(first + 1024));
    pool.check();
}
