//! `BFC_TRIM_AFTER`: a thread of the library releases the free memory of an idle pool.

use crate::common::adapters::{end, stats_of};
use crate::common::gpu::Gpu;
use crate::common::log::Collected;
use crate::common::simcuda::simulated_with;
use crate::common::simcuda::steer::FREE_SYNCHRONIZES;
use crate::common::*;
use std::ffi::c_void;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// Far longer than anything here takes.
const EVER: Duration = Duration::from_secs(30);

/// Waits until `is_so`, however busy the machine is.
#[track_caller]
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < EVER, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the ids of the threads of this process that release memory.
fn trimmers() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let named = |task: &std::path::PathBuf| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "bfc-trim")
    };
    tasks.filter(named).map(|task| task.display().to_string()).collect()
}

/// Runs a test in a child with the variable.
#[track_caller]
fn with_trim_after(test: &str, seconds: &str, work: impl FnOnce()) {
    if child::is_child(test) {
        return work();
    }
    child::expect_success(test, &[("BFC_TRIM_AFTER", seconds), ("BFC_LOG", "info")]);
}

fn growing(options: &mut bfc_options_t) {
    options.flags = GROWING;
}

#[test]
fn an_idle_pool_keeps_what_is_in_use_only() {
    with_trim_after("an_idle_pool_keeps_what_is_in_use_only", "0.05", || {
        let pools = [
            Pool::host(GIB, growing),
            Pool::on_device(fresh_device(), |options| {
                (options.backend, options.flags, options.memory_limit) = (BFC_BACKEND_HOST_VMM, GROWING, GIB);
            }),
        ];
        for round in 0..3 {
            for pool in &pools {
                let kept = pool.get(MIB);
                // SAFETY: live host memory.
                unsafe { (kept as *mut u8).write_bytes(round, MIB as usize) };
                let others: Vec<u64> = (1..20).map(|number| pool.get(number * MIB)).collect();
                others.into_iter().for_each(|chunk| pool.put(chunk));
                assert!(pool.stats().pool_bytes > 150 * MIB);
                eventually("the rest goes back", || pool.stats().pool_bytes <= 4 * MIB);
                // SAFETY: live host memory.
                let bytes = unsafe { std::slice::from_raw_parts(kept as *const u8, MIB as usize) };
                assert!(bytes.iter().all(|&byte| byte == round));
                pool.check();
                pool.put(kept);
                eventually("all of it goes back", || pool.stats().pool_bytes == 0);
            }
        }
        assert_eq!(trimmers().len(), 1, "one thread for all");
    });
}

#[test]
fn without_the_variable_there_is_no_thread_and_nothing_goes_back() {
    let test = "without_the_variable_there_is_no_thread_and_nothing_goes_back";
    if !child::is_child(test) {
        for variables in [&[][..], &[("BFC_TRIM_AFTER", "0")], &[("BFC_TRIM_AFTER", "soon")]] {
            child::expect_success(test, variables);
        }
        return;
    }
    let pool = Pool::host(GIB, growing);
    pool.put(pool.get(64 * MIB));
    assert_eq!((trimmers().len(), pool.stats().pool_bytes), (0, 64 * MIB));
}

/// The program's signal handlers run in its own threads.
#[test]
fn the_thread_blocks_all_signals() {
    with_trim_after("the_thread_blocks_all_signals", "60", || {
        let _pool = Pool::host(GIB, growing);
        eventually("the thread has its name", || !trimmers().is_empty());
        let status = fs::read_to_string(format!("{}/status", trimmers()[0])).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        let blocked = u64::from_str_radix(blocked, 16).unwrap();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGCHLD, libc::SIGALRM] {
            assert_ne!(blocked >> (signal - 1) & 1, 0, "signal {signal}");
        }
    });
}

fn with_stamps(options: &mut bfc_options_t) {
    options.flags = GROWING | BFC_TIMESTAMPS | BFC_QUARANTINE;
}

/// Many times as long as a pool here must be idle.
fn rest() {
    std::thread::sleep(Duration::from_millis(300));
}

#[test]
fn memory_goes_back_when_the_frontier_rises() {
    with_trim_after("memory_goes_back_when_the_frontier_rises", "0.05", || {
        let pool = Pool::host(GIB, with_stamps);
        pool.put(pool.get(100 * MIB));
        rest();
        assert!(pool.stats().pool_bytes >= 100 * MIB, "something may still use it");
        assert_eq!(bfc_set_safe_frontier(pool.device(), u64::MAX), BFC_OK);
        eventually("it goes back", || pool.stats().pool_bytes == 0);
    });
}

#[test]
fn memory_goes_back_when_a_stream_is_declared_done() {
    with_trim_after("memory_goes_back_when_a_stream_is_declared_done", "0.05", || {
        let pool = Pool::host(GIB, growing);
        let stream = |number: usize| pointer(number as u64);
        for number in [7, 8] {
            let mut block = pointer(0);
            let bytes = 100 * MIB as usize;
            // SAFETY: the pointer is valid for writing.
            assert_eq!(unsafe { bfc_alloc_async(pool.device(), bytes, stream(number), &mut block) }, BFC_OK);
            assert_eq!(bfc_free_async(pool.device(), block, stream(number)), BFC_OK);
        }
        rest();
        assert!(pool.stats().pool_bytes >= 100 * MIB, "their work may still use it");
        for number in [7, 8] {
            assert_eq!(bfc_stream_synchronized(pool.device(), stream(number)), BFC_OK);
        }
        eventually("it goes back", || pool.stats().pool_bytes == 0);
    });
}

static CALLED: AtomicU64 = AtomicU64::new(0);
static IS_DONE: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn settle(pool: *mut c_void, device: i32) {
    CALLED.fetch_add(1, SeqCst);
    assert_eq!(pool.addr(), 77);
    assert_eq!([bfc_destroy(device), bfc_destroy_forced(device)], [BFC_ERROR_BUSY; 2]);
    // SAFETY: nothing is called afterwards.
    assert_eq!(unsafe { bfc_set_idle_callback(device, None, pointer(0)) }, BFC_ERROR_BUSY);
    if IS_DONE.load(SeqCst) {
        let mut stamp = 0;
        // SAFETY: the pointer is valid for writing.
        assert_eq!(unsafe { bfc_timestamp(device, &mut stamp) }, BFC_OK);
        assert_eq!(bfc_set_safe_frontier(device, stamp + 1), BFC_OK);
    }
}

/// The callback declares completed work. It is called repeatedly while memory waits, and not afterwards.
#[test]
fn the_callback_may_settle_what_waits() {
    with_trim_after("the_callback_may_settle_what_waits", "0.05", || {
        let pool = Pool::host(GIB, with_stamps);
        // SAFETY: the function may be called with that number from any thread.
        assert_eq!(unsafe { bfc_set_idle_callback(pool.device(), Some(settle), pointer(77)) }, BFC_OK);
        rest();
        assert_eq!(CALLED.load(SeqCst), 0, "there is nothing to give back");
        pool.put(pool.get(100 * MIB));
        eventually("it is called again", || CALLED.load(SeqCst) > 2);
        assert!(pool.stats().pool_bytes >= 100 * MIB);
        IS_DONE.store(true, SeqCst);
        eventually("it goes back", || pool.stats().pool_bytes == 0);
        rest();
        let called = CALLED.load(SeqCst);
        rest();
        assert_eq!(CALLED.load(SeqCst), called, "nothing waits");
        // SAFETY: nothing is called afterwards.
        assert_eq!(unsafe { bfc_set_idle_callback(pool.device(), None, pointer(0)) }, BFC_OK);
        pool.put(pool.get(100 * MIB));
        rest();
        assert_eq!(CALLED.load(SeqCst), called);
    });
}

static LOOKED: AtomicU64 = AtomicU64::new(0);
static IS_STREAM_DONE: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn look(_: *mut c_void, device: i32) {
    LOOKED.fetch_add(1, SeqCst);
    if IS_STREAM_DONE.load(SeqCst) {
        assert_eq!(bfc_stream_synchronized(device, pointer(7)), BFC_OK);
    }
}

/// The same for host memory that waits for the only stream.
#[test]
fn the_callback_is_called_again_while_a_stream_works() {
    with_trim_after("the_callback_is_called_again_while_a_stream_works", "0.05", || {
        let pool = Pool::host(GIB, growing);
        // SAFETY: the function may be called from any thread.
        assert_eq!(unsafe { bfc_set_idle_callback(pool.device(), Some(look), pointer(0)) }, BFC_OK);
        pool.put_on(pool.get_on(100 * MIB, 7), 7);
        eventually("it is called again", || LOOKED.load(SeqCst) > 2);
        assert!(pool.stats().pool_bytes >= 100 * MIB);
        IS_STREAM_DONE.store(true, SeqCst);
        eventually("it goes back", || pool.stats().pool_bytes == 0);
        rest();
        let looked = LOOKED.load(SeqCst);
        rest();
        assert_eq!(LOOKED.load(SeqCst), looked, "nothing waits");
    });
}

static FREES: AtomicU64 = AtomicU64::new(0);
static MAY_RETURN: AtomicBool = AtomicBool::new(false);

unsafe extern "C" fn give(
    _: *mut c_void,
    alignment: usize,
    bytes: usize,
    received: *mut usize,
) -> *mut c_void {
    let layout = std::alloc::Layout::from_size_align(bytes, alignment.max(256)).unwrap();
    // SAFETY: the library passes a valid pointer.
    unsafe { received.write(bytes) };
    // SAFETY: a region is never of 0 bytes.
    unsafe { std::alloc::alloc(layout).cast() }
}

/// Frees the region once the test permits it. The memory itself is left until the end of the process.
unsafe extern "C" fn take_slowly(_: *mut c_void, _: *mut c_void, _: usize) {
    FREES.fetch_add(1, SeqCst);
    eventually("the test lets it go on", || MAY_RETURN.load(SeqCst));
}

/// While the backend is slow to free a region, requests are served from the others, and the pool is no longer idle:
/// no further region is released.
#[test]
fn a_request_meanwhile_does_not_wait_and_ends_it() {
    with_trim_after("a_request_meanwhile_does_not_wait_and_ends_it", "0.3", || {
        let (device, log) = (fresh_device(), Collected::start());
        let functions = backend::functions(&FREES, Some(give), Some(take_slowly), false);
        let mut wanted = options();
        (wanted.backend, wanted.memory_limit, wanted.flags) = (BFC_BACKEND_CUSTOM, GIB, GROWING);
        (wanted.suballocator, wanted.growth_policy) = (&functions, BFC_GROWTH_NEED);
        assert_eq!(create(device, Some(&wanted)), BFC_OK, "{}", last_error());
        let chunks = [80, 81, 82].map(|size| alloc(device, size * MIB as usize).unwrap());
        let held = stats_of(device).pool_bytes;
        chunks.iter().for_each(|&chunk| assert_eq!(free(device, chunk), BFC_OK));
        eventually("a region goes back", || FREES.load(SeqCst) == 1);
        let chunk = alloc(device, 81 * MIB as usize).unwrap();
        assert_eq!(free(device, chunk), BFC_OK);
        assert_eq!((FREES.load(SeqCst), MAY_RETURN.load(SeqCst)), (1, false), "it was served meanwhile");
        MAY_RETURN.store(true, SeqCst);
        eventually("the pool is idle again", || stats_of(device).pool_bytes == 0);
        eventually("both times are logged", || log.with("idle for").len() == 2);
        let told = log.with("idle for");
        assert!(told[0].contains(&format!("gave {} bytes back", 80 * MIB)), "{told:?}");
        assert!(told[1].contains(&format!("gave {} bytes back", held - 80 * MIB)), "{told:?}");
        assert_eq!(bfc_destroy(device), BFC_OK);
    });
}

#[test]
fn memory_is_kept_while_a_stream_is_captured() {
    let variables = [("BFC_TRIM_AFTER", "0.05"), ("BFC_LOG", "info")];
    simulated_with("memory_is_kept_while_a_stream_is_captured", &variables, |sim| {
        for backend in [BFC_BACKEND_CUDA, BFC_BACKEND_CUDA_VMM] {
            let gpu = Gpu::new(sim);
            gpu.enter(0);
            let mut wanted = options();
            (wanted.backend, wanted.memory_limit, wanted.flags) = (backend, GIB, GROWING);
            assert_eq!(create(0, Some(&wanted)), BFC_OK, "{}", last_error());
            assert_eq!(bfc_capture_begin(), BFC_OK);
            let chunk = alloc(0, 100 * MIB as usize).unwrap();
            assert_eq!(free(0, chunk), BFC_OK);
            // Several times as long as the pool must be idle.
            std::thread::sleep(Duration::from_millis(300));
            assert!(stats_of(0).pool_bytes >= 100 * MIB);
            assert_eq!(bfc_capture_end(), BFC_OK);
            eventually("it goes back after the capture", || stats_of(0).pool_bytes == 0);
            end(0);
            gpu.leave(0);
        }
        sim.assert_clean();
    });
}

/// The thread does not wait for work of a context that the program created. Nothing else is called when it ends.
#[test]
fn memory_goes_back_when_the_work_of_another_context_is_done() {
    let variables = [("BFC_TRIM_AFTER", "0.05")];
    simulated_with("memory_goes_back_when_the_work_of_another_context_is_done", &variables, |sim| {
        let gpu = Gpu::new(sim);
        // Otherwise releasing the other memory waits for all work.
        sim.set(FREE_SYNCHRONIZES, 0);
        let own = gpu.enter(0);
        let pool = Pool::on_device(0, |options| {
            (options.backend, options.memory_limit, options.flags) = (BFC_BACKEND_CUDA, GIB, GROWING);
        });
        let here = gpu.stream(false);
        let foreign = gpu.own_context(0);
        let there = gpu.stream(false);
        let (first, second) = (pool.get_on(MIB, here), pool.get_on(100 * MIB, there));
        gpu.hold(there);
        pool.put_on(second, there);
        gpu.set_current(own);
        pool.put_on(first, here);
        // Several times as long as the pool must be idle.
        std::thread::sleep(Duration::from_millis(300));
        assert!(pool.stats().pool_bytes >= 100 * MIB);
        sim.release_all();
        eventually("it goes back", || pool.stats().pool_bytes == 0);
        assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
        [here, there].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        gpu.destroy_context(foreign);
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// The thread waits for a receive that is pending. The program, which sends only later, needs more memory.
#[test]
fn no_request_waits_for_the_thread_while_it_waits_for_the_device() {
    let variables = [
        ("BFC_TRIM_AFTER", "0.05"),
        ("SIMCUDA_SYNCHRONIZE_WAITS", "1"),
        ("SIMCUDA_DEADLOCK_MILLISECONDS", "2000"),
    ];
    simulated_with("no_request_waits_for_the_thread_while_it_waits_for_the_device", &variables, |sim| {
        let gpu = Gpu::new(sim);
        gpu.enter(0);
        for (backend, unit) in [(BFC_BACKEND_CUDA, KIB), (BFC_BACKEND_CUDA_VMM, 64 * KIB)] {
            let (comm, compute) = (gpu.stream(false), gpu.stream(false));
            let pool = Pool::in_small_regions(backend, 0, 1024 * unit, GROWING);
            let kept = pool.get_on(unit, compute);
            pool.put_on(pool.get_on(100 * unit, compute), compute);
            gpu.synchronize_context();
            // On a stream unknown to the allocator.
            assert_eq!(sim.receive(pointer(comm), 5), 0);
            let calls = sim.calls("cuCtxSynchronize");
            eventually("it waits", || sim.calls("cuCtxSynchronize") != calls);
            let more = pool.get_on(200 * unit, compute);
            assert_eq!(sim.send(pointer(compute), 5), 0);
            [more, kept].into_iter().for_each(|chunk| pool.put_on(chunk, compute));
            assert_eq!(pool.destroy(), BFC_OK, "{}", last_error());
            [comm, compute].into_iter().for_each(|stream| gpu.destroy_stream(stream));
        }
        gpu.leave(0);
        sim.assert_clean();
    });
}

/// A child has no such thread, until it creates an allocator.
#[test]
fn a_forked_child_starts_its_own() {
    with_trim_after("a_forked_child_starts_its_own", "0.05", || {
        let inherited = Pool::host(GIB, growing);
        eventually("there is a thread", || !trimmers().is_empty());
        inherited.put(inherited.get(8 * MIB));
        // SAFETY: the child only uses this library and the file system, and ends without cleaning up.
        let child = unsafe { libc::fork() };
        if child == 0 {
            assert!(trimmers().is_empty());
            let own = Pool::host(GIB, growing);
            own.put(own.get(8 * MIB));
            inherited.put(inherited.get(9 * MIB));
            eventually("own and inherited memory goes back", || {
                own.stats().pool_bytes + inherited.stats().pool_bytes == 0
            });
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(7) };
        }
        let mut status = 0;
        // SAFETY: the child is this process's own, and `status` is valid for writing.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{status:#x}");
    });
}

/// Allocators are created and destroyed while the thread examines them.
#[test]
fn allocators_come_and_go() {
    with_trim_after("allocators_come_and_go", "0.001", || {
        let devices = [fresh_device(), fresh_device(), fresh_device()];
        std::thread::scope(|scope| {
            for device in devices {
                scope.spawn(move || {
                    let mut wanted = options();
                    (wanted.backend, wanted.memory_limit, wanted.flags) = (BFC_BACKEND_HOST, GIB, GROWING);
                    for round in 0..300 {
                        assert_eq!(create(device, Some(&wanted)), BFC_OK, "{}", last_error());
                        let chunks: Vec<u64> =
                            (1..10).map(|size| alloc(device, size * 300_000).unwrap()).collect();
                        if round % 3 == 0 {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        chunks.into_iter().for_each(|chunk| assert_eq!(free(device, chunk), BFC_OK));
                        assert_eq!(bfc_check(device), BFC_OK, "{}", last_error());
                        assert_eq!(bfc_destroy(device), BFC_OK, "{}", last_error());
                    }
                });
            }
        });
        assert_eq!(trimmers().len(), 1);
    });
}
