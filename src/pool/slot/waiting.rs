//! Deadlock detection between threads that wait for another thread's call while they are in a call of another
//! allocator.
//!
//! A suballocator may take its regions from another allocator of this library. If two allocators take regions from each
//! other, a thread in a call of the first may wait for a call of the second, whose thread waits for the first. Timeouts
//! would not end that deadlock. So every such wait is registered with the calls that its thread is in, and a wait that
//! would close a circle is refused.
//!
//! Only threads in a call are registered. If allocators take regions from each other in one direction only, no circle
//! can arise, because a call of the lower one never waits for the upper one.

use super::call::{Call, SlotId};
use super::slot::Slot;
use super::stack_list::{Linked, StackList};
use super::table;
use crate::error::{ErrorKind, fail};
use crate::sys::lock::{ForkLock, HeldByThisThread, InChild};
use crate::sys::thread::{Local, per_thread};
use os::signals::Blocked;
use std::cell::{Cell, UnsafeCell};
use std::ptr;

/// Returns the error for a signal handler that would have to wait although its own thread holds a lock of the library.
#[cold]
pub(in crate::pool) fn busy(_: HeldByThisThread) -> ErrorKind {
    fail!(
        ErrorKind::Busy,
        "a signal handler interrupted a call of this thread: call again after the handler has returned"
    )
}

/// The innermost call that this thread is in, of any slot.
#[derive(Clone, Copy)]
struct Innermost(*const Call);

impl Local for Innermost {
    const EMPTY: Self = Innermost(ptr::null());
}

per_thread!(static INNERMOST: Innermost);

/// Returns the innermost call of this thread, or NULL. Also returns NULL for threads beyond the first few if there was
/// no host memory for their values.
pub(super) fn innermost() -> *const Call {
    INNERMOST.get(|innermost| innermost.0).unwrap_or(ptr::null())
}

/// Makes a call that begins the innermost one, or the outer call again when a call ends. Returns the previous one.
pub(super) fn replace_innermost(call: *const Call) -> *const Call {
    let replaced = INNERMOST.update(|innermost| std::mem::replace(&mut innermost.0, call));
    replaced.unwrap_or(ptr::null())
}

/// Returns the calls of a thread, from a given one outwards.
fn calls_from<'a>(innermost: *const Call) -> impl Iterator<Item = &'a Call> {
    let mut at = innermost;
    std::iter::from_fn(move || {
        // SAFETY: the frames exist while the thread is in the calls. The caller is that thread, or that thread waits.
        let call = unsafe { at.as_ref() }?;
        at = call.outer.get();
        Some(call)
    })
}

/// Marks the calls of this thread that cannot get anything from `slot` by waiting: those within its own call of `slot`,
/// or all of them if there is no such call.
pub(super) fn mark_circle(slot: SlotId) {
    calls_from(innermost()).take_while(|call| call.slot != slot).for_each(|call| call.is_in_circle.set(true));
}

/// Returns whether the innermost call of this thread is in a circle and within another call. Waiting after it is
/// useless then. Once the outermost call has ended, the thread keeps no other thread waiting.
pub(in crate::pool) fn is_in_circle() -> bool {
    let mut calls = calls_from(innermost());
    calls.next().is_some_and(|call| call.is_in_circle.get()) && calls.next().is_some()
}

/// A wait of a thread that is in calls. It is in a frame of that thread, and is read and changed only with the registry
/// locked.
struct Wait {
    /// The slot whose call it waits for.
    of: SlotId,
    /// The calls that the thread is in, the innermost first. They do not end before this wait does.
    calls: *const Call,
    next: Cell<*const Wait>,
    /// Whether the search for a circle has reached this wait.
    reached: Cell<bool>,
}

impl Linked for Wait {
    fn next(&self) -> &Cell<*const Self> {
        &self.next
    }
}

impl Wait {
    /// Returns the slots that this wait holds up: those whose calls the thread is in.
    fn slots(&self) -> impl Iterator<Item = SlotId> + '_ {
        calls_from(self.calls).map(|call| call.slot)
    }
}

/// All registered waits of the process.
struct Registry {
    lock: ForkLock,
    waits: UnsafeCell<StackList<Wait>>,
}

// SAFETY: the list is reached only with the lock held, or in a forked child that still has only one thread.
unsafe impl Sync for Registry {}

static REGISTRY: Registry = Registry { lock: ForkLock::new(), waits: UnsafeCell::new(StackList::EMPTY) };

impl Registry {
    /// Runs `change` on the list with the registry locked.
    fn locked<T>(&self, change: impl FnOnce(&mut StackList<Wait>) -> T) -> Result<T, HeldByThisThread> {
        let _blocked = Blocked::new();
        self.lock.acquire()?;
        // SAFETY: the lock is held.
        let result = change(unsafe { &mut *self.waits.get() });
        self.lock.release();
        Ok(result)
    }
}

/// Returns whether a new wait would close a circle with registered ones, so that it would never end.
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

/// Runs `work`, which waits for other threads' calls in a slot, and registers the wait. Returns [`ErrorKind::Busy`] instead
/// if those calls would wait for this thread, or could because it holds another slot.
pub(in crate::pool) fn while_registered<T>(slot: &Slot, work: impl FnOnce() -> T) -> Result<T, ErrorKind> {
    if table::is_another_held(slot) {
        return Err(busy(HeldByThisThread));
    }
    let (slot, calls) = (slot.id(), innermost());
    if calls.is_null() {
        return Ok(work());
    }
    let wait = Wait { of: slot, calls, next: Cell::new(ptr::null()), reached: Cell::new(false) };
    REGISTRY.locked(|waits| {
        if closes_a_circle(waits, &wait) {
            mark_circle(slot);
            return Err(fail!(
                ErrorKind::Busy,
                "allocators take their regions from each other, and their threads would wait for each other forever"
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

/// Removes a wait from the list when dropped, also in a panic.
struct Registered<'a>(&'a Wait);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        // A signal handler that interrupted its own thread here was not registered.
        let _ = REGISTRY.locked(|waits| waits.remove(self.0));
    }
}

/// The registry's lock, for the thread that forks. It is taken after those of the slots.
pub(crate) fn lock() -> &'static ForkLock {
    &REGISTRY.lock
}

/// Clears the registry in the child after a fork, where the waiting threads do not exist. If this thread was
/// interrupted in the middle of a change, it continues the change later, so the list stays as it is. Superfluous waits
/// do no harm, because the parent's stacks are in the child's memory.
pub(crate) fn recover_in_child() {
    if REGISTRY.lock.recover_in_child() != InChild::Interrupted {
        // SAFETY: there is one thread, and it is not in the middle of a change.
        unsafe { *REGISTRY.waits.get() = StackList::EMPTY };
    }
}
