//! Private pools.

use super::*;

pub fn private_memory_stays_private<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(3, GROWTH);
    let (stream, other) = (fixture.stream(), fixture.stream());
    assert_eq!(pool.begin_private(1, stream), BFC_OK, "{}", last_error());
    let (kept, gone) = (pool.get_on(UNIT / 2, stream), pool.get_on(UNIT / 4, stream));
    pool.put_on(gone, stream);
    assert_eq!(pool.get_on(UNIT / 4, stream), gone, "its own again");
    pool.put_on(gone, stream);
    assert_eq!(pool.end_private(1, stream), BFC_OK);
    fixture.finish(&pool, stream);
    assert_eq!(pool.vouch(stream), BFC_OK);
    // However long ago its work completed, it is neither reused nor released.
    let mut taken = Vec::new();
    for on in [stream, other].into_iter().cycle() {
        let Ok(address) = pool.alloc_on(100_000, on) else { break };
        assert!(address + 100_000 <= gone || gone + UNIT / 4 <= address, "{address:#x} is in {gone:#x}");
        taken.push((address, on));
    }
    taken.into_iter().for_each(|(address, on)| pool.put_on(address, on));
    pool.trim(0);
    assert_eq!(owner(gone), Ok(pool.device()));
    // The private pool continues with its memory.
    assert_eq!(pool.begin_private(1, stream), BFC_OK);
    assert_eq!(pool.get_on(UNIT / 4, stream), gone);
    pool.put_on(gone, stream);
    assert_eq!(pool.release_private(1), BFC_ERROR_BUSY);
    assert_eq!(pool.end_private(1, stream), BFC_OK);
    assert_eq!(pool.release_private(1), BFC_OK);
    pool.check();
    pool.put_on(kept, stream);
    for stream in [stream, other, 0] {
        fixture.finish(&pool, stream);
        assert_eq!(pool.vouch(stream), BFC_OK);
    }
    pool.trim(0);
    assert_eq!(pool.stats().pool_bytes, 0, "all of it is common memory");
    pool.check();
}

pub fn private_names<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(3, GROWTH);
    let (stream, other) = (fixture.stream(), fixture.stream());
    let invalid = BFC_ERROR_INVALID_ARGUMENT;
    assert_eq!((pool.end_private(1, stream), pool.release_private(1)), (invalid, invalid));
    assert_eq!((pool.begin_private(1, stream), pool.begin_private(2, stream)), (BFC_OK, invalid));
    assert_eq!((pool.begin_private(1, other), pool.end_private(2, other)), (BFC_OK, invalid));
    assert_eq!((pool.end_private(1, stream), pool.release_private(1)), (BFC_OK, BFC_ERROR_BUSY));
    assert_eq!((pool.end_private(1, other), pool.release_private(1)), (BFC_OK, BFC_OK));
    assert_eq!(pool.release_private(1), invalid);
    assert_eq!(pool.begin_private(1, stream), BFC_OK, "the name may be used again");
    assert_eq!((pool.end_private(1, stream), pool.release_private(1)), (BFC_OK, BFC_OK));
}
