//! Which pages of host memory are resident: huge pages, and the pages that a trim returns to the system.

use crate::common::*;
use std::ffi::c_void;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
const HUGE_PAGE: u64 = 2 * MIB;

/// Returns how many bytes of a range of whole pages are resident, using `mincore`.
fn resident(base: u64, bytes: u64) -> u64 {
    let mut pages = vec![0_u8; (bytes / PAGE) as usize];
    // SAFETY: the vector has an element for each page.
    let done = unsafe { libc::mincore(base as *mut _, bytes as usize, pages.as_mut_ptr()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    pages.iter().filter(|&&page| page & 1 != 0).count() as u64 * PAGE
}

fn fill(chunk: u64, bytes: u64, with: u8) {
    // SAFETY: live host memory of that size.
    unsafe { (chunk as *mut u8).write_bytes(with, bytes as usize) };
}

fn holds(chunk: u64, bytes: u64, with: u8) -> bool {
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(chunk as *const u8, bytes as usize) }.iter().all(|&byte| byte == with)
}

fn whole(options: &mut bfc_options_t) {
    // One region, so that only pages can be returned.
    options.flags = BFC_SPLIT_ALWAYS;
}

/// Creates small chunks with larger ones between them, all in one region. The larger ones are free. Returns the small
/// ones.
fn chunks_with_gaps(pool: &Pool, gap: u64) -> Vec<u64> {
    let pairs: Vec<(u64, u64)> = (0..16).map(|_| (pool.get(PAGE), pool.get(gap))).collect();
    for &(small, large) in &pairs {
        fill(small, PAGE, 7);
        fill(large, gap, 8);
    }
    pairs.iter().for_each(|&(_, large)| pool.put(large));
    pairs.into_iter().map(|(small, _)| small).collect()
}

#[test]
fn a_trim_gives_back_the_pages_of_free_chunks() {
    let test = "a_trim_gives_back_the_pages_of_free_chunks";
    if !child::is_child(test) {
        let _ = ["never", "auto"].map(|pages| child::expect_success(test, &[("BFC_HUGE_PAGES", pages)]));
        return;
    }
    for gap in [PAGE, 10 * PAGE, MIB, 9 * MIB] {
        let pool = Pool::host(256 * MIB, whole);
        let kept = chunks_with_gaps(&pool, gap);
        let (base, bytes) = (kept[0], 16 * (gap + PAGE));
        assert_eq!(base % PAGE, 0);
        assert_eq!(resident(base, bytes), bytes, "all of it was touched");
        assert_eq!((pool.trim(0), pool.stats().pool_bytes), (0, 256 * MIB), "the region stays");
        assert_eq!(resident(base, bytes), 16 * PAGE, "gaps of {gap}");
        assert!(kept.iter().all(|&chunk| holds(chunk, PAGE, 7)));
        pool.check();
        // The memory works as before.
        let again = pool.get(gap);
        fill(again, gap, 9);
        assert!(holds(again, gap, 9));
        pool.put(again);
        kept.into_iter().for_each(|chunk| pool.put(chunk));
    }
}

#[test]
fn a_trim_leaves_as_much_as_it_is_to_keep() {
    let pool = Pool::host(256 * MIB, whole);
    let chunk = pool.get(100 * MIB);
    fill(chunk, 100 * MIB, 1);
    pool.put(chunk);
    // A chunk in use, so that the region is not free.
    let last = pool.alloc_aligned(PAGE, 64 * MIB).unwrap();
    for (keep, left) in [(u64::MAX, 100), (256 * MIB, 100), (226 * MIB, 70), (0, 0)] {
        assert_eq!(pool.trim(keep), 0);
        // Starting at the lowest address.
        let at = if last == chunk { chunk + HUGE_PAGE } else { chunk };
        let now = resident(at, 98 * MIB) / MIB;
        assert!(now.abs_diff(left) <= 2, "keep {keep}: {now} MiB of {left} are left");
    }
    pool.put(last);
}

/// The same for memory allocated after the pool's second stream had appeared.
#[test]
fn a_trim_gives_back_the_pages_of_several_streams() {
    let pool = Pool::host(256 * MIB, whole);
    [1, 2].into_iter().for_each(|stream| assert_ne!(pool.get_on(PAGE, stream), 0));
    let (chunk, _kept) = (pool.get_on(16 * MIB, 1), pool.get_on(PAGE, 1));
    fill(chunk, 16 * MIB, 7);
    let (base, bytes) = (chunk.next_multiple_of(HUGE_PAGE), 12 * MIB);
    assert_eq!(resident(base, bytes), bytes);
    pool.put_on(chunk, 1);
    [1, 2].into_iter().for_each(|stream| pool.synchronized(stream));
    pool.trim(0);
    assert_eq!(resident(base, bytes), 0);
    assert_eq!(pool.destroy_forced(), BFC_OK);
}

extern "C" fn register(_: *mut c_void, _: i32, _: *mut c_void, _: usize, _: i32) {}

/// Code that has registered a region, for example for RDMA, continues to use its pages.
#[test]
fn memory_of_registered_regions_stays() {
    let pool = Pool::host(256 * MIB, whole);
    // SAFETY: the function uses nothing.
    let set = unsafe { bfc_set_region_callback(pool.device(), Some(register), std::ptr::null_mut()) };
    assert_eq!(set, BFC_OK);
    let kept = chunks_with_gaps(&pool, MIB);
    let bytes = 16 * (MIB + PAGE);
    pool.trim(0);
    assert_eq!(resident(kept[0], bytes), bytes);
    kept.into_iter().for_each(|chunk| pool.put(chunk));
}

/// The same for NumPy's zeros: large arrays get new pages otherwise.
#[test]
fn zeros_in_registered_regions_are_written() {
    let test = "zeros_in_registered_regions_are_written";
    if !child::is_child(test) {
        child::expect_success(test, &[("BFC_HUGE_PAGES", "never"), ("BFC_MEMORY_LIMIT", "64MiB")]);
        return;
    }
    for registers in [false, true] {
        // SAFETY: NULL selects the defaults.
        assert_eq!(unsafe { bfc_create(256, std::ptr::null()) }, BFC_OK);
        let callback: bfc_region_callback_t = if registers { Some(register) } else { None };
        // SAFETY: the function uses nothing.
        assert_eq!(unsafe { bfc_set_region_callback(256, callback, std::ptr::null_mut()) }, BFC_OK);
        let array = bfc_numpy_malloc(std::ptr::null_mut(), 8 << 20);
        fill(array as u64, 8 * MIB, 7);
        bfc_numpy_free(std::ptr::null_mut(), array, 8 << 20);
        let zeros = bfc_numpy_calloc(std::ptr::null_mut(), 8, 1 << 20);
        assert_eq!(zeros, array);
        let expected = if registers { 8 * MIB } else { 0 };
        assert_eq!(resident(zeros as u64, 8 * MIB), expected);
        assert!(holds(zeros as u64, 8 * MIB, 0));
        bfc_numpy_free(std::ptr::null_mut(), zeros, 8 << 20);
        assert_eq!(bfc_destroy(256), BFC_OK);
    }
}

#[test]
fn memory_of_the_debug_mode_stays() {
    let test = "memory_of_the_debug_mode_stays";
    if !child::is_child(test) {
        child::expect_success(test, &[("BFC_DEBUG", "guard")]);
        return;
    }
    let pool = Pool::host(64 * MIB, whole);
    let kept = chunks_with_gaps(&pool, MIB);
    pool.trim(0);
    // Freed memory is filled, and checked when it is allocated again.
    let again = pool.get(MIB);
    pool.put(again);
    kept.into_iter().for_each(|chunk| pool.put(chunk));
    pool.check();
}

#[test]
fn an_idle_pool_is_resident_only_where_it_is_in_use() {
    let test = "an_idle_pool_is_resident_only_where_it_is_in_use";
    if !child::is_child(test) {
        child::expect_success(test, &[("BFC_TRIM_AFTER", "0.05")]);
        return;
    }
    let pool = Pool::host(256 * MIB, whole);
    let kept = chunks_with_gaps(&pool, 4 * MIB);
    let begun = Instant::now();
    while resident(kept[0], 16 * (4 * MIB + PAGE)) > 16 * PAGE {
        assert!(begun.elapsed() < Duration::from_secs(30), "it stays resident");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(kept.iter().all(|&chunk| holds(chunk, PAGE, 7)));
    kept.into_iter().for_each(|chunk| pool.put(chunk));
}

#[test]
fn threads_that_allocate_during_trims_keep_their_contents() {
    let pool = Pool::host(64 * MIB, whole);
    std::thread::scope(|scope| {
        for number in 1..=3 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..3000 {
                    let bytes = PAGE << (round % 9);
                    let chunk = pool.get(bytes);
                    fill(chunk, bytes, number);
                    std::thread::yield_now();
                    assert!(holds(chunk, bytes, number));
                    pool.put(chunk);
                }
            });
        }
        for _ in 0..300 {
            pool.trim(0);
            std::thread::yield_now();
        }
    });
    pool.check();
}

/// The bytes that one touch of a new region makes resident.
fn touched_at_once() -> u64 {
    let pool = Pool::host(64 * MIB, whole);
    let chunk = pool.get(8 * MIB);
    let base = chunk.next_multiple_of(HUGE_PAGE);
    fill(base, 1, 1);
    let bytes = resident(base, HUGE_PAGE);
    pool.put(chunk);
    bytes
}

#[test]
fn huge_pages_are_as_the_variable_says() {
    let test = "huge_pages_are_as_the_variable_says";
    if child::is_child(test) {
        println!("touched {}.", touched_at_once());
        return;
    }
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !setting.contains("[madvise]") {
        eprintln!("skipped: the system's setting of transparent huge pages is not madvise: {setting:?}");
        return;
    }
    for (value, bytes) in [("", HUGE_PAGE), ("auto", HUGE_PAGE), ("Always", HUGE_PAGE), ("never", PAGE)] {
        let ended = child::expect_success(test, &[("BFC_HUGE_PAGES", value), ("BFC_LOG", "warn")]);
        assert!(ended.text.contains(&format!("touched {bytes}.")), "{value:?}: {}", ended.text);
        assert!(!ended.text.contains("bfc:"), "{value:?}: {}", ended.text);
    }
    // Without reserved pages the memory is as with `always`.
    let ended = child::expect_success(test, &[("BFC_HUGE_PAGES", "hugetlb"), ("BFC_LOG", "warn")]);
    assert!(ended.text.contains(&format!("touched {HUGE_PAGE}.")), "{}", ended.text);
}

#[test]
fn memory_works_on_every_placement() {
    let test = "memory_works_on_every_placement";
    if child::is_child(test) {
        assert_eq!(touched_at_once() % PAGE, 0);
        return;
    }
    for value in ["local", "interleave", "Interleave"] {
        child::expect_success(test, &[("BFC_NUMA", value)]);
    }
    let ended = child::expect_success(test, &[("BFC_NUMA", "remote"), ("BFC_LOG", "warn")]);
    assert!(
        ended.errors.contains("BFC_NUMA=remote is ignored: it must be local or interleave"),
        "{}",
        ended.errors
    );
}
