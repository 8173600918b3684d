//! The state of the search for idle queues; see [`super::queue_lookup`].

/// As long as there are no more queues than this, idle ones are kept, because their streams are likely to come back.
const KEPT: usize = if cfg!(test) { 4 } else { 256 };
/// How many queues are examined for each that is added. While at least every fourth is idle, one is found each time, so
/// the table grows to no more than 4/3 of the queues that are not idle, whatever their order.
pub(super) const LOOKS: usize = 4;

pub(super) struct IdleSearch {
    /// The position that is examined next.
    place: usize,
    /// How many positions were found and are not reused yet.
    found: usize,
    /// Idle queues are kept, because the program forgets all streams.
    is_off: bool,
}

impl IdleSearch {
    pub(super) const NEW: Self = IdleSearch { place: 0, found: 0, is_off: false };

    /// Keeps all queues until their streams are forgotten.
    pub(super) fn turn_off(&mut self) {
        self.is_off = true;
    }

    pub(super) fn is_off(&self) -> bool {
        self.is_off
    }

    /// Returns whether to examine some of `count` queues. At most a quarter of the positions is kept in reserve:
    /// streams that are idle now and then would be forgotten for nothing.
    pub(super) fn is_due(&self, count: usize) -> bool {
        count >= KEPT && self.found < count / LOOKS
    }

    /// Returns the position to examine next among `count`.
    pub(super) fn next_place(&mut self, count: usize) -> usize {
        self.place = (self.place + 1) % count;
        self.place
    }

    /// Notes that a position was found.
    pub(super) fn note_found(&mut self) {
        self.found += 1;
    }

    /// Notes that a position is reused, or given up.
    pub(super) fn note_reuse(&mut self) {
        self.found = self.found.saturating_sub(1);
    }
}
