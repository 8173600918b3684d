//! Lanes in a list that is linked through their rows, so that no change needs memory.

use super::chunk_state::{ANYONE, Lane};

/// The lists that there are.
#[derive(Clone, Copy)]
pub(super) enum List {
    /// Work of these is not known to be done, whether memory waits for it or not.
    Unfinished,
    /// Chunks may wait for work of these that is done, and are to be shared.
    Sharing,
    /// The places of these may be used for another stream, once nothing refers to them.
    Recyclable,
}

const LISTS: usize = 3;

#[derive(Clone, Copy)]
struct Ends {
    first: Lane,
    last: Lane,
}

/// A row's place in one of the lists.
#[derive(Clone, Copy)]
struct Links {
    prev: Lane,
    next: Lane,
    is_in: bool,
}

/// A row's places in the lists.
#[derive(Clone, Copy)]
pub(super) struct Places([Links; LISTS]);

impl Places {
    pub(super) const NONE: Self = Places([Links { prev: ANYONE, next: ANYONE, is_in: false }; LISTS]);

    #[inline]
    pub(super) fn is_in(&self, list: List) -> bool {
        self.0[list as usize].is_in
    }
}

/// What can be in the lists.
pub(super) trait Listed {
    fn places(&self) -> &Places;
    fn places_mut(&mut self) -> &mut Places;
}

pub(super) struct LaneLists([Ends; LISTS]);

impl LaneLists {
    pub(super) const fn new() -> Self {
        LaneLists([Ends { first: ANYONE, last: ANYONE }; LISTS])
    }

    #[inline]
    pub(super) fn is_empty(&self, list: List) -> bool {
        self.0[list as usize].first == ANYONE
    }

    pub(super) fn first(&self, list: List) -> Option<Lane> {
        Some(self.0[list as usize].first).filter(|&lane| lane != ANYONE)
    }

    /// Puts a lane behind all others of a list, if it is not in it.
    pub(super) fn add(&mut self, rows: &mut [impl Listed], list: List, lane: Lane) {
        let at = list as usize;
        if rows[lane.index()].places().0[at].is_in {
            return;
        }
        let prev = std::mem::replace(&mut self.0[at].last, lane);
        rows[lane.index()].places_mut().0[at] = Links { prev, next: ANYONE, is_in: true };
        match prev {
            ANYONE => self.0[at].first = lane,
            _ => rows[prev.index()].places_mut().0[at].next = lane,
        }
    }

    /// Takes a lane out of a list, if it is in it.
    pub(super) fn remove(&mut self, rows: &mut [impl Listed], list: List, lane: Lane) {
        let at = list as usize;
        let none = Links { prev: ANYONE, next: ANYONE, is_in: false };
        let Links { prev, next, is_in } = std::mem::replace(&mut rows[lane.index()].places_mut().0[at], none);
        if !is_in {
            return;
        }
        match prev {
            ANYONE => self.0[at].first = next,
            _ => rows[prev.index()].places_mut().0[at].next = next,
        }
        match next {
            ANYONE => self.0[at].last = prev,
            _ => rows[next.index()].places_mut().0[at].prev = prev,
        }
    }

    pub(super) fn iter<'a, R: Listed>(
        &self,
        rows: &'a [R],
        list: List,
    ) -> impl Iterator<Item = Lane> + use<'a, R> {
        std::iter::successors(self.first(list), move |lane| {
            Some(rows[lane.index()].places().0[list as usize].next).filter(|&lane| lane != ANYONE)
        })
    }
}
