//! Slots in a forked child, where only the forking thread is left.

use super::call::CallKind;
use super::guard::Guard;
use super::slot::{Inner, Phase, Slot};
use crate::sys::thread;

impl Slot {
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

    /// After a fork in the child, where this is the only thread, for a slot that was locked.
    pub(crate) fn recover_in_child(&self) {
        let mut guard = Guard { slot: self, unwinding: false };
        let this = thread::current();
        let interrupted =
            guard.inner().calls.iter().any(|call| call.what == CallKind::Guards && call.thread != this);
        // The forking thread may itself be in a callback, and will come back from it in the child too.
        guard.inner_mut().calls.keep(|call| call.thread == this);
        let in_a_call = !guard.inner().calls.is_empty();
        let releases = guard.inner().calls.iter().any(|call| call.what == CallKind::GivesBack);
        let reserved = guard.inner().calls.iter().map(|call| call.what.reserved()).sum();
        // It may have been interrupted in its sleep by a signal, whose handler forks.
        guard.inner_mut().sleepers.keep(|sleeper| sleeper.thread == this);
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
}
