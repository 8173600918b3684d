//! A request of the recorded program.

/// The size of a request and its planned place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// The rounded size.
    pub(super) size: u64,
    /// The place, from the beginning of the pool's first region, or [`NO_PLACE`].
    pub(super) offset: u64,
    /// Where the chunk before the place began when the entry was last followed. The search for the place starts there.
    pub(super) below: u64,
}

/// The offset of an entry that best fit serves.
pub(super) const NO_PLACE: u64 = u64::MAX;

impl Entry {
    pub(super) fn new(size: u64, offset: u64) -> Self {
        Entry { size, offset, below: NO_PLACE }
    }
}
