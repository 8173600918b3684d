//! Entering a slot with all free memory in the arena, and none in magazines.

use super::guard::Guard;
use super::slot::{Inner, Phase, Slot};
use crate::error::Error;

impl Slot {
    /// Locks a slot that holds a usable allocator, whose numbers are exact until the lock is opened: no magazine has a
    /// block.
    pub(crate) fn enter_emptied(&self) -> Result<Guard<'_>, Error> {
        if self.magazines.are_open() {
            // To empty them takes long enough.
            self.lock.let_sleepers_in();
        }
        Ok(self.enter()?.emptied())
    }

    /// Does the same as [`Self::enter_emptied`], for a call that holds the lock for long. Threads that sleep for the lock
    /// go first.
    pub(crate) fn enter_for_long(&self) -> Result<Guard<'_>, Error> {
        self.lock.let_sleepers_in();
        Ok(self.enter()?.emptied())
    }
}

impl Guard<'_> {
    fn emptied(mut self) -> Self {
        self.empty_magazines();
        self
    }

    /// Opens this thread's magazine, if a plain call may go on at once, and a free is all that is to be done for a free. If
    /// threads wait for memory it stays closed: they are not told of blocks in magazines.
    pub(in crate::pool) fn open_magazine(&self) {
        let Inner { phase, calls, sleepers, pool: Some(pool), .. } = self.inner() else { return };
        let is_plain = *phase == Phase::Live && calls.is_empty() && sleepers.is_empty();
        // Other memory may be in use by a device's work, or may be lost with its context.
        if is_plain && pool.arena.frees_fast() && pool.backend.get().survives_fork() {
            self.slot.magazines.open();
        } else {
            self.slot.magazines.refuse();
        }
    }

    /// Closes all magazines and frees their blocks, but for those of a magazine that stays busy. Returns whether there were
    /// any.
    #[inline]
    pub(in crate::pool) fn empty_magazines(&mut self) -> bool {
        let magazines = &self.slot.magazines;
        magazines.are_open() && self.has_pool() && magazines.empty_into(&mut self.arena)
    }
}
