//! Host memory in one growing range, with real memory: granules are mapped, moved and released beside live allocations,
//! each of which is filled with a pattern of its own.

#[path = "../common/mod.rs"]
mod common;
/// Interactions with the rest of the process.
mod process;

use common::child::{expect_success, is_child};
use common::granules::{GRANULE, enough};
use common::log::Collected;
use common::*;
use std::time::{Duration, Instant};

fn vmm(limit: u64, change: impl FnOnce(&mut bfc_options_t)) -> Pool {
    Pool::host(limit, |options| {
        (options.backend, options.flags) = (BFC_BACKEND_HOST_VMM, BFC_ALLOW_GROWTH);
        change(options);
    })
}

/// Returns eight bytes that are different for every page and every 256 bytes of an allocation.
fn mark(address: u64, salt: u64, at: u64) -> u64 {
    (address ^ salt << 48).wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A live allocation with its expected contents.
struct Filled {
    address: u64,
    bytes: u64,
    salt: u64,
}

impl Filled {
    fn places(&self) -> impl Iterator<Item = u64> + use<> {
        // The first and the last bytes, and a part of each page in between.
        let words = self.bytes / 8;
        (0..words).step_by(512).chain(words.checked_sub(1)).map(|word| word * 8)
    }

    fn fill(address: u64, bytes: u64, salt: u64) -> Filled {
        let filled = Filled { address, bytes, salt };
        for at in filled.places() {
            // SAFETY: live host memory of that many bytes, aligned to 256.
            unsafe { ((address + at) as *mut u64).write(mark(address, salt, at)) };
        }
        filled
    }

    #[track_caller]
    fn verify(&self) {
        for at in self.places() {
            // SAFETY: as above.
            let found = unsafe { ((self.address + at) as *const u64).read() };
            assert_eq!(found, mark(self.address, self.salt, at), "{at} bytes into {:#x}", self.address);
        }
    }
}

/// Returns the bytes of a file that are resident in this process.
fn resident(from: u64, bytes: u64) -> u64 {
    let mut pages = vec![0u8; (bytes / 4096) as usize];
    // SAFETY: a range of whole mapped pages, and a byte for each of them.
    let status = unsafe { libc::mincore(pointer(from & !4095), bytes as usize, pages.as_mut_ptr()) };
    assert_eq!(status, 0, "mincore");
    pages.iter().filter(|&&page| page & 1 != 0).count() as u64 * 4096
}

#[test]
fn a_pool_is_one_region_that_grows_by_granules() {
    let pool = vmm(GIB, |_| {});
    assert_eq!(
        (pool.stats().num_regions, pool.stats().pool_bytes),
        (0, 0),
        "nothing before the first allocation"
    );
    let first = pool.get(1000);
    let stats = pool.stats();
    assert_eq!((stats.num_regions, stats.pool_bytes, stats.bytes_limit), (1, GRANULE, GIB));
    let mut all = vec![Filled::fill(first, 1000, 0)];
    for step in 1..100 {
        let bytes = step * 100_000;
        let address = pool.get(bytes);
        all.push(Filled::fill(address, bytes, step));
        let stats = pool.stats();
        let needed = stats.bytes_in_use.next_multiple_of(GRANULE);
        // Neighbours merge across all granules, so only the rest of the last step is free.
        assert!(stats.pool_bytes <= needed + needed / 64 + GRANULE, "{} for {needed}", stats.pool_bytes);
        assert_eq!(stats.num_regions, 1);
    }
    all.iter().for_each(Filled::verify);
    let range = pool.range(all[50].address + 5).expect("live");
    assert_eq!((range.chunk.0, range.region), (all[50].address, (first, pool.stats().pool_bytes)));
    for filled in &all {
        filled.verify();
        pool.put(filled.address);
    }
    let stats = pool.stats();
    assert_eq!((stats.num_chunks, stats.largest_free_block_bytes), (1, stats.pool_bytes));
    pool.check();
}

#[test]
fn without_growth_the_limit_is_mapped_at_once_and_not_touched() {
    let pool = vmm(GIB + 12345, |options| options.flags = 0);
    let address = pool.get(256);
    let stats = pool.stats();
    assert_eq!((stats.pool_bytes, stats.bytes_limit, stats.num_regions), (GIB, GIB, 1));
    assert!(resident(address, GIB) <= GRANULE);
    Filled::fill(address, 256, 1).verify();
    assert_eq!(pool.alloc(GIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    let rest = pool.get(GIB - 256);
    assert_eq!(rest, address + 256);
    pool.check();
}

#[test]
fn memory_is_resident_only_where_it_was_touched_and_gone_after_a_trim() {
    let pool = vmm(GIB, |_| {});
    let address = pool.get(200 * MIB);
    assert!(resident(address, 200 * MIB) <= GRANULE);
    let touched = Filled::fill(address, 200 * MIB, 7);
    assert!(resident(address, 200 * MIB) >= 190 * MIB);
    touched.verify();
    pool.put(address);
    let pin = pool.get(256);
    let held = pool.stats().pool_bytes;
    assert_eq!(pool.trim(0), held - GRANULE, "all but the granule with the pin");
    assert_eq!(pool.stats().pool_bytes, GRANULE);
    let again = pool.get(200 * MIB);
    assert!(resident(again, 200 * MIB) <= GRANULE, "what comes back is new");
    // SAFETY: live host memory.
    assert_eq!(unsafe { (again as *const u64).read() }, 0);
    pool.put(pin);
    pool.check();
}

/// Trim releases granules anywhere, the largest free chunks first, as long as the given amount stays.
#[test]
fn trim_gives_back_granules_between_live_allocations() {
    let pool = vmm(GIB, |_| {});
    let all: Vec<Filled> = (0..32).map(|i| Filled::fill(pool.get(10 * MIB), 10 * MIB, i)).collect();
    let (kept, gone): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(i, _)| i % 4 == 0);
    gone.iter().for_each(|(_, filled)| pool.put(filled.address));
    let before = pool.stats();
    assert_eq!(pool.trim(before.pool_bytes - 3 * GRANULE), 3 * GRANULE, "as much as may go");
    assert_eq!(pool.trim(before.pool_bytes), 0);
    let released = pool.trim(0);
    assert!(released >= 24 * 8 * MIB);
    let stats = pool.stats();
    assert_eq!(stats.pool_bytes, before.pool_bytes - released - 3 * GRANULE);
    kept.iter().for_each(|(_, filled)| filled.verify());
    pool.check();
    // The unmapped granules are mapped again before the range is extended.
    for i in 0..8 {
        Filled::fill(pool.get(30 * MIB), 30 * MIB, i).verify();
    }
    assert_eq!(pool.range(kept[0].1.address).expect("live").region.1, 320 * MIB);
    kept.iter().for_each(|(_, filled)| filled.verify());
}

/// Two thirds of the pool are free in pieces, which serve a request as one.
#[test]
fn at_the_limit_free_pieces_become_one() {
    let pool = vmm(96 * MIB, |_| {});
    let all: Vec<Filled> = (0..12).map(|i| Filled::fill(pool.get(8 * MIB), 8 * MIB, i)).collect();
    let stats = pool.stats();
    assert_eq!((stats.pool_bytes, stats.bytes_in_use), (96 * MIB, 96 * MIB));
    let (kept, gone): (Vec<_>, Vec<_>) = all.iter().enumerate().partition(|(i, _)| i % 3 == 0);
    gone.iter().for_each(|(_, filled)| pool.put(filled.address));
    assert_eq!(pool.stats().largest_free_block_bytes, 16 * MIB);
    let large = Filled::fill(pool.get(64 * MIB), 64 * MIB, 99);
    assert_eq!(pool.stats().pool_bytes, 96 * MIB, "not a granule more");
    kept.iter().for_each(|(_, filled)| filled.verify());
    large.verify();
    assert_eq!(pool.alloc(256), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.put(large.address);
    kept.iter().for_each(|(_, filled)| pool.put(filled.address));
    pool.check();
    assert_eq!(pool.trim(0), 96 * MIB);
    let stats = pool.stats();
    assert_eq!(
        (stats.pool_bytes, stats.num_regions, stats.num_chunks, stats.peak_pool_bytes),
        (0, 0, 0, 96 * MIB)
    );
}

/// Unmapped addresses belong to no pool, although they are in the range of one.
#[test]
fn unmapped_ranges_have_no_owner() {
    let pool = vmm(64 * MIB, |_| {});
    let [first, second, third] = [4 * MIB; 3].map(|bytes| pool.get(bytes));
    let owner = |address| {
        let mut device = -1;
        // SAFETY: a valid out-pointer.
        let status = unsafe { bfc_owner(pointer(address), &mut device) };
        if status == BFC_OK { Ok(device) } else { Err(status) }
    };
    for address in [first, second, second + MIB, third + 4 * MIB - 1] {
        assert_eq!(owner(address), Ok(pool.device()));
    }
    assert_eq!(owner(third + 4 * MIB), Err(BFC_ERROR_INVALID_POINTER), "after the last granule");
    pool.put(second);
    assert_eq!(owner(second), Ok(pool.device()), "free memory is the pool's");
    assert_eq!(pool.trim(0), 4 * MIB);
    assert_eq!(owner(second + MIB), Err(BFC_ERROR_INVALID_POINTER));
    assert_eq!(owner(third), Ok(pool.device()));
}

#[test]
fn alignments_up_to_the_granule_and_beyond() {
    let pool = vmm(256 * MIB, |_| {});
    let mut all = Vec::new();
    for shift in [8, 12, 16, 21, 22, 25] {
        for salt in 0..3 {
            let address = pool.alloc_aligned(3 * MIB, 1 << shift).expect("there is room");
            assert_eq!(address % (1 << shift), 0);
            all.push(Filled::fill(address, 3 * MIB, salt));
        }
    }
    let used = pool.stats().bytes_in_use;
    assert!(
        pool.stats().pool_bytes <= used * 4 / 3 + 4 * GRANULE,
        "nothing is mapped for what an alignment skips"
    );
    all.iter().for_each(Filled::verify);
    pool.check();
}

#[test]
fn sizes_and_limits_at_the_edges() {
    for flags in [0, BFC_ALLOW_GROWTH] {
        for limit in [1, GRANULE - 1, GRANULE, u64::MAX] {
            let with = |options: &mut bfc_options_t| {
                (options.backend, options.flags) = (BFC_BACKEND_HOST_VMM, flags);
            };
            let pool = Pool::try_host(limit, with).unwrap_or_else(|_| panic!("{limit}: {}", last_error()));
            for bytes in [u64::MAX, u64::MAX - 255, 1 << 63, 1 << 47, (1 << 46) - 256, (1 << 44) + 1] {
                assert_eq!(pool.alloc(bytes), Err(BFC_ERROR_OUT_OF_MEMORY), "{bytes} of {limit}");
                assert_eq!(pool.alloc_aligned(bytes, 1 << 40), Err(BFC_ERROR_OUT_OF_MEMORY));
                pool.check();
            }
            let small = pool.alloc(1);
            if limit < GRANULE {
                assert_eq!(small, Err(BFC_ERROR_OUT_OF_MEMORY), "{limit} bytes are no granule");
                assert!(last_error().contains("exhaustion"), "{}", last_error());
            } else if limit == GRANULE {
                assert_eq!((small.is_ok(), pool.stats().pool_bytes), (true, GRANULE));
            }
            pool.check();
        }
    }
}

#[test]
fn reports_tell_of_holes() {
    let pool = vmm(64 * MIB, |_| {});
    let [first, between, last] = [20, 24, 20].map(|mib| pool.get(mib * MIB));
    pool.put(between);
    assert_eq!(pool.trim(0), 24 * MIB);
    let map: serde_json::Value = serde_json::from_str(&pool.memory_map()).expect("JSON");
    assert_eq!(map["backend"], "host_vmm");
    let region = &map["regions"][0];
    assert_eq!((&region["size"], &region["received"]), (&(64 * MIB).into(), &(40 * MIB).into()));
    let states: Vec<_> = region["chunks"].as_array().expect("chunks").iter().map(|c| &c["state"]).collect();
    assert_eq!(states, ["in_use", "unmapped", "in_use"]);
    assert_eq!((&map["stats"]["num_chunks"], &map["stats"]["num_free_chunks"]), (&2.into(), &0.into()));
    assert_eq!(map["stats"]["fragmentation"], 0.0);
    assert_eq!(pool.occupancy(), "*".repeat(100), "what is there is in use");
    assert!(pool.report().contains("unmapped                     24.00 MiB"), "{}", pool.report());
    // An address in an unmapped range belongs to no allocation.
    assert_eq!(pool.free(between), BFC_ERROR_INVALID_POINTER, "{}", last_error());
    assert_eq!(pool.free(between + 256), BFC_ERROR_INVALID_POINTER);
    assert!(last_error().contains("not mapped"), "{}", last_error());
    [first, last].into_iter().for_each(|address| pool.put(address));
}

/// A random program: every live allocation keeps its bytes, the limit holds, and a request fails only if there
/// are not enough whole granules.
fn program(seed: u64, steps: u64) -> u64 {
    let mut random = Random::new(seed);
    let granules = random.between(4, 40);
    let limit = granules * GRANULE + random.below(GRANULE);
    let flags = [0, BFC_ALLOW_GROWTH][random.index(2)] | [0, BFC_GARBAGE_COLLECTION][random.index(2)];
    let pool = vmm(limit, |options| {
        options.flags = flags;
        options.fragmentation_fraction = [0.0, 0.05][random.index(2)];
    });
    let mut live: Vec<Filled> = Vec::new();
    let mut served = 0;
    for step in 0..steps {
        let more = live.len() as u64 <= random.below(30);
        if more || live.is_empty() {
            let largest = [limit, limit / 4, GRANULE, 4096][random.index(4)];
            let bytes = random.between(1, largest);
            let alignment = [256, 256, 4096, 8 * MIB][random.index(4)].min(GRANULE << random.below(3));
            match pool.alloc_aligned(bytes, alignment) {
                Ok(address) => {
                    assert_eq!(address % alignment, 0);
                    live.push(Filled::fill(address, bytes, step));
                    served += bytes;
                }
                Err(status) => {
                    assert_eq!(status, BFC_ERROR_OUT_OF_MEMORY, "{}", last_error());
                    assert!(alignment > GRANULE || !enough(&pool, bytes), "{bytes} bytes: {}", pool.report());
                }
            }
        } else {
            let gone = live.swap_remove(random.index(live.len()));
            gone.verify();
            pool.put(gone.address);
        }
        if random.one_in(20) {
            pool.trim(random.below(limit));
        }
        assert!(pool.stats().pool_bytes <= limit);
        if random.one_in(10) {
            pool.check();
            live.iter().for_each(Filled::verify);
        }
    }
    live.iter().for_each(Filled::verify);
    live.iter().for_each(|filled| pool.put(filled.address));
    pool.check();
    pool.trim(0);
    assert_eq!(pool.stats().pool_bytes, 0);
    served
}

#[test]
fn random_programs_keep_every_byte() {
    let served: u64 = (0..60).map(|seed| program(seed, 150)).sum();
    println!("{} MiB were served", served / MIB);
    assert!(served > 8 * GIB);
}

#[test]
fn threads_allocate_free_and_trim_at_once() {
    let pool = vmm(64 * MIB, |options| options.retry_timeout_ms = 20_000);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = Random::new(thread);
                for round in 0..150 {
                    // At most half of the limit at the same time over all threads, so that no thread fails for long.
                    let bytes = random.between(1, 5 * MIB);
                    let one = Filled::fill(pool.get(bytes), bytes, thread << 8 | round);
                    if random.one_in(4) {
                        pool.trim(random.below(64 * MIB));
                    }
                    assert!(pool.stats().pool_bytes <= 64 * MIB);
                    one.verify();
                    pool.put(one.address);
                }
            });
        }
    });
    pool.check();
    pool.trim(0);
    assert_eq!(pool.stats().pool_bytes, 0);
}

/// Neighbours in the range are neighbours in the file, so that a large pool is one mapping.
#[test]
fn granules_side_by_side_are_one_mapping() {
    const NAME: &str = "granules_side_by_side_are_one_mapping";
    if !is_child(NAME) {
        expect_success(NAME, &[]);
        return;
    }
    let pool = vmm(8 * GIB, |_| {});
    let first = pool.get(GRANULE);
    let all: Vec<u64> = (0..1000).map(|_| pool.get(5 * MIB)).collect();
    let mappings = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
        let region = pool.range(first).expect("live").region;
        let inside = |line: &&str| {
            let base =
                u64::from_str_radix(line.split('-').next().unwrap_or_default(), 16).expect("an address");
            (region.0..region.0 + region.1).contains(&base)
        };
        maps.lines().filter(inside).count()
    };
    assert_eq!(mappings(), 1);
    all.iter().step_by(2).for_each(|&address| pool.put(address));
    pool.trim(0);
    let cut = mappings();
    assert!((900..1100).contains(&cut), "{cut}: an unmapped chunk and a piece each");
    all.iter().skip(1).step_by(2).for_each(|&address| pool.put(address));
    let large = pool.get(5 * GIB);
    assert!(mappings() < cut);
    pool.put(large);
}

/// The same repeatedly: a hundred times the bytes of the range are moved in it, and a request is refused only if
/// there are too few granules.
#[test]
fn a_small_range_is_never_used_up() {
    const NAME: &str = "a_small_range_is_never_used_up";
    if !is_child(NAME) {
        expect_success(NAME, &[("BFC_LOG", "info")]);
        return;
    }
    const ADDRESSES: u64 = 80 * MIB;
    let held = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let held: u64 = held.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number of pages");
    let most = held * 4096 + ADDRESSES;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: a valid struct.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let pool = vmm(8 * GRANULE, |_| {});
    let (mut random, mut live, mut served, mut refused) = (Random::new(1), Vec::new(), 0, 0);
    let messages = Collected::start();
    // "mapped N bytes and moved N bytes for a request of N bytes"
    let moved = || -> u64 {
        let of = |words: &String| words.split("moved ").nth(1)?.split(' ').next()?.parse::<u64>().ok();
        messages.with(" bytes and moved ").iter().filter_map(of).sum()
    };
    for round in 1.. {
        if round % 10_000 == 0 && moved() >= 100 * ADDRESSES {
            break;
        }
        assert!(round < 1_000_000, "it hardly moves");
        let bytes = random.between(1, 6 * GRANULE);
        match pool.alloc(bytes) {
            Ok(address) => {
                live.push(Filled::fill(address, bytes.min(4096), served));
                served += bytes;
            }
            Err(status) => {
                assert_eq!(status, BFC_ERROR_OUT_OF_MEMORY, "{}", last_error());
                assert!(!enough(&pool, bytes), "{bytes} bytes: {}", pool.report());
                refused += 1;
            }
        }
        while live.len() as u64 > random.below(6) {
            let gone: Filled = live.swap_remove(random.index(live.len()));
            gone.verify();
            pool.put(gone.address);
        }
    }
    println!("{} MiB were served and {} moved, {refused} requests refused", served / MIB, moved() / MIB);
    assert!(refused > 100);
}

/// No request waits longer than a remapping takes.
#[test]
fn remapping_is_quick() {
    let pool = vmm(512 * MIB, |_| {});
    let all: Vec<u64> = (0..128).map(|_| pool.get(4 * MIB)).collect();
    all.iter().step_by(2).for_each(|&address| pool.put(address));
    let begun = Instant::now();
    pool.get(256 * MIB);
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?} for 64 pieces", begun.elapsed());
}

/// Idle granules move before new ones are mapped, if there are as many as a large request needs, so the pool holds no
/// more.
#[test]
fn idle_granules_move_before_the_pool_grows() {
    let pool = vmm(GIB, |_| {});
    let [a, b, c, d] = [20, 20, 20, 20].map(|size| pool.get(size * MIB));
    let kept = [b, d].map(|address| Filled::fill(address, 20 * MIB, 1));
    [a, c].into_iter().for_each(|address| pool.put(address));
    let held = pool.stats().pool_bytes;
    let large = Filled::fill(pool.get(36 * MIB), 36 * MIB, 2);
    assert_eq!(pool.stats().pool_bytes, held);
    // Less is idle now.
    let larger = pool.get(20 * MIB);
    assert!(pool.stats().pool_bytes > held);
    kept.iter().chain([&large]).for_each(Filled::verify);
    pool.check();
    [b, d, large.address, larger].into_iter().for_each(|address| pool.put(address));
    assert_eq!(pool.destroy(), BFC_OK);
}

/// Moves wait for the device, so a request that is small compared to the pool maps new granules.
#[test]
fn for_small_requests_the_pool_grows() {
    for (kept, moves) in [(200, true), (600, false)] {
        let pool = vmm(2 * GIB, |options| options.initial_region_bytes = 2 * MIB);
        let [a, between, c, rest] = [2, 2, 2, kept].map(|size| pool.get(size * MIB));
        let held = pool.stats().pool_bytes;
        // Memory mapped in advance is used first.
        let filler: Vec<u64> = (0..(held / MIB - kept - 6) / 2).map(|_| pool.get(2 * MIB)).collect();
        assert_eq!(pool.stats().pool_bytes, held);
        [a, c].into_iter().for_each(|address| pool.put(address));
        let small = pool.get(4 * MIB);
        assert_eq!(pool.stats().pool_bytes == held, moves, "beside {kept} MiB");
        pool.check();
        filler.into_iter().chain([between, rest, small]).for_each(|address| pool.put(address));
        assert_eq!(pool.destroy(), BFC_OK);
    }
}
