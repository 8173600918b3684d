//! The addresses of a reserved range and its granules.

use crate::core::units::Span;

/// Addresses reserved for one arena, to be mapped in granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    /// A multiple of the granule, as is `bytes`. `bytes` is at most [`crate::core::units::MAX_CHUNK`].
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    /// A power of two, not below [`crate::core::units::UNIT`].
    pub(crate) granule: u64,
}

impl Range {
    pub(crate) fn end(&self) -> u64 {
        self.base + self.bytes
    }

    /// Returns the granule boundary at or below an address or size.
    pub(in crate::core) fn floor(&self, at: u64) -> u64 {
        at & !(self.granule - 1)
    }

    /// Returns the granule boundary at or above an address of the range, or a size in it.
    pub(in crate::core) fn ceil(&self, at: u64) -> u64 {
        self.floor(at + (self.granule - 1))
    }

    /// Returns the numbers of a span's granules, for use in tables.
    #[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
    pub(crate) fn numbers(&self, span: Span) -> std::ops::Range<usize> {
        let first = ((span.base - self.base) / self.granule) as usize;
        first..first + (span.bytes / self.granule) as usize
    }

    /// Returns the address of the granule with a number.
    pub(crate) fn address(&self, number: usize) -> u64 {
        self.base + number as u64 * self.granule
    }
}
