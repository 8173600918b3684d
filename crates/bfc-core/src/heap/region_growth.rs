//! The size of the next region: doubling, the limit, and smaller sizes when the backend refuses.

use crate::units::{UNIT, round_down, round_up_saturating};

pub const DEFAULT_INITIAL_REGION: u64 = 2 << 20;

/// How the size of a region is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RegionGrowth {
    /// One region of the whole limit.
    Whole,
    /// Each region has twice the size of the one before, as in TensorFlow.
    Doubling,
    /// A region has what the request needs, about as often as a share of the pool has room for it: a sixteenth.
    #[default]
    ByNeed,
}

/// With growth by need, a region for a small request has a sixteenth of the pool. A pool that grows by small requests then
/// makes at most 12 calls of the backend each time its size doubles, and never holds more than a sixteenth of it in
/// advance.
const SHARE: u64 = 16;

impl RegionGrowth {
    /// Returns whether there is more than one region.
    pub fn grows(self) -> bool {
        self != RegionGrowth::Whole
    }
}

/// The limit, the bytes that are held from the backend, and the size of the next region.
pub struct Growth {
    policy: RegionGrowth,
    limit: u64,
    /// Bytes held from the backend, including regions that are being released.
    pool_bytes: u64,
    peak_pool_bytes: u64,
    /// Bytes being requested from the backend at this moment. They count against the limit, so that two extensions at
    /// once cannot exceed it.
    reserved: u64,
    hint: u64,
    initial_hint: u64,
    /// The least size of a pool's first region with growth, for planned placements.
    planned: u64,
}

/// A region being requested from the backend.
#[derive(Clone, Copy, Debug)]
pub struct Extension {
    /// The size to request from the backend next.
    pub bytes: u64,
    /// The smallest size that helps.
    pub least: u64,
    reserved: u64,
    raised: bool,
}

impl Growth {
    /// Creates the state. `initial_region` is the size of the first region with growth, or 0.
    #[inline(always)]
    pub(crate) fn new(limit: u64, policy: RegionGrowth, initial_region: u64) -> Self {
        let hint = first_hint(limit, policy, initial_region);
        let (pool_bytes, peak_pool_bytes, reserved, planned) = (0, 0, 0, 0);
        Growth { policy, limit, pool_bytes, peak_pool_bytes, reserved, hint, initial_hint: hint, planned }
    }

    /// Returns whether there is more than one region.
    pub fn grows(&self) -> bool {
        self.policy.grows()
    }

    /// Returns the most bytes that may be held from the backend.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the bytes held from the backend, including regions that are being released.
    pub fn pool_bytes(&self) -> u64 {
        self.pool_bytes
    }

    /// Returns the most bytes that were held from the backend since creation or the last reset.
    pub fn peak_pool_bytes(&self) -> u64 {
        self.peak_pool_bytes
    }

    /// Sets the bytes held to those of the regions, in a forked child.
    pub(crate) fn set_pool_bytes(&mut self, bytes: u64) {
        self.pool_bytes = bytes;
    }

    /// Sets another limit. A pool that has not grown yet then behaves as if created with it. Without growth the next
    /// region is all that the limit leaves.
    pub(crate) fn set_limit(&mut self, limit: u64, initial_region: u64) {
        let first = first_hint(limit, self.policy, initial_region);
        if !self.policy.grows() || self.hint == self.initial_hint {
            self.hint = first;
        }
        (self.limit, self.initial_hint) = (limit, first);
    }

    /// Returns how many bytes may still be requested from the backend.
    pub fn available(&self) -> u64 {
        round_down(self.limit.saturating_sub(self.pool_bytes).saturating_sub(self.reserved))
    }

    /// Gives the first region of an empty pool at least that many bytes, if the limit leaves them.
    pub(crate) fn set_planned(&mut self, bytes: u64) {
        self.planned = bytes;
    }

    /// Plans a region of at least `least` bytes and reserves it. As in TensorFlow, the hint stays raised if the backend
    /// refuses.
    pub(crate) fn plan(&mut self, least: u64) -> Option<Extension> {
        let available = self.available();
        if least > available {
            return None;
        }
        let mut raised = false;
        let is_first = self.pool_bytes == 0 && self.reserved == 0;
        let wanted = if is_first && self.policy.grows() && self.planned > least.max(self.hint) {
            // The hint stays, so that what comes beyond the plan grows as without it.
            raised = true;
            self.planned
        } else if self.policy == RegionGrowth::ByNeed {
            raised = true;
            self.need_or_share(least)
        } else {
            while least > self.hint {
                self.hint = round_down(self.hint.saturating_mul(2));
                raised = true;
            }
            self.hint
        };
        let bytes = wanted.min(available);
        self.reserved += bytes;
        Some(Extension { bytes, least, reserved: bytes, raised })
    }

    /// Returns the size of a region with growth by need: the need as often as the share has room for it, where three
    /// quarters of a need may go beyond the share (more regions hold less, and cost calls). It is never larger than the
    /// request and the share. Requests that follow are mostly of the same size, and the last of a device's
    /// memory would be lost in what they leave over. The first region's size counts as a granule: a need is rounded up to
    /// multiples of it, unless that would add more than the share.
    fn need_or_share(&self, least: u64) -> u64 {
        let (granule, share) = (self.initial_hint, self.pool_bytes / SHARE);
        let whole = least.checked_next_multiple_of(granule).unwrap_or(least);
        let need = if whole - least <= share { whole } else { least.max(granule) };
        need * ((share + least.min(need / 4 * 3)) / need).max(1)
    }

    /// Returns how many bytes are being requested from the backend.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns the size of the first region with growth by need, in multiples of which regions are obtained.
    pub(super) fn granule_by_need(&self) -> Option<u64> {
        (self.policy == RegionGrowth::ByNeed).then_some(self.initial_hint)
    }

    /// Returns whether a region for `size` bytes is to replace free regions. Smaller requests are left to growth, which
    /// costs the device less than giving regions back: half a share.
    pub(crate) fn replaces_regions(&self, size: u64) -> bool {
        self.policy == RegionGrowth::ByNeed && size >= self.pool_bytes / (2 * SHARE)
    }

    /// Plans a region of exactly `least` bytes and reserves it. The hint stays as it is.
    pub(crate) fn plan_exact_region(&mut self, least: u64) -> Option<Extension> {
        if least > self.available() {
            return None;
        }
        self.reserved += least;
        Some(Extension { bytes: least, least, reserved: least, raised: true })
    }

    /// Records that the backend gave `received` bytes, which may be more than requested.
    pub(crate) fn commit(&mut self, extension: &Extension, received: u64) {
        self.unreserve(extension.reserved);
        self.pool_bytes = self.pool_bytes.saturating_add(received);
        self.peak_pool_bytes = self.peak_pool_bytes.max(self.pool_bytes);
        if !extension.raised {
            self.hint = round_down(self.hint.saturating_mul(2));
        }
    }

    /// Records that `bytes` were returned to the backend.
    pub(crate) fn released(&mut self, bytes: u64) {
        self.pool_bytes = self.pool_bytes.saturating_sub(bytes);
    }

    /// Records that all memory held was lost. Reservations stay, because their requests are still under way.
    pub(super) fn forget_held(&mut self) {
        self.pool_bytes = 0;
        self.reset_hint();
    }

    /// Drops a reservation, whose bytes are held now or were not obtained.
    pub(crate) fn unreserve(&mut self, bytes: u64) {
        self.reserved -= bytes;
    }

    /// Reserves bytes for granules that are about to be mapped.
    pub(crate) fn reserve(&mut self, bytes: u64) {
        self.reserved += bytes;
    }

    /// Drops a reservation and records the bytes held now.
    pub(crate) fn record_held(&mut self, reserved: u64, held: u64) {
        self.unreserve(reserved);
        self.pool_bytes = held;
        self.peak_pool_bytes = self.peak_pool_bytes.max(held);
    }

    /// Resets the hint. After a trim the pool begins small again, while TensorFlow would go on doubling from the peak.
    pub(crate) fn reset_hint(&mut self) {
        self.hint = self.initial_hint;
    }

    /// Drops the reservations of threads that no longer exist, in a forked child. `kept` are those of this thread.
    pub(crate) fn forget_reservations(&mut self, kept: u64) {
        self.reserved = kept;
    }

    pub(crate) fn reset_peak(&mut self) {
        self.peak_pool_bytes = self.pool_bytes;
    }
}

fn first_hint(limit: u64, policy: RegionGrowth, initial_region: u64) -> u64 {
    let initial_region = if initial_region == 0 { DEFAULT_INITIAL_REGION } else { initial_region };
    let first = if policy.grows() { limit.min(initial_region) } else { limit };
    round_up_saturating(first).max(UNIT)
}

impl Extension {
    /// Returns the bytes reserved for the extension.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Moves to the next smaller size to try after a refusal. Returns false if no smaller size would help.
    ///
    /// Factor and product are 32-bit floats as in TensorFlow. For 8 GiB the result differs from double precision by the
    /// fifth step. Where rounding up would yield the same size again, which TensorFlow can repeat forever, the size
    /// shrinks by one unit.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn shrink(&mut self) -> bool {
        let smaller = round_up_saturating((self.bytes as f32 * 0.9f32) as u64);
        self.bytes = smaller.min(self.bytes.saturating_sub(UNIT));
        self.bytes >= self.least
    }

    /// Skips the sizes that are not below `refused`. Returns false if no remaining size would help.
    pub fn shrink_below(&mut self, refused: u64) -> bool {
        while self.bytes >= refused {
            if !self.shrink() {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::RegionGrowth::{ByNeed, Doubling, Whole};
    use super::*;

    #[test]
    fn the_hint_doubles_once_a_region() {
        let mut growth = Growth::new(1 << 40, Doubling, 0);
        for expected in [2u64, 4, 8, 16] {
            let extension = growth.plan(256).unwrap();
            assert_eq!(extension.bytes, expected << 20);
            growth.commit(&extension, extension.bytes);
        }
        let raised = growth.plan(100 << 20).unwrap();
        assert_eq!(raised.bytes, 128 << 20);
        growth.commit(&raised, raised.bytes);
        assert_eq!(growth.plan(256).unwrap().bytes, 128 << 20, "a raised hint is not doubled again");
    }

    #[test]
    fn by_need_a_region_is_a_granule_the_need_or_a_sixteenth() {
        const MIB: u64 = 1 << 20;
        let mut growth = Growth::new(1 << 40, ByNeed, 0);
        let mut held = 0;
        for (least, bytes) in [
            (256, 2 * MIB),
            (3 * MIB, 3 * MIB),
            (100 * MIB, 100 * MIB),
            // A sixteenth of 105 MiB is 6.56 MiB: three times 2 MiB, or four times with 1.44 MiB beyond it.
            (2 * MIB, 8 * MIB),
            // Of 113 MiB it is 7.06 MiB, and 3 MiB may be beyond.
            (2 * MIB + 256, 8 * MIB),
            // A small request may not have so much beyond it: 7.56 MiB.
            (256, 6 * MIB),
            (8 * MIB, 8 * MIB),
            (9 * MIB + 256, 10 * MIB),
        ] {
            let extension = growth.plan(least).unwrap();
            assert_eq!((extension.bytes, extension.least), (bytes, least));
            assert!(bytes <= (2 * MIB).max(least + held / 16));
            growth.commit(&extension, bytes);
            held += bytes;
        }
        growth.reset_hint();
        assert_eq!(
            growth.plan(UNIT).unwrap().bytes,
            8 * MIB,
            "the pool decides, and not what was obtained before"
        );
    }

    #[test]
    fn by_need_the_first_region_and_the_limit_bound_the_size() {
        let mut growth = Growth::new(10 << 20, ByNeed, 8 << 20);
        let first = growth.plan(UNIT).unwrap();
        growth.commit(&first, first.bytes);
        let second = growth.plan(UNIT).unwrap();
        assert_eq!((first.bytes, second.bytes), (8 << 20, 2 << 20));
        assert!(growth.plan(UNIT).is_none());
        let all = Growth::new(u64::MAX, ByNeed, u64::MAX).plan(UNIT).unwrap();
        assert_eq!(all.bytes, round_down(u64::MAX));
        let last = Growth::new(u64::MAX, ByNeed, 0).plan(round_down(u64::MAX)).unwrap();
        assert_eq!(last.bytes, round_down(u64::MAX));
    }

    #[test]
    fn two_extensions_at_once_share_the_limit() {
        let mut growth = Growth::new(3 << 20, Doubling, 0);
        let first = growth.plan(256).unwrap();
        let second = growth.plan(256).unwrap();
        assert_eq!((first.bytes, second.bytes), (2 << 20, 1 << 20));
        assert!(growth.plan(256).is_none());
        growth.unreserve(first.reserved());
        assert_eq!(growth.available(), 2 << 20);
    }

    #[test]
    fn more_than_asked_never_wraps() {
        let mut growth = Growth::new(4 << 20, Doubling, 0);
        let extension = growth.plan(256).unwrap();
        growth.commit(&extension, u64::MAX);
        assert_eq!((growth.available(), growth.plan(256).is_none()), (0, true));
    }

    #[test]
    fn shrinking_ends_and_is_single_precision() {
        for least in [256, 512, 2560, 1 << 20] {
            let mut extension = Extension { bytes: 8 << 30, least, reserved: 0, raised: false };
            let mut steps = 0;
            while extension.shrink() {
                steps += 1;
                assert!(steps < 1000);
            }
        }
        // What `size_t * float` gives in C++. A double product of the same factor gives 5072270336.
        let mut extension = Extension { bytes: 8 << 30, least: 256, reserved: 0, raised: false };
        (0..5).for_each(|_| assert!(extension.shrink()));
        assert_eq!(extension.bytes, 5_072_269_824);
    }

    #[test]
    fn sizes_that_were_refused_are_skipped() {
        let mut extension = Extension { bytes: 16 << 20, least: 9 << 20, reserved: 0, raised: false };
        assert!(extension.shrink_below(12_230_912) && extension.bytes == 11_008_000);
        assert!(!extension.shrink_below(9 << 20), "nothing as small would help");
        let mut growth = Growth::new(1 << 30, Doubling, 0);
        let exact = growth.plan_exact_region(9 << 20).unwrap();
        assert_eq!((exact.bytes, exact.least, exact.reserved()), (9 << 20, 9 << 20, 9 << 20));
        growth.commit(&exact, exact.bytes);
        assert_eq!(growth.plan(256).unwrap().bytes, 2 << 20, "it says nothing about the next region");
        assert!(growth.plan_exact_region(1 << 30).is_none(), "the limit holds");
    }

    #[test]
    fn another_limit() {
        let mut growth = Growth::new(1 << 20, Doubling, 0);
        growth.set_limit(1 << 30, 0);
        let first = growth.plan(256).unwrap();
        assert_eq!(first.bytes, 2 << 20, "as if it had been created so");
        growth.commit(&first, first.bytes);
        growth.set_limit(1 << 20, 0);
        assert_eq!((growth.available(), growth.plan(256).is_none()), (0, true), "less than is held");
        growth.set_limit(1 << 40, 0);
        assert_eq!(growth.plan(256).unwrap().bytes, 4 << 20, "growth goes on where it was");
        let mut fixed = Growth::new(4 << 20, Whole, 0);
        let all = fixed.plan(256).unwrap();
        fixed.commit(&all, all.bytes);
        fixed.set_limit(9 << 20, 0);
        assert_eq!(fixed.plan(256).unwrap().bytes, 5 << 20, "all that the limit leaves");
        for limit in [0, u64::MAX] {
            fixed.set_limit(limit, 0);
            assert_eq!(fixed.available(), (limit.saturating_sub(9 << 20)) & !255);
        }
    }

    #[test]
    fn limits_at_the_edges() {
        assert!(Growth::new(1, Whole, 0).plan(256).is_none(), "a limit of 1 byte has no room");
        assert!(Growth::new(0, Doubling, 0).plan(256).is_none());
        let mut all = Growth::new(u64::MAX, Doubling, u64::MAX);
        assert_eq!(all.plan(1 << 50).unwrap().bytes, u64::MAX - 255);
        assert!(all.plan(256).is_none());
    }
}
