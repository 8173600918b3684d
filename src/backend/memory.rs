//! Access to a backend's memory itself, for the debug mode and for nothing else.

use crate::error::Error;

/// The contract, which every backend with memory to look at fulfils and the pool relies on:
/// - Nothing here is called while an allocator is locked; everything from any thread.
/// - Addresses lie in regions that the backend gave and did not get back.
/// - Both are done when they return. They do not wait for the device's work: who calls them has seen to it that
///   none touches these bytes. Neither is called while a stream is captured, as far as that can be known.
/// - A failure has its words in `fail!`; what a failed `fill` has written is unknown.
pub(crate) trait Memory {
    fn fill(&self, at: u64, bytes: u64, with: u8) -> Result<(), Error>;

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error>;
}
