//! Forks: the table is consistent in the child, and no lock is left closed there.

use super::{Device, MAX_DEVICES, USED, devices_in};
use crate::error::{Error, fail};
use crate::pool::slot::waiting;
use crate::{log, scope};
use once_cell::race::OnceBool;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// When the library is loaded, for a fork runs only the handlers that were there before it began: one during
/// the first creation would leave the child with the parent's memory. Handlers registered first also run
/// last before a fork and first behind it, so that those of the program may call the library.
extern "C" fn on_load() {
    // Without host memory `create` tries again, and says so.
    let _ = survive();
}

// SAFETY: an array of such functions is what belongs there; this one calls nothing that needs another one's
// work.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// Registers the fork handlers. Two threads may both do it at first, so the handlers count how deep they
/// are; a blocking initialisation could hang a child that was forked in the middle of it.
pub(super) fn survive() -> Result<(), Error> {
    static REGISTERED: OnceBool = OnceBool::new();
    let registered = REGISTERED.get_or_try_init(|| {
        // SAFETY: the handlers are functions of this library, which is never unloaded (-z nodelete).
        let failed = unsafe {
            libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child))
        };
        if failed == 0 { Ok(true) } else { Err(fail!(Error::OutOfMemory, "pthread_atfork: no host memory")) }
    });
    registered.map(|_| ())
}

/// Which thread is forking, and how many of its handlers have run.
static FORKING: AtomicU32 = AtomicU32::new(0);
static FORK_DEPTH: AtomicU32 = AtomicU32::new(0);
/// The slots that the forking thread has locked: others may come into use while it forks.
static LOCKED: [AtomicU64; USED.len()] = [const { AtomicU64::new(0) }; USED.len()];
/// Those that it had locked before, in the call that a signal handler interrupted which now forks.
static INTERRUPTED: [AtomicU64; USED.len()] = [const { AtomicU64::new(0) }; USED.len()];

extern "C" fn before_fork() {
    // SAFETY: gettid has no preconditions.
    let thread = unsafe { libc::gettid() } as u32;
    if FORKING.load(Acquire) != thread {
        log::lock_for_fork();
        for ((locked, interrupted), used) in LOCKED.iter().zip(&INTERRUPTED).zip(&USED) {
            locked.store(used.load(Acquire), Relaxed);
            interrupted.store(0, Relaxed);
        }
        for device in devices_in(&LOCKED).filter(|device| !device.slot().lock_for_fork()) {
            LOCKED[device.word()].fetch_and(!device.bit(), Relaxed);
            INTERRUPTED[device.word()].fetch_or(device.bit(), Relaxed);
        }
        waiting::lock_for_fork();
        FORKING.store(thread, Release);
    }
    FORK_DEPTH.fetch_add(1, Relaxed);
}

extern "C" fn after_fork_in_parent() {
    if leave_fork() {
        waiting::unlock_in_parent();
        devices_in(&LOCKED).for_each(|device| device.slot().unlock_in_parent());
        log::unlock_after_fork();
    }
}

extern "C" fn after_fork_in_child() {
    if leave_fork() {
        waiting::recover_in_child();
        devices_in(&LOCKED).for_each(|device| device.slot().recover_in_child());
        devices_in(&INTERRUPTED).for_each(|device| device.slot().keep_in_child());
        // The others were not locked: any thread of the parent may have been in the middle of a call there,
        // be it of one that only finds out that there is no allocator.
        let is_locked = |device: Device| {
            let locked = LOCKED[device.word()].load(Relaxed) | INTERRUPTED[device.word()].load(Relaxed);
            locked & device.bit() != 0
        };
        (0..MAX_DEVICES).map(Device).filter(|&device| !is_locked(device)).for_each(|device| {
            device.slot().abandon_in_child();
            USED[device.word()].fetch_and(!device.bit(), Relaxed);
        });
        scope::after_fork_in_child();
        log::unlock_after_fork();
    }
}

/// Whether this was the last handler of the fork.
fn leave_fork() -> bool {
    let last = FORK_DEPTH.fetch_sub(1, Relaxed) == 1;
    if last {
        FORKING.store(0, Release);
    }
    last
}
