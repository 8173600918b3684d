//! Forks in signal handlers that interrupted a call, while other threads hold locks. They never hang, and in the child
//! the allocator of the interrupted call continues to work, while one that another thread was changing is lost.

use crate::common::*;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::*};
use std::sync::mpsc;
use std::thread::Scope;
use std::time::Duration;

/// The devices of the main thread, and of the other one.
static OWN: AtomicI32 = AtomicI32::new(-1);
static OTHER: AtomicI32 = AtomicI32::new(-1);
static MAIN: AtomicU64 = AtomicU64::new(0);
/// The other thread is in a handler that interrupted a change of its allocator.
static OTHER_STANDS: AtomicBool = AtomicBool::new(false);
/// The main thread is in one, and whether the other one may fork then.
static MAIN_STANDS: AtomicBool = AtomicBool::new(false);
static OTHER_FORKS: AtomicBool = AtomicBool::new(false);
/// The number of the child that the main thread's handler forked, in the parent. 0 in that child, -1 before.
static FORKED: AtomicI32 = AtomicI32::new(-1);
static DONE: AtomicBool = AtomicBool::new(false);

fn this_thread() -> u64 {
    // SAFETY: no preconditions.
    unsafe { libc::pthread_self() }
}

fn moment() {
    std::thread::sleep(Duration::from_millis(1));
}

/// Returns whether the signal interrupted a change of that allocator.
fn is_in_a_change(device: i32) -> bool {
    match alloc(device, 1000) {
        Ok(address) => free(device, address) == BFC_ERROR_BUSY,
        Err(status) => status == BFC_ERROR_BUSY,
    }
}

extern "C" fn on_signal(_: i32) {
    if FORKED.load(Relaxed) != -1 {
        return;
    }
    if this_thread() == MAIN.load(Relaxed) {
        let is_time = OTHER_STANDS.load(Relaxed) || OTHER_FORKS.load(Relaxed);
        if !is_time || !is_in_a_change(OWN.load(Relaxed)) {
            return;
        }
        MAIN_STANDS.store(true, Relaxed);
        if OTHER_FORKS.load(Relaxed) {
            // So that the other thread is in the middle of its fork, and waits for the locks of this one.
            std::thread::sleep(Duration::from_millis(300));
        }
        // SAFETY: the child continues the interrupted call, and ends.
        FORKED.store(unsafe { libc::fork() }, Relaxed);
    } else if !OTHER_FORKS.load(Relaxed) && is_in_a_change(OTHER.load(Relaxed)) {
        OTHER_STANDS.store(true, Relaxed);
        while FORKED.load(Relaxed) == -1 {
            moment();
        }
    }
}

fn fixed_pool() -> Pool {
    let pool = Pool::host(16 * MIB, |_| {});
    // Nothing needs host memory later: a handler must not wait for the lock of malloc.
    let warm: Vec<u64> = (0..200).map(|_| pool.get(1000)).collect();
    warm.into_iter().for_each(|address| pool.put(address));
    pool
}

/// The pools of this thread, which forks, and of another one.
fn pools_of_two_threads() -> (Pool, Pool) {
    let (own, other) = (fixed_pool(), fixed_pool());
    OWN.store(own.device(), Relaxed);
    OTHER.store(other.device(), Relaxed);
    MAIN.store(this_thread(), Relaxed);
    (own, other)
}

/// Starts a thread that changes a pool until the handler has forked.
fn use_in_thread<'a>(scope: &'a Scope<'a, '_>, pool: &'a Pool) -> u64 {
    let (sender, receiver) = mpsc::channel();
    scope.spawn(move || {
        sender.send(this_thread()).expect("the receiver waits");
        while FORKED.load(Relaxed) == -1 {
            pool.put(pool.get(700));
        }
    });
    receiver.recv().expect("the thread lives")
}

/// Sends both threads signals, and ends a process that hangs.
fn send_signals(threads: [u64; 2]) {
    // SAFETY: zeros are a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler only makes the tested calls.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) }, 0);
    std::thread::spawn(move || {
        let begun = std::time::Instant::now();
        while !DONE.load(Relaxed) {
            if FORKED.load(Relaxed) == -1 {
                for thread in threads {
                    // SAFETY: the threads end only after this one.
                    unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                }
            }
            std::thread::sleep(Duration::from_micros(50));
            if begun.elapsed() > Duration::from_secs(100) {
                eprintln!("a fork waits forever");
                // SAFETY: ends the process, whose other threads hang.
                unsafe { libc::_exit(3) };
            }
        }
    });
}

/// In the child of the main thread's handler, after the interrupted call has ended: returns the failed check, or 0.
fn judge_child() -> i32 {
    // SAFETY: a child that hangs is ended by it.
    unsafe { libc::alarm(20) };
    let (own, other) = (OWN.load(Relaxed), OTHER.load(Relaxed));
    let works = |step: usize| alloc(own, 1 + step).is_ok_and(|address| free(own, address) == BFC_OK);
    match () {
        () if !(0..1000).all(works) || bfc_check(own) != BFC_OK => 1,
        () if alloc(other, 1) != Err(BFC_ERROR_SHUTTING_DOWN) => 2,
        () if free(other, 256) != BFC_ERROR_SHUTTING_DOWN => 3,
        () if bfc_destroy_forced(other) != BFC_ERROR_SHUTTING_DOWN => 4,
        // For both allocators, one of which cannot be queried, which must not hang either.
        () if owner(64) != Err(BFC_ERROR_INVALID_POINTER) => 5,
        () => 0,
    }
}

fn expect_success_of(child: i32) {
    let mut status = -1;
    // SAFETY: the child is this process's own, and `status` is valid for writing.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "what the child found");
}

/// Uses its own allocator until the handler has forked. Ends the child.
fn use_until_forked(pool: &Pool) {
    while FORKED.load(Relaxed) == -1 {
        pool.put(pool.get(700));
    }
    if FORKED.load(Relaxed) == 0 {
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(judge_child()) };
    }
}

/// Two threads are interrupted, each in a change of an allocator of its own. One forks in its handler, and the other does
/// not leave its handler before that.
#[test]
fn a_fork_waits_for_no_thread_that_is_interrupted() {
    const TEST: &str = "a_fork_waits_for_no_thread_that_is_interrupted";
    if !child::is_child(TEST) {
        child::expect_success(TEST, &[]);
        return;
    }
    let (own, other) = pools_of_two_threads();
    std::thread::scope(|scope| {
        send_signals([this_thread(), use_in_thread(scope, &other)]);
        use_until_forked(&own);
        DONE.store(true, Relaxed);
    });
    expect_success_of(FORKED.load(Relaxed));
    // In the parent nothing is lost.
    [&own, &other].iter().for_each(|pool| pool.put(pool.get(10)));
    [&own, &other].iter().for_each(|pool| pool.check());
}

/// Another thread is in the middle of a fork, and waits for the allocator in which the thread was interrupted whose
/// handler forks too.
#[test]
fn two_forks_do_not_wait_for_each_other() {
    const TEST: &str = "two_forks_do_not_wait_for_each_other";
    if !child::is_child(TEST) {
        child::expect_success(TEST, &[]);
        return;
    }
    let (own, other) = pools_of_two_threads();
    OTHER_FORKS.store(true, Relaxed);
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let (own, other) = (&own, &other);
        let forking = scope.spawn(move || {
            sender.send(this_thread()).expect("the receiver waits");
            while !MAIN_STANDS.load(Relaxed) {
                moment();
            }
            // SAFETY: the child only uses this library, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let works = |device| alloc(device, 1).is_ok_and(|address| free(device, address) == BFC_OK);
                let all = [own, other].iter().all(|pool| works(pool.device()));
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if all { 0 } else { 9 }) };
            }
            child
        });
        send_signals([this_thread(), receiver.recv().expect("the thread lives")]);
        use_until_forked(own);
        DONE.store(true, Relaxed);
        expect_success_of(forking.join().expect("no panic"));
    });
    expect_success_of(FORKED.load(Relaxed));
    [&own, &other].iter().for_each(|pool| pool.put(pool.get(10)));
    [&own, &other].iter().for_each(|pool| pool.check());
    // And the next fork is an ordinary one.
    // SAFETY: the child only uses this library, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let works = alloc(own.device(), 1).is_ok() && alloc(other.device(), 1).is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!works)) };
    }
    expect_success_of(child);
}

/// Another thread is in a handler that interrupted a change of its allocator.
#[test]
fn the_next_fork_does_not_wait_as_long_for_the_same_thread() {
    const TEST: &str = "the_next_fork_does_not_wait_as_long_for_the_same_thread";
    if !child::is_child(TEST) {
        child::expect_success(TEST, &[]);
        return;
    }
    let (_own, other) = pools_of_two_threads();
    std::thread::scope(|scope| {
        send_signals([use_in_thread(scope, &other); 2]);
        while !OTHER_STANDS.load(Relaxed) {
            moment();
        }
        let took = [(); 2].map(|()| {
            let begun = std::time::Instant::now();
            // SAFETY: the child only uses this library, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(judge_child()) };
            }
            let took = begun.elapsed();
            expect_success_of(child);
            took
        });
        FORKED.store(0, Relaxed);
        DONE.store(true, Relaxed);
        assert!(took[0] > Duration::from_secs(9) && took[1] < Duration::from_secs(6), "{took:?}");
    });
}
