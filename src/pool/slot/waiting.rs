//! Threads that wait for another thread's call while they are in a call of another allocator themselves.
//!
//! A suballocator may take its regions from another allocator of this library. If two allocators take theirs from each
//! other, a thread in a call of the first may wait for a call of the second, whose thread waits for the first: for ever,
//! whatever their timeouts. So every such wait is registered with the allocators that it keeps waiting, and the one that
//! would close a circle is refused.
//!
//! Only threads in a call are registered. Where allocators take regions from each other in one direction only, no circle
//! can be seen, because a call of the lower one never waits for the upper one.

use super::call::{Call, SlotId};
use super::stack_list::{Linked, StackList};
use crate::error::{Error, fail};
use crate::sys::lock::{HeldByThisThread, Lock};
use crate::sys::thread::{Local, per_thread};
use std::cell::{Cell, UnsafeCell};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A signal handler asked for a slot whose lock its own thread holds.
#[cold]
pub(in crate::pool) fn busy(_: HeldByThisThread) -> Error {
    fail!(Error::Busy, "a signal handler interrupted a call of this thread on the same allocator")
}

/// The innermost call that this thread is in, of whatever slot.
#[derive(Clone, Copy)]
struct Innermost(*const Call);

impl Local for Innermost {
    const EMPTY: Self = Innermost(ptr::null());
}

per_thread!(static INNERMOST: Innermost);

/// The innermost call of this thread. Without host memory for threads beyond the first few it is not known, and NULL.
pub(super) fn innermost() -> *const Call {
    INNERMOST.get(|innermost| innermost.0).unwrap_or(ptr::null())
}

/// A call has begun, which is the innermost now; or has ended, and the one around it is that again. Returns which was.
pub(super) fn replace_innermost(call: *const Call) -> *const Call {
    let replaced = INNERMOST.update(|innermost| std::mem::replace(&mut innermost.0, call));
    replaced.unwrap_or(ptr::null())
}

/// The calls of a thread from one outwards.
fn calls_from<'a>(innermost: *const Call) -> impl Iterator<Item = &'a Call> {
    let mut at = innermost;
    std::iter::from_fn(move || {
        // SAFETY: their frames stay while the thread is in them; callers are that thread, or it waits.
        let call = unsafe { at.as_ref() }?;
        at = call.outer.get();
        Some(call)
    })
}

/// This thread is in a call of `slot` and wants something of it: no call within that one can get anything by waiting.
pub(super) fn mark_circle(slot: SlotId) {
    calls_from(innermost()).take_while(|call| call.slot != slot).for_each(|call| call.is_in_circle.set(true));
}

/// Whether the innermost call of this thread is in a circle, and within another call: then nothing comes of waiting after it.
/// The outermost call keeps no other waiting once it has ended.
pub(in crate::pool) fn is_in_circle() -> bool {
    let mut calls = calls_from(innermost());
    calls.next().is_some_and(|call| call.is_in_circle.get()) && calls.next().is_some()
}

/// A wait of a thread in calls, in a frame of that thread. Read and changed with the registry locked only.
struct Wait {
    /// Whose call it waits for.
    of: SlotId,
    /// The calls that the thread is in, the innermost first: they do not end before this wait does.
    calls: *const Call,
    next: Cell<*const Wait>,
    /// Whether the search for a circle has come here.
    reached: Cell<bool>,
}

impl Linked for Wait {
    fn next(&self) -> &Cell<*const Self> {
        &self.next
    }
}

impl Wait {
    /// The slots that it keeps waiting: those whose calls the thread is in.
    fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        calls_from(self.calls).map(|call| call.slot)
    }
}

/// All such waits of the process.
struct Registry {
    lock: Lock,
    /// A forking thread has locked it; not if the thread was interrupted while it had it locked.
    locked_for_fork: AtomicBool,
    waits: UnsafeCell<StackList<Wait>>,
}

// SAFETY: the list is reached with the lock held only, or in a forked child that has one thread yet.
unsafe impl Sync for Registry {}

static REGISTRY: Registry = Registry {
    lock: Lock::new(),
    locked_for_fork: AtomicBool::new(false),
    waits: UnsafeCell::new(StackList::EMPTY),
};

impl Registry {
    /// Does something with the list, and changes it.
    fn locked<T>(&self, change: impl FnOnce(&mut StackList<Wait>) -> T) -> Result<T, HeldByThisThread> {
        self.lock.acquire()?;
        // SAFETY: the lock is held.
        let result = change(unsafe { &mut *self.waits.get() });
        self.lock.release();
        Ok(result)
    }
}

/// Whether a new wait is one that the others would never let end.
fn closes_a_circle(waits: &StackList<Wait>, new: &Wait) -> bool {
    waits.iter().for_each(|wait| wait.reached.set(false));
    let is_held_up = |slot| slot == new.of || waits.iter().any(|wait| wait.reached.get() && wait.of == slot);
    loop {
        let holds_up = |wait: &&Wait| !wait.reached.get() && wait.slots().any(is_held_up);
        let Some(next) = waits.iter().find(holds_up) else { return false };
        next.reached.set(true);
        if new.slots().any(|slot| slot == next.of) {
            return true;
        }
    }
}

/// Does something that waits for calls of other threads in a slot; [`Error::Busy`] instead where they would wait for it.
pub(in crate::pool) fn while_registered<T>(slot: SlotId, work: impl FnOnce() -> T) -> Result<T, Error> {
    let calls = innermost();
    if calls.is_null() {
        return Ok(work());
    }
    let wait = Wait { of: slot, calls, next: Cell::new(ptr::null()), reached: Cell::new(false) };
    REGISTRY.locked(|waits| {
        if closes_a_circle(waits, &wait) {
            mark_circle(slot);
            return Err(fail!(
                Error::Busy,
                "allocators take their regions from each other, and their threads would wait for each other for ever"
            ));
        }
        waits.push(&wait);
        Ok(())
    })
    .map_err(busy)??;
    let registered = Registered(&wait);
    let result = work();
    drop(registered);
    Ok(result)
}

/// Takes a wait out of the list, also in a panic.
struct Registered<'a>(&'a Wait);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // A signal handler that interrupted its own thread here was not registered.
        let _ = REGISTRY.locked(|waits| waits.remove(self.0));
    }
}

/// Whether this thread was interrupted while it had the registry locked.
pub(crate) fn is_locked_here() -> bool {
    REGISTRY.lock.is_held_here()
}

/// Before a fork, behind the slots' locks.
pub(crate) fn lock_for_fork(deadline: u64) {
    REGISTRY.locked_for_fork.store(REGISTRY.lock.acquire_before(deadline).is_ok(), Relaxed);
}

/// In a child whose fork was not prepared: no fork has locked anything.
pub(crate) fn forget_fork() {
    REGISTRY.locked_for_fork.store(false, Relaxed);
}

/// After a fork in the parent.
pub(crate) fn unlock_in_parent() {
    if REGISTRY.locked_for_fork.load(Relaxed) {
        REGISTRY.lock.release();
    }
}

/// After a fork in the child: the threads that waited are not there. A call of this thread that was interrupted in the midst
/// of a change goes on with it, and a wait too many does no harm: their stacks are in the child's memory.
pub(crate) fn recover_in_child() {
    if REGISTRY.locked_for_fork.load(Relaxed) || !REGISTRY.lock.is_held_here() {
        // SAFETY: there is one thread, which is not in the midst of a change.
        unsafe { *REGISTRY.waits.get() = StackList::EMPTY };
        REGISTRY.lock.reset_after_fork();
    }
}
