//! Host memory. Nothing is reserved in advance. Pages become resident when the program touches them.

use super::memory::Memory;
use super::{Backend, Granted};
use crate::error::Error;
use crate::sys::host::memory_total;
use crate::sys::mapping::Mapping;

#[derive(Clone, Copy)]
pub(crate) struct Host;

impl Backend for Host {
    fn alloc(&self, alignment: u64, bytes: u64) -> Result<Option<Granted>, Error> {
        let mapping = match (usize::try_from(bytes), usize::try_from(alignment)) {
            (Ok(bytes), Ok(alignment)) => Mapping::new(bytes, alignment).ok(),
            _ => None,
        };
        // The region outlives this call. `free` turns it back into a mapping.
        Ok(mapping.map(|mapping| Granted { base: mapping.into_raw(), bytes }))
    }

    fn free(&self, granted: Granted) -> Result<(), Error> {
        // SAFETY: the pool frees what `alloc` returned, once, and no chunk of it is in use.
        drop(unsafe { Mapping::from_raw(granted.base, granted.bytes) });
        Ok(())
    }

    /// A private mapping is copied on write, so the child has its own memory at the same addresses.
    fn may_synchronize(&self) -> bool {
        false
    }

    fn survives_fork(&self) -> bool {
        true
    }

    fn total_memory(&self) -> Option<u64> {
        Some(memory_total())
    }

    fn name(&self) -> &'static str {
        "host"
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(self)
    }
}

/// Access to any memory that this process can address, whichever backend it is from.
impl Memory for Host {
    fn fill(&self, at: u64, bytes: u64, with: u8) -> Result<(), Error> {
        // SAFETY: the pool fills memory of its regions. The program guarantees that nothing else accesses it.
        unsafe { (at as *mut u8).write_bytes(with, bytes as usize) };
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the pool reads memory of its regions. The buffer has that many bytes and is not part of them.
        unsafe { into.as_mut_ptr().copy_from_nonoverlapping(at as *const u8, into.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_aligned_memory_that_works_and_takes_it_back() {
        for alignment in [256, 4096, 2 << 20] {
            let granted = Host.alloc(alignment, (1 << 20) + 256).unwrap().unwrap();
            assert_eq!((granted.base % alignment, granted.bytes), (0, (1 << 20) + 256));
            // SAFETY: the region has that many bytes.
            unsafe { (granted.base as *mut u8).write_bytes(1, granted.bytes as usize) };
            Host.free(granted).unwrap();
        }
        assert_eq!(Host.alloc(256, 1 << 62), Ok(None));
    }
}
