//! Calls from signal handlers that interrupted a call of their own thread: BFC_ERROR_BUSY or a result, never a hang.

use crate::common::*;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

/// The calls of the handler, and their results.
static HANDLER: AtomicI32 = AtomicI32::new(0);
static DEVICE: AtomicI32 = AtomicI32::new(-1);
static OTHER: AtomicI32 = AtomicI32::new(-1);
static RUNS: AtomicU64 = AtomicU64::new(0);
static BUSY: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicI32 = AtomicI32::new(0);
static PROGRESS: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicBool = AtomicBool::new(false);
/// The number of the child that the handler forked, in the parent. 0 in that child, -1 before.
static FORKED: AtomicI32 = AtomicI32::new(-1);

fn expect(status: Status, allowed: &[Status]) {
    if status == BFC_ERROR_BUSY {
        BUSY.fetch_add(1, Relaxed);
    } else if !allowed.contains(&status) {
        WRONG.store(status, Relaxed);
    }
}

fn pair(device: i32) {
    match alloc(device, 1000) {
        Ok(address) => {
            // It could be allocated, so nothing prevents the free.
            let status = free(device, address);
            if status != BFC_OK {
                WRONG.store(status, Relaxed);
            }
        }
        Err(status) => expect(status, &[]),
    }
}

/// Memory that handlers could not free, because they would have had to wait for the thread that used the allocator.
static LEFT: [(AtomicI32, AtomicU64); 1 << 13] = [const { (AtomicI32::new(-1), AtomicU64::new(0)) }; 1 << 13];
static LEFT_COUNT: AtomicU64 = AtomicU64::new(0);

/// Like [`pair`], on an allocator that another thread uses.
fn pair_beside_others(device: i32) {
    match alloc(device, 1000) {
        Ok(address) => match free(device, address) {
            BFC_OK => {}
            BFC_ERROR_BUSY => {
                let (its_device, its_address) = &LEFT[LEFT_COUNT.fetch_add(1, Relaxed) as usize % LEFT.len()];
                its_device.store(device, Relaxed);
                its_address.store(address, Relaxed);
            }
            status => WRONG.store(status, Relaxed),
        },
        Err(status) => expect(status, &[]),
    }
}

/// Frees the memory that handlers could not free.
fn free_what_is_left() {
    let count = LEFT_COUNT.load(Relaxed) as usize;
    assert!(count <= LEFT.len(), "{count}");
    for (device, address) in &LEFT[..count] {
        assert_eq!(free(device.load(Relaxed), address.load(Relaxed)), BFC_OK);
    }
}

/// A request of PyTorch, which accesses its table of captures.
fn torch_pair() {
    let device = DEVICE.load(Relaxed);
    let address = bfc_torch_alloc(500, device, std::ptr::null_mut());
    if address.is_null() {
        expect(bfc_adapter_status(), &[]);
    } else {
        bfc_torch_free(address, 500, device, std::ptr::null_mut());
    }
    bfc_torch_end_allocate_to_pool(device, 47, 11);
    expect(bfc_adapter_status(), &[BFC_ERROR_INVALID_ARGUMENT]);
}

extern "C" fn listen(_: *mut std::ffi::c_void, _: i32, _: *const std::ffi::c_char) {}

extern "C" fn on_signal(_: i32) {
    RUNS.fetch_add(1, Relaxed);
    let (device, other) = (DEVICE.load(Relaxed), OTHER.load(Relaxed));
    match HANDLER.load(Relaxed) {
        0 => {
            pair(device);
            // Another device is never affected.
            match alloc(other, 500) {
                Ok(address) => expect(free(other, address), &[BFC_OK]),
                Err(status) => WRONG.store(1000 + status, Relaxed),
            }
            expect(free(device, 64), &[BFC_ERROR_INVALID_POINTER]);
            let begun = scope_begin("in a handler", 1);
            expect(begun, &[BFC_OK]);
            if begun == BFC_OK {
                expect(bfc_scope_end(), &[BFC_OK]);
            }
            expect(bfc_set_log_callback(Some(listen), std::ptr::null_mut()), &[BFC_OK]);
            expect(owner(64).err().unwrap_or(BFC_OK), &[BFC_ERROR_INVALID_POINTER]);
        }
        2 => torch_pair(),
        3 => [device, other].into_iter().for_each(pair_beside_others),
        _ if FORKED.load(Relaxed) == -1 => {
            // Only in the middle of a call.
            match alloc(device, 1000) {
                Ok(address) => expect(free(device, address), &[BFC_OK]),
                // SAFETY: the child continues the interrupted call, and ends.
                Err(_) => FORKED.store(unsafe { libc::fork() }, Relaxed),
            }
        }
        _ => {}
    }
}

/// Lets another thread send signals to this one while `step` runs repeatedly, until it returns that it is done.
fn under_signals(step: impl FnMut() -> bool) {
    under_signals_with(None, step);
}

/// Sends the signals like [`under_signals`], and to a second thread too, which exists meanwhile.
fn under_signals_with(second: Option<libc::pthread_t>, mut step: impl FnMut() -> bool) {
    // SAFETY: zeros are a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler only makes the tested calls.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) }, 0);
    // SAFETY: no preconditions.
    let this = unsafe { libc::pthread_self() };
    let sender = std::thread::spawn(move || {
        let (mut seen, mut since) = (0, Instant::now());
        while !DONE.load(Relaxed) {
            for thread in second.into_iter().chain([this]) {
                // SAFETY: both threads end only after this one.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            }
            std::thread::sleep(Duration::from_micros(50));
            let progress = PROGRESS.load(Relaxed);
            if progress != seen {
                (seen, since) = (progress, Instant::now());
            } else if since.elapsed() > Duration::from_secs(60) {
                eprintln!("a signal handler waits for the thread that it interrupted");
                // SAFETY: ends the process, whose other thread hangs.
                unsafe { libc::_exit(3) };
            }
        }
    });
    while step() {
        PROGRESS.fetch_add(1, Relaxed);
    }
    DONE.store(true, Relaxed);
    sender.join().expect("the sender ends");
    assert_eq!(WRONG.load(Relaxed), 0, "a handler's call answered that");
}

fn fixed_pool() -> Pool {
    fixed_pool_of(fresh_device())
}

fn fixed_pool_of(device: i32) -> Pool {
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, 16 * MIB);
    let pool = Pool::create(device, &wanted, None).unwrap_or_else(|_| panic!("{}", last_error()));
    // Nothing needs host memory later: a handler must not wait for the lock of malloc.
    let warm: Vec<u64> = (0..200).map(|_| pool.get(1000)).collect();
    warm.into_iter().for_each(|address| pool.put(address));
    pool
}

#[test]
fn handlers_are_told_that_their_thread_is_busy() {
    const TEST: &str = "handlers_are_told_that_their_thread_is_busy";
    if !child::is_child(TEST) {
        child::expect_success(TEST, &[]);
        return;
    }
    let (pool, other) = (fixed_pool(), fixed_pool());
    DEVICE.store(pool.device(), Relaxed);
    OTHER.store(other.device(), Relaxed);
    assert_eq!(scope_begin("outside", 1), BFC_OK);
    pool.put(pool.get(10));
    assert_eq!(scope_begin("in a handler", 1), BFC_OK);
    [&pool, &other].iter().for_each(|pool| pool.put(pool.get(10)));
    assert_eq!((bfc_scope_end(), bfc_scope_end()), (BFC_OK, BFC_OK));
    let mut steps = 0u64;
    under_signals(|| {
        steps += 1;
        let address = pool.get(700);
        assert_eq!(scope_begin("outside", steps), BFC_OK);
        let second = pool.get(300);
        assert_eq!(free(pool.device(), 64), BFC_ERROR_INVALID_POINTER);
        assert_eq!(bfc_set_log_callback(None, std::ptr::null_mut()), BFC_OK);
        assert_eq!(bfc_scope_end(), BFC_OK);
        pool.put(second);
        pool.put(address);
        steps < 1000 || BUSY.load(Relaxed) < 50 || RUNS.load(Relaxed) < 1000
    });
    assert_eq!(bfc_scope_end(), BFC_ERROR_INVALID_ARGUMENT, "as many ended as began");
    assert_eq!(pool.stats().bytes_in_use, 0);
    pool.check();
    other.check();
}

/// The handler of a crash may start another program in the middle of a call.
#[test]
fn a_handler_may_fork_in_the_middle_of_a_call() {
    const TEST: &str = "a_handler_may_fork_in_the_middle_of_a_call";
    if !child::is_child(TEST) {
        child::expect_success(TEST, &[]);
        return;
    }
    let pool = fixed_pool();
    HANDLER.store(1, Relaxed);
    DEVICE.store(pool.device(), Relaxed);
    under_signals(|| {
        pool.put(pool.get(700));
        if FORKED.load(Relaxed) == 0 {
            // The child, whose interrupted call has ended: the pool is its own.
            let works = (0..1000).all(|step| {
                alloc(pool.device(), 1 + step).is_ok_and(|address| free(pool.device(), address) == BFC_OK)
            });
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if works && bfc_check(pool.device()) == BFC_OK { 0 } else { 1 }) };
        }
        FORKED.load(Relaxed) == -1
    });
    let mut status = -1;
    // SAFETY: the child is this process's own, and `status` is valid for writing.
    assert_eq!(unsafe { libc::waitpid(FORKED.load(Relaxed), &mut status, 0) }, FORKED.load(Relaxed));
    assert_eq!(status, 0, "what the child found");
    pool.check();
}

/// The same for a handler that interrupted an access to the table of PyTorch's captures, which has a lock of its own.
#[test]
fn handlers_are_told_that_the_table_of_captures_is_busy() {
    const TEST: &str = "handlers_are_told_that_the_table_of_captures_is_busy";
    if !child::is_child(TEST) {
        child::expect_success(TEST, &[]);
        return;
    }
    const ID: (u64, u64) = (0, 7);
    // A CUDA ordinal, with any kind of memory.
    let pool = fixed_pool_of(3);
    HANDLER.store(2, Relaxed);
    DEVICE.store(pool.device(), Relaxed);
    // SAFETY: without a filter each request is routed to the pool.
    unsafe { bfc_torch_begin_allocate_to_pool(pool.device(), ID.0, ID.1, std::ptr::null_mut()) };
    let get = || bfc_torch_alloc(700, pool.device(), std::ptr::null_mut());
    let put = |address| bfc_torch_free(address, 700, pool.device(), std::ptr::null_mut());
    // Nothing needs host memory later.
    let warm: Vec<_> = (0..200).map(|_| get()).collect();
    assert!(warm.iter().all(|address| !address.is_null()), "{}", last_error());
    warm.into_iter().for_each(put);
    let mut steps = 0u64;
    under_signals(|| {
        steps += 1;
        let address = get();
        assert!(!address.is_null());
        put(address);
        // The table is busy but no allocator is, because most of this loop's time is spent there.
        (0..20).for_each(|_| bfc_torch_release_pool(pool.device(), 47, 11));
        steps < 1000 || BUSY.load(Relaxed) < 50 || RUNS.load(Relaxed) < 1000
    });
    bfc_torch_end_allocate_to_pool(pool.device(), ID.0, ID.1);
    bfc_torch_release_pool(pool.device(), ID.0, ID.1);
    assert_eq!(pool.stats().bytes_in_use, 0);
    pool.check();
}

/// Runs `step` in a second thread until the test is done, and gives its number to `run`.
fn with_second_thread(mut step: impl FnMut() + Send, run: impl FnOnce(libc::pthread_t)) {
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        scope.spawn(move || {
            // SAFETY: no preconditions.
            send.send(unsafe { libc::pthread_self() }).expect("the other thread waits for it");
            while !DONE.load(Relaxed) {
                step();
            }
        });
        run(receive.recv().expect("the thread has started"));
    });
}

/// Two pools, both of which each handler uses.
fn two_pools_of_handlers() -> (Pool, Pool) {
    let (pool, other) = (fixed_pool(), fixed_pool());
    HANDLER.store(3, Relaxed);
    DEVICE.store(pool.device(), Relaxed);
    OTHER.store(other.device(), Relaxed);
    (pool, other)
}

/// Each handler needs the allocator in whose call the other thread was interrupted.
#[test]
fn handlers_of_two_threads_do_not_wait_for_each_other() {
    const TEST: &str = "handlers_of_two_threads_do_not_wait_for_each_other";
    if !child::is_child(TEST) {
        child::expect_success(TEST, &[]);
        return;
    }
    let (pool, other) = two_pools_of_handlers();
    let mut steps = 0u64;
    let in_second = || other.put(other.get(700));
    with_second_thread(in_second, |second| {
        under_signals_with(Some(second), || {
            steps += 1;
            pool.put(pool.get(700));
            steps < 1000 || BUSY.load(Relaxed) < 1000 || RUNS.load(Relaxed) < 10_000
        });
    });
    free_what_is_left();
    [&pool, &other].into_iter().for_each(Pool::check);
    assert_eq!((pool.stats().bytes_in_use, other.stats().bytes_in_use), (0, 0));
}

/// A handler that interrupts a call about the history needs an allocator whose other thread records a new name.
#[test]
fn handlers_in_a_call_about_the_history_do_not_wait_for_its_users() {
    const TEST: &str = "handlers_in_a_call_about_the_history_do_not_wait_for_its_users";
    if !child::is_child(TEST) {
        child::expect_success(TEST, &[]);
        return;
    }
    let (pool, other) = two_pools_of_handlers();
    // SAFETY: NULL records into memory.
    assert_eq!(unsafe { bfc_history_start(std::ptr::null(), 1 << 16) }, BFC_OK);
    let path = std::env::temp_dir().join(format!("libbfc-signals-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let name = std::ffi::CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
    let mut names = 0;
    let in_second = || {
        names += 1;
        assert_eq!(scope_begin(&format!("operation {names}"), names), BFC_OK);
        pool.put(pool.get(700));
        assert_eq!(bfc_scope_end(), BFC_OK);
    };
    let mut steps = 0u64;
    with_second_thread(in_second, |_| {
        under_signals(|| {
            steps += 1;
            // SAFETY: a NUL-terminated string.
            assert_eq!(unsafe { bfc_history_save(name.as_ptr()) }, BFC_OK, "{}", last_error());
            std::fs::remove_file(&path).expect("the history was saved");
            other.put(other.get(700));
            steps < 30 || RUNS.load(Relaxed) < 1000
        });
    });
    [&pool, &other].into_iter().for_each(Pool::check);
}
