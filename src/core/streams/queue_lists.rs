//! Lists of queues, linked through the queues' entries, so that no change needs memory.

use super::chunk_state::{QueueId, UNOWNED};

/// The lists that exist.
#[derive(Clone, Copy)]
pub(super) enum List {
    /// Queues whose work is not known to be done, whether memory waits for it or not.
    Unfinished,
    /// Queues with finished work. Chunks that waited for it may remain to be shared.
    Sharing,
    /// Queues whose positions may be reused for another stream, once nothing refers to them.
    Recyclable,
}

const LISTS: usize = 3;

#[derive(Clone, Copy)]
struct Ends {
    first: QueueId,
    last: QueueId,
}

/// An entry's links in one of the lists.
#[derive(Clone, Copy)]
struct Links {
    prev: QueueId,
    next: QueueId,
    is_in: bool,
}

/// An entry's links in all lists.
#[derive(Clone, Copy)]
pub(super) struct Places([Links; LISTS]);

impl Places {
    pub(super) const NONE: Self = Places([Links { prev: UNOWNED, next: UNOWNED, is_in: false }; LISTS]);

    #[inline]
    pub(super) fn is_in(&self, list: List) -> bool {
        self.0[list as usize].is_in
    }
}

/// An entry that can be in the lists.
pub(super) trait Listed {
    fn places(&self) -> &Places;
    fn places_mut(&mut self) -> &mut Places;
}

pub(super) struct QueueLists([Ends; LISTS]);

impl QueueLists {
    pub(super) const fn new() -> Self {
        QueueLists([Ends { first: UNOWNED, last: UNOWNED }; LISTS])
    }

    #[inline]
    pub(super) fn is_empty(&self, list: List) -> bool {
        self.0[list as usize].first == UNOWNED
    }

    pub(super) fn first(&self, list: List) -> Option<QueueId> {
        Some(self.0[list as usize].first).filter(|&queue| queue != UNOWNED)
    }

    /// Appends a queue to a list, if it is not in it.
    pub(super) fn add(&mut self, entries: &mut [impl Listed], list: List, queue: QueueId) {
        let at = list as usize;
        if entries[queue.index()].places().0[at].is_in {
            return;
        }
        let prev = std::mem::replace(&mut self.0[at].last, queue);
        entries[queue.index()].places_mut().0[at] = Links { prev, next: UNOWNED, is_in: true };
        match prev {
            UNOWNED => self.0[at].first = queue,
            _ => entries[prev.index()].places_mut().0[at].next = queue,
        }
    }

    /// Removes a queue from a list, if it is in it.
    pub(super) fn remove(&mut self, entries: &mut [impl Listed], list: List, queue: QueueId) {
        let at = list as usize;
        let none = Links { prev: UNOWNED, next: UNOWNED, is_in: false };
        let Links { prev, next, is_in } =
            std::mem::replace(&mut entries[queue.index()].places_mut().0[at], none);
        if !is_in {
            return;
        }
        match prev {
            UNOWNED => self.0[at].first = next,
            _ => entries[prev.index()].places_mut().0[at].next = next,
        }
        match next {
            UNOWNED => self.0[at].last = prev,
            _ => entries[next.index()].places_mut().0[at].prev = prev,
        }
    }

    pub(super) fn iter<'a, R: Listed>(
        &self,
        entries: &'a [R],
        list: List,
    ) -> impl Iterator<Item = QueueId> + use<'a, R> {
        std::iter::successors(self.first(list), move |queue| {
            Some(entries[queue.index()].places().0[list as usize].next).filter(|&queue| queue != UNOWNED)
        })
    }
}
