//! Access to device memory for the debug mode.

use super::Cuda;
use super::calls;
use super::context::inside;
use crate::backend::memory::Memory;
use crate::error::ErrorKind;

impl Memory for Cuda {
    /// `cuMemsetD8` may return before it has completed. It runs on the default stream, so this waits for the default
    /// stream only.
    fn fill(&self, at: u64, bytes: u64, with: u8) -> Result<(), ErrorKind> {
        let filled = inside(self, |driver| {
            // SAFETY: the pool fills memory of its regions, which nothing else accesses meanwhile.
            unsafe { calls::fill(driver, at, bytes, with) }?;
            calls::wait_for_default_stream(driver)
        });
        filled.map_err(|failure| failure.explain(self.driver))
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), ErrorKind> {
        // SAFETY: the pool reads memory of its regions.
        let read = inside(self, |driver| unsafe { calls::read(driver, at, into) });
        read.map_err(|failure| failure.explain(self.driver))
    }
}
