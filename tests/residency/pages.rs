//! Host memory that the allocator itself takes, and pools of unusual size: 80 GiB, 2 TiB, hundreds of regions.
//!
//! The tests measure the resident memory of a child process in which nothing else happens.

use crate::common::spans::Spans;
use crate::common::*;

/// Returns the resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("a number");
    // SAFETY: no preconditions.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

/// Runs the test's body in a child of its own.
macro_rules! in_child {
    ($name:literal, $body:expr) => {
        if child::is_child($name) {
            $body
        } else {
            // With huge pages, touching a byte would take 2 MiB.
            child::print_facts(&child::expect_success($name, &[("BFC_HUGE_PAGES", "never")]).text);
        }
    };
}

#[test]
fn an_80_gib_pool_costs_less_than_2_mib() {
    in_child!("an_80_gib_pool_costs_less_than_2_mib", {
        let before = resident();
        let pool = Pool::host(80 * GIB, |_| {});
        let address = pool.get(1000);
        let grown = resident() - before;
        let metadata = pool.stats().metadata_bytes;
        println!("fact 80 GiB: {grown} bytes resident, {metadata} said");
        assert!(grown < 2 * MIB, "{grown} bytes");
        assert!(metadata < 2 * MIB, "{metadata} bytes said");
        assert_eq!(pool.stats().pool_bytes, 80 * GIB);
        // All of it is usable memory: the first and the last byte, and the last of the last chunk.
        let rest = pool.get(80 * GIB - 1024);
        let last = pool.range(rest).expect("live").region.1 + pool.range(rest).expect("live").region.0 - 1;
        for place in [address, rest, last] {
            // SAFETY: live host memory of this test.
            unsafe { (place as *mut u8).write(1) };
        }
        assert!(resident() - before < 2 * MIB, "{} bytes", resident() - before);
        pool.check();
    });
}

/// A million chunks, but fewer if the code is slow and checks more.
const CHUNKS: u64 = if cfg!(debug_assertions) { 200_000 } else { 1_000_000 };

/// Many chunks: `metadata_bytes` equals the growth of the process.
fn million_chunks(what: &str, flags: u32, bytes: u64, named: bool) {
    let each = |bytes: u64| bytes as f64 / CHUNKS as f64;
    // Written, so that its own pages are resident before the first measurement.
    let mut addresses = vec![1u64; CHUNKS as usize];
    let pool = Pool::host(CHUNKS * bytes + MIB, |options| options.flags = flags);
    if named {
        assert_eq!(scope_begin("the operation", 1), BFC_OK);
    }
    pool.put(pool.get(256));
    let (before, said_before) = (resident(), pool.stats().metadata_bytes);
    addresses.iter_mut().for_each(|address| *address = pool.get(bytes));
    let (grown, said) = (resident() - before, pool.stats().metadata_bytes - said_before);
    println!("fact {what}: {:.1} bytes a chunk, {:.1} said", each(grown), each(said));
    // At most an eighth of the reported size is in reserve and not touched yet, and with stamps the queue, in
    // which a free must find room. The heap has its own overhead.
    let queue = if flags & BFC_TIMESTAMPS != 0 { 20 * CHUNKS } else { 0 };
    assert!(grown <= said + MIB, "{what}: grown by {grown}, said {said}");
    assert!(grown + queue + MIB >= said / 8 * 7, "{what}: grown by {grown}, said {said}");
    // 100 bytes per chunk and a pointer table of at most half of TensorFlow's 8 bytes per unit.
    let table = (4 * bytes / 256).min(20) * CHUNKS;
    assert!(grown.max(said) <= CHUNKS * 100 + table, "{what}: {said} bytes said for {CHUNKS} chunks");
    // With every second chunk free the index is full as well, and takes no more memory.
    addresses.iter().step_by(2).for_each(|&address| pool.put(address));
    let freed = resident() - before;
    println!("fact {what}: {:.1} bytes a chunk with every second free", each(freed));
    assert!(freed <= grown + queue + MIB, "{what}: {grown} grew to {freed}");
    pool.check();
    addresses.iter().skip(1).step_by(2).for_each(|&address| pool.put(address));
    if flags & BFC_TIMESTAMPS != 0 {
        pool.synchronize();
    }
    pool.trim(u64::MAX);
    assert_eq!(pool.stats().num_chunks, 1, "{what}: all merged");
    let left = resident().saturating_sub(before);
    let said_left = pool.stats().metadata_bytes.saturating_sub(said_before);
    println!("fact {what}: {:.1} bytes a former chunk after trim, {:.1} said", each(left), each(said_left));
    assert!(said_left <= 16 << 10, "{what}: {said_left} of {said} are said to be left");
    assert!(left <= said / 32 + MIB, "{what}: {left} of {grown} are left");
    if named {
        assert_eq!(bfc_scope_end(), BFC_OK);
    }
}

#[test]
fn metadata_bytes_tell_the_truth_for_small_chunks() {
    in_child!("metadata_bytes_tell_the_truth_for_small_chunks", million_chunks("256 bytes", 0, 256, false));
}

#[test]
fn metadata_bytes_tell_the_truth_for_large_chunks() {
    in_child!("metadata_bytes_tell_the_truth_for_large_chunks", million_chunks("64 KiB", 0, 64 << 10, false));
}

#[test]
fn metadata_bytes_tell_the_truth_with_stamps() {
    in_child!(
        "metadata_bytes_tell_the_truth_with_stamps",
        million_chunks("stamps", BFC_TIMESTAMPS, 1024, false)
    );
}

#[test]
fn metadata_bytes_tell_the_truth_with_operations() {
    in_child!("metadata_bytes_tell_the_truth_with_operations", million_chunks("operations", 0, 1024, true));
}

/// Chunk starts spread over a large pool need much metadata, which a trim frees where none are left.
#[test]
fn after_trim_the_metadata_is_small() {
    in_child!("after_trim_the_metadata_is_small", {
        const STARTS: usize = 400_000;
        let mut addresses = vec![1u64; STARTS];
        let pool = Pool::host(80 * GIB, |_| {});
        let kept = pool.get(256);
        let (before, said_before) = (resident(), pool.stats().metadata_bytes);
        // Starts at a distance of one table page, and then as many small chunks in one place.
        addresses.iter_mut().for_each(|address| *address = pool.get(200 << 10));
        let (grown, said) = (resident() - before, pool.stats().metadata_bytes - said_before);
        addresses.iter().for_each(|&address| pool.put(address));
        assert_eq!(pool.stats().num_chunks, 2);
        pool.trim(u64::MAX);
        let left = resident().saturating_sub(before);
        let said_left = pool.stats().metadata_bytes.saturating_sub(said_before);
        println!("fact {STARTS} starts: {grown} resident, {said} said; after trim {left}, {said_left} said");
        assert!(said_left <= 16 << 10 && left <= MIB, "{left} are left, said {said_left}");
        assert_eq!(pool.allocated_size(kept), Ok(256));
        pool.check();
    });
}

/// Churn in a pool of 80 GiB does not make the metadata grow without bound.
#[test]
fn churn_does_not_grow_the_books() {
    in_child!("churn_does_not_grow_the_books", {
        let pool = Pool::host(80 * GIB, |options| options.flags = BFC_TIMESTAMPS);
        let mut random = Random::new(1);
        let mut live: Vec<u64> = Vec::with_capacity(200);
        let mut after_warming_up = (0, 0);
        for round in 0..200_000 {
            if live.len() < 100 || random.one_in(2) && live.len() < 200 {
                live.push(pool.get(random.between(1, 8 * MIB)));
            } else {
                pool.put(live.swap_remove(random.index(live.len())));
            }
            if round % 50 == 0 {
                pool.synchronize();
            }
            if round == 20_000 {
                after_warming_up = (resident(), pool.stats().metadata_bytes);
            }
        }
        let now = (resident(), pool.stats().metadata_bytes);
        println!("fact churn: {after_warming_up:?} became {now:?}");
        assert!(now.0 <= after_warming_up.0 + 2 * MIB && now.1 <= after_warming_up.1 + 2 * MIB);
        pool.check();
    });
}

/// Sizes and addresses beyond 32 bits of units.
fn two_tib(pool: Pool) {
    const TIB: u64 = 1 << 40;
    let mut live = Spans::default();
    for bytes in [1, TIB, 256, TIB / 2, 300 * GIB, TIB / 8 - 256, 17] {
        let address = pool.get(bytes);
        let allocated = pool.allocated_size(address).expect("live");
        assert!(allocated >= bytes);
        live.insert(address, allocated, ());
        pool.check();
    }
    let stats = pool.stats();
    assert_eq!((stats.pool_bytes, stats.bytes_in_use), (2 * TIB, live.bytes()));
    assert_eq!(stats.largest_alloc_size, TIB);
    assert_eq!(pool.alloc(2 * TIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    for (address, bytes, ()) in live.iter() {
        let inside = pool.range(address + bytes - 1).expect("the last byte is live");
        assert_eq!(inside.chunk, (address, bytes));
    }
    let all: Vec<u64> = live.iter().map(|(address, ..)| address).collect();
    all.into_iter().rev().for_each(|address| pool.put(address));
    pool.check();
    let stats = pool.stats();
    assert_eq!((stats.num_chunks, stats.largest_free_block_bytes), (1, 2 * TIB));
    let whole = pool.get(2 * TIB);
    assert_eq!(pool.alloc(1), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(pool.occupancy(), "*".repeat(100));
    pool.put(whole);
}

#[test]
fn a_pool_of_2_tib() {
    two_tib(Pool::custom(Backend::new(u64::MAX), 2 << 40, |_| {}));
}

#[test]
fn a_host_pool_of_2_tib() {
    in_child!("a_host_pool_of_2_tib", {
        let before = resident();
        let pool = Pool::host(2 << 40, |_| {});
        let address = pool.get(2 << 40);
        let last = address + (2 << 40) - 1;
        for place in [address, last] {
            // SAFETY: the first and the last byte of a live allocation of host memory.
            unsafe { (place as *mut u8).write(7) };
        }
        pool.put(address);
        assert_eq!(bfc_reset_stats(pool.device()), BFC_OK);
        println!("fact 2 TiB: {} bytes resident, {} said", resident() - before, pool.stats().metadata_bytes);
        assert!(resident() - before < 2 * MIB);
        two_tib(pool);
    });
}

/// The largest possible chunk, one unit less than 64 TiB, and larger ones.
#[test]
fn the_largest_chunk() {
    const LARGEST: u64 = (64 << 40) - 256;
    let pool = Pool::custom(Backend::new(u64::MAX), u64::MAX, |options| {
        (options.flags, options.initial_region_bytes) = (BFC_ALLOW_GROWTH, 1 << 49);
    });
    let largest = pool.get(LARGEST);
    assert_eq!(pool.allocated_size(largest), Ok(LARGEST));
    assert_eq!(pool.alloc(LARGEST + 1), Err(BFC_ERROR_OUT_OF_MEMORY));
    pool.check();
    let rest = pool.get(1);
    pool.check();
    [largest, rest].into_iter().for_each(|address| pool.put(address));
    pool.check();
    pool.get(LARGEST - 256);
    pool.check();
}

/// 700 regions, in every order of addresses: ties go to the lowest address, lookups find their region,
/// and a trim releases free memory.
#[test]
fn hundreds_of_regions() {
    for layout in [Layout::Apart, Layout::Adjacent, Layout::Falling] {
        let pool = Pool::custom(Backend::new(u64::MAX).layout(layout), 64 * GIB, |options| {
            (options.flags, options.initial_region_bytes) = (BFC_ALLOW_GROWTH, 4096);
        });
        let mut random = Random::new(3);
        // After a trim the hint is small again: regions of 4 KiB, then each as large as its request.
        let mut live = Vec::new();
        while pool.stats().num_regions < 700 {
            live.push(pool.get(4096));
            pool.trim(0);
        }
        assert_eq!(live.len(), 700);
        pool.check();
        for &address in &live {
            let range = pool.range(address + 4095).expect("live");
            assert_eq!((range.chunk, range.region), ((address, 4096), (address, 4096)));
        }
        random.shuffle(&mut live);
        let mut gone = live.split_off(300);
        gone.iter().for_each(|&address| pool.put(address));
        gone.sort_unstable();
        assert_eq!(pool.get(4000), gone[0], "{layout:?}: the lowest of 400 equals");
        assert_eq!(pool.trim(0), 399 * 4096);
        pool.check();
        assert_eq!(pool.stats().num_regions, 301);
        for &address in &gone[1..] {
            assert_eq!(owner(address), Err(BFC_ERROR_INVALID_POINTER));
        }
        live.iter().for_each(|&address| assert_eq!(pool.allocated_size(address), Ok(4096)));
        assert!(pool.stats().metadata_bytes < 4 * MIB, "{}", pool.stats().metadata_bytes);
    }
}

/// Adjacent regions are merged if the sub-allocator allows it, however many there are.
#[test]
fn hundreds_of_regions_that_coalesce() {
    let pool = Pool::custom(Backend::new(u64::MAX).coalescing(), 64 * GIB, |options| {
        (options.flags, options.initial_region_bytes) = (BFC_ALLOW_GROWTH, 4096);
    });
    let mut live = Vec::new();
    while pool.backend().requests() < 700 {
        live.push(pool.get(4096));
        pool.trim(0);
    }
    assert_eq!(pool.stats().num_regions, 1);
    assert!(live.windows(2).all(|pair| pair[1] == pair[0] + 4096));
    pool.check();
    live.iter().step_by(2).for_each(|&address| pool.put(address));
    pool.check();
    live.iter().skip(1).step_by(2).for_each(|&address| pool.put(address));
    assert_eq!(pool.get(700 * 4096), live[0]);
    pool.put(live[0]);
    assert_eq!((pool.trim(0), pool.backend().held()), (700 * 4096, 0));
    assert_eq!(pool.backend().books(|books| books.returned.len()), 1, "given back as one");
    pool.check();
}
