//! Statistics, reports, and the owner of an address.

use super::*;

pub fn statistics<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(4, GROWTH);
    let sizes = [1000u64, 70_000, 256, 1];
    let live: Vec<u64> = sizes.iter().map(|&bytes| pool.get(bytes)).collect();
    let in_use: u64 = live.iter().map(|&address| pool.allocated_size(address).expect("live")).sum();
    let stats = pool.stats();
    assert_eq!((stats.num_allocs, stats.num_frees, stats.num_failures), (4, 0, 0));
    assert_eq!((stats.bytes_in_use, stats.peak_bytes_in_use), (in_use, in_use));
    assert_eq!((stats.bytes_requested, stats.peak_bytes_requested), (71_257, 71_257));
    let largest = pool.allocated_size(live[1]).expect("live");
    assert_eq!((stats.largest_alloc_size, stats.bytes_limit), (largest, 4 * UNIT));
    assert!(stats.pool_bytes >= in_use && stats.peak_pool_bytes == stats.pool_bytes);
    assert!(stats.num_chunks >= 4 && stats.num_regions >= 1 && stats.metadata_bytes > 0);
    pool.put(live[1]);
    let stats = pool.stats();
    assert_eq!((stats.bytes_in_use, stats.num_frees, stats.bytes_requested), (in_use - largest, 1, 1257));
    assert_eq!((stats.peak_bytes_in_use, stats.peak_bytes_requested), (in_use, 71_257));
    assert!(stats.largest_free_block_bytes >= largest && stats.num_free_chunks >= 1);
    assert_eq!(pool.get(stats.largest_free_block_bytes) & 255, 0, "there is such a chunk");
    assert_eq!(pool.stats().pool_bytes, stats.pool_bytes);
    for (id, &address) in live.iter().enumerate().filter(|&(id, _)| id != 1) {
        assert_eq!(pool.allocation_id(address), Ok(id as u64 + 1));
    }
}

pub fn reset_statistics<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(4, GROWTH);
    let (kept, gone) = (pool.get(1000), pool.get(100_000));
    pool.put(gone);
    assert_eq!(pool.alloc(1 << 40), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(bfc_reset_stats(pool.device()), BFC_OK);
    let stats = pool.stats();
    assert_eq!(
        (stats.num_allocs, stats.num_frees, stats.num_failures, stats.largest_alloc_size),
        (0, 0, 0, 0)
    );
    assert_eq!((stats.peak_bytes_in_use, stats.peak_bytes_requested), (stats.bytes_in_use, 1000));
    assert_eq!(stats.peak_pool_bytes, stats.pool_bytes);
    assert_eq!(pool.allocation_id(kept), Ok(1), "the live ones are what they were");
}

pub fn reports<F: Fixture>(fixture: &F) {
    let pool = fixture.pool_with(4, |options| {
        (options.flags, options.name) = (GROWTH, c"the pool's name".as_ptr());
    });
    // `pool.occupancy()` and the others check the lengths.
    let empty = pool.occupancy();
    assert!(!empty.contains('*'), "{empty}");
    let half = pool.get(UNIT / 2);
    let line = pool.occupancy();
    assert_eq!(line.len(), 100);
    assert!(line.chars().all(|one| "*x_".contains(one)) && line.contains('*'), "{line}");
    let map: serde_json::Value = serde_json::from_str(&pool.memory_map()).expect("JSON");
    assert!(map.is_object(), "{map}");
    let report = pool.report();
    assert!(report.contains("the pool's name"), "{report}");
    pool.put(half);
}

pub fn ranges_and_owners<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(8, GROWTH);
    let live: Vec<u64> = [1000, UNIT, 256, 3 * UNIT].iter().map(|&bytes| pool.get(bytes)).collect();
    for &address in &live {
        let bytes = pool.allocated_size(address).expect("live");
        let range = pool.range(address).expect("live");
        assert_eq!(range.chunk, (address, bytes));
        let (region, region_bytes) = range.region;
        assert!(region <= address && address + bytes <= region + region_bytes, "{range:x?}");
        for at in [address, address + 1, address + bytes - 1] {
            assert_eq!((pool.range(at), owner(at)), (Ok(range), Ok(pool.device())), "{at:#x}");
        }
    }
    pool.put(live[1]);
    assert_eq!(pool.range(live[1]), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(owner(live[1]), Ok(pool.device()), "free, and still the pool's");
    let here = std::ptr::from_ref(&pool) as u64;
    assert_eq!(
        (pool.range(here), owner(here)),
        (Err(BFC_ERROR_INVALID_POINTER), Err(BFC_ERROR_INVALID_POINTER))
    );
    assert_eq!(pool.destroy_forced(), BFC_OK);
    for address in live {
        assert_eq!(owner(address), Err(BFC_ERROR_INVALID_POINTER));
    }
}

/// Failures have messages, and every out-parameter is written.
pub fn words_and_outputs<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(1, GROWTH);
    let device = pool.device();
    let null = std::ptr::null_mut::<u64>();
    // SAFETY: NULL is allowed for each of these, and an error.
    let answers = unsafe { bfc_alloc(device, 1, null.cast()) };
    assert_eq!(answers, BFC_ERROR_INVALID_ARGUMENT);
    // SAFETY: as above.
    assert_eq!(unsafe { bfc_trim(device, 0, null) }, BFC_ERROR_INVALID_ARGUMENT);
    // SAFETY: as above.
    assert_eq!(unsafe { bfc_stats(device, null.cast()) }, BFC_ERROR_INVALID_ARGUMENT);
    // SAFETY: as above.
    assert_eq!(unsafe { bfc_alloc_async(device, 1, null.cast(), null.cast()) }, BFC_ERROR_INVALID_ARGUMENT);
    assert!(!last_error().is_empty());
    assert_eq!(pool.alloc(1 << 50), Err(BFC_ERROR_OUT_OF_MEMORY));
    let words = last_error();
    pool.put(pool.get(1));
    assert_eq!(last_error(), words, "a success leaves them");
}
