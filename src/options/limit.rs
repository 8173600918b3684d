//! The memory limit of an allocator.

use super::environment::Warnings;
use super::types::{ALLOW_GROWTH, Options};
use crate::backend::Backend;
use crate::core::units::round_down;
use crate::error::{Error, fail};

impl Options<'_> {
    /// Returns the limit that an allocator created with these options now would have on a backend with regions.
    pub(crate) fn limit_on(&self, backend: &dyn Backend) -> Result<u64, Error> {
        self.with_environment(0, Warnings::Logged).choose_limit(backend)
    }

    /// Chooses the limit: bytes, or a fraction of the backend's total memory, or the memory available now.
    #[inline(never)]
    pub(super) fn choose_limit(&self, backend: &dyn Backend) -> Result<u64, Error> {
        if self.memory_limit != 0 {
            return Ok(self.memory_limit);
        }
        let growth = self.flags & ALLOW_GROWTH != 0;
        if self.memory_fraction > 0.0 {
            return match backend.total_memory() {
                Some(total) => Ok((total as f64 * self.memory_fraction) as u64),
                None => Err(fail!(
                    Error::InvalidArgument,
                    "memory_fraction: a custom backend does not know its total; give memory_limit"
                )),
            };
        }
        match backend.default_limit() {
            Some(0) => Err(fail!(
                Error::OutOfMemory,
                "the device has hardly any free memory: give memory_limit or memory_fraction, or free some of it"
            )),
            Some(limit) => Ok(limit),
            // The callbacks report when there is no more.
            None if growth => Ok(round_down(u64::MAX)),
            None => Err(fail!(
                Error::InvalidArgument,
                "a custom backend without BFC_ALLOW_GROWTH needs memory_limit: the first region is all of it"
            )),
        }
    }
}
