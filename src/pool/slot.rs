//! One place of the device table: a lock, what it protects, and those who wait.
//!
//! The lock is taken once a call and held for some tens of nanoseconds. Backends are called, and threads
//! wait, outside of it; the slot counts who is out there, so that destruction can wait for them.

mod calls;
mod ranges;
pub(crate) mod waiting;

use self::calls::{Call, CallKind};
use self::ranges::{Place, Published, Ranges};
use super::Pool;
use crate::core::stats::FailureCause;
use crate::error::{Error, fail};
use crate::sys::futex;
use crate::sys::lock::{HeldByThisThread, Lock, NotTaken};
use crate::sys::thread::{self, ThreadId};
use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

/// What a slot is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Empty,
    Live,
    /// Live, and each allocation and free goes the way of [`guarded`](super::guarded). A phase of its own, so that
    /// the way of all others does not ask for it.
    Guarded,
    Destroying,
    /// A broken invariant or a panic: nothing is touched any more.
    Poisoned,
    /// In a forked child: the memory is the parent's.
    Lost,
}

pub(super) struct Inner {
    pub(super) phase: Phase,
    /// The calls that are under way with the lock open, the last one first; NULL if there is none.
    calls: *const Call,
    /// The number of the last one.
    last_call: u64,
    /// Threads that sleep until something changes, the last one first; NULL if none does.
    sleepers: *const Sleeper,
    /// Those of them that sleep until a call of another thread's ends.
    expecting: u32,
    /// The thread that is ending the allocator.
    pub(super) destroying: Option<ThreadId>,
    pub(super) pool: Option<Box<Pool>>,
    published: Published,
}

/// A thread that sleeps with the lock open, on its stack. Read and changed with the lock held only.
struct Sleeper {
    thread: ThreadId,
    next: Cell<*const Sleeper>,
}

impl Phase {
    fn is_live(self) -> bool {
        matches!(self, Phase::Live | Phase::Guarded)
    }

    /// That of a pool which serves.
    pub(super) fn of(pool: &Pool) -> Self {
        if pool.guards.is_some() { Phase::Guarded } else { Phase::Live }
    }
}

impl Inner {
    const EMPTY: Self = Inner {
        phase: Phase::Empty,
        calls: std::ptr::null(),
        last_call: 0,
        sleepers: std::ptr::null(),
        expecting: 0,
        destroying: None,
        pool: None,
        published: Published::NOTHING,
    };
}

/// A place in the table. Aligned so that two devices share no cache line, prefetched neighbours included.
#[repr(align(128))]
pub(crate) struct Slot {
    lock: Lock,
    /// Counts up whenever those who sleep should look again.
    event: AtomicU32,
    /// Where the memory is of a pool that serves.
    ranges: Ranges,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached only through a `Guard`, which holds the lock, or in a forked child that has one
// thread yet. A pool may move between threads: its arena is plain data and its backend is `Send`.
unsafe impl Sync for Slot {}

impl Slot {
    pub(crate) const fn new() -> Self {
        let (lock, event, ranges) = (Lock::new(), AtomicU32::new(0), Ranges::new());
        Slot { lock, event, ranges, inner: UnsafeCell::new(Inner::EMPTY) }
    }

    /// Locks a slot that holds a usable allocator.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_>, Error> {
        self.enter_plainly().or_else(Unready::check_entry)
    }

    /// As [`Self::enter`], for a call that holds the lock for long: those who sleep for it go first.
    pub(crate) fn enter_for_long(&self) -> Result<Guard<'_>, Error> {
        self.lock.let_sleepers_in();
        self.enter()
    }

    /// Locks a slot; an error where something is out of the ordinary, from calls under way to an allocator that is
    /// none, and [`Unready::check_entry`] is to say whether that matters.
    #[inline]
    pub(crate) fn enter_plainly(&self) -> Result<Guard<'_>, Unready<'_>> {
        let Ok(guard) = self.try_lock() else { return Err(Unready(None)) };
        if guard.inner().phase == Phase::Live && guard.inner().calls.is_null() {
            return Ok(guard);
        }
        Err(Unready(Some(guard)))
    }

    /// For tests with one thread: returns whether a change is under way.
    #[cfg(test)]
    pub(super) fn is_locked(&self) -> bool {
        self.lock.is_taken()
    }

    /// Locks a slot whatever it holds. An error for a signal handler that interrupted the thread which holds the lock.
    #[inline]
    pub(super) fn try_lock(&self) -> Result<Guard<'_>, HeldByThisThread> {
        self.lock.acquire()?;
        Ok(Guard { slot: self, unwinding: std::thread::panicking() })
    }

    /// The same where the lock was open when the call began that now takes it again: then this thread cannot hold it.
    #[allow(clippy::expect_used)]
    pub(super) fn lock(&self) -> Guard<'_> {
        self.try_lock().expect("the call has opened the lock")
    }

    /// Whether `free(NULL)` has nothing to complain of: also without an allocator, or at its end.
    pub(crate) fn accepts_null(&self) -> Result<(), Error> {
        let guard = self.try_lock().map_err(busy)?;
        match guard.inner().phase {
            Phase::Empty | Phase::Live | Phase::Guarded | Phase::Destroying => Ok(()),
            Phase::Poisoned | Phase::Lost => guard.check_entry().map(drop),
        }
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

    /// After a fork in the child, for a slot whose lock this thread held before: the call that was interrupted goes on
    /// behind the signal handler, with memory that may be the parent's.
    pub(crate) fn keep_in_child(&self) {
        let mut guard = Guard { slot: self, unwinding: false };
        let survives = guard.inner().pool.as_ref().is_none_or(|pool| pool.backend.get().survives_fork());
        if !survives {
            guard.inner_mut().phase = Phase::Lost;
        }
        std::mem::forget(guard);
        self.ranges.forget_readers();
    }

    /// After a fork in the parent.
    pub(crate) fn unlock_in_parent(&self) {
        // `lock_for_fork` took the lock and forgot its guard.
        self.lock.release();
    }

    /// After a fork in the child, where this is the only thread, for a slot that was locked.
    pub(crate) fn recover_in_child(&self) {
        let mut guard = Guard { slot: self, unwinding: false };
        let this = thread::current();
        let interrupted = guard.calls().any(|call| call.what == CallKind::Guards && call.thread != this);
        // The forking thread may itself be in a callback, and will come back from it in the child too.
        guard.keep_calls(|call| call.thread == this);
        let in_a_call = !guard.inner().calls.is_null();
        let releases = guard.calls().any(|call| call.what == CallKind::GivesBack);
        let reserved = guard.calls().map(|call| call.what.reserved()).sum();
        // It may have been interrupted in its sleep by a signal, whose handler forks.
        guard.keep_sleepers(|sleeper| sleeper.thread == this);
        let inner = guard.inner_mut();
        inner.expecting = 0;
        let survives = inner.pool.as_ref().is_some_and(|pool| pool.backend.get().survives_fork());
        let orphaned = inner.phase == Phase::Destroying && inner.destroying != Some(this);
        if orphaned && survives {
            // The thread that was ending it is not here. While this one is in a call nothing has ended yet.
            if in_a_call {
                let phase = inner.pool.as_deref().map_or(Phase::Empty, Phase::of);
                (inner.phase, inner.destroying) = (phase, None);
            } else {
                std::mem::forget(std::mem::replace(inner, Inner::EMPTY));
                self.ranges.abandon();
            }
        }
        match inner.phase {
            Phase::Live | Phase::Guarded if survives => {
                guard.arena.forget_unfinished(reserved, releases);
                if let Some(guards) = guard.guards.as_mut().filter(|_| interrupted) {
                    guards.abandon();
                }
            }
            Phase::Live | Phase::Guarded | Phase::Destroying if !survives => inner.phase = Phase::Lost,
            _ => {}
        }
        self.ranges.forget_readers();
        guard.publish_changes();
        std::mem::forget(guard);
        self.lock.reset_after_fork();
    }

    /// After a fork in the child, for a slot that was not locked: a thread of the parent may be in the middle
    /// of anything there. What it holds is left alone, not dropped.
    pub(crate) fn abandon_in_child(&self) {
        let mut guard = Guard { slot: self, unwinding: false };
        if guard.inner().phase != Phase::Empty || guard.inner().pool.is_some() {
            std::mem::forget(std::mem::replace(guard.inner_mut(), Inner::EMPTY));
        }
        std::mem::forget(guard);
        self.ranges.abandon();
        self.lock.reset_after_fork();
    }

    /// After a fork in the child, for a slot that could not be locked in time: a thread of the parent was in the middle of a
    /// change, so nothing of it is looked at any more. The pool stays where it is, for this thread may come back to it from
    /// a callback.
    pub(crate) fn lose_in_child(&self) {
        let mut guard = Guard { slot: self, unwinding: false };
        let inner = guard.inner_mut();
        let pool = inner.pool.take();
        std::mem::forget(std::mem::replace(inner, Inner { phase: Phase::Lost, pool, ..Inner::EMPTY }));
        std::mem::forget(guard);
        self.ranges.abandon();
        self.lock.reset_after_fork();
    }

    /// Whether memory of a usable allocator here is around an address. Also from its own callbacks. The lock is taken
    /// only for an address of a reserved range, of which some parts are mapped.
    pub(crate) fn holds(&self, addr: u64) -> Result<bool, Error> {
        match self.ranges.look(addr) {
            Place::Outside => Ok(false),
            Place::Inside => Ok(true),
            Place::Unknown => {
                let guard = self.try_lock().map_err(busy)?;
                Ok(guard.inner().phase.is_live() && guard.arena.has_memory_at(addr))
            }
        }
    }

    /// Whether there is an allocator already; an error if it is of no use.
    pub(crate) fn is_taken(&self) -> Result<bool, Error> {
        let guard = self.try_lock().map_err(busy)?;
        if guard.inner().phase == Phase::Empty {
            return Ok(false);
        }
        guard.check_entry().map(|_| true)
    }
}

/// A call of this thread holds the lock.
#[cold]
pub(super) fn busy(_: HeldByThisThread) -> Error {
    fail!(Error::Busy, "a signal handler interrupted a call of this thread on the same allocator")
}

/// What is in the way of a plain call: the locked slot, or nothing if this thread has locked it before.
pub(crate) struct Unready<'a>(Option<Guard<'a>>);

impl<'a> Unready<'a> {
    /// As [`Guard::check_entry`].
    #[cold]
    pub(crate) fn check_entry(self) -> Result<Guard<'a>, Error> {
        self.0.ok_or(HeldByThisThread).map_err(busy)?.check_entry()
    }
}

/// A locked slot. Dropping it in a panic poisons the slot: the panic was in the middle of a change.
pub(crate) struct Guard<'a> {
    slot: &'a Slot,
    /// The thread was unwinding already: a destructor of the program called, and no panic is ours.
    unwinding: bool,
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            self.inner_mut().phase = Phase::Poisoned;
            self.notify();
        }
        self.publish_changes();
        self.slot.lock.release();
    }
}

impl<'a> Guard<'a> {
    /// As dropping it, where no panic can be under way and no region has changed.
    #[inline]
    pub(super) fn leave(self) {
        self.slot.lock.release();
        std::mem::forget(self);
    }

    #[inline]
    pub(super) fn inner(&self) -> &Inner {
        // SAFETY: a guard exists only while the lock is held, and lends no longer than it lives.
        unsafe { &*self.slot.inner.get() }
    }

    #[inline]
    pub(super) fn inner_mut(&mut self) -> &mut Inner {
        // SAFETY: as above; `&mut self` excludes another borrow through this guard.
        unsafe { &mut *self.slot.inner.get() }
    }

    /// Says where the memory is, if that has changed.
    #[inline]
    fn publish_changes(&mut self) {
        let Inner { phase, pool, published, .. } = self.inner();
        let version = match pool {
            Some(pool) if phase.is_live() => ranges::version(&pool.arena),
            _ => 0,
        };
        if version != published.version {
            self.publish();
        }
    }

    #[cold]
    fn publish(&mut self) {
        let slot = self.slot;
        let Inner { phase, pool, published, .. } = self.inner_mut();
        let arena = pool.as_ref().filter(|_| phase.is_live()).map(|pool| &pool.arena);
        slot.ranges.publish(arena, published);
    }

    /// Host memory that the table of regions takes, in bytes.
    pub(crate) fn ranges_bytes(&self) -> u64 {
        self.inner().published.bytes()
    }

    /// Why a call may not go on, or the guard if it may.
    #[cold]
    pub(crate) fn check_entry(self) -> Result<Self, Error> {
        let inner = self.inner();
        let phase = inner.phase;
        if self.is_called_by_this_thread() {
            waiting::mark_circle(self.slot);
            return Err(fail!(
                Error::Busy,
                "a callback, or a signal handler in one, called back into its own allocator"
            ));
        }
        match phase {
            Phase::Live | Phase::Guarded => Ok(self),
            Phase::Empty => Err(fail!(Error::NoAllocator, "no allocator was created: call bfc_create first")),
            Phase::Destroying => Err(fail!(Error::ShuttingDown, "the allocator is being destroyed")),
            Phase::Lost => Err(fail!(
                Error::ShuttingDown,
                "the allocator's memory belongs to the parent of this forked process"
            )),
            Phase::Poisoned => Err(fail!(
                Error::Internal,
                "an invariant of the allocator was broken earlier, so nothing in it is touched any more"
            )),
        }
    }

    /// No chunk of this slot's pool is to be trusted any more.
    pub(crate) fn poison(mut self) {
        self.inner_mut().phase = Phase::Poisoned;
        self.notify();
    }

    /// Counts a request for so many bytes that failed, and whose words are already said.
    pub(crate) fn fail(mut self, error: Error, requested: u64) -> Error {
        self.arena.count_failure(requested, FailureCause::Other);
        error
    }

    /// Whether there is a pool at all.
    pub(super) fn has_pool(&self) -> bool {
        self.inner().pool.is_some()
    }

    /// Whether this is a forked child and the memory is the parent's.
    pub(super) fn is_lost(&self) -> bool {
        self.inner().phase == Phase::Lost
    }

    /// Sleeps until something changes, at most for `timeout`. There is no wakeup to lose: who changes
    /// something holds the lock, and the count was read under it.
    pub(super) fn wait(mut self, timeout: Option<Duration>) -> Self {
        let slot = self.slot;
        let sleeper = Sleeper { thread: thread::current(), next: Cell::new(self.inner().sleepers) };
        self.inner_mut().sleepers = &sleeper;
        let seen = slot.event.load(Relaxed);
        drop(self);
        #[cfg(test)]
        tests::in_the_gap(slot);
        futex::wait(&slot.event, seen, timeout);
        let mut guard = slot.lock();
        guard.keep_sleepers(|other| !std::ptr::eq(other, &raw const sleeper));
        if guard.inner().phase == Phase::Destroying {
            guard.notify();
        }
        guard
    }

    /// Sleeps until a call of another thread's ends, or something else changes; [`Error::Busy`] if that thread would
    /// never get there, because it waits for this one.
    pub(super) fn wait_for_call(self) -> Result<Self, Error> {
        let slot = self.slot;
        let wait = || {
            let mut waiting = self;
            waiting.inner_mut().expecting += 1;
            let mut guard = waiting.wait(None);
            let inner = guard.inner_mut();
            // A signal handler may have forked meanwhile: in the child no thread is counted.
            inner.expecting = inner.expecting.saturating_sub(1);
            guard
        };
        waiting::while_registered(slot, wait)?.check_entry()
    }

    /// Returns whether a thread sleeps until a call ends.
    pub(super) fn is_awaited(&self) -> bool {
        self.inner().expecting != 0
    }

    /// Lets threads go first that have waited for a call, which has ended. Otherwise the thread that made it finds the lock
    /// open and could return before them for ever.
    pub(super) fn give_way(self) -> Self {
        const MOMENT: Duration = Duration::from_millis(1);
        self.wait(Some(MOMENT))
    }

    /// Something changed that those who sleep may wait for.
    #[inline]
    pub(crate) fn notify(&self) {
        if !self.inner().sleepers.is_null() {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        self.slot.event.fetch_add(1, Relaxed);
        futex::wake(&self.slot.event, i32::MAX);
    }

    /// Whether no thread is in a call or asleep: no thread will come back to the pool.
    pub(super) fn is_left_alone(&self) -> bool {
        self.inner().calls.is_null() && self.inner().sleepers.is_null()
    }

    /// Whether this thread sleeps, and a signal handler that interrupted it asks.
    pub(super) fn sleeps_here(&self) -> bool {
        let mut at = self.inner().sleepers;
        // SAFETY: as in `keep_sleepers`.
        while let Some(sleeper) = unsafe { at.as_ref() } {
            if sleeper.thread == thread::current() {
                return true;
            }
            at = sleeper.next.get();
        }
        false
    }

    /// Takes the sleepers that are not to be kept out of the list.
    fn keep_sleepers(&mut self, keep: impl Fn(&Sleeper) -> bool) {
        let mut at = std::mem::replace(&mut self.inner_mut().sleepers, std::ptr::null());
        // SAFETY: a sleeper is in the list only while its frame is alive, as those of a parent's threads are in the
        // memory of a forked child.
        while let Some(sleeper) = unsafe { at.as_ref() } {
            at = sleeper.next.get();
            if keep(sleeper) {
                sleeper.next.set(self.inner().sleepers);
                self.inner_mut().sleepers = sleeper;
            }
        }
    }
}

impl Deref for Guard<'_> {
    type Target = Pool;

    #[inline]
    #[allow(clippy::expect_used)]
    fn deref(&self) -> &Pool {
        self.inner().pool.as_deref().expect("a live slot has a pool")
    }
}

impl DerefMut for Guard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Pool {
        self.inner_mut().pool.as_deref_mut().expect("a live slot has a pool")
    }
}

#[cfg(test)]
mod tests;
