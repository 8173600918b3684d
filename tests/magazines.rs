//! `bfc_cached_alloc` and `bfc_cached_free`: small blocks stay with the threads that freed them, and every answer of the
//! allocator about the whole is what it would be without, but for peaks and requested sizes.

mod common;

use common::*;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How many blocks of a size a thread keeps.
const DEPTH: u64 = 28;

fn take(pool: &Pool, bytes: u64) -> Result<u64, Status> {
    let mut address = pointer(1);
    // SAFETY: the pointer is valid for writing.
    let status = unsafe { bfc_cached_alloc(pool.device(), bytes as usize, &mut address) };
    if status == BFC_OK { Ok(address as u64) } else { Err(status) }
}

fn give(pool: &Pool, address: u64) -> Status {
    bfc_cached_free(pool.device(), pointer(address))
}

#[track_caller]
fn cycle(pool: &Pool, bytes: u64) -> u64 {
    let address = take(pool, bytes).unwrap_or_else(|status| panic!("status {status}: {}", last_error()));
    assert_eq!(give(pool, address), BFC_OK, "{}", last_error());
    address
}

/// Frees one block, so that this thread's magazine is open.
fn open(pool: &Pool) {
    cycle(pool, 1);
}

/// Returns what the allocator says of itself without a look into the magazines.
fn is_in_use(pool: &Pool, address: u64) -> bool {
    pool.allocated_size(address).is_ok()
}

/// Runs the rest of a test in a process of its own, for what concerns a whole process: returns whether this is it.
#[track_caller]
fn is_alone(test: &str, variables: &[(&str, &str)]) -> bool {
    if !child::is_child(test) {
        child::expect_success(test, variables);
    }
    child::is_child(test)
}

fn host(limit: u64) -> Pool {
    Pool::host(limit, |options| options.flags = GROWING)
}

#[test]
fn a_block_stays_with_its_thread_and_is_counted_where_it_is_asked_for() {
    let pool = host(64 * MIB);
    open(&pool);
    for bytes in [1, 256, 257, 1000, 1024] {
        let block = cycle(&pool, bytes);
        assert!(is_in_use(&pool, block), "the allocator has given it out, and it is in a magazine");
        assert_eq!(cycle(&pool, bytes), block);
    }
    let large = cycle(&pool, 1025);
    assert!(!is_in_use(&pool, large));
    let stats = pool.stats();
    assert_eq!((stats.num_allocs, stats.num_frees), (12, 12));
    assert_eq!((stats.bytes_in_use, stats.bytes_requested, stats.num_chunks), (0, 0, stats.num_free_chunks));
    assert_eq!(pool.stats().num_allocs, 12, "none is counted twice");
    pool.check();
}

#[test]
fn sizes_do_not_mix_and_a_block_is_large_enough_for_each_request_of_its_size() {
    let pool = host(64 * MIB);
    open(&pool);
    let small = cycle(&pool, 1);
    let [whole, next] = [256, 257].map(|bytes| take(&pool, bytes).unwrap());
    assert!(whole == small && next != small);
    for (address, bytes) in [(whole, 256), (next, 512)] {
        assert!(pool.allocated_size(address).unwrap() >= bytes);
        assert_eq!(give(&pool, address), BFC_OK);
    }
}

#[test]
fn a_full_magazine_gives_to_the_allocator() {
    let pool = host(64 * MIB);
    open(&pool);
    // The magazine has one already.
    let blocks: Vec<u64> = (0..2 * DEPTH).map(|_| take(&pool, 200).unwrap()).collect();
    assert!(blocks.iter().all(|&block| give(&pool, block) == BFC_OK));
    let kept = blocks.iter().filter(|&&block| is_in_use(&pool, block)).count() as u64;
    assert_eq!(kept, DEPTH);
    assert_eq!(pool.stats().bytes_in_use, 0);
}

#[test]
fn every_question_about_the_whole_empties_the_magazines() {
    type Question = fn(&Pool);
    let questions: [(&str, Question); 8] = [
        ("stats", |pool| assert_eq!(pool.stats().bytes_in_use, 0)),
        ("report", |pool| drop(pool.report())),
        ("memory map", |pool| drop(pool.memory_map())),
        ("occupancy", |pool| drop(pool.occupancy())),
        ("check", |pool| pool.check()),
        ("trim", |pool| assert!(pool.trim(0) > 0)),
        ("limit", |pool| assert_eq!(bfc_set_memory_limit(pool.device(), 32 * MIB), BFC_OK)),
        ("reset", |pool| assert_eq!(bfc_reset_stats(pool.device()), BFC_OK)),
    ];
    for (name, ask) in questions {
        let pool = host(64 * MIB);
        open(&pool);
        let block = cycle(&pool, 1000);
        assert!(is_in_use(&pool, block), "{name}");
        ask(&pool);
        assert!(!is_in_use(&pool, block), "{name}");
        // And the next ones stay in magazines again.
        open(&pool);
        assert!(is_in_use(&pool, cycle(&pool, 1000)), "{name}");
    }
}

#[test]
fn destruction_does_not_wait_for_magazines_and_a_new_allocator_has_none_of_them() {
    let pool = host(64 * MIB);
    let device = pool.device();
    let block = thread::scope(|scope| {
        let other = scope.spawn(|| {
            open(&pool);
            cycle(&pool, 300)
        });
        other.join().unwrap()
    });
    assert!(is_in_use(&pool, block), "the thread has ended, and its magazine has the block");
    assert_eq!(bfc_destroy(device), BFC_OK, "{}", last_error());
    std::mem::forget(pool);
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, 64 * MIB);
    let pool = Pool::create(device, &wanted, None).expect("a new one");
    let block = take(&pool, 300).unwrap();
    assert_eq!((pool.stats().num_allocs, owner(block)), (1, Ok(device)));
    assert_eq!(bfc_destroy(device), BFC_ERROR_BUSY);
    assert_eq!(give(&pool, block), BFC_OK);
}

fn without_waiting() {
    let pool = Pool::host(MIB, |options| options.flags = BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS);
    open(&pool);
    let blocks: Vec<u64> = (0..DEPTH).map(|_| take(&pool, 1024).unwrap()).collect();
    blocks.into_iter().for_each(|block| assert_eq!(give(&pool, block), BFC_OK));
    let all = pool.get(MIB);
    pool.put(all);
    assert_eq!(pool.stats().num_failures, 0);
}

/// Blocks in magazines never make a request fail, nor wait longer than it must.
#[test]
fn a_request_that_finds_no_memory_gets_what_is_in_magazines() {
    let pool = Pool::host(MIB, |options| {
        (options.flags, options.retry_timeout_ms) = (BFC_ALLOW_GROWTH | BFC_SPLIT_ALWAYS, 20_000);
    });
    open(&pool);
    let mut blocks = Vec::new();
    // The block that has opened the magazine has a place of its own.
    let whole = pool.get(MIB - 2 * 1024 * DEPTH - 1024);
    while blocks.len() < 2 * DEPTH as usize {
        blocks.push(take(&pool, 1024).unwrap());
    }
    pool.put(whole);
    blocks.into_iter().for_each(|block| assert_eq!(give(&pool, block), BFC_OK));
    let all = pool.get(MIB);
    pool.put(all);
    without_waiting();
    // One thread waits for memory that another frees as a small block.
    let (served, (tell, begun)) = (AtomicBool::new(false), mpsc::channel());
    thread::scope(|scope| {
        let kept: Vec<u64> = (0..MIB / 1024).map(|_| take(&pool, 1024).unwrap()).collect();
        let waits = scope.spawn(|| {
            tell.send(()).unwrap();
            let address = pool.get(1024 * DEPTH / 2);
            served.store(true, Relaxed);
            address
        });
        begun.recv().unwrap();
        for &block in &kept {
            // Slowly, so that some frees come while the other thread sleeps.
            if !served.load(Relaxed) {
                thread::sleep(Duration::from_micros(300));
            }
            assert_eq!(give(&pool, block), BFC_OK);
        }
        pool.put(waits.join().unwrap());
    });
    assert_eq!((pool.stats().bytes_in_use, pool.stats().num_failures), (0, 0));
    pool.check();
}

#[test]
fn a_block_that_is_freed_twice_is_refused_and_other_addresses_are_too() {
    let (pool, other) = (host(GIB), host(64 * MIB));
    // At the lowest address, where a chunk begins afterwards too.
    let lowest = cycle(&pool, 1);
    let block = cycle(&pool, 1000);
    let again = || {
        let status = give(&pool, block);
        assert!(last_error().contains("free already"), "{}", last_error());
        status
    };
    let from_another = thread::scope(|scope| scope.spawn(again).join().unwrap());
    assert_eq!([again(), from_another], [BFC_ERROR_DOUBLE_FREE; 2]);
    let [first, second] = [(); 2].map(|()| take(&pool, 1000).unwrap());
    assert!(first == block && second != block);
    for block in [first, second] {
        assert_eq!(give(&pool, block), BFC_OK);
    }
    assert_eq!(give(&pool, 0), BFC_OK);
    assert_eq!(take(&pool, 0), Ok(0));
    assert_eq!(pool.stats().bytes_in_use, 0);
    assert_eq!(give(&pool, lowest), BFC_ERROR_DOUBLE_FREE, "the allocator knows it too");
    let kept = take(&pool, 1000).unwrap();
    let (large, of_another) = (take(&pool, MIB).unwrap(), take(&other, 1000).unwrap());
    // Regions on both sides of what another allocator has.
    let around: Vec<u64> = (0..6).map(|number| take(&pool, MIB << number).unwrap()).collect();
    for address in [kept + 1, kept + 256, large + 256, of_another, 1 << 40, &raw const pool as u64] {
        assert_eq!(give(&pool, address), BFC_ERROR_INVALID_POINTER, "{address:#x}");
    }
    for block in around.into_iter().chain([kept, large]) {
        assert_eq!(give(&pool, block), BFC_OK);
    }
    assert_eq!((give(&other, of_another), pool.stats().bytes_in_use), (BFC_OK, 0));
}

/// What else is freed or allocated in between does not change what a block may be given out for.
#[test]
fn a_chunk_that_was_freed_otherwise_is_not_taken_for_what_it_was() {
    let pool = host(64 * MIB);
    let block = take(&pool, 1000).unwrap();
    pool.put(block);
    // Smaller and larger ones at the same address.
    let small = take(&pool, 100).unwrap();
    assert!(small == block && give(&pool, small) == BFC_OK);
    let other = take(&pool, 1000).unwrap();
    assert_ne!(other, block);
    pool.put(take(&pool, 100).unwrap());
    pool.put(other);
    let large = take(&pool, 3000).unwrap();
    assert_eq!((large == block, give(&pool, large)), (true, BFC_OK));
    assert!(!is_in_use(&pool, large), "it is not small");
    assert_eq!(pool.destroy_forced(), BFC_OK);
}

#[test]
fn errors_are_those_of_the_plain_calls() {
    let mut address = pointer(1);
    // SAFETY: NULL is allowed.
    let status = unsafe { bfc_cached_alloc(0, 1, std::ptr::null_mut()) };
    assert_eq!(status, BFC_ERROR_INVALID_ARGUMENT);
    // SAFETY: the pointer is valid for writing.
    let status = unsafe { bfc_cached_alloc(-1, 1, &mut address) };
    assert!(status == BFC_ERROR_INVALID_ARGUMENT && address.is_null());
    let status = [5000, fresh_device()].map(|device| bfc_cached_free(device, pointer(256)));
    assert_eq!(status, [BFC_ERROR_INVALID_ARGUMENT, BFC_ERROR_NO_ALLOCATOR]);
    let pool = host(MIB);
    assert_eq!(take(&pool, 2 * MIB), Err(BFC_ERROR_OUT_OF_MEMORY));
    assert_eq!(take(&pool, u64::MAX), Err(BFC_ERROR_OUT_OF_MEMORY));
}

/// Where frees are stamped, or belong to streams, or the memory is not the host's backend's.
#[test]
fn other_allocators_have_no_magazines() {
    let stamped = Pool::host(MIB, |options| options.flags = GROWING | BFC_TIMESTAMPS);
    let streams = host(64 * MIB);
    for stream in [0x100, 0x200] {
        assert_eq!(streams.free_on(streams.get_on(1, stream), stream), BFC_OK);
    }
    let mapped = Pool::host(64 * MIB, |options| options.backend = BFC_BACKEND_HOST_VMM);
    let custom = Pool::custom(Backend::new(64 * MIB), 64 * MIB, |options| options.flags = GROWING);
    for pool in [stamped, streams, mapped, custom] {
        open(&pool);
        assert!(!is_in_use(&pool, cycle(&pool, 1000)));
    }
}

#[test]
fn a_stream_that_appears_later_ends_the_use_of_magazines() {
    let pool = host(64 * MIB);
    open(&pool);
    let block = cycle(&pool, 1000);
    for stream in [0x100, 0x200] {
        assert_eq!(pool.free_on(pool.get_on(1, stream), stream), BFC_OK);
    }
    assert!(!is_in_use(&pool, block));
    assert!((0..3).all(|_| !is_in_use(&pool, cycle(&pool, 1000))));
    pool.check();
}

#[test]
fn a_block_that_another_stream_uses_waits_for_it() {
    let pool = host(64 * MIB);
    open(&pool);
    let [block, kept] = [(); 2].map(|()| take(&pool, 1000).unwrap());
    assert_eq!(give(&pool, kept), BFC_OK);
    assert_eq!(pool.record(block, 0x100), BFC_OK);
    assert!(!is_in_use(&pool, kept));
    assert_eq!(give(&pool, block), BFC_OK);
    assert_ne!(take(&pool, 1000).unwrap(), block);
    assert_eq!(pool.destroy_forced(), BFC_OK);
}

/// Threads allocate, write, hand over and free. No block is two threads', and nothing is lost.
#[test]
fn threads_share_no_block_and_lose_none() {
    const THREADS: u64 = 24;
    let pool = host(256 * MIB);
    let (queue, done) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    thread::scope(|scope| {
        let work = |number: u64| {
            let (pool, queue) = (&pool, &queue);
            move || {
                let mut random = Random::new(number);
                let mut own: Vec<(u64, u64)> = Vec::new();
                for step in 0..4000 {
                    let bytes = 1 + random.below(1300);
                    let address = take(pool, bytes).unwrap();
                    // SAFETY: the block is this thread's.
                    unsafe { (address as *mut u8).write_bytes(number as u8, bytes as usize) };
                    own.push((address, bytes));
                    let at = random.below(own.len() as u64) as usize;
                    match step % 3 {
                        0 => continue,
                        1 => {
                            // Another thread frees it.
                            let (address, bytes) = own.swap_remove(at);
                            assert_all(address, bytes, number as u8);
                            queue.lock().unwrap().push((address, bytes));
                        }
                        _ => {
                            let (address, bytes) = own.swap_remove(at);
                            assert_all(address, bytes, number as u8);
                            assert_eq!(give(pool, address), BFC_OK);
                        }
                    }
                    let other = queue.lock().unwrap().pop();
                    if let Some((address, _)) = other {
                        let status = if step % 2 == 0 { give(pool, address) } else { pool.free(address) };
                        assert_eq!(status, BFC_OK);
                    }
                }
                own.into_iter().for_each(|(address, bytes)| {
                    assert_all(address, bytes, number as u8);
                    assert_eq!(give(pool, address), BFC_OK);
                });
            }
        };
        let workers: Vec<_> = (0..THREADS).map(|number| scope.spawn(work(number))).collect();
        // Meanwhile another empties the magazines, and looks whether what it sees can be.
        scope.spawn(|| {
            while !done.load(Relaxed) {
                let stats = pool.stats();
                assert!(stats.num_allocs >= stats.num_frees && stats.bytes_in_use <= stats.pool_bytes);
                pool.check();
            }
        });
        let _end = Finally(|| done.store(true, Relaxed));
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    for (address, _) in queue.into_inner().unwrap() {
        assert_eq!(give(&pool, address), BFC_OK);
    }
    let stats = pool.stats();
    assert_eq!((stats.num_allocs, stats.num_frees), (THREADS * 4000, THREADS * 4000));
    assert_eq!((stats.bytes_in_use, stats.bytes_requested, stats.num_failures), (0, 0, 0));
}

#[track_caller]
fn assert_all(address: u64, bytes: u64, expected: u8) {
    // SAFETY: the block is the caller's.
    let content = unsafe { std::slice::from_raw_parts(address as *const u8, bytes as usize) };
    assert!(content.iter().all(|&byte| byte == expected), "another thread has written to {address:#x}");
}

/// A recording that begins sees each request from then on; what is in magazines is not part of it.
#[test]
fn a_history_has_every_request() {
    if !is_alone("a_history_has_every_request", &[]) {
        return;
    }
    let pool = host(64 * MIB);
    open(&pool);
    let block = cycle(&pool, 1000);
    // SAFETY: NULL is for memory.
    assert_eq!(unsafe { bfc_history_start(std::ptr::null(), 1000) }, BFC_OK, "{}", last_error());
    assert!(!is_in_use(&pool, block));
    assert!((0..3).all(|_| !is_in_use(&pool, cycle(&pool, 1000))));
    assert_eq!(bfc_history_stop(), BFC_OK);
    open(&pool);
    assert!(is_in_use(&pool, cycle(&pool, 1000)));
}

/// A handler interrupts a thread at its magazine, and waits for the allocator, which another thread is emptying all
/// magazines for.
#[test]
fn a_signal_handler_that_waits_for_the_allocator_gets_it() {
    static DEVICE: AtomicI32 = AtomicI32::new(0);
    static STEPS: AtomicU64 = AtomicU64::new(0);
    static HANDLED: AtomicU64 = AtomicU64::new(0);
    extern "C" fn on_signal(_: i32) {
        let device = DEVICE.load(Relaxed);
        if let Ok(address) = alloc(device, 5000) {
            let _ = free(device, address);
        }
        HANDLED.fetch_add(1, Relaxed);
    }
    if !is_alone("a_signal_handler_that_waits_for_the_allocator_gets_it", &[]) {
        return;
    }
    let pool = host(64 * MIB);
    DEVICE.store(pool.device(), Relaxed);
    // SAFETY: plain data, of which all that matters is set.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    (action.sa_sigaction, action.sa_flags) = (on_signal as *const () as usize, libc::SA_RESTART);
    // SAFETY: the handler calls only the library.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) }, 0);
    let (done, (tell, told)) = (AtomicBool::new(false), mpsc::channel());
    thread::scope(|scope| {
        let _end = Finally(|| done.store(true, Relaxed));
        scope.spawn(|| {
            // SAFETY: it has no conditions.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            while !done.load(Relaxed) {
                cycle(&pool, 700);
                STEPS.fetch_add(1, Relaxed);
            }
        });
        scope.spawn(|| {
            while !done.load(Relaxed) {
                pool.stats();
            }
        });
        let thread = told.recv().unwrap();
        let (mut seen, begun) = (0, Instant::now());
        let mut since = begun;
        while begun.elapsed() < Duration::from_secs(2) {
            // SAFETY: the thread lives until `done`.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            thread::sleep(Duration::from_micros(50));
            let steps = STEPS.load(Relaxed);
            if steps != seen {
                (seen, since) = (steps, Instant::now());
            } else if since.elapsed() > Duration::from_secs(10) {
                // The threads would never end, so the test cannot either.
                eprintln!("nothing has happened for ten seconds");
                std::process::abort();
            }
        }
    });
    let seen = (HANDLED.load(Relaxed), STEPS.load(Relaxed));
    assert!(seen.0 > 10 && seen.1 > 10, "{seen:?}");
    assert_eq!(pool.stats().bytes_in_use, 0);
}

/// After a scope memory is freed by the operation that it was for.
#[test]
fn scopes_end_the_use_of_magazines() {
    if !is_alone("scopes_end_the_use_of_magazines", &[]) {
        return;
    }
    let pool = host(64 * MIB);
    open(&pool);
    let block = cycle(&pool, 1000);
    assert_eq!(scope_begin("operation", 1), BFC_OK);
    assert_ne!(cycle(&pool, 1000), block);
    assert_eq!(bfc_scope_end(), BFC_OK);
    assert!((0..3).all(|_| !is_in_use(&pool, cycle(&pool, 1000))));
    assert_eq!(pool.stats().bytes_in_use, 0);
}

#[test]
fn the_debug_mode_sees_every_request() {
    if !is_alone("the_debug_mode_sees_every_request", &[("BFC_DEBUG", "guard")]) {
        return;
    }
    let pool = host(64 * MIB);
    open(&pool);
    let block = take(&pool, 100).unwrap();
    // SAFETY: it is memory of the pool: the byte behind the request.
    unsafe { ((block + 100) as *mut u8).write(1) };
    let log = log::Collected::start();
    assert_eq!(give(&pool, block), BFC_OK);
    assert!(!log.with("100 bytes").is_empty(), "{:?}", log.messages());
}

/// Runs a function at the end, also of a test that fails: the threads of a scope must end.
struct Finally<F: Fn()>(F);

impl<F: Fn()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Runs `work` in a forked child. It may call only the library. Its result is the child's exit status, which must be 0.
#[track_caller]
fn in_child(work: impl FnOnce() -> i32) {
    // SAFETY: the child calls only the library, and ends at once.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let wrong = work();
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(wrong) };
    }
    let mut status = 0;
    // SAFETY: the child is this process's own.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
}

/// Returns which of some conditions do not hold, as bits.
fn not_so<const COUNT: usize>(conditions: [bool; COUNT]) -> i32 {
    conditions.iter().rev().fold(0, |bits, holds| 2 * bits + i32::from(!holds))
}

/// What the parent has in magazines is free memory in the child.
#[test]
fn a_forked_child_has_no_block_in_a_magazine() {
    if !is_alone("a_forked_child_has_no_block_in_a_magazine", &[]) {
        return;
    }
    let pool = host(64 * MIB);
    let blocks: Vec<u64> = (0..DEPTH).map(|_| take(&pool, 700).unwrap()).collect();
    assert!(blocks.iter().all(|&block| give(&pool, block) == BFC_OK && is_in_use(&pool, block)));
    in_child(|| {
        let stats = pool.stats();
        not_so([stats.bytes_in_use == 0, (stats.num_allocs, stats.num_frees) == (DEPTH, DEPTH)])
    });
}

/// A forked child may use what it has inherited, whatever the parent's threads were doing.
#[test]
fn a_forked_child_goes_on() {
    if !is_alone("a_forked_child_goes_on", &[]) {
        return;
    }
    let pool = host(64 * MIB);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    cycle(&pool, 700);
                }
            });
        }
        let _end = Finally(|| done.store(true, Relaxed));
        for _ in 0..40 {
            open(&pool);
            let kept = take(&pool, 700).unwrap();
            in_child(|| {
                let blocks: Vec<u64> = (0..40).filter_map(|_| take(&pool, 700).ok()).collect();
                let differ = HashSet::<u64>::from_iter(blocks.iter().copied()).len() == 40;
                let freed = blocks.iter().chain([&kept]).all(|&block| give(&pool, block) == BFC_OK);
                let checked = bfc_check(pool.device()) == BFC_OK;
                // What the parent's threads had is lost to the child: a chunk of each, of less than twice its size.
                not_so([differ, freed, checked, pool.stats().bytes_in_use < 3 * 2 * 768])
            });
            assert_eq!(give(&pool, kept), BFC_OK);
        }
    });
    assert_eq!(pool.stats().bytes_in_use, 0);
}
