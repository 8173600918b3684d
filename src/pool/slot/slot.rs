//! The slot, and what its lock protects.

use super::call::{Call, SlotId};
use super::ranges::{Published, Ranges};
use super::stack_list::{Linked, StackList};
use crate::pool::pool::Pool;
use crate::sys::lock::{Lock, NotTaken};
use crate::sys::thread::ThreadId;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::AtomicU32;

/// What a slot is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Phase {
    Empty,
    Live,
    /// Live, and each allocation and free goes the way of [`guarded`](crate::pool::guarded). A phase of its own, so that
    /// the way of all others does not ask for it.
    Guarded,
    Destroying,
    /// A broken invariant or a panic: nothing is touched any more.
    Poisoned,
    /// In a forked child: the memory is the parent's.
    Lost,
}

pub(in crate::pool) struct Inner {
    pub(in crate::pool) phase: Phase,
    /// The calls that are under way with the lock open.
    pub(super) calls: StackList<Call>,
    /// The number of the last one.
    pub(super) last_call: u64,
    /// Threads that sleep until something changes.
    pub(super) sleepers: StackList<Sleeper>,
    /// Those of them that sleep until a call of another thread's ends.
    pub(super) expecting: u32,
    /// The thread that is ending the allocator.
    pub(in crate::pool) destroying: Option<ThreadId>,
    pub(in crate::pool) pool: Option<Box<Pool>>,
    pub(super) published: Published,
}

/// A thread that sleeps with the lock open, on its stack. Read and changed with the lock held only.
pub(super) struct Sleeper {
    pub(super) thread: ThreadId,
    pub(super) next: Cell<*const Sleeper>,
}

impl Linked for Sleeper {
    fn next(&self) -> &Cell<*const Self> {
        &self.next
    }
}

impl Phase {
    pub(super) fn is_live(self) -> bool {
        matches!(self, Phase::Live | Phase::Guarded)
    }

    /// That of a pool which serves.
    pub(in crate::pool) fn of(pool: &Pool) -> Self {
        if pool.guards.is_some() { Phase::Guarded } else { Phase::Live }
    }
}

impl Inner {
    pub(super) const EMPTY: Self = Inner {
        phase: Phase::Empty,
        calls: StackList::EMPTY,
        last_call: 0,
        sleepers: StackList::EMPTY,
        expecting: 0,
        destroying: None,
        pool: None,
        published: Published::NOTHING,
    };
}

/// A place in the table. Aligned so that two devices share no cache line, prefetched neighbours included.
#[repr(align(128))]
pub(crate) struct Slot {
    pub(super) lock: Lock,
    /// Counts up whenever threads that sleep should look again.
    pub(super) event: AtomicU32,
    /// Where the memory is of a pool that serves.
    pub(super) ranges: Ranges,
    pub(super) inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached only through a `Guard`, which holds the lock, or in a forked child that has one
// thread yet. A pool may move between threads: its arena is plain data and its backend is `Send`.
unsafe impl Sync for Slot {}

impl Slot {
    pub(crate) const fn new() -> Self {
        let (lock, event, ranges) = (Lock::new(), AtomicU32::new(0), Ranges::new());
        Slot { lock, event, ranges, inner: UnsafeCell::new(Inner::EMPTY) }
    }

    /// Returns what tells this slot from others.
    pub(in crate::pool) fn id(&self) -> SlotId {
        SlotId::at(self)
    }

    /// For tests with one thread: returns whether a change is under way.
    #[cfg(test)]
    pub(in crate::pool) fn is_locked(&self) -> bool {
        self.lock.is_taken()
    }

    /// Whether this thread holds the lock: it was interrupted by a signal.
    pub(crate) fn is_locked_here(&self) -> bool {
        self.lock.is_held_here()
    }

    /// Before a fork: no other thread may be in the middle of a change. An error if this thread is, and forks in a signal
    /// handler, or if another one was until the deadline.
    pub(crate) fn lock_for_fork(&self, deadline: u64) -> Result<(), NotTaken> {
        self.lock.acquire_before(deadline)
    }

    /// After a fork in the parent.
    pub(crate) fn unlock_in_parent(&self) {
        // `lock_for_fork` took the lock and forgot its guard.
        self.lock.release();
    }
}
