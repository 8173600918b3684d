//! Fork handling: in the child the table is consistent and no lock is left held.

use super::table::{Device, MAX_DEVICES, USED, devices_in};
use crate::error::{ErrorKind, fail};
use crate::pool::slot::waiting;
use crate::sys::clock::monotonic_ms;
use crate::sys::lock::{Lock, NotTaken};
use crate::sys::{process, token};
use crate::{global, history, log, publish, scope};
use once_cell::race::OnceBool;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

/// Runs when the library is loaded. A fork runs only handlers registered before it began, so one during the first
/// creation would otherwise leave the child with the parent's memory. Handlers registered first also run last before a
/// fork and first after it, so the program's own handlers may call the library.
extern "C" fn on_load() {
    // Without host memory, `create` tries again and reports it.
    let _ = survive();
}

// SAFETY: the section holds an array of such functions. This one does not depend on the work of any other.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// Registers the fork handlers, for what is not an allocator of the table. Without host memory for them it does not.
pub(crate) fn survive_forks() {
    let _ = survive();
}

/// Registers the fork handlers. Two threads may both register them at first, so the handlers count their nesting. A
/// blocking initialization could hang a child that was forked during it.
pub(super) fn survive() -> Result<(), ErrorKind> {
    static REGISTERED: OnceBool = OnceBool::new();
    let registered = REGISTERED.get_or_try_init(|| {
        // SAFETY: the handlers are functions of this library, which is never unloaded (-z nodelete).
        let failed = unsafe {
            libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child))
        };
        if failed == 0 {
            Ok(true)
        } else {
            Err(fail!(ErrorKind::OutOfMemory, "out of host memory (pthread_atfork)"))
        }
    });
    registered.map(|_| ())
}

/// Held by the thread that has prepared a fork, until it has finished it.
static TURN: Lock = Lock::new();
/// How many forks have finished.
static FINISHED: AtomicU32 = AtomicU32::new(0);
/// The token of the thread that has prepared a fork and not finished it. 0 is none. It is the same in the child.
static FORKING: AtomicUsize = AtomicUsize::new(0);
/// The process of that thread.
static PARENT: AtomicI32 = AtomicI32::new(0);
/// How many of the fork's handlers have run.
static FORK_DEPTH: AtomicU32 = AtomicU32::new(0);

type Slots = [AtomicU64; USED.len()];
/// The slots that the forking thread has locked. Others may come into use while it forks.
static LOCKED: Slots = [const { AtomicU64::new(0) }; USED.len()];
/// The slots that it had locked before, in a call interrupted by the signal handler that forks.
static INTERRUPTED: Slots = [const { AtomicU64::new(0) }; USED.len()];
/// The slots that it could not lock in time. They are known to the next fork too.
static MISSED: Slots = [const { AtomicU64::new(0) }; USED.len()];

/// How long a fork waits for all locks together. If a fork happens in a signal handler that interrupted a call, the
/// holders of locks may be waiting for it: they may be in such a handler too, forking or registering a wait.
const PATIENCE_MS: u64 = 10_000;
const PATIENCE_IN_A_CALL_MS: u64 = 1_000;
/// How long a fork waits for a lock for which the previous fork has waited in vain, so that a series of forks does not
/// wait each time for a thread that is in a signal handler.
const PATIENCE_AGAIN_MS: u64 = 1_000;
/// How long a fork waits while no other fork finishes. A fork of a large process takes seconds, and a thousand at once
/// have no known bound. One that has not finished by then may be waiting for this thread.
const PATIENCE_FOR_A_FORK_MS: u64 = 60_000;

fn insert(slots: &Slots, device: Device) {
    slots[device.word()].fetch_or(device.bit(), Relaxed);
}

fn remove(slots: &Slots, device: Device) {
    slots[device.word()].fetch_and(!device.bit(), Relaxed);
}

fn has(slots: &Slots, device: Device) -> bool {
    slots[device.word()].load(Relaxed) & device.bit() != 0
}

/// Returns whether this thread was interrupted during a change, so that it holds a lock.
fn is_in_a_call() -> bool {
    log::lock().is_held_here()
        || waiting::lock().is_held_here()
        || devices_in(&USED).any(|device| device.slot().is_locked_here())
}

extern "C" fn before_fork() {
    let thread = token::current();
    if FORKING.load(Acquire) == thread {
        FORK_DEPTH.fetch_add(1, Relaxed);
        return;
    }
    let is_in_a_call = is_in_a_call();
    if !take_turn(is_in_a_call) {
        // The following state belongs to another thread, which has not finished its fork.
        return;
    }
    let begun = monotonic_ms();
    let deadline = begun + if is_in_a_call { PATIENCE_IN_A_CALL_MS } else { PATIENCE_MS };
    PARENT.store(process(), Relaxed);
    FORK_DEPTH.store(1, Relaxed);
    FORKING.store(thread, Release);
    log::lock().lock_for_fork(deadline);
    [&LOCKED, &INTERRUPTED].into_iter().flatten().for_each(|word| word.store(0, Relaxed));
    for device in devices_in(&USED) {
        let again = if has(&MISSED, device) { begun + PATIENCE_AGAIN_MS } else { deadline };
        remove(&MISSED, device);
        match device.slot().lock_for_fork(deadline.min(again)) {
            Ok(()) => insert(&LOCKED, device),
            Err(NotTaken::HeldByThisThread) => insert(&INTERRUPTED, device),
            Err(NotTaken::TimedOut) => insert(&MISSED, device),
        }
    }
    waiting::lock().lock_for_fork(deadline);
    // Last, because those that hold the other locks may want memory of it.
    global::lock().lock_for_fork(deadline);
}

/// Waits until no other thread is forking. Returns false if this thread must not wait that long.
fn take_turn(is_in_a_call: bool) -> bool {
    let patience = if is_in_a_call { PATIENCE_IN_A_CALL_MS } else { PATIENCE_FOR_A_FORK_MS };
    loop {
        let finished = FINISHED.load(Relaxed);
        if TURN.acquire_before(monotonic_ms() + patience).is_ok() {
            return true;
        }
        if is_in_a_call || FINISHED.load(Relaxed) == finished {
            return false;
        }
    }
}

extern "C" fn after_fork_in_parent() {
    // A fork that was not prepared has locked nothing.
    if FORKING.load(Acquire) != token::current() || FORK_DEPTH.fetch_sub(1, Relaxed) != 1 {
        return;
    }
    if PARENT.load(Relaxed) != process() {
        // This is the child of a signal handler that forked during this fork.
        return recover();
    }
    global::lock().unlock_in_parent();
    waiting::lock().unlock_in_parent();
    for device in devices_in(&LOCKED) {
        remove(&LOCKED, device);
        device.slot().unlock_in_parent();
    }
    log::lock().unlock_in_parent();
    FORKING.store(0, Release);
    FINISHED.fetch_add(1, Relaxed);
    TURN.release();
}

extern "C" fn after_fork_in_child() {
    if FORKING.load(Acquire) != token::current() {
        take_as_missed();
        recover();
    } else if FORK_DEPTH.fetch_sub(1, Relaxed) == 1 {
        recover();
    }
}

/// For a child whose fork was not prepared: treats all locks held by other threads as missed, because their data was
/// changing.
fn take_as_missed() {
    global::lock().forget_fork();
    log::lock().forget_fork();
    waiting::lock().forget_fork();
    for device in (0..MAX_DEVICES).map(Device) {
        remove(&LOCKED, device);
        remove(&INTERRUPTED, device);
        remove(&MISSED, device);
        match has(&USED, device) {
            true if device.slot().is_locked_here() => insert(&INTERRUPTED, device),
            true => insert(&MISSED, device),
            false => {}
        }
    }
}

/// In a child: opens all locks, except those held by the interrupted call of this thread.
fn recover() {
    global::recover_in_child();
    waiting::recover_in_child();
    for device in (0..MAX_DEVICES).map(Device) {
        let slot = device.slot();
        if has(&LOCKED, device) {
            slot.recover_in_child();
        } else if has(&INTERRUPTED, device) {
            slot.keep_in_child();
        } else if has(&MISSED, device) {
            slot.lose_in_child();
        } else {
            // The slot was not in use before the fork. A thread of the parent may still have been in a call there, if
            // only one that finds no allocator.
            slot.abandon_in_child();
            remove(&USED, device);
        }
    }
    scope::after_fork_in_child();
    history::after_fork_in_child();
    publish::after_fork_in_child();
    log::recover_in_child();
    FORK_DEPTH.store(0, Relaxed);
    FORKING.store(0, Release);
    TURN.reset_after_fork();
}
