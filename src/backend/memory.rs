//! Access to a backend's memory itself, used only by the debug mode.

use crate::error::Error;

/// The contract between backends with accessible memory and the pool:
/// - Nothing here is called while an allocator is locked. Calls may come from any thread.
/// - Addresses are in regions that the backend provided and that were not released.
/// - Both functions have completed when they return. They do not wait for device work: callers ensure that no work uses
///   these bytes. Neither is called while a stream is captured, as far as that can be known.
/// - A failure sets a message with `fail!`. It is unspecified what a failed `fill` has written.
pub(crate) trait Memory {
    fn fill(&self, at: u64, bytes: u64, with: u8) -> Result<(), Error>;

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error>;
}
