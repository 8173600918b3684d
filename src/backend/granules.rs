//! What a pool in one reserved range needs of a backend: granules that are mapped, unmapped and moved.

use crate::core::units::Span;
use crate::core::vmm::Range;
use crate::error::Error;

/// The contract, which every backend with granules fulfils and the pool relies on:
/// - Spans are whole granules of `range`. `map` and `attach` get spans of which nothing is mapped, `release` and
///   `detach` spans of which all is.
/// - Nothing here is called while an allocator is locked; from any thread, but for one pool one at a time.
/// - A call does all that it says, or it changes nothing and has its words in `fail!`:
///   [`Error::OutOfMemory`] if there is no more physical memory, or no more room for mappings;
///   [`Error::BackendFailed`], or [`Error::ShuttingDown`] for a driver that is down, if nothing can be expected of
///   the next call either.
/// - It never holds more physical memory than is mapped and kept.
/// - Nothing reads or writes the memory.
pub(crate) trait Granules {
    /// What is reserved.
    fn range(&self) -> Range;

    /// Prepares for up to `bytes` to be mapped at once from now on, which the range has room for. Less changes nothing.
    fn admit(&self, _bytes: u64) -> Result<(), Error> {
        Ok(())
    }

    /// Blocks the calling thread until no work that was queued so far can touch the memory any more: called
    /// before granules are unmapped that were free in the books when the call began.
    fn wait_until_idle(&self) -> Result<(), Error>;

    /// Maps new physical memory.
    fn map(&self, span: Span) -> Result<(), Error>;

    /// Unmaps, and gives the physical memory back to the system.
    fn release(&self, span: Span) -> Result<(), Error>;

    /// Unmaps, and keeps the physical memory for `attach`.
    fn detach(&self, span: Span) -> Result<(), Error>;

    /// Maps what is kept, of which there is enough.
    fn attach(&self, span: Span) -> Result<(), Error>;

    /// Gives what is kept back to the system. It cannot fail.
    fn drop_kept(&self);
}
