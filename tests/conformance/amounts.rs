//! The amount of memory held: growth, the limit, and releases.

use super::*;

/// The pool holds the memory that the backend provided, and no more than the limit.
#[track_caller]
fn assert_held<F: Fixture>(fixture: &F, pool: &Pool, limit: u64) {
    let stats = pool.stats();
    assert!(stats.pool_bytes <= limit, "{} of {limit}", stats.pool_bytes);
    if let Some(held) = fixture.held() {
        assert_eq!(held, stats.pool_bytes, "what the backend gave");
    }
}

pub fn grows_on_demand<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(16, GROWTH);
    assert_eq!(pool.stats().pool_bytes, 0, "nothing before the first allocation");
    assert_held(fixture, &pool, 0);
    let mut live = Vec::new();
    let mut before = 0;
    for step in 1..=8 {
        let address = pool.get(UNIT);
        live.push(Filled::new(fixture, &pool, address, step));
        let now = pool.stats().pool_bytes;
        assert!(now >= step * UNIT && now >= before, "{now} for {step}");
        before = now;
        assert_held(fixture, &pool, 16 * UNIT);
    }
    pool.check();
    live.iter().for_each(|filled| filled.assert_intact(fixture));
    if F::ONE_REGION {
        assert_eq!(pool.stats().num_regions, 1);
    }
}

pub fn one_region_without_growth<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(4, 0);
    assert_eq!(pool.stats().pool_bytes, 0);
    let address = pool.get(256);
    let stats = pool.stats();
    assert_eq!((stats.pool_bytes, stats.num_regions), (4 * UNIT, 1));
    assert_eq!(pool.range(address).expect("live").region.1, 4 * UNIT);
    assert_held(fixture, &pool, 4 * UNIT);
    assert_eq!(pool.alloc(4 * UNIT), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.put(address);
    pool.put(pool.get(4 * UNIT));
}

pub fn the_limit_holds<F: Fixture>(fixture: &F) {
    for flags in [0, GROWTH, GROWTH | COLLECT] {
        let pool = fixture.pool(5, flags);
        let all = fill_up(fixture, &pool, 100_000);
        assert_held(fixture, &pool, 5 * UNIT);
        let stats = pool.stats();
        assert!(stats.bytes_in_use >= 4 * UNIT, "{} of {}", stats.bytes_in_use, 5 * UNIT);
        assert_eq!((stats.bytes_limit, stats.peak_pool_bytes), (5 * UNIT, stats.pool_bytes));
        all.iter().for_each(|filled| filled.assert_intact(fixture));
        assert_eq!(pool.alloc(6 * UNIT), Err(BFC_ERROR_OUT_OF_MEMORY));
        all.iter().for_each(|filled| pool.put(filled.address));
        pool.check();
        assert_held(fixture, &pool, 5 * UNIT);
    }
}

/// The limit applies to held memory. A part of it smaller than a granule stays unused.
pub fn limits_that_are_no_multiple<F: Fixture>(fixture: &F) {
    for limit in [3 * UNIT + 1, 3 * UNIT + 100_000, UNIT + UNIT / 2 + 255] {
        let pool = fixture.try_pool(limit, &|options| options.flags = GROWTH).expect("a pool");
        let all = fill_up(fixture, &pool, 10_000);
        assert_held(fixture, &pool, limit);
        let used = all.len() as u64 * 10_240;
        assert!(used + F::GRANULE + 3 * 10_240 >= limit, "{used} of {limit}");
        pool.check();
    }
}

pub fn fraction_of_all<F: Fixture>(fixture: &F) {
    let with = |fraction: f64| {
        fixture
            .try_pool(0, &|options| (options.flags, options.memory_fraction) = (GROWTH, fraction))
            .map(|pool| pool.stats().bytes_limit)
    };
    if !F::KNOWS_TOTAL {
        return assert_eq!(with(0.5), Err(BFC_ERROR_INVALID_ARGUMENT));
    }
    let (whole, half) = (with(1.0).expect("all"), with(0.5).expect("half"));
    assert!(half.abs_diff(whole / 2) <= F::GRANULE.max(256), "{half} of {whole}");
    for fraction in [-0.5, 1.5, f64::NAN, f64::INFINITY] {
        assert_eq!(with(fraction), Err(BFC_ERROR_INVALID_ARGUMENT), "{fraction}");
    }
}

pub fn trims<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(16, GROWTH);
    let mut live: Vec<Filled> =
        (0..8).map(|step| Filled::new(fixture, &pool, pool.get(UNIT), step)).collect();
    let before = pool.stats().pool_bytes;
    assert_eq!((pool.trim(u64::MAX), pool.stats().pool_bytes), (0, before));
    // Some in the middle, all neighbours.
    let gone: Vec<Filled> = live.drain(2..7).collect();
    gone.iter().for_each(|filled| pool.put(filled.address));
    let released = pool.trim(before - UNIT);
    assert!(released <= UNIT && released.is_multiple_of(F::GRANULE), "{released}: no less than what is kept");
    let released = released + pool.trim(0);
    assert_eq!(pool.stats().pool_bytes, before - released);
    if F::ONE_REGION {
        assert!(released >= 5 * UNIT - 2 * F::GRANULE, "{released}");
    }
    assert_held(fixture, &pool, 16 * UNIT);
    live.iter().for_each(|filled| filled.assert_intact(fixture));
    pool.check();
    // The pool grows again.
    let again: Vec<Filled> =
        (0..5).map(|step| Filled::new(fixture, &pool, pool.get(UNIT), 50 + step)).collect();
    live.iter().chain(&again).for_each(|filled| filled.assert_intact(fixture));
    live.iter().chain(&again).for_each(|filled| pool.put(filled.address));
    pool.trim(0);
    assert_eq!(pool.stats().pool_bytes, 0);
    assert_held(fixture, &pool, 0);
    pool.check();
}

/// Free regions are released for one that is larger than any of them.
pub fn collects<F: Fixture>(fixture: &F) {
    if lacks_pools(fixture, 2) {
        return;
    }
    let (with, without) = (fixture.pool(8, GROWTH | COLLECT), fixture.pool(8, GROWTH));
    for pool in [&with, &without] {
        let mut all = fill_up(fixture, pool, UNIT - 256);
        let kept = all.swap_remove(all.len() / 2);
        all.iter().for_each(|filled| pool.put(filled.address));
        // As large as the free memory, except for the surroundings of the one that is kept.
        let served = pool.alloc(3 * UNIT);
        assert!(served.is_ok() || pool.device() == without.device(), "{}", last_error());
        kept.assert_intact(fixture);
        pool.check();
        assert!(pool.stats().pool_bytes <= 8 * UNIT);
    }
}

pub fn out_of_memory_changes_nothing<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(3, GROWTH | COLLECT);
    let all = fill_up(fixture, &pool, 300_000);
    let before = pool.stats();
    for bytes in [UNIT, 4 * UNIT, 1 << 40, u64::MAX] {
        assert_eq!(pool.alloc(bytes), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert!(!last_error().is_empty());
        assert_eq!(pool.alloc_on(bytes, fixture.stream()), Err(BFC_ERROR_OUT_OF_MEMORY));
    }
    let after = pool.stats();
    assert!(after.num_failures > before.num_failures);
    assert_eq!(
        (after.num_allocs, after.bytes_in_use, after.bytes_requested, after.peak_bytes_in_use),
        (before.num_allocs, before.bytes_in_use, before.bytes_requested, before.peak_bytes_in_use)
    );
    all.iter().for_each(|filled| filled.assert_intact(fixture));
    pool.check();
    all.iter().for_each(|filled| pool.put(filled.address));
    assert_eq!(pool.stats().bytes_in_use, 0);
}

/// The limit rises and falls under live allocations.
pub fn the_limit_changes<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(2, GROWTH | COLLECT);
    let mut all = fill_up(fixture, &pool, 100_000);
    pool.limit(4 * UNIT);
    assert_eq!(pool.stats().bytes_limit, 4 * UNIT);
    let more = fill_up(fixture, &pool, 100_000);
    assert!(more.len() as u64 * 100_000 > UNIT, "there is room for {} more", more.len());
    all.extend(more);
    assert_held(fixture, &pool, 4 * UNIT);
    let held = pool.stats().pool_bytes;
    pool.limit(UNIT);
    assert_eq!((pool.stats().bytes_limit, pool.stats().pool_bytes), (UNIT, held), "all is in use");
    assert_eq!(pool.alloc(UNIT), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_held(fixture, &pool, 4 * UNIT);
    pool.check();
    all.iter().for_each(|filled| filled.assert_intact(fixture));
    all.iter().for_each(|filled| pool.put(filled.address));
    // Memory freed meanwhile is released.
    pool.limit(UNIT);
    assert_held(fixture, &pool, UNIT);
    pool.limit(0);
    assert_eq!((pool.stats().bytes_limit, pool.stats().pool_bytes), (0, 0));
    assert_eq!(pool.alloc(1), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.limit(2 * UNIT);
    let again = fill_up(fixture, &pool, 100_000);
    assert!(again.len() as u64 * 100_000 > UNIT, "{}", again.len());
    again.iter().for_each(|filled| filled.assert_intact(fixture));
    again.iter().for_each(|filled| pool.put(filled.address));
    pool.check();
}

/// With growth by need a small request does not take the chunk of the next large one, because there is no room for a
/// second region of that size.
pub fn a_small_request_leaves_large_chunks_whole<F: Fixture>(fixture: &F) {
    const LARGE: u64 = 40 * UNIT;
    let kinds = [
        ("plain", 0, 256),
        ("aligned", 0, 512),
        ("with stamps", BFC_TIMESTAMPS, 256),
        ("in quarantine", BFC_TIMESTAMPS | BFC_QUARANTINE, 512),
    ];
    for (kind, flags, alignment) in kinds {
        let pool = by_need(fixture, LARGE + LARGE / 2, flags);
        pool.put(pool.get(LARGE));
        if flags != 0 {
            pool.synchronize();
        }
        pool.alloc_aligned(1000, alignment).expect("a small one");
        let large = pool.alloc(LARGE);
        assert!(large.is_ok(), "{kind}: {}", last_error());
        pool.check();
        assert_eq!(pool.destroy_forced(), BFC_OK);
    }
    // The same on a stream, even if the pool knows several.
    for others in [0, 1] {
        let pool = by_need(fixture, LARGE + LARGE / 2, 0);
        let stream = fixture.stream();
        for other in (0..others).map(|_| fixture.stream()) {
            pool.put_on(pool.get_on(LARGE, other), other);
            fixture.finish(&pool, other);
        }
        pool.put_on(pool.get_on(LARGE, stream), stream);
        let small = pool.get_on(1000, stream);
        let large = pool.alloc_on(LARGE, stream);
        assert!(large.is_ok(), "{others} other streams: {}", last_error());
        pool.check();
        pool.put_on(small, stream);
        assert_eq!(pool.destroy_forced(), BFC_OK);
    }
}

fn by_need<F: Fixture>(fixture: &F, limit: u64, flags: u32) -> Pool {
    let change = |options: &mut bfc_options_t| {
        options.flags = GROWTH | COLLECT | BFC_SPLIT_ALWAYS | flags;
        options.growth_policy = BFC_GROWTH_NEED;
    };
    fixture.try_pool(limit, &change).unwrap_or_else(|status| panic!("{status}: {}", last_error()))
}
