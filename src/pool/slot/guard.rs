//! A locked slot: entering it, sleeping in it, and leaving it.

use super::call::{Call, CallKind};
use super::ranges::{self, Place};
use super::slot::{Inner, Phase, Sleeper, Slot};
use super::table;
use super::waiting::{self, busy};
use crate::error::{ErrorKind, fail};
use crate::pool::pool::Pool;
use crate::sys::futex;
use crate::sys::lock::HeldByThisThread;
use crate::sys::thread;
use bfc_core::request::Request;
use bfc_core::stats::FailureCause;
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

impl Slot {
    /// Locks a slot that holds a usable allocator.
    #[inline]
    pub(crate) fn enter(&self) -> Result<Guard<'_>, ErrorKind> {
        self.lock().map_err(busy)?.admit()
    }

    /// Locks it for a call that holds the lock for long. Threads that sleep for the lock go first.
    pub(crate) fn enter_for_long(&self) -> Result<Guard<'_>, ErrorKind> {
        self.lock.let_sleepers_in(|| table::is_another_held(self));
        self.enter()
    }

    /// Locks a slot that holds a usable allocator, after [`Self::try_enter`].
    pub(in crate::pool) fn enter_after<'a>(
        &'a self,
        entered: Option<FastGuard<'a>>,
    ) -> Result<Guard<'a>, ErrorKind> {
        if let Some(entered) = entered {
            return entered.into_guard().admit();
        }
        self.lock.acquire_after_try(|| table::is_another_held(self)).map_err(busy)?;
        Guard { slot: self, unwinding: std::thread::panicking() }.admit()
    }

    /// Locks a slot in any state, if its lock is open.
    #[inline(always)]
    pub(in crate::pool) fn try_enter(&self) -> Option<FastGuard<'_>> {
        self.lock.try_acquire().then(|| FastGuard { slot: self })
    }

    /// Locks a slot in any state, and waits for the lock. Fails in a signal handler whose thread holds it. Fails instead of
    /// waiting if the thread holds another slot.
    #[inline]
    pub(in crate::pool) fn lock(&self) -> Result<Guard<'_>, HeldByThisThread> {
        self.lock.acquire_unless(|| table::is_another_held(self))?;
        Ok(Guard { slot: self, unwinding: std::thread::panicking() })
    }

    /// Checks whether `free(NULL)` succeeds. It does so without an allocator too, and while one is being destroyed.
    pub(crate) fn accepts_null(&self) -> Result<(), ErrorKind> {
        let guard = self.lock().map_err(busy)?;
        match guard.inner().phase {
            Phase::Empty | Phase::Live | Phase::Guarded | Phase::Recorded | Phase::Destroying => Ok(()),
            Phase::Poisoned | Phase::OfParent => guard.check_entry(),
        }
    }

    /// Returns whether an address lies in memory of this slot's live allocator. May be called from its own callbacks.
    /// Takes the lock only if the published table cannot decide: in a reserved range that is partly mapped, or without
    /// a table.
    pub(crate) fn holds(&self, addr: u64) -> Result<bool, ErrorKind> {
        match self.ranges.place_of(addr) {
            Place::Outside => Ok(false),
            Place::Inside => Ok(true),
            Place::Unknown => {
                let guard = self.lock().map_err(busy)?;
                Ok(guard.inner().phase.is_live() && guard.arena.has_memory_at(addr))
            }
        }
    }

    /// Returns whether there is an allocator already. Fails if that allocator is unusable.
    pub(crate) fn is_taken(&self) -> Result<bool, ErrorKind> {
        let guard = self.lock().map_err(busy)?;
        if guard.inner().phase == Phase::Empty {
            return Ok(false);
        }
        guard.check_entry().map(|_| true)
    }
}

/// A locked slot. Dropping it in a panic poisons the slot, because the panic interrupted a change.
pub(crate) struct Guard<'a> {
    pub(super) slot: &'a Slot,
    /// The thread was unwinding already when it took the lock: a destructor of the program made the call, and the panic
    /// is not the library's.
    pub(super) unwinding: bool,
}

/// A locked slot for a call that ends with [`FastGuard::leave`] or [`FastGuard::into_guard`]. Unlike a [`Guard`] it need
/// not know whether the thread is unwinding: it is dropped only by a panic of the library.
pub(in crate::pool) struct FastGuard<'a> {
    slot: &'a Slot,
}

impl<'a> FastGuard<'a> {
    #[inline(always)]
    fn inner(&self) -> &Inner {
        // SAFETY: the lock is held, and the borrow does not outlive `self`.
        unsafe { &*self.slot.inner.get() }
    }

    /// Returns the pool in phase [`Phase::Live`] without calls under way.
    #[inline(always)]
    pub(in crate::pool) fn pool(&mut self) -> Option<&mut Pool> {
        // SAFETY: the lock is held, and `&mut self` excludes another borrow.
        let inner = unsafe { &mut *self.slot.inner.get() };
        if inner.is_ready() { inner.pool.as_deref_mut() } else { None }
    }

    /// Returns the pool in phase [`Phase::Recorded`] without calls under way.
    #[inline(always)]
    pub(in crate::pool) fn recorded_pool(&mut self) -> Option<&mut Pool> {
        // SAFETY: the lock is held, and `&mut self` excludes another borrow.
        let inner = unsafe { &mut *self.slot.inner.get() };
        let is_ready = inner.phase == Phase::Recorded && inner.calls.is_empty();
        if is_ready { inner.pool.as_deref_mut() } else { None }
    }

    /// Returns the pool in phase [`Phase::Live`] or [`Phase::Recorded`] without calls under way.
    pub(in crate::pool) fn any_pool(&mut self) -> Option<&mut Pool> {
        // SAFETY: the lock is held, and `&mut self` excludes another borrow.
        let inner = unsafe { &mut *self.slot.inner.get() };
        let is_usable = matches!(inner.phase, Phase::Live | Phase::Recorded) && inner.calls.is_empty();
        if is_usable { inner.pool.as_deref_mut() } else { None }
    }

    /// Returns the slot that is locked.
    #[inline(always)]
    pub(in crate::pool) fn slot(&self) -> &'a Slot {
        self.slot
    }

    /// Returns whether threads sleep until something changes.
    #[inline(always)]
    pub(in crate::pool) fn has_sleepers(&self) -> bool {
        !self.inner().sleepers.is_empty()
    }

    /// Releases the lock. No region may have changed.
    #[inline(always)]
    pub(in crate::pool) fn leave(self) {
        self.slot.lock.release();
        std::mem::forget(self);
    }

    /// Goes on with the lock held.
    pub(in crate::pool) fn into_guard(self) -> Guard<'a> {
        let slot = self.slot;
        std::mem::forget(self);
        Guard { slot, unwinding: std::thread::panicking() }
    }
}

impl Drop for FastGuard<'_> {
    #[cold]
    fn drop(&mut self) {
        drop(Guard { slot: self.slot, unwinding: false });
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        if std::thread::panicking() && !self.unwinding {
            self.mark_poisoned();
        }
        self.publish_changes();
        self.slot.lock.release();
    }
}

impl<'a> Guard<'a> {
    /// Returns the guard if the call may go on.
    #[inline]
    fn admit(self) -> Result<Self, ErrorKind> {
        if !self.inner().is_ready() {
            self.check_entry()?;
        }
        Ok(self)
    }

    /// Releases the lock. Cheaper than dropping the guard, but allowed only if no panic is possible and no region has
    /// changed.
    #[inline]
    pub(in crate::pool) fn leave(self) {
        self.slot.lock.release();
        std::mem::forget(self);
    }

    #[inline]
    pub(in crate::pool) fn inner(&self) -> &Inner {
        // SAFETY: the lock is held, except between `open` and `close`, which borrow the guard, so that nothing reads through it.
        unsafe { &*self.slot.inner.get() }
    }

    #[inline]
    pub(in crate::pool) fn inner_mut(&mut self) -> &mut Inner {
        // SAFETY: as above; `&mut self` excludes another borrow through this guard.
        unsafe { &mut *self.slot.inner.get() }
    }

    /// Publishes the address ranges of the memory if they have changed.
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

    /// Publishes the context that default streams belong to, after the pool or its backend has changed.
    pub(in crate::pool) fn publish_context(&self) {
        let order = self.inner().pool.as_ref().and_then(|pool| pool.backend.get().order());
        self.slot.context.store(order.map_or(0, |streams| streams.own_context()), Release);
    }

    /// Returns the host memory that the slot occupies beside itself, in bytes: the published table of regions.
    pub(crate) fn metadata_bytes(&self) -> u64 {
        self.inner().published.bytes()
    }

    /// Returns the error that says why the call may not go on, if it may not.
    #[cold]
    pub(crate) fn check_entry(&self) -> Result<(), ErrorKind> {
        let inner = self.inner();
        let phase = inner.phase;
        if self.is_called_by_this_thread() {
            waiting::mark_circle(self.slot.id());
            return Err(fail!(
                ErrorKind::Busy,
                "a callback, or a signal handler in one, called back into its own allocator"
            ));
        }
        match phase {
            Phase::Live | Phase::Guarded | Phase::Recorded => Ok(()),
            Phase::Empty => Err(fail!(ErrorKind::NoAllocator, "no allocator was created: create one first")),
            Phase::Destroying => Err(fail!(ErrorKind::ShuttingDown, "the allocator is being destroyed")),
            Phase::OfParent => Err(fail!(
                ErrorKind::ShuttingDown,
                "the allocator's memory belongs to the parent of this forked process: fork before it is created, or start the child by exec"
            )),
            Phase::Poisoned => Err(fail!(
                ErrorKind::Internal,
                "the allocator is disabled: an invariant was broken earlier, which is a bug in libbfc; please report it"
            )),
        }
    }

    /// Poisons the slot, because the pool's metadata can no longer be trusted.
    pub(crate) fn poison(mut self) {
        self.mark_poisoned();
    }

    pub(super) fn mark_poisoned(&mut self) {
        self.inner_mut().phase = Phase::Poisoned;
        self.notify();
    }

    /// Counts a failed request whose error message is already stored, unless the caller counts it. Returns `error`.
    pub(crate) fn fail(&mut self, error: ErrorKind, request: &Request<'_>) -> ErrorKind {
        self.count_failure(request, FailureCause::Other);
        error
    }

    /// Returns whether the slot holds a pool, in whatever phase.
    pub(in crate::pool) fn has_pool(&self) -> bool {
        self.inner().pool.is_some()
    }

    /// Returns whether this is a forked child and the memory belongs to the parent.
    pub(in crate::pool) fn is_of_parent(&self) -> bool {
        self.inner().phase == Phase::OfParent
    }

    /// Sleeps with the lock open until the slot is notified, at most for `timeout`. No wakeup is lost, because every
    /// change is made with the lock held, and the event count is read with the lock held too. Afterwards the slot may hold
    /// no pool any more.
    pub(in crate::pool) fn wait(&mut self, timeout: Option<Duration>) {
        let slot = self.slot;
        let sleeper = Sleeper { thread: thread::current(), next: Cell::new(ptr::null()) };
        self.inner_mut().sleepers.push(&sleeper);
        let seen = slot.event.load(Relaxed);
        self.open();
        #[cfg(test)]
        super::tests::in_the_gap(slot);
        futex::wait(&slot.event, seen, timeout);
        self.close();
        self.inner_mut().sleepers.remove(&sleeper);
        if self.inner().phase == Phase::Destroying {
            self.notify();
        }
    }

    /// Releases the lock for a while. Nothing may panic until [`Self::close`], except in calls that are listed as under
    /// way.
    pub(super) fn open(&mut self) {
        self.inner_mut().openings += 1;
        self.publish_changes();
        self.slot.lock.release();
    }

    /// Returns how often the lock was opened. The same number as before says that it has been held since.
    pub(in crate::pool) fn openings(&self) -> u64 {
        self.inner().openings
    }

    /// Takes the lock again. Waits even if this thread holds another slot: the holder has taken this one later than the
    /// thread took the other, so it does not wait for that.
    #[allow(clippy::expect_used)]
    pub(super) fn close(&mut self) {
        self.slot.lock.acquire().expect("the call has opened the lock");
    }

    /// Sleeps until another thread's call ends, or something else changes. Returns [`ErrorKind::Busy`] if that call would
    /// never end because its thread waits for this one.
    pub(in crate::pool) fn wait_for_call(&mut self) -> Result<(), ErrorKind> {
        self.wait_for_call_within(None)
    }

    /// Waits as [`Self::wait_for_call`] does, for `timeout` at most.
    pub(in crate::pool) fn wait_for_call_within(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<(), ErrorKind> {
        waiting::while_registered(self.slot, || {
            self.inner_mut().expecting += 1;
            self.wait(timeout);
            let inner = self.inner_mut();
            // A signal handler may have forked meanwhile: in the child no thread is counted.
            inner.expecting = inner.expecting.saturating_sub(1);
        })?;
        self.check_entry()
    }

    /// Returns whether a thread sleeps until a call ends.
    pub(in crate::pool) fn is_awaited(&self) -> bool {
        self.inner().expecting != 0
    }

    /// Lets threads go first that waited for a call that has ended. Otherwise the thread that made the call could take
    /// the lock again and again before they wake.
    pub(in crate::pool) fn give_way(&mut self) -> Result<(), ErrorKind> {
        const MOMENT: Duration = Duration::from_millis(1);
        if self.must_not_wait() {
            return Ok(());
        }
        self.wait(Some(MOMENT));
        self.check_entry()
    }

    /// Returns whether this thread holds another slot, so that nothing may be waited for.
    pub(in crate::pool) fn must_not_wait(&self) -> bool {
        table::is_another_held(self.slot)
    }

    /// Wakes the sleeping threads, because something changed that they may be waiting for.
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

    /// Returns whether this thread is in one of the calls under way that exclude others.
    pub(super) fn is_called_by_this_thread(&self) -> bool {
        let excludes = |call: &Call| call.what != CallKind::Settles && call.thread == thread::current();
        self.inner().calls.iter().any(excludes)
    }

    /// Returns whether this thread sleeps in this slot. That is so only in a signal handler that interrupted the sleep.
    pub(in crate::pool) fn sleeps_here(&self) -> bool {
        self.inner().sleepers.iter().any(|sleeper| sleeper.thread == thread::current())
    }

    /// Returns whether no thread is in a call or asleep, so that none will return to the pool.
    pub(in crate::pool) fn has_no_threads(&self) -> bool {
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
