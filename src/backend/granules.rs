//! The interface between a pool in one reserved range and its backend: granules that can be mapped, unmapped and moved.

use crate::error::ErrorKind;
use bfc_core::units::Span;
use bfc_core::vmm::Range;

/// The contract between backends with granules and the pool:
/// - Spans are whole granules of `range`. `map` and `attach` get spans without any mapped granule. `release` and
///   `detach` get spans whose granules are all mapped.
/// - Nothing here is called while an allocator is locked. Calls may come from any thread, but only one at a time for a
///   pool.
/// - A call either does everything it documents, or changes nothing and sets a message with `fail!`. The error is
///   [`ErrorKind::OutOfMemory`] if there is no more physical memory, or no room for more mappings. It is
///   [`ErrorKind::BackendFailed`], or [`ErrorKind::ShuttingDown`] for a driver that is down, if the next call cannot be
///   expected to succeed either.
/// - The backend never holds more physical memory than is mapped and kept.
/// - No function reads or writes the memory.
pub(crate) trait Granules {
    /// Returns the reserved range.
    fn range(&self) -> Range;

    /// Prepares for up to `bytes` mapped at the same time, for which the range has room. A smaller value than before
    /// changes nothing.
    fn admit(&self, _bytes: u64) -> Result<(), ErrorKind> {
        Ok(())
    }

    /// Blocks the calling thread until no work queued so far can use the memory. Called before granules are unmapped
    /// that were free in the allocator metadata when the call began.
    fn wait_until_idle(&self) -> Result<(), ErrorKind>;

    /// Maps new physical memory.
    fn map(&self, span: Span) -> Result<(), ErrorKind>;

    /// Unmaps the span and returns the physical memory to the system.
    fn release(&self, span: Span) -> Result<(), ErrorKind>;

    /// Unmaps the span and keeps the physical memory for `attach`.
    fn detach(&self, span: Span) -> Result<(), ErrorKind>;

    /// Maps kept memory. Callers ensure that enough is kept.
    fn attach(&self, span: Span) -> Result<(), ErrorKind>;

    /// Returns kept memory to the system. This cannot fail.
    fn drop_kept(&self);
}
