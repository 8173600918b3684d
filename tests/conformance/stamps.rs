//! Timestamped frees and the safe frontier.

use super::*;

const STAMPS: u32 = GROWTH | BFC_TIMESTAMPS;

pub fn stamps_rise_and_merge_when_safe<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(1, STAMPS);
    let chunks = [pool.get(UNIT / 2), pool.get(UNIT / 2)];
    assert_eq!(pool.timestamp(), Ok(0));
    pool.put(chunks[0]);
    assert_eq!(pool.timestamp(), Ok(1));
    assert_eq!(pool.alloc_freed_before(UNIT / 2, 1), Ok(chunks[0]), "its stamp is 1");
    pool.put(chunks[0]);
    assert_eq!(pool.alloc_freed_before(UNIT / 2, 1), Err(BFC_ERROR_OUT_OF_MEMORY), "now it is 2");
    pool.put(chunks[1]);
    pool.check();
    pool.synchronize();
    pool.put(pool.get(UNIT));
    assert_eq!(pool.timestamp(), Ok(4));
    drop(pool);
    let plain = fixture.pool(1, GROWTH);
    assert_eq!(plain.timestamp(), Err(BFC_ERROR_UNSUPPORTED));
    assert_eq!(bfc_set_safe_frontier(plain.device(), 1), BFC_ERROR_UNSUPPORTED);
}

pub fn quarantine<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(1, STAMPS | BFC_QUARANTINE);
    let whole = pool.get(UNIT);
    pool.put(whole);
    assert_eq!(pool.alloc(256), Err(BFC_ERROR_OUT_OF_MEMORY), "the work before the free may still run");
    pool.check();
    pool.synchronize();
    assert_eq!(pool.alloc(256), Ok(whole));
    assert_eq!(pool.trim(0), 0, "a region with a live chunk");
    pool.put(whole);
    assert_eq!(pool.trim(0), 0, "one that is not safe");
    pool.synchronize();
    assert_eq!(pool.trim(0), UNIT);
}

pub fn stamps_exclude_streams<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(1, STAMPS);
    let (stream, chunk) = (fixture.stream(), pool.get(256));
    let unsupported = BFC_ERROR_UNSUPPORTED;
    assert_eq!(pool.alloc_on(256, stream), Err(unsupported));
    assert_eq!((pool.free_on(chunk, stream), pool.record(chunk, stream)), (unsupported, unsupported));
    assert_eq!((pool.try_forget(stream), pool.vouch(stream)), (unsupported, unsupported));
    assert_eq!(pool.begin_private(1, stream), unsupported);
    pool.check();
    pool.put(chunk);
}
