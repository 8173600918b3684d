//! The memory itself, for the debug mode.

use super::Cuda;
use super::calls;
use super::context::inside;
use crate::backend::memory::Memory;
use crate::error::Error;

impl Memory for Cuda {
    /// `cuMemsetD8` need not be done when it returns: the default stream, on which it is, is waited for, and no other.
    fn fill(&self, at: u64, bytes: u64, with: u8) -> Result<(), Error> {
        let filled = inside(self, |driver| {
            // SAFETY: the pool fills memory of its regions, which nobody else touches meanwhile.
            unsafe { calls::fill(driver, at, bytes, with) }?;
            calls::wait_for_default_stream(driver)
        });
        filled.map_err(|failure| failure.explain(self.driver))
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the pool reads memory of its regions.
        let read = inside(self, |driver| unsafe { calls::read(driver, at, into) });
        read.map_err(|failure| failure.explain(self.driver))
    }
}
