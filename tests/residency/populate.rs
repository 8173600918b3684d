//! `BFC_POPULATE`: a thread makes new regions of host memory resident.

use crate::common::*;
use std::thread;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
const REGION: u64 = 64 * MIB;
const ON: (&str, &str) = ("BFC_POPULATE", "1");

/// Returns how many bytes of a range of whole pages are resident, using `mincore`.
fn resident(base: u64, bytes: u64) -> u64 {
    let mut pages = vec![0_u8; (bytes / PAGE) as usize];
    // SAFETY: the vector has an element for each page.
    let done = unsafe { libc::mincore(base as *mut _, bytes as usize, pages.as_mut_ptr()) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    pages.iter().filter(|&&page| page & 1 != 0).count() as u64 * PAGE
}

fn comes_true(what: &str, is_true: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A pool whose first region is large.
fn large_regions() -> Pool {
    Pool::host(GIB, |options| {
        (options.flags, options.initial_region_bytes) = (GROWING, REGION);
    })
}

/// Allocates, and returns the chunk and the start of its region, which has at least [`REGION`] bytes.
fn get_in_region(pool: &Pool, bytes: u64) -> (u64, u64) {
    let chunk = pool.get(bytes);
    let region = pool.range(chunk).expect("it is live").region;
    assert!(region.1 >= REGION);
    (chunk, region.0)
}

fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("there is /proc");
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
}

fn has_thread() -> bool {
    threads().iter().any(|name| name == "bfc-populate")
}

#[test]
fn a_new_region_becomes_resident() {
    let test = "a_new_region_becomes_resident";
    if !child::is_child(test) {
        for pages in ["auto", "never"] {
            child::expect_success(test, &[ON, ("BFC_HUGE_PAGES", pages)]);
        }
        return;
    }
    let pool = large_regions();
    let (chunk, region) = get_in_region(&pool, 256);
    // SAFETY: live host memory of that size.
    unsafe { (chunk as *mut u8).write_bytes(7, 256) };
    comes_true("all of it is resident", || resident(region, REGION) == REGION);
    // SAFETY: as above.
    let contents = unsafe { std::slice::from_raw_parts(chunk as *const u8, 256) };
    assert!(contents.iter().all(|&byte| byte == 7), "contents stay");
    // The next region too.
    let (_, second) = get_in_region(&pool, REGION);
    let end = second + REGION;
    comes_true("what the request has left of the second one is resident", || resident(end, REGION) == REGION);
    assert!(has_thread());
    pool.check();
    assert_eq!(pool.destroy_forced(), BFC_OK);
}

#[test]
fn without_the_variable_there_is_no_thread() {
    let test = "without_the_variable_there_is_no_thread";
    if !child::is_child(test) {
        for value in ["0", ""] {
            child::expect_success(test, &[("BFC_POPULATE", value)]);
        }
        return;
    }
    let pool = large_regions();
    let (_, region) = get_in_region(&pool, PAGE);
    thread::sleep(Duration::from_millis(100));
    assert!(!has_thread() && resident(region, REGION) <= 2 * MIB);
    assert_eq!(pool.destroy_forced(), BFC_OK);
}

#[test]
fn what_there_is_no_memory_for_is_left_alone() {
    let test = "what_there_is_no_memory_for_is_left_alone";
    if !child::is_child(test) {
        let ended = child::expect_success(test, &[ON, ("BFC_LOG", "warn")]);
        let message = "of a region are not populated: there is not enough memory";
        assert!(ended.errors.contains(message), "{}", ended.errors);
        return;
    }
    // SAFETY: no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    let more = 2 * PAGE * pages as u64;
    let pool = Pool::host(more, |options| options.flags = BFC_SPLIT_ALWAYS);
    let chunk = pool.get(PAGE);
    let region = pool.range(chunk).expect("it is live").region;
    assert_eq!(region.1, more);
    // The pool works, and the thread continues with other regions.
    let other = large_regions();
    let (_, small) = get_in_region(&other, PAGE);
    comes_true("the other one is resident", || resident(small, REGION) == REGION);
    assert!(resident(region.0, GIB) <= 2 * MIB);
    assert_eq!((pool.destroy_forced(), other.destroy_forced()), (BFC_OK, BFC_OK));
}

#[test]
fn an_idle_pool_gives_back_what_was_populated() {
    let test = "an_idle_pool_gives_back_what_was_populated";
    if !child::is_child(test) {
        child::expect_success(test, &[ON, ("BFC_TRIM_AFTER", "1")]);
        return;
    }
    let pool = large_regions();
    let (chunk, region) = get_in_region(&pool, PAGE);
    // SAFETY: live host memory.
    unsafe { (chunk as *mut u8).write(1) };
    comes_true("all of it is resident", || resident(region, REGION) == REGION);
    comes_true("what is free goes back", || resident(region, REGION) <= 2 * MIB);
    pool.put(chunk);
}

/// A concurrent trim is not undone.
#[test]
fn what_went_back_stays_away() {
    let test = "what_went_back_stays_away";
    if !child::is_child(test) {
        child::expect_success(test, &[ON]);
        return;
    }
    const LARGE: u64 = 2 * GIB;
    let pool = Pool::host(LARGE, |options| options.flags = BFC_SPLIT_ALWAYS);
    let chunk = pool.get(PAGE);
    let region = pool.range(chunk).expect("it is live").region.0;
    comes_true("some of it is resident", || resident(region, LARGE) >= 8 * MIB);
    pool.trim(0);
    assert!(resident(region, LARGE) < LARGE, "it came in between");
    thread::sleep(Duration::from_millis(300));
    assert!(resident(region, LARGE) <= 4 * MIB);
    pool.check();
    pool.put(chunk);
}

/// Regions are obtained and released while they are populated.
#[test]
fn regions_go_back_meanwhile() {
    let test = "regions_go_back_meanwhile";
    if !child::is_child(test) {
        child::expect_success(test, &[ON]);
        return;
    }
    let work = || {
        for _ in 0..40 {
            let pool = large_regions();
            for bytes in [PAGE, REGION, 3 * REGION / 4] {
                let (chunk, _) = get_in_region(&pool, bytes);
                // SAFETY: live host memory of that size.
                unsafe { (chunk as *mut u8).write_bytes(9, PAGE as usize) };
                thread::yield_now();
                // SAFETY: as above.
                assert_eq!(unsafe { *((chunk + PAGE - 1) as *const u8) }, 9);
                pool.put(chunk);
                pool.trim(0);
            }
            pool.check();
        }
    };
    thread::scope(|scope| (0..3).for_each(|_| _ = scope.spawn(work)));
}

/// A child of fork has no such thread, and its memory works. Once it creates an allocator it has one again.
#[test]
fn forks_meanwhile() {
    let test = "forks_meanwhile";
    if !child::is_child(test) {
        child::expect_success(test, &[ON]);
        return;
    }
    for _ in 0..50 {
        let pool = large_regions();
        let (chunk, _) = get_in_region(&pool, PAGE);
        // SAFETY: the child makes only calls of the library, which survives forks, and ends without destructors.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: live host memory of that size, the child's own.
                unsafe { (chunk as *mut u8).write_bytes(3, PAGE as usize) };
                let more = pool.alloc(2 * REGION);
                let is_right = more.is_ok() && pool.free(chunk) == BFC_OK && !has_thread();
                let again = large_regions();
                let is_right = is_right && again.alloc(1).is_ok();
                // It names itself.
                comes_true("there is a thread again", has_thread);
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!is_right)) };
            }
            child => {
                let mut status = 0;
                // SAFETY: the pointer is valid for writing.
                assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        pool.put(chunk);
    }
}
