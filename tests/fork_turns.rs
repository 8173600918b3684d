//! Forks that wait for other forks never lose an allocator, however long the others take.

mod common;

use common::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Longer than a fork waits for an allocator that is being changed.
const LONG: Duration = Duration::from_secs(11);

/// Makes the next fork slow.
static IS_SLOW: AtomicBool = AtomicBool::new(false);
/// It has begun.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Runs in the parent of a fork before the library's own handler, to simulate a slow system.
extern "C" fn after_fork_in_parent() {
    if IS_SLOW.swap(false, Relaxed) {
        HAS_BEGUN.store(true, Relaxed);
        std::thread::sleep(LONG);
    }
}

extern "C" fn register() {
    // SAFETY: the handler is a function of this program.
    assert_eq!(unsafe { libc::pthread_atfork(None, Some(after_fork_in_parent), None) }, 0);
}

// SAFETY: the section holds an array of such functions. Those with a number run before those without one, like the
// library's.
#[used]
#[unsafe(link_section = ".init_array.00200")]
static REGISTER: extern "C" fn() = register;

/// Forks a child that uses the allocator.
fn fork_and_use(device: i32) -> i32 {
    // SAFETY: the child only uses this library, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let works =
            |step: usize| alloc(device, 1 + step).is_ok_and(|address| free(device, address) == BFC_OK);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(0..100).all(works))) };
    }
    child
}

#[track_caller]
fn expect_success_of(child: i32) {
    let mut status = -1;
    // SAFETY: the child is this process's own, and `status` is valid for writing.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child has no allocator");
}

#[test]
fn a_fork_waits_for_another_as_long_as_that_takes() {
    let pool = Pool::host(GIB, |options| options.flags = BFC_ALLOW_GROWTH);
    let device = pool.device();
    IS_SLOW.store(true, Relaxed);
    std::thread::scope(|scope| {
        let slow = scope.spawn(move || fork_and_use(device));
        while !HAS_BEGUN.load(Relaxed) {
            std::thread::yield_now();
        }
        expect_success_of(fork_and_use(device));
        expect_success_of(slow.join().expect("no panic"));
    });
    pool.check();
}
