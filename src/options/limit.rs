//! The memory limit of an allocator.

use super::environment::Warnings;
use super::types::{Flags, Options};
use crate::backend::Backend;
use crate::error::{ErrorKind, fail};
use bfc_core::units::round_down;

/// The limit of an allocator.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    /// The share of the backend's total memory that the limit is, if that may change.
    pub(crate) share: Option<f64>,
}

impl Limit {
    /// Returns a limit that does not change by itself.
    pub(crate) fn fixed(bytes: u64) -> Self {
        Limit { bytes, share: None }
    }

    /// Returns a share of the total memory of a backend.
    fn share_of(total: u64, share: f64, backend: &dyn Backend) -> Self {
        Limit { bytes: share_of(total, share), share: backend.total_may_change().then_some(share) }
    }
}

/// Returns a share of a number of bytes.
pub(crate) fn share_of(total: u64, share: f64) -> u64 {
    if share == 1.0 { total } else { (total as f64 * share) as u64 }
}

impl Options<'_> {
    /// Returns the limit that an allocator created with these options now would have on a backend with regions. What the
    /// environment has beside that was said at creation.
    pub(crate) fn limit_on(&self, backend: &dyn Backend) -> Result<Limit, ErrorKind> {
        self.choose(Flags::empty(), Warnings::Silent).options.choose_limit(backend)
    }

    /// Returns the limit in bytes.
    pub(super) fn bytes_on(&self, backend: &dyn Backend) -> Result<u64, ErrorKind> {
        Ok(self.choose_limit(backend)?.bytes)
    }

    /// Chooses the limit: bytes, or a fraction of the backend's total memory, or the memory available now.
    #[inline(never)]
    pub(super) fn choose_limit(&self, backend: &dyn Backend) -> Result<Limit, ErrorKind> {
        if self.memory_limit != 0 {
            return Ok(Limit::fixed(self.memory_limit));
        }
        let growth = self.flags.contains(Flags::ALLOW_GROWTH);
        if self.memory_fraction > 0.0 {
            return match backend.total_memory() {
                Some(total) => Ok(Limit::share_of(total, self.memory_fraction, backend)),
                None => Err(fail!(
                    ErrorKind::InvalidArgument,
                    "memory_fraction: a custom backend does not know its total; give memory_limit"
                )),
            };
        }
        match backend.default_limit() {
            Some(0) => Err(fail!(
                ErrorKind::OutOfMemory,
                "the device has hardly any free memory: give memory_limit or memory_fraction, or free some of it"
            )),
            Some(limit) => Ok(Limit::share_of(limit, 1.0, backend)),
            // The callbacks report when there is no more.
            None if growth => Ok(Limit::fixed(round_down(u64::MAX))),
            None => Err(fail!(
                ErrorKind::InvalidArgument,
                "a custom backend without BFC_ALLOW_GROWTH needs memory_limit: the first region is all of it"
            )),
        }
    }
}
