//! Slots before a fork, and in a forked child, where only the forking thread exists.

use super::call::CallKind;
use super::guard::Guard;
use super::slot::{Inner, Phase, Slot};
use crate::sys::lock::NotTaken;
use crate::sys::thread;

impl Slot {
    /// Takes the lock before a fork, so that no other thread is in the middle of a change. Fails if this thread holds
    /// it already, because a signal handler forks, or if another thread holds it until the deadline.
    pub(crate) fn lock_for_fork(&self, deadline: u64) -> Result<(), NotTaken> {
        self.lock.acquire_before(deadline)
    }

    /// Recovers a slot in the child whose lock this thread held before the fork. The interrupted call continues after
    /// the signal handler that forked, with memory that may belong to the parent.
    pub(crate) fn keep_in_child(&self) {
        let mut guard = Guard { slot: self, unwinding: false };
        let survives = guard.inner().pool.as_ref().is_none_or(|pool| pool.backend.get().survives_fork());
        if !survives {
            guard.inner_mut().phase = Phase::OfParent;
        }
        guard.end_history_in_child();
        std::mem::forget(guard);
        self.ranges.forget_readers();
    }

    /// Recovers a slot in the child that was locked for the fork. This is the only thread.
    pub(crate) fn recover_in_child(&self) {
        let mut guard = Guard { slot: self, unwinding: false };
        let this = thread::current();
        let interrupted =
            guard.inner().calls.iter().any(|call| call.what == CallKind::Guards && call.thread != this);
        // The forking thread may itself be in a callback, and returns from it in the child too.
        guard.inner_mut().calls.keep(|call| call.thread == this);
        let in_a_call = !guard.inner().calls.is_empty();
        let releases = guard.inner().calls.iter().any(|call| matches!(call.what, CallKind::GivesBack(_)));
        let reserved = guard.inner().calls.iter().map(|call| call.what.reserved()).sum();
        // A signal may have interrupted this thread's sleep, and the handler forked.
        guard.inner_mut().sleepers.keep(|sleeper| sleeper.thread == this);
        let inner = guard.inner_mut();
        inner.expecting = 0;
        let survives = inner.pool.as_ref().is_some_and(|pool| pool.backend.get().survives_fork());
        let orphaned = inner.phase == Phase::Destroying && inner.destroying != Some(this);
        if orphaned && survives {
            // The thread that was destroying the allocator does not exist here. If this thread is in a call,
            // destruction was still waiting for it.
            if in_a_call {
                let phase = inner.pool.as_deref().map_or(Phase::Empty, Phase::of);
                (inner.phase, inner.destroying) = (phase, None);
            } else {
                std::mem::forget(std::mem::replace(inner, Inner::EMPTY));
                self.ranges.abandon();
            }
        }
        guard.end_history_in_child();
        let inner = guard.inner_mut();
        match inner.phase {
            phase if survives && phase.is_live() => {
                guard.arena.forget_unfinished(reserved, releases);
                if let Some(guards) = guard.guards.as_mut().filter(|_| interrupted) {
                    guards.abandon();
                }
            }
            phase if !survives && (phase.is_live() || phase == Phase::Destroying) => {
                inner.phase = Phase::OfParent
            }
            _ => {}
        }
        self.ranges.forget_readers();
        guard.publish_changes();
        std::mem::forget(guard);
        self.lock.reset_after_fork();
    }

    /// Empties a slot in the child that was not locked for the fork. A thread of the parent may have been in the middle
    /// of a change, so the contents are leaked, not dropped.
    pub(crate) fn abandon_in_child(&self) {
        let mut guard = Guard { slot: self, unwinding: false };
        if guard.inner().phase != Phase::Empty || guard.inner().pool.is_some() {
            std::mem::forget(std::mem::replace(guard.inner_mut(), Inner::EMPTY));
        }
        std::mem::forget(guard);
        self.ranges.abandon();
        self.lock.reset_after_fork();
    }

    /// Marks a slot as lost in the child if it could not be locked before the fork. A thread of the parent was in the
    /// middle of a change, so the contents are not examined. The pool stays in place, because this thread may return to
    /// it from a callback.
    pub(crate) fn lose_in_child(&self) {
        let mut guard = Guard { slot: self, unwinding: false };
        let inner = guard.inner_mut();
        let pool = inner.pool.take();
        std::mem::forget(std::mem::replace(inner, Inner { phase: Phase::OfParent, pool, ..Inner::EMPTY }));
        std::mem::forget(guard);
        self.ranges.abandon();
        self.lock.reset_after_fork();
    }
}

impl Guard<'_> {
    /// Stops recording in the child: the history is the parent's.
    fn end_history_in_child(&mut self) {
        let inner = self.inner_mut();
        if let Some(pool) = &mut inner.pool {
            pool.end_history();
            if inner.phase == Phase::Recorded {
                inner.phase = Phase::Live;
            }
        }
    }
}
