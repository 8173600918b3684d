//! Sizes, alignment, pointers, contents.

use super::*;
use crate::common::spans::Spans;

pub fn sizes<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(4, GROWTH);
    for bytes in [1, 255, 256, 257, 1000, 4096, 65_537, MIB, UNIT + 1] {
        let address = pool.get(bytes);
        assert_eq!(pool.requested_size(address), Ok(bytes));
        let allocated = pool.allocated_size(address).expect("live");
        assert!(allocated >= bytes && allocated.is_multiple_of(256), "{bytes} got {allocated}");
        assert!(address.is_multiple_of(256), "{address:#x}");
        pool.check();
        pool.put(address);
    }
    for bytes in [u64::MAX, u64::MAX - 254, 1 << 63, 64 << 40] {
        assert_eq!(pool.alloc(bytes), Err(BFC_ERROR_OUT_OF_MEMORY), "{bytes}");
    }
    pool.check();
}

pub fn alignments<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(8, GROWTH);
    let odd = pool.get(256);
    for shift in 0..=21 {
        let address = pool.alloc_aligned(1000, 1 << shift).unwrap_or_else(|_| panic!("{}", last_error()));
        assert!(address.is_multiple_of(1 << shift), "{address:#x} at {shift}");
        Filled::new(fixture, &pool, address, 1).assert_intact(fixture);
        pool.check();
        pool.put(address);
    }
    for alignment in [3, 257, 1 << 20 | 1] {
        assert_eq!(pool.alloc_aligned(256, alignment), Err(BFC_ERROR_INVALID_ARGUMENT));
    }
    assert_eq!(pool.alloc_aligned(256, 1 << 62), Err(BFC_ERROR_OUT_OF_MEMORY), "beyond the limit");
    pool.put(odd);
    pool.check();
}

pub fn nothing_and_null<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(1, GROWTH);
    assert_eq!((pool.alloc(0), pool.alloc_aligned(0, 4096)), (Ok(0), Ok(0)));
    assert_eq!((pool.alloc_ex(&request(0)), pool.alloc_on(0, fixture.stream())), (Ok(0), Ok(0)));
    assert_eq!((pool.free(0), pool.free_on(0, fixture.stream())), (BFC_OK, BFC_OK));
    let stats = pool.stats();
    assert_eq!((stats.num_allocs, stats.num_frees, stats.num_failures, stats.pool_bytes), (0, 0, 0, 0));
}

pub fn wrong_pointers<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(2, GROWTH);
    let chunks = [pool.get(1024), pool.get(1024), pool.get(1024)];
    pool.put(chunks[1]);
    for (address, status) in [
        (chunks[0] + 1, BFC_ERROR_INVALID_POINTER),
        (chunks[0] + 256, BFC_ERROR_INVALID_POINTER),
        (chunks[1], BFC_ERROR_DOUBLE_FREE),
        (chunks[1] + 256, BFC_ERROR_INVALID_POINTER),
        (std::ptr::from_ref(&pool) as u64, BFC_ERROR_INVALID_POINTER),
        (u64::MAX, BFC_ERROR_INVALID_POINTER),
    ] {
        assert_eq!(pool.free(address), status, "{address:#x}");
        for answer in
            [pool.requested_size(address), pool.allocated_size(address), pool.allocation_id(address)]
        {
            assert_eq!(answer, Err(BFC_ERROR_INVALID_POINTER), "{address:#x}");
        }
    }
    assert_eq!(pool.stats().num_frees, 1, "what fails changes nothing");
    pool.check();
    [chunks[0], chunks[2]].into_iter().for_each(|address| pool.put(address));
    // Everything is one free chunk, so the second chunk's start is inside it.
    assert_eq!(pool.free(chunks[2]), BFC_ERROR_INVALID_POINTER);
    assert_eq!(pool.free(chunks[0]), BFC_ERROR_DOUBLE_FREE);
}

/// Random programs that write to every live chunk.
pub fn contents_are_kept<F: Fixture>(fixture: &F) {
    for (seed, flags) in [0, GROWTH, GROWTH | COLLECT, GROWTH | COLLECT | BFC_SPLIT_ALWAYS].iter().enumerate()
    {
        let pool = fixture.pool(6, *flags);
        let (mut random, mut live) = (Random::new(seed as u64), Spans::default());
        for step in 0..800 {
            if live.len() < 60 && !random.one_in(3) {
                let most = [1000, 30_000, MIB][random.index(3)];
                let Ok(address) = pool.alloc(random.between(1, most)) else { continue };
                let filled = Filled::new(fixture, &pool, address, random.bits() >> 1);
                // It overlaps no other.
                live.insert(address, filled.bytes, filled);
            } else if let Some(address) = live.nth(random.index(live.len().max(1))) {
                live.remove(address).expect("it is there").1.assert_intact(fixture);
                pool.put(address);
            }
            if step % 100 == 0 {
                pool.check();
                live.iter().for_each(|(.., filled)| filled.assert_intact(fixture));
                pool.trim(random.below(6) * UNIT);
            }
            if let Some(held) = fixture.held() {
                assert!(held <= 6 * UNIT, "{held}");
            }
        }
        live.iter().for_each(|(.., filled)| filled.assert_intact(fixture));
        assert_eq!(pool.stats().bytes_in_use, live.bytes());
    }
}

pub fn all_of_a_chunk_is_usable<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(3, GROWTH);
    let (first, last) = (pool.get(UNIT - 512), pool.get(2 * UNIT));
    for address in [first, last] {
        Filled::new(fixture, &pool, address, 7).assert_intact(fixture);
    }
    pool.check();
}

pub fn any_request_any_alignment<F: Fixture>(fixture: &F) {
    let pool = fixture.pool(4, GROWTH);
    let mut wanted = request(3000);
    wanted.alignment = 8192;
    let address = pool.alloc_ex(&wanted).unwrap_or_else(|_| panic!("{}", last_error()));
    assert!(address.is_multiple_of(8192));
    wanted.flags = 4;
    assert_eq!(pool.alloc_ex(&wanted), Err(BFC_ERROR_INVALID_ARGUMENT));
    (wanted.flags, wanted.freed_before) = (0, 1);
    assert_eq!(pool.alloc_ex(&wanted), Err(BFC_ERROR_UNSUPPORTED));
    (wanted.freed_before, wanted.struct_size) = (0, 3);
    assert_eq!(pool.alloc_ex(&wanted), Err(BFC_ERROR_INVALID_ARGUMENT));
    pool.put(address);
}
