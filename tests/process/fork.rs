//! After `fork`: host memory works in the child like `malloc`, and any other allocator is lost there. There is never
//! a hang, or a use of the parent's memory.
//!
//! The children only call the library and end. Their findings are their exit status.

use crate::common::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Waits for a child to end, and returns its status. One that hangs is killed.
fn status_of(child: libc::pid_t) -> i32 {
    let begun = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: the child is this process's own, and `status` is valid for writing.
        let ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        if ended == child {
            return status;
        }
        assert!(ended == 0, "{}", std::io::Error::last_os_error());
        if begun.elapsed() > Duration::from_secs(20) {
            // SAFETY: the child is this process's own and has not been waited for.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs `work` in a forked child, which ends with its result.
fn in_child(work: impl FnOnce() -> u8) -> u8 {
    // SAFETY: the child only calls `work`, which uses nothing but this library, and ends without cleaning up.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let answer = work();
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(answer.into()) };
    }
    let status = status_of(child);
    assert!(libc::WIFEXITED(status), "the child hung or was killed: {status:#x}");
    libc::WEXITSTATUS(status) as u8
}

/// Uses the pool without taking a lock of the standard library. Returns 0 on success.
fn use_host_pool(device: i32, inherited: u64) -> u8 {
    // SAFETY: live host memory of this process: the parent wrote it before the fork.
    if unsafe { (inherited as *const u8).read() } != 0x5a {
        return 1;
    }
    let mut addresses = [0; 64];
    for round in 0..50 {
        for (place, address) in addresses.iter_mut().enumerate() {
            match alloc(device, 1 + place * 700 + round) {
                Ok(new) => *address = new,
                Err(status) => return 10 + status as u8,
            }
            // SAFETY: live host memory of at least one byte.
            unsafe { (*address as *mut u8).write(0xc0) };
        }
        for &address in &addresses {
            let status = free(device, address);
            if status != BFC_OK {
                return 30 + status as u8;
            }
        }
    }
    if bfc_check(device) != BFC_OK {
        return 2;
    }
    if free(device, inherited) != BFC_OK {
        return 3;
    }
    0
}

#[test]
fn a_host_pool_works_in_the_child_while_others_allocate() {
    let pool = Pool::host(GIB, |options| options.flags = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION);
    let kept = pool.get(4096);
    // SAFETY: live host memory.
    unsafe { (kept as *mut u8).write(0x5a) };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (pool, stop) = (&pool, &stop);
            scope.spawn(move || {
                let mut random = Random::new(number);
                let mut mine = Vec::new();
                while !stop.load(Relaxed) {
                    mine.push(pool.get(random.between(1, 300_000)));
                    if mine.len() > 30 {
                        mine.drain(..).for_each(|address| pool.put(address));
                        pool.trim(0);
                    }
                }
                mine.into_iter().for_each(|address| pool.put(address));
            });
        }
        for _ in 0..40 {
            assert_eq!(in_child(|| use_host_pool(pool.device(), kept)), 0);
        }
        stop.store(true, Relaxed);
    });
    pool.check();
    // SAFETY: live host memory, which the children's frees did not touch.
    assert_eq!(unsafe { (kept as *const u8).read() }, 0x5a);
    assert_eq!(pool.stats().bytes_in_use, 4096);
    pool.put(kept);
}

#[test]
fn a_custom_pool_is_lost_in_the_child() {
    let pool = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let address = pool.get(1000);
    let mut wanted = options();
    (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, MIB);
    let answer = in_child(|| {
        let device = pool.device();
        let mut out = 0;
        // SAFETY: valid out-pointers.
        let size = unsafe { bfc_allocated_size(device, pointer(address), &mut out) };
        let mut released = 0;
        // SAFETY: as above.
        let trimmed = unsafe { bfc_trim(device, 0, &mut released) };
        let statuses = [
            alloc(device, 1).err().unwrap_or(0),
            free(device, address),
            size,
            trimmed,
            bfc_check(device),
            bfc_destroy(device),
            bfc_destroy_forced(device),
            create(device, Some(&wanted)),
        ];
        statuses
            .iter()
            .position(|&status| status != BFC_ERROR_SHUTTING_DOWN)
            .map_or(0, |place| place as u8 + 1)
    });
    assert_eq!(answer, 0, "the call of that number (from 1) was not BFC_ERROR_SHUTTING_DOWN");
    pool.put(address);
    pool.check();
}

/// A fork while another thread is inside the sub-allocator, and while others wait for memory.
#[test]
fn a_fork_in_the_middle_of_an_extension() {
    let slow = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let host = Pool::host(256, |options| options.retry_timeout_ms = 60_000);
    let only = host.get(1);
    let gate = &slow.backend().gate;
    gate.close();
    std::thread::scope(|scope| {
        let extending = scope.spawn(|| slow.get(1));
        let waiting = scope.spawn(|| host.get(1));
        gate.wait_for_somebody();
        let answer = in_child(|| {
            if alloc(slow.device(), 1) != Err(BFC_ERROR_SHUTTING_DOWN) {
                return 1;
            }
            if free(host.device(), only) != BFC_OK {
                return 2;
            }
            if alloc(host.device(), 1) != Ok(only) {
                return 3;
            }
            if bfc_destroy_forced(host.device()) != BFC_OK {
                return 4;
            }
            if bfc_check(host.device()) == BFC_ERROR_NO_ALLOCATOR { 0 } else { 5 }
        });
        assert_eq!(answer, 0);
        gate.open();
        extending.join().expect("no panic");
        host.put(only);
        assert_eq!(waiting.join().expect("no panic"), only);
    });
    slow.check();
    host.check();
}

/// A fork while another thread creates and destroys: the child finds an allocator or none.
#[test]
fn a_fork_while_others_create_and_destroy() {
    let device = fresh_device();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut wanted = options();
            (wanted.backend, wanted.memory_limit) = (BFC_BACKEND_HOST, MIB);
            while !stop.load(Relaxed) {
                create(device, Some(&wanted));
                let _ = alloc(device, 1000);
                bfc_destroy_forced(device);
            }
        });
        for _ in 0..60 {
            let answer = in_child(|| {
                let fine = [BFC_OK, BFC_ERROR_NO_ALLOCATOR, BFC_ERROR_SHUTTING_DOWN];
                let statuses = [alloc(device, 1000).err().unwrap_or(BFC_OK), bfc_destroy_forced(device)];
                statuses.iter().position(|status| !fine.contains(status)).map_or(0, |place| place as u8 + 1)
            });
            assert_eq!(answer, 0);
        }
        stop.store(true, Relaxed);
    });
}

static FORKS: AtomicBool = AtomicBool::new(false);
static CHILD: AtomicI32 = AtomicI32::new(-1);

/// Forks once when it is called for a region of granules that is released. Its child returns late.
unsafe extern "C" fn forking(_: *mut c_void, _: i32, _: *mut c_void, _: usize, event: i32) {
    if event == BFC_REGION_RETURNING && FORKS.swap(false, Relaxed) {
        // SAFETY: the child returns into the call, and ends after it.
        CHILD.store(unsafe { libc::fork() }, Relaxed);
        if CHILD.load(Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// The child has the file too, and memory that it releases there belongs to the parent.
#[test]
fn a_child_of_a_callback_gives_nothing_of_the_parent_s_back() {
    const BYTES: u64 = 4 * MIB;
    let device = fresh_device();
    let mut wanted = options();
    (wanted.backend, wanted.flags, wanted.memory_limit) = (BFC_BACKEND_HOST_VMM, BFC_ALLOW_GROWTH, 64 * MIB);
    let pool = Pool::create(device, &wanted, None).unwrap_or_else(|_| panic!("{}", last_error()));
    // SAFETY: the function is this program's.
    assert_eq!(unsafe { bfc_set_region_callback(device, Some(forking), std::ptr::null_mut()) }, BFC_OK);
    pool.put(pool.get(BYTES));
    FORKS.store(true, Relaxed);
    let trimmed = pool.try_trim(0);
    if CHILD.load(Relaxed) == 0 {
        // SAFETY: the child ends at once.
        unsafe { libc::_exit(if trimmed == Err(BFC_ERROR_SHUTTING_DOWN) { 0 } else { 1 }) };
    }
    assert_eq!(trimmed, Ok(BYTES));
    let again = pool.get(BYTES);
    // SAFETY: live memory of the pool.
    let words = unsafe { std::slice::from_raw_parts_mut(again as *mut u64, BYTES as usize / 8) };
    words.fill(0x1234_5678);
    let mut status = 0;
    // SAFETY: the child is this process's own, and `status` is valid for writing.
    unsafe { libc::waitpid(CHILD.load(Relaxed), &mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    let lost = words.iter().filter(|&&word| word != 0x1234_5678).count();
    assert_eq!(lost, 0, "of {} words of live memory", words.len());
    pool.put(again);
}

/// A child's child: host memory works there too, and what is lost stays lost. Threads fork at once.
#[test]
fn children_of_children_and_of_several_threads() {
    let host = Pool::host(16 * MIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let lost = Pool::custom(Backend::new(GIB), GIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let (kept, foreign) = (host.get(1000), lost.get(1000));
    // SAFETY: live host memory.
    unsafe { (kept as *mut u8).write(0x5a) };
    let is_right = || {
        let gone = [lost.free(foreign), bfc_check(lost.device()), bfc_destroy_forced(lost.device())];
        gone == [BFC_ERROR_SHUTTING_DOWN; 3] && lost.alloc(1) == Err(BFC_ERROR_SHUTTING_DOWN)
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..8 {
                    let answer = in_child(|| {
                        let grandchild = || if is_right() { use_host_pool(host.device(), kept) } else { 200 };
                        if is_right() { in_child(grandchild) } else { 100 }
                    });
                    assert_eq!(answer, 0);
                }
            });
        }
    });
    host.put(kept);
    lost.put(foreign);
    host.check();
}

/// Runs a call whose callback forks, in the parent and in the child that comes back out of the callback. Ends the child,
/// whose findings are those of `in_child`, and returns the parent's result.
fn with_a_fork_inside<T>(call: impl FnOnce() -> T, in_child: impl FnOnce(T) -> bool) -> T {
    FORKED.store(-1, Relaxed);
    let result = call();
    let child = FORKED.load(Relaxed);
    if child == 0 {
        // SAFETY: the child ends at once.
        unsafe { libc::_exit(if in_child(result) { 0 } else { 1 }) };
    }
    assert!(child > 0, "the callback was called: {child}");
    let status = status_of(child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
    result
}

/// The child of [`with_a_fork_inside`], 0 in the child, -1 before the fork. Only one test of a process uses it.
static FORKED: AtomicI32 = AtomicI32::new(-1);

/// Forks, the first time that it is called.
fn fork_here() {
    if FORKED.load(Relaxed) == -1 {
        // SAFETY: the child returns into the call, and ends after it.
        FORKED.store(unsafe { libc::fork() }, Relaxed);
    }
}

extern "C" fn forking_listener(_: *mut c_void, _: i32, _: *const std::ffi::c_char) {
    fork_here();
}

/// A child that comes back out of a suballocator's function has lost the allocator, and returns no region, which is the
/// parent's. One that comes back out of the log callback has its copy of host memory.
#[test]
fn a_child_comes_back_out_of_a_callback() {
    const NAME: &str = "a_child_comes_back_out_of_a_callback";
    if !child::is_child(NAME) {
        child::expect_success(NAME, &[("BFC_LOG", "debug")]);
        return;
    }
    static IN_RETURNS: AtomicBool = AtomicBool::new(false);
    FORKED.store(0, Relaxed);
    let mut next = 1 << 44;
    let backend = Backend::scripted(move |_, _, bytes| {
        fork_here();
        next += GIB;
        Some((next, bytes))
    });
    let backend = backend.on_return(|| {
        if IN_RETURNS.load(Relaxed) {
            fork_here();
        }
    });
    let pool = Pool::custom(backend, GIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let is_lost =
        || pool.free(64) == BFC_ERROR_SHUTTING_DOWN && pool.alloc(1) == Err(BFC_ERROR_SHUTTING_DOWN);
    let shutting_down = |found: Result<u64, Status>| found == Err(BFC_ERROR_SHUTTING_DOWN) && is_lost();
    let first = with_a_fork_inside(|| pool.alloc(2 * MIB), shutting_down).expect("in the parent");
    let second = pool.get(4 * MIB);
    [first, second].into_iter().for_each(|address| pool.put(address));
    IN_RETURNS.store(true, Relaxed);
    let returned = || pool.backend().books(|books| books.returned.len());
    let trimmed = with_a_fork_inside(|| pool.try_trim(0), |found| shutting_down(found) && returned() == 1);
    assert_eq!((trimmed, returned()), (Ok(6 * MIB), 2));

    let host = Pool::host(16 * MIB, |options| options.flags = BFC_ALLOW_GROWTH);
    host.put(host.get(MIB));
    assert_eq!(bfc_set_log_callback(Some(forking_listener), std::ptr::null_mut()), BFC_OK);
    let works = || host.alloc(MIB).is_ok_and(|address| host.free(address) == BFC_OK);
    let released = with_a_fork_inside(
        || host.try_trim(0),
        |found| found == Ok(2 * MIB) && works() && bfc_check(host.device()) == BFC_OK,
    );
    assert_eq!((released, works()), (Ok(2 * MIB), true));
    bfc_set_log_callback(None, std::ptr::null_mut());
}

/// That a process was forked is noticed without a system call in each operation. In strict mode the kernel kills a
/// process at any system call but read, write and the exit of a thread.
#[test]
fn pairs_in_a_child_make_no_system_call() {
    const MODE_STRICT: u64 = 1;
    const WELL: i32 = 7;
    let pool = Pool::host(16 * MIB, |options| options.flags = BFC_ALLOW_GROWTH);
    pool.put(pool.get(1000));
    let pairs = |stream: u64, count: u32| {
        (0..count).all(|_| {
            let plain = pool.alloc(1000).is_ok_and(|address| pool.free(address) == BFC_OK);
            let ordered = pool.alloc_on(1000, stream);
            plain && ordered.is_ok_and(|address| pool.free_on(address, stream) == BFC_OK)
        })
    };
    let end_of = |stream: u64, asks_the_kernel: bool| {
        // SAFETY: the child only calls the library, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // What is obtained once, is.
            let mut is_right = pairs(stream, 1);
            // SAFETY: it restricts the child only.
            is_right &= unsafe { libc::prctl(libc::PR_SET_SECCOMP, MODE_STRICT) } == 0;
            is_right &= pairs(stream, 100_000);
            if asks_the_kernel {
                // SAFETY: no preconditions.
                unsafe { libc::syscall(libc::SYS_getppid) };
            }
            // SAFETY: it ends the child's only thread; the end of the process would be another call.
            unsafe { libc::syscall(libc::SYS_exit, if is_right { WELL } else { 1 }) };
        }
        status_of(child)
    };
    for stream in [0, 0x5000, 2] {
        let status = end_of(stream, false);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == WELL, "{stream:#x}: {status:#x}");
    }
    assert!(libc::WTERMSIG(end_of(0, true)) == libc::SIGKILL, "a system call is noticed");
}
