//! What an allocation asks for.

use crate::core::heap::Tag;
use crate::core::stream_id::Stream;
use crate::core::units::{MAX_CHUNK, UNIT};

/// One request, already rounded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocRequest<'a> {
    /// A multiple of 256, not 0.
    pub(crate) size: u64,
    pub(crate) requested: u64,
    /// A power of two; every chunk is aligned to 256 anyway.
    pub(crate) alignment: u64,
    /// Accept chunks stamped at most this; `u64::MAX` is any.
    pub(crate) max_stamp: u64,
    /// Look at every chunk of a sufficient size for a place at the alignment, and not at a few of them only.
    pub(crate) thorough: bool,
    /// In whose order.
    pub(crate) stream: Stream,
    /// The operation and the step it is for, from [`crate::core::arena::Arena::tag`].
    pub(crate) scope: Option<&'a Tag>,
}

impl AllocRequest<'_> {
    /// `size` bytes and nothing else.
    pub(crate) fn plain(size: u64, requested: u64, stream: Stream) -> Self {
        AllocRequest {
            size,
            requested,
            alignment: UNIT,
            max_stamp: u64::MAX,
            thorough: false,
            stream,
            scope: None,
        }
    }

    /// The place of the request in free memory of so many bytes at an address, and the bytes from there on.
    #[inline]
    pub(in crate::core) fn place_in(&self, (bytes, addr): (u64, u64)) -> Option<(u64, u64)> {
        // A division is what the rest of a search costs together.
        let plain = self.alignment <= UNIT;
        let start = if plain { addr } else { addr.checked_next_multiple_of(self.alignment)? };
        let left = bytes.checked_sub(start - addr)?;
        (left >= self.size).then_some((start, left))
    }

    /// The first (bytes, address) behind free memory without a place that may have one. Memory of that size has a place only at
    /// addresses shortly before a multiple of the alignment, so a search need not look at what lies between two of them.
    pub(in crate::core) fn next_with_place(&self, (bytes, addr): (u64, u64)) -> (u64, u64) {
        let Some(start) = addr.checked_next_multiple_of(self.alignment) else { return (bytes, u64::MAX) };
        (bytes, start - bytes.saturating_sub(self.size))
    }

    /// Whether a thorough search may find what this one does not.
    pub(crate) fn needs_thorough_search(&self) -> bool {
        self.alignment > UNIT && !self.thorough
    }

    /// So many bytes have a place at the alignment wherever they begin.
    pub(in crate::core) fn size_that_always_fits(&self) -> u64 {
        self.size.saturating_add(self.alignment.max(UNIT) - UNIT).min(MAX_CHUNK)
    }

    pub(in crate::core) fn is_plain(&self) -> bool {
        self.alignment <= UNIT && self.max_stamp == u64::MAX
    }
}

/// Chunks that a search may find to be large enough, but without a place at the alignment, before it takes one that surely has
/// it.
pub(in crate::core) const MOST_MISALIGNED: u32 = 32;
