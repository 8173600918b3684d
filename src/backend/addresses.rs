//! The number of addresses reserved for a pool in one range.
//!
//! Unmapped ranges need addresses, so a range is much larger than the limit of its pool. Addresses cost nothing, but a
//! process has 128 TiB of them, on host and devices together. So all ranges share half of that, and each gets no more
//! than an eighth of the rest. The limit itself is always granted.

use bfc_core::units::MAX_CHUNK;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The addresses that all ranges of the process share.
const SHARED: u64 = 64 << 40;
const SHARES: u64 = 8;

/// The bytes of all ranges of the process.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// The sizes of a backend's ranges, as far as the process has addresses.
#[derive(Clone, Copy)]
pub(in crate::backend) struct Comfort {
    /// The ratio of a range to the limit.
    pub(in crate::backend) per_limit: u64,
    /// The largest range, unless the limit itself is larger. At most twice this is reserved.
    pub(in crate::backend) most: u64,
}

impl Comfort {
    /// Returns how many bytes of addresses to reserve for a pool with a given limit. See docs/algorithm.md.
    pub(in crate::backend) fn range_for(self, limit: u64, granule: u64) -> u64 {
        self.range_beside(limit, granule, RESERVED.load(Relaxed))
    }

    fn range_beside(self, limit: u64, granule: u64, reserved: u64) -> u64 {
        debug_assert!(2 * self.most <= MAX_CHUNK);
        let granules = limit.clamp(granule, 2 * self.most).div_ceil(granule);
        let most = self.most.min(SHARED.saturating_sub(reserved) / SHARES) / granule;
        granules.saturating_mul(self.per_limit).min(most).max(granules) * granule
    }
}

/// Addresses that were reserved, which count as long as this value lives.
pub(in crate::backend) struct Reserved(u64);

impl Reserved {
    pub(in crate::backend) fn new(bytes: u64) -> Self {
        RESERVED.fetch_add(bytes, Relaxed);
        Reserved(bytes)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        RESERVED.fetch_sub(self.0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANULE: u64 = 2 << 20;
    const TIB: u64 = 1 << 40;
    const COMFORT: Comfort = Comfort { per_limit: 256, most: 8 * TIB };

    #[test]
    fn ranges() {
        let alone = |limit| COMFORT.range_beside(limit, GRANULE, 0);
        assert_eq!(alone(0), 256 * GRANULE);
        assert_eq!(alone(1 << 30), 256 << 30);
        assert_eq!(alone((1 << 30) + 1), 256 * ((1 << 30) + GRANULE));
        assert_eq!(alone(80 << 30), 8 * TIB);
        assert_eq!(alone(10 * TIB), 10 * TIB);
        assert_eq!(alone(u64::MAX), 16 * TIB);
    }

    /// Any number of ranges leaves half of the addresses unused, except for the limits themselves.
    #[test]
    fn many_ranges_share_the_addresses() {
        let limit = 24 << 30;
        let mut reserved = 0;
        for number in 0..1000 {
            let range = COMFORT.range_beside(limit, GRANULE, reserved);
            assert!(range >= limit && (number >= 8 || range > 2 * TIB), "{range} for range {number}");
            reserved += range;
        }
        assert!(reserved < SHARED + 1000 * limit, "{reserved}");
    }
}
