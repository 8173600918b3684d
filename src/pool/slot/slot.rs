//! The slot, and what its lock protects.

use super::call::{Call, SlotId};
use super::ranges::{Published, Ranges};
use super::stack_list::{Linked, StackList};
use crate::pool::pool::Pool;
use crate::sys::lock::Lock;
use crate::sys::thread::ThreadId;
use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::Ordering::Acquire;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Phase {
    Empty,
    Live,
    /// Live, and every allocation and free goes through [`guarded`](crate::pool::guarded). This is a phase of its own,
    /// so that the fast path needs no extra check.
    Guarded,
    /// Live, and every allocation and free is recorded in the history. A phase of its own for the same reason.
    Recorded,
    Destroying,
    /// An invariant was broken, or a panic occurred. The pool is no longer accessed.
    Poisoned,
    /// In a forked child: the memory belongs to the parent.
    OfParent,
}

pub(in crate::pool) struct Inner {
    pub(in crate::pool) phase: Phase,
    /// The calls that are under way with the lock open.
    pub(super) calls: StackList<Call>,
    /// The number of the last call.
    pub(super) last_call: u64,
    /// How often the lock was opened by a call that went on afterwards.
    pub(super) openings: u64,
    /// Threads that sleep until something changes.
    pub(super) sleepers: StackList<Sleeper>,
    /// The number of threads that sleep until another thread's call ends.
    pub(super) expecting: u32,
    /// The thread that is destroying the allocator.
    pub(in crate::pool) destroying: Option<ThreadId>,
    pub(in crate::pool) pool: Option<Box<Pool>>,
    pub(super) published: Published,
}

/// A thread that sleeps with the lock open. The entry is on that thread's stack. It is read and changed only with the
/// lock held.
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
    pub(in crate::pool) fn is_live(self) -> bool {
        matches!(self, Phase::Live | Phase::Guarded | Phase::Recorded)
    }

    /// Returns the phase of a pool in service.
    pub(in crate::pool) fn of(pool: &Pool) -> Self {
        match () {
            () if pool.guards.is_some() => Phase::Guarded,
            () if pool.history.is_some() => Phase::Recorded,
            () => Phase::Live,
        }
    }
}

impl Inner {
    /// Returns whether a plain call may go on at once.
    #[inline(always)]
    pub(super) fn is_ready(&self) -> bool {
        self.phase == Phase::Live && self.calls.is_empty()
    }

    pub(super) const EMPTY: Self = Inner {
        phase: Phase::Empty,
        calls: StackList::EMPTY,
        last_call: 0,
        openings: 0,
        sleepers: StackList::EMPTY,
        expecting: 0,
        destroying: None,
        pool: None,
        published: Published::NOTHING,
    };
}

/// An entry of the device table. The alignment keeps two devices from sharing a cache line, including a prefetched
/// neighbour.
#[repr(align(128))]
pub(crate) struct Slot {
    pub(super) lock: Lock,
    /// Incremented to wake the sleeping threads.
    pub(super) event: AtomicU32,
    /// The address ranges of the memory of a pool in service.
    pub(super) ranges: Ranges,
    /// The driver's handle of the pool's context, or 0 if its streams belong to none.
    pub(super) context: AtomicU64,
    pub(super) inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached only through a `Guard`, which holds the lock, or in a forked child that still has only one
// thread. A pool may move between threads: its arena is plain data and its backend is `Send`.
unsafe impl Sync for Slot {}

impl Slot {
    pub(crate) const fn new() -> Self {
        let (lock, event, ranges) = (Lock::new(), AtomicU32::new(0), Ranges::new());
        let inner = UnsafeCell::new(Inner::EMPTY);
        let context = AtomicU64::new(0);
        Slot { lock, event, ranges, context, inner }
    }

    /// Returns the identity of this slot.
    pub(in crate::pool) fn id(&self) -> SlotId {
        SlotId::at(self)
    }

    /// Returns the driver's handle of the context that default streams belong to unless another one is current, or 0 if
    /// streams belong to no context. Read without the lock.
    #[inline]
    pub(in crate::pool) fn context(&self) -> u64 {
        self.context.load(Acquire)
    }

    /// Returns whether the lock is taken. For tests with a single thread.
    #[cfg(test)]
    pub(in crate::pool) fn is_locked(&self) -> bool {
        self.lock.is_taken()
    }

    /// Returns whether this thread holds the lock, as it does in a signal handler that interrupted one of its calls.
    pub(crate) fn is_locked_here(&self) -> bool {
        self.lock.is_held_here()
    }

    /// Releases the lock in the parent after a fork.
    pub(crate) fn unlock_in_parent(&self) {
        // `lock_for_fork` took it, without a guard.
        self.lock.release();
    }
}
