//! Queues of streams that are idle: nothing waits for their work, and they have no memory.
//!
//! The program need not forget such a stream, and may have destroyed it. So each stream that is added forgets a few idle
//! ones, whose positions are then reused. An idle stream that comes back gets another position.

use super::idle_search::LOOKS;
use super::queue::StreamQueue;
use super::queues::StreamQueues;
use crate::core::steps;

impl StreamQueues {
    /// Forgets a few idle queues, before a queue is added.
    pub(super) fn forget_some_idle(&mut self) {
        let count = self.count();
        if !self.idle.is_due(count) {
            return;
        }
        for _ in 0..LOOKS {
            steps::count();
            let place = self.idle.next_place(count);
            self.forget_if_idle(place);
        }
    }

    pub(super) fn forget_all_idle(&mut self) {
        (0..self.count()).for_each(|place| self.forget_if_idle(place));
    }

    fn forget_if_idle(&mut self, place: usize) {
        let found = self.nth(place).filter(|&queue| may_be_forgotten(self.entry(queue)));
        if let Some(queue) = found.filter(|_| !self.idle.is_off()) {
            self.forget(queue);
            self.idle.note_found();
        }
    }
}

/// Returns whether a queue is idle, and is that of a stream that the program creates and destroys. Private pools keep their
/// queues, and the positions of streams that end without notice are reused anyway.
fn may_be_forgotten(entry: &StreamQueue) -> bool {
    let stream = entry.stream;
    entry.is_idle()
        && !entry.forgotten
        && stream.exists()
        && stream.pool() == 0
        && !stream.is_default()
        && !stream.ends_unnoticed()
}
