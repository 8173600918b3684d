//! A locked slot: entering it, sleeping in it, and leaving it.

use super::ranges::{self, Place};
use super::slot::{Inner, Phase, Sleeper, Slot};
use super::waiting::{self, busy};
use crate::core::stats::FailureCause;
use crate::error::{Error, fail};
use crate::pool::pool::Pool;
use crate::sys::futex;
use crate::sys::lock::HeldByThisThread;
use crate::sys::thread;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

impl Slot {
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
        if guard.inner().phase == Phase::Live && guard.inner().calls.is_empty() {
            return Ok(guard);
        }
        Err(Unready(Some(guard)))
    }

    /// Locks a slot whatever it holds. An error for a signal handler that interrupted the thread which holds the lock.
    #[inline]
    pub(in crate::pool) fn try_lock(&self) -> Result<Guard<'_>, HeldByThisThread> {
        self.lock.acquire()?;
        Ok(Guard { slot: self, unwinding: std::thread::panicking() })
    }

    /// The same where the lock was open when the call began that now takes it again: then this thread cannot hold it.
    #[allow(clippy::expect_used)]
    pub(in crate::pool) fn lock(&self) -> Guard<'_> {
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
    pub(super) slot: &'a Slot,
    /// The thread was unwinding already: a destructor of the program called, and no panic is ours.
    pub(super) unwinding: bool,
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
    pub(in crate::pool) fn leave(self) {
        self.slot.lock.release();
        std::mem::forget(self);
    }

    #[inline]
    pub(in crate::pool) fn inner(&self) -> &Inner {
        // SAFETY: a guard exists only while the lock is held, and lends no longer than it lives.
        unsafe { &*self.slot.inner.get() }
    }

    #[inline]
    pub(in crate::pool) fn inner_mut(&mut self) -> &mut Inner {
        // SAFETY: as above; `&mut self` excludes another borrow through this guard.
        unsafe { &mut *self.slot.inner.get() }
    }

    /// Says where the memory is, if that has changed.
    #[inline]
    pub(super) fn publish_changes(&mut self) {
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
            waiting::mark_circle(self.slot.id());
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
    pub(in crate::pool) fn has_pool(&self) -> bool {
        self.inner().pool.is_some()
    }

    /// Whether this is a forked child and the memory is the parent's.
    pub(in crate::pool) fn is_lost(&self) -> bool {
        self.inner().phase == Phase::Lost
    }

    /// Sleeps until something changes, at most for `timeout`. There is no wakeup to lose: who changes
    /// something holds the lock, and the count was read under it.
    pub(in crate::pool) fn wait(mut self, timeout: Option<Duration>) -> Self {
        let slot = self.slot;
        let sleeper = Sleeper { thread: thread::current(), next: Cell::new(ptr::null()) };
        self.inner_mut().sleepers.push(&sleeper);
        let seen = slot.event.load(Relaxed);
        drop(self);
        #[cfg(test)]
        super::tests::in_the_gap(slot);
        futex::wait(&slot.event, seen, timeout);
        let mut guard = slot.lock();
        guard.inner_mut().sleepers.remove(&sleeper);
        if guard.inner().phase == Phase::Destroying {
            guard.notify();
        }
        guard
    }

    /// Sleeps until a call of another thread's ends, or something else changes; [`Error::Busy`] if that thread would
    /// never get there, because it waits for this one.
    pub(in crate::pool) fn wait_for_call(self) -> Result<Self, Error> {
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
        waiting::while_registered(slot.id(), wait)?.check_entry()
    }

    /// Returns whether a thread sleeps until a call ends.
    pub(in crate::pool) fn is_awaited(&self) -> bool {
        self.inner().expecting != 0
    }

    /// Lets threads go first that have waited for a call, which has ended. Otherwise the thread that made it finds the lock
    /// open and could return before them for ever.
    pub(in crate::pool) fn give_way(self) -> Self {
        const MOMENT: Duration = Duration::from_millis(1);
        self.wait(Some(MOMENT))
    }

    /// Something changed that those who sleep may wait for.
    #[inline]
    pub(crate) fn notify(&self) {
        if !self.inner().sleepers.is_empty() {
            self.wake_all();
        }
    }

    #[cold]
    fn wake_all(&self) {
        self.slot.event.fetch_add(1, Relaxed);
        futex::wake(&self.slot.event, i32::MAX);
    }

    /// Whether a call under way is this thread's.
    pub(super) fn is_called_by_this_thread(&self) -> bool {
        self.inner().calls.iter().any(|call| call.thread == thread::current())
    }

    /// Whether this thread sleeps, and a signal handler that interrupted it asks.
    pub(in crate::pool) fn sleeps_here(&self) -> bool {
        self.inner().sleepers.iter().any(|sleeper| sleeper.thread == thread::current())
    }

    /// Whether no thread is in a call or asleep: no thread will come back to the pool.
    pub(in crate::pool) fn is_left_alone(&self) -> bool {
        self.inner().calls.is_empty() && self.inner().sleepers.is_empty()
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
