//! Access to a backend's memory itself, used only by the debug mode.

use crate::error::ErrorKind;

/// The contract between backends with accessible memory and the pool:
/// - Nothing here is called while an allocator is locked. Calls may come from any thread.
/// - Addresses are in regions that the backend provided and that were not released.
/// - Both functions have completed when they return. They do not wait for device work: callers ensure that no work uses
///   these bytes. Neither is called while a stream is captured, as far as that can be known.
/// - A failure sets a message with `fail!`. It is unspecified what a failed `fill` has written.
pub(crate) trait Memory {
    fn fill(&self, at: u64, bytes: u64, with: u8) -> Result<(), ErrorKind>;

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), ErrorKind>;
}

/// Access to any memory that this process can address, whichever backend it is from.
pub(crate) struct ProcessMemory;

impl Memory for ProcessMemory {
    fn fill(&self, at: u64, bytes: u64, with: u8) -> Result<(), ErrorKind> {
        // SAFETY: the pool fills memory of its regions. The program guarantees that nothing else accesses it.
        unsafe { (at as *mut u8).write_bytes(with, bytes as usize) };
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), ErrorKind> {
        // SAFETY: the pool reads memory of its regions. The buffer has that many bytes and is not part of them.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(at as *const u8, into.len()) };
        Ok(())
    }
}
