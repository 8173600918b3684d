//! Pointers of every kind at every function that takes one: live, interior, free, stale, foreign, another
//! device's, of a pool that no longer exists.

use crate::common::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

fn growing(limit: u64) -> Pool {
    Pool::custom(Backend::new(64 * GIB), limit, |options| options.flags = BFC_ALLOW_GROWTH)
}

/// A backend that provides one region at an address of the test's choice.
fn one_region_at(base: u64) -> Backend {
    let mut given = false;
    Backend::scripted(move |_, _, bytes| (!std::mem::replace(&mut given, true)).then_some((base, bytes)))
}

/// What the queries answer for a pointer that is not the start of a live allocation.
#[track_caller]
fn assert_unknown(pool: &Pool, address: u64) {
    assert_eq!(pool.requested_size(address), Err(BFC_ERROR_INVALID_POINTER), "{address:#x}");
    assert_eq!(pool.allocated_size(address), Err(BFC_ERROR_INVALID_POINTER), "{address:#x}");
    assert_eq!(pool.allocation_id(address), Err(BFC_ERROR_INVALID_POINTER), "{address:#x}");
}

#[test]
fn a_live_pointer_is_known_to_all() {
    let pool = growing(GIB);
    let requested = [1u64, 255, 256, 257, 4096, 1_000_000, 3 * MIB];
    let live: Vec<u64> = requested.iter().map(|&bytes| pool.get(bytes)).collect();
    for (place, (&address, &bytes)) in live.iter().zip(&requested).enumerate() {
        assert_eq!(pool.requested_size(address), Ok(bytes));
        let allocated = pool.allocated_size(address).expect("live");
        assert!(allocated >= rounded(bytes) && allocated.is_multiple_of(256), "{bytes} got {allocated}");
        assert_eq!(pool.allocation_id(address), Ok(place as u64 + 1));
        assert_eq!(owner(address), Ok(pool.device()));
        let range = pool.range(address).expect("live");
        assert_eq!(range.chunk, (address, allocated));
        assert!(pool.backend().books(|books| books.out.get(&range.region.0) == Some(&range.region.1)));
        assert!(range.region.0 <= address && address + allocated <= range.region.0 + range.region.1);
    }
    pool.check();
}

#[test]
fn interior_pointers_have_a_range_and_nothing_else() {
    let pool = growing(GIB);
    let before = pool.get(256);
    let chunk = pool.get(1 << 20);
    let range = pool.range(chunk).expect("live");
    for offset in [1, 100, 255, 256, 257, 4096, (1 << 20) - 256, (1 << 20) - 1] {
        assert_eq!(pool.range(chunk + offset), Ok(range), "+{offset}");
        assert_eq!(owner(chunk + offset), Ok(pool.device()));
        assert_unknown(&pool, chunk + offset);
        assert_eq!(pool.free(chunk + offset), BFC_ERROR_INVALID_POINTER);
        assert!(last_error().contains(&format!("{chunk:#x}")), "{}", last_error());
    }
    assert_eq!(pool.range(chunk - 1).expect("live").chunk, (before, 256));
    assert_eq!(pool.stats().num_frees, 0);
    pool.check();
}

/// Every offset of every chunk of a random pool, against the interval model.
#[test]
fn ranges_agree_with_a_model_everywhere() {
    let pool = growing(GIB);
    let mut random = Random::new(42);
    let mut live = spans::Spans::default();
    for round in 0..3000 {
        if !random.one_in(3) || live.is_empty() {
            let bytes = random.between(1, 20_000);
            let address = pool.get(bytes);
            live.insert(address, pool.allocated_size(address).expect("live"), bytes);
        } else {
            let address = live.nth(random.index(live.len())).expect("in range");
            live.remove(address);
            pool.put(address);
        }
        if round % 500 != 499 {
            continue;
        }
        let regions = pool.backend().books(|books| books.out.clone());
        for (&base, &bytes) in &regions {
            for at in (base..base + bytes).step_by(256).flat_map(|at| [at, at + random.below(256)]) {
                let found = pool.range(at);
                match live.around(at) {
                    Some((start, length, _)) => {
                        assert_eq!(found, Ok(Range { chunk: (start, length), region: (base, bytes) }));
                    }
                    None => assert_eq!(found, Err(BFC_ERROR_INVALID_POINTER)),
                }
                assert_eq!(pool.allocated_size(at).ok(), live.get(at).map(|&(length, _)| length));
            }
        }
        pool.check();
    }
}

#[test]
fn free_chunks_are_owned_but_not_live() {
    let pool = growing(GIB);
    let chunks = [pool.get(1000), pool.get(1000), pool.get(1000)];
    pool.put(chunks[1]);
    for address in [chunks[1], chunks[1] + 1, chunks[1] + 1023] {
        assert_eq!(owner(address), Ok(pool.device()), "its region is this pool's");
        assert_eq!(pool.range(address), Err(BFC_ERROR_INVALID_POINTER));
        assert_unknown(&pool, address);
    }
    assert_eq!(pool.free(chunks[1]), BFC_ERROR_DOUBLE_FREE);
    assert_eq!(pool.free(chunks[1]), BFC_ERROR_DOUBLE_FREE, "and once more");
    assert_eq!(pool.free(chunks[1] + 256), BFC_ERROR_INVALID_POINTER, "inside of a free chunk");
    // The rest of the region was never an allocation, but it is the start of a free chunk.
    let rest = chunks[2] + 1024;
    assert_eq!(pool.free(rest), BFC_ERROR_DOUBLE_FREE);
    assert_unknown(&pool, rest);
    pool.check();
    assert_eq!(pool.get(1000), chunks[1], "served again");
    assert_eq!(pool.allocation_id(chunks[1]), Ok(4), "under a new number");
    pool.put(chunks[1]);
}

#[test]
fn a_merged_chunk_begins_nowhere() {
    let pool = growing(GIB);
    let chunks: Vec<u64> = (0..8).map(|_| pool.get(512)).collect();
    for &address in &chunks[..4] {
        pool.put(address);
    }
    assert_eq!(pool.free(chunks[0]), BFC_ERROR_DOUBLE_FREE);
    for &address in &chunks[1..4] {
        assert_eq!(pool.free(address), BFC_ERROR_INVALID_POINTER, "{address:#x} is inside of a free chunk");
        assert!(last_error().contains("was it freed already"), "{}", last_error());
        assert_unknown(&pool, address);
    }
    // A larger allocation over them: the old starts are interior pointers of it.
    let large = pool.get(2048);
    assert_eq!(large, chunks[0]);
    for &address in &chunks[1..4] {
        assert_eq!(pool.range(address).expect("live").chunk, (large, 2048));
        assert_eq!(pool.free(address), BFC_ERROR_INVALID_POINTER);
    }
    pool.check();
}

#[test]
fn foreign_pointers_are_nobodys() {
    let pool = growing(GIB);
    let chunk = pool.get(1000);
    let region = pool.range(chunk).expect("live").region;
    let local = 0u64;
    let here = std::ptr::from_ref(&local) as u64;
    let outside =
        [1, 255, region.0 - 256, region.0 - 1, region.0 + region.1, u64::MAX, here, 1 << 47, 1 << 63];
    for address in outside {
        assert_eq!(owner(address), Err(BFC_ERROR_INVALID_POINTER), "{address:#x}");
        assert_eq!(pool.range(address), Err(BFC_ERROR_INVALID_POINTER), "{address:#x}");
        assert_unknown(&pool, address);
        assert_eq!(pool.free(address), BFC_ERROR_INVALID_POINTER, "{address:#x}");
    }
    assert_eq!(owner(0), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(pool.range(0), Err(BFC_ERROR_INVALID_POINTER));
    assert_unknown(&pool, 0);
    pool.check();
}

/// Regions at both ends of the address space, where sums may wrap.
#[test]
fn pointers_at_the_ends_of_the_address_space() {
    let bytes = 2 * MIB;
    let top = u64::MAX - bytes + 1 - 256;
    for base in [256, top] {
        let pool = Pool::custom(one_region_at(base), bytes, |options| options.flags = BFC_ALLOW_GROWTH);
        let all = pool.get(bytes);
        assert_eq!(all, base);
        assert_eq!(pool.range(base + bytes - 1), Ok(Range { chunk: (base, bytes), region: (base, bytes) }));
        assert_eq!(
            (owner(base + bytes - 1), owner(base + bytes)),
            (Ok(pool.device()), Err(BFC_ERROR_INVALID_POINTER))
        );
        for outside in [base - 1, base + bytes, u64::MAX] {
            assert_eq!(pool.free(outside), BFC_ERROR_INVALID_POINTER);
        }
        pool.check();
        pool.put(all);
        pool.check();
    }
}

#[test]
fn another_devices_pointers_are_foreign() {
    let pools = [growing(GIB), Pool::custom(one_region_at(1 << 61), GIB, |_| {})];
    let chunks = pools.each_ref().map(|pool| pool.get(4096));
    for (pool, foreign) in [(&pools[0], chunks[1]), (&pools[1], chunks[0])] {
        assert_eq!(pool.free(foreign), BFC_ERROR_INVALID_POINTER);
        assert_eq!(pool.range(foreign), Err(BFC_ERROR_INVALID_POINTER));
        assert_unknown(pool, foreign);
        pool.check();
    }
    // The message names the owner, even on a device without an allocator.
    let belongs = format!("belongs to device {}", pools[1].device());
    for (device, status) in
        [(pools[0].device(), BFC_ERROR_INVALID_POINTER), (fresh_device(), BFC_ERROR_NO_ALLOCATOR)]
    {
        assert_eq!(free(device, chunks[1]), status);
        assert!(last_error().contains(&belongs), "{}", last_error());
    }
    for (pool, chunk) in pools.iter().zip(chunks) {
        assert_eq!(owner(chunk), Ok(pool.device()));
        pool.put(chunk);
    }
}

/// A freed chunk keeps its start while its stamp waits for the frontier.
#[test]
fn a_chunk_in_quarantine_was_freed_already() {
    let flags = BFC_ALLOW_GROWTH | BFC_TIMESTAMPS | BFC_QUARANTINE;
    let pool = Pool::host(16 * MIB, |options| options.flags = flags);
    let chunks = [pool.get(4096), pool.get(4096), pool.get(4096)];
    pool.put(chunks[1]);
    assert_eq!(pool.free(chunks[1]), BFC_ERROR_DOUBLE_FREE);
    assert_unknown(&pool, chunks[1]);
    assert_eq!(pool.timestamp(), Ok(1), "a refused free has no stamp");
    assert_ne!(pool.get(4096), chunks[1]);
    pool.set_safe_frontier(2);
    assert_eq!(pool.get(4096), chunks[1]);
    pool.check();
}

#[test]
fn after_trim_the_pointers_of_a_region_are_stale() {
    let pool = growing(GIB);
    let (kept, gone) = (pool.get(2 * MIB), pool.get(4 * MIB));
    let next_to_kept = pool.range(kept).expect("live");
    pool.put(gone);
    assert_eq!(owner(gone), Ok(pool.device()));
    assert_eq!(pool.trim(0), 4 * MIB);
    for address in [gone, gone + 1, gone + 4096] {
        assert_eq!(owner(address), Err(BFC_ERROR_INVALID_POINTER));
        assert_eq!(pool.free(address), BFC_ERROR_INVALID_POINTER);
        assert_unknown(&pool, address);
    }
    assert_eq!(pool.range(kept), Ok(next_to_kept), "what stays is known as before");
    assert_eq!(pool.range(kept + MIB), Ok(next_to_kept));
    pool.check();
    pool.put(kept);
}

/// Trim rebuilds the pointer table: every start is found afterwards, every old one is not.
#[test]
fn trim_forgets_only_what_is_gone() {
    let pool = growing(GIB);
    let mut random = Random::new(5);
    let mut chunks: Vec<u64> = (0..2000).map(|_| pool.get(random.between(1, 9000))).collect();
    random.shuffle(&mut chunks);
    let live = chunks.split_off(1500);
    chunks.iter().for_each(|&address| pool.put(address));
    let sizes = |pool: &Pool| live.iter().map(|&address| pool.range(address)).collect::<Vec<_>>();
    let before = sizes(&pool);
    pool.trim(0);
    assert_eq!(sizes(&pool), before);
    chunks.iter().for_each(|&address| assert_unknown(&pool, address));
    pool.check();
    live.iter().for_each(|&address| pool.put(address));
    pool.check();
    assert_eq!(pool.stats().num_free_chunks, pool.stats().num_regions);
}

#[test]
fn after_a_forced_end_all_pointers_are_invalid() {
    let pool = growing(GIB);
    let chunks = [pool.get(1000), pool.get(3 * MIB)];
    assert_eq!(pool.destroy(), BFC_ERROR_BUSY);
    assert_eq!(pool.allocated_size(chunks[0]), Ok(1024), "nothing has changed");
    pool.check();
    assert_eq!(pool.destroy_forced(), BFC_OK);
    pool.backend().assert_all_returned();
    for address in chunks {
        assert_eq!(owner(address), Err(BFC_ERROR_INVALID_POINTER));
        assert_eq!(pool.free(address), BFC_ERROR_NO_ALLOCATOR);
        assert_eq!(pool.range(address), Err(BFC_ERROR_NO_ALLOCATOR));
    }
    assert_eq!(pool.free(0), BFC_OK, "free(NULL) needs no allocator");
    // A new allocator on that device does not accept them either, until it hands them out itself.
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, MIB);
    let again = Pool::create(pool.device(), &wanted, None).expect("the place is free");
    for address in chunks {
        assert_eq!(again.free(address), BFC_ERROR_INVALID_POINTER);
        assert_unknown(&again, address);
    }
    let own = again.get(1);
    assert_eq!(again.allocation_id(own), Ok(1), "numbers begin anew");
    again.check();
}

#[test]
fn ids_are_unique_and_rise() {
    let pool = growing(GIB);
    let mut random = Random::new(9);
    let mut live = Vec::new();
    let mut last = 0;
    for _ in 0..5000 {
        if random.one_in(2) || live.is_empty() {
            let address = pool.get(random.between(1, 5000));
            let id = pool.allocation_id(address).expect("live");
            assert_eq!(id, last + 1);
            last = id;
            live.push((address, id));
        } else {
            let (address, id) = live.swap_remove(random.index(live.len()));
            assert_eq!(pool.allocation_id(address), Ok(id), "as long as it lives");
            pool.put(address);
        }
    }
    assert_eq!(pool.alloc(2 * GIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    let address = pool.get(1);
    assert_eq!(pool.allocation_id(address), Ok(last + 1), "a failure uses up no number");
    pool.check();
}

/// Live host memory is not changed by failing calls around it.
#[test]
fn failing_calls_touch_nothing() {
    let pool = Pool::host(64 * MIB, |options| options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION);
    let live: Vec<(u64, u8)> = (1..40).map(|byte| (pool.get(u64::from(byte) * 777), byte)).collect();
    for &(address, byte) in &live {
        // SAFETY: the allocation has at least that many bytes, and is this test's own.
        unsafe { (address as *mut u8).write_bytes(byte, usize::from(byte) * 777) };
    }
    for &(address, _) in &live {
        for call in [pool.free(address + 1), pool.free(address + 256), pool.free(address ^ (1 << 50))] {
            assert_ne!(call, BFC_OK);
        }
        assert_eq!(pool.alloc(64 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
        assert_eq!(pool.alloc_aligned(1, 3), Err(BFC_ERROR_INVALID_ARGUMENT));
        assert_eq!(pool.destroy(), BFC_ERROR_BUSY);
        assert_eq!(pool.trim(0), 0);
    }
    for &(address, byte) in &live {
        // SAFETY: as above.
        let contents = unsafe { std::slice::from_raw_parts(address as *const u8, usize::from(byte) * 777) };
        assert!(contents.iter().all(|&there| there == byte), "contents at {address:#x}");
    }
    pool.check();
}

/// The other names of the plain pair serve and free the same memory, and hold nothing back.
#[test]
fn the_cached_pair_is_the_plain_pair() {
    let pool = growing(GIB);
    let mut block = pointer(0);
    // SAFETY: the pointer is valid for writing.
    let mut take = || unsafe { bfc_cached_alloc(pool.device(), 1000, &mut block) };
    assert_eq!(take(), BFC_OK, "{}", last_error());
    pool.put(block as u64);
    let plain = pool.get(1000);
    assert_eq!((plain, pool.requested_size(plain)), (block as u64, Ok(1000)));
    assert_eq!(bfc_cached_free(pool.device(), block), BFC_OK);
    assert_eq!(pool.stats().bytes_in_use, 0);
    assert_ne!(bfc_cached_free(pool.device(), block), BFC_OK);
    pool.check();
}

/// Of many threads that free the same pointer one succeeds, and the others are told that it was freed already.
#[test]
fn one_of_many_frees_succeeds() {
    let pool = Pool::host(MIB, |options| options.flags = BFC_ALLOW_GROWTH);
    // Between neighbours in use, so that the freed chunk keeps its start.
    let address = [pool.get(1000), pool.get(1000), pool.get(1000)][1];
    let (winners, line) = (AtomicU32::new(0), Barrier::new(16));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..200 {
                    line.wait();
                    match pool.free(address) {
                        BFC_OK => drop(winners.fetch_add(1, Relaxed)),
                        status => assert_eq!(status, BFC_ERROR_DOUBLE_FREE, "{}", last_error()),
                    }
                    if line.wait().is_leader() {
                        assert_eq!(winners.swap(0, Relaxed), 1);
                        assert_eq!(pool.get(1000), address);
                    }
                }
            });
        }
    });
    pool.check();
}
