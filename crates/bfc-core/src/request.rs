//! The parameters of an allocation.

use crate::heap::Tag;
use crate::stream_id::Stream;
use crate::units::{MAX_CHUNK, UNIT, round_up, round_up_to_512};

/// An allocation request, from the call to the chunk.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The bytes of the chunk: a multiple of 256, or `u64::MAX` if none can be that large. The arena is asked for neither that nor 0.
    pub size: u64,
    /// The bytes that the caller asked for.
    pub requested: u64,
    /// A power of two; every chunk is aligned to 256 anyway.
    pub alignment: u64,
    /// The latest stamp of acceptable chunks. `u64::MAX` accepts any.
    pub max_stamp: u64,
    /// Examine every chunk of sufficient size for a place at the alignment, not only a few.
    pub thorough: bool,
    /// The request is served only from memory that the pool holds, without growth and without waiting for work.
    pub no_growth: bool,
    /// The memory will be freed soon, so it is taken from the upper end of a chunk where that is possible.
    pub short_lived: bool,
    /// The request may split a large chunk, where small requests usually do not.
    pub splits_large: bool,
    /// The stream in whose order the memory is requested.
    pub stream: Stream,
    /// The operation and the step that the request belongs to, from [`crate::arena::Arena::tag`].
    pub scope: Option<&'a Tag>,
    /// The number of the request's backtrace, which means nothing here.
    pub stack: u64,
    /// A failure is not counted. The caller may have other ways to serve the request, and says itself when it has failed.
    pub is_attempt: bool,
}

/// The size of a request for more bytes than any chunk can have.
const TOO_LARGE: u64 = u64::MAX;

impl Request<'_> {
    /// Creates a request for `bytes` bytes in the order of a stream, or of none, without further requirements.
    #[inline]
    pub fn new(bytes: u64, stream: Stream) -> Self {
        Self::plain(round_up(bytes).unwrap_or(TOO_LARGE), bytes, stream)
    }

    /// Returns the request with its size rounded up to a multiple of 512.
    pub fn in_512(self) -> Self {
        Request { size: round_up_to_512(self.requested).unwrap_or(TOO_LARGE), ..self }
    }

    /// Returns the request for chunks whose free was stamped at most `stamp`. 0 accepts any.
    pub fn freed_before(self, stamp: u64) -> Self {
        // No free has the stamp u64::MAX, so that can stand for a request that accepts any.
        Request { max_stamp: if stamp == 0 { u64::MAX } else { stamp.min(u64::MAX - 1) }, ..self }
    }

    /// Returns whether any stamp is early enough.
    pub fn accepts_any_stamp(&self) -> bool {
        self.max_stamp >= u64::MAX - 1
    }

    /// Returns the request for a chunk of another size, or of none that can exist.
    pub fn with_size(self, size: Option<u64>) -> Self {
        Request { size: size.unwrap_or(TOO_LARGE), ..self }
    }

    /// Returns whether no chunk can be that large.
    pub fn is_too_large(&self) -> bool {
        self.size == TOO_LARGE
    }

    /// Creates a request for `size` bytes without further requirements.
    pub fn plain(size: u64, requested: u64, stream: Stream) -> Self {
        Request {
            size,
            requested,
            alignment: UNIT,
            max_stamp: u64::MAX,
            thorough: false,
            no_growth: false,
            short_lived: false,
            splits_large: false,
            stream,
            scope: None,
            stack: 0,
            is_attempt: false,
        }
    }

    /// Returns the place of the request in free memory of `bytes` bytes at `addr`, and the bytes from there on.
    #[inline]
    pub(crate) fn place_in(&self, (bytes, addr): (u64, u64)) -> Option<(u64, u64)> {
        // A division would cost as much as the rest of the search.
        let in_front = addr.wrapping_neg() & (self.alignment.max(UNIT) - 1);
        let left = bytes.checked_sub(in_front)?;
        (left >= self.size).then_some((addr + in_front, left))
    }

    /// Returns the next (bytes, address) that may have a place, given free memory that has none. Memory of that size
    /// has a place only at addresses shortly before a multiple of the alignment, so a search can skip everything
    /// between two of these.
    pub(crate) fn next_with_place(&self, (bytes, addr): (u64, u64)) -> (u64, u64) {
        let Some(start) = addr.checked_next_multiple_of(self.alignment) else { return (bytes, u64::MAX) };
        (bytes, start - bytes.saturating_sub(self.size))
    }

    /// Returns whether the request leaves large chunks to large requests, if it is small. A small region has no certain place
    /// at a larger alignment.
    #[inline]
    pub(crate) fn leaves_large(&self) -> bool {
        const MOST_ALIGNED: u64 = 1 << 20;
        !self.splits_large && self.alignment <= MOST_ALIGNED
    }

    /// Returns whether a thorough search may find more than this one.
    pub fn needs_thorough_search(&self) -> bool {
        self.alignment > UNIT && !self.thorough
    }

    /// Returns a size that has a place at the alignment wherever it begins.
    pub(crate) fn size_that_always_fits(&self) -> u64 {
        self.size.saturating_add(self.alignment.max(UNIT) - UNIT).min(MAX_CHUNK)
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.alignment <= UNIT && self.max_stamp == u64::MAX && !self.short_lived
    }
}

/// How many chunks of sufficient size but without a place at the alignment a search examines. After that it takes a
/// chunk that certainly has a place.
pub(crate) const MOST_MISALIGNED: u32 = 32;
