//! Sizes: the unit of allocation and the published bins.

/// Every chunk is a multiple of this, and every address too.
pub(crate) const UNIT: u64 = 256;

/// The largest chunk: 64 TiB, less a unit. Its size in units has 38 bits, and a class of its own.
pub(crate) const MAX_CHUNK: u64 = (1 << 38) * UNIT - UNIT;

/// Bins as TensorFlow publishes them; reports speak of them, the index has finer classes.
pub(crate) const NUM_BINS: usize = 21;

/// `bytes` rounded up to a multiple of [`UNIT`]; `None` where no chunk can be that large.
#[inline]
pub(crate) fn round_up(bytes: u64) -> Option<u64> {
    if bytes > MAX_CHUNK {
        return None;
    }
    Some((bytes + (UNIT - 1)) & !(UNIT - 1))
}

/// As `round_up`, for a request at an alignment. Of 512 and more the size is a multiple of 512, or else a program that
/// always asks for 512 would leave 256 bytes in front of every other chunk.
pub(crate) fn round_up_aligned(bytes: u64, alignment: u64) -> Option<u64> {
    let size = round_up(bytes)?;
    if alignment <= UNIT {
        return Some(size);
    }
    Some((size + UNIT) & !(2 * UNIT - 1)).filter(|&size| size <= MAX_CHUNK)
}

/// As `round_up`, but for limits and hints, which may be anything: the largest multiple at the top.
pub(crate) fn round_up_saturating(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(UNIT).unwrap_or(round_down(u64::MAX))
}

pub(crate) fn round_down(bytes: u64) -> u64 {
    bytes & !(UNIT - 1)
}

/// The bin that a chunk of `bytes` belongs to: `min(20, floor(log2(max(bytes, 256) / 256)))`.
pub(crate) fn bin_of(bytes: u64) -> usize {
    let log = (bytes.max(UNIT) / UNIT).ilog2() as usize;
    log.min(NUM_BINS - 1)
}

/// The smallest size in `bin`.
pub(crate) fn bin_floor(bin: usize) -> u64 {
    UNIT << bin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_never_wraps() {
        assert_eq!(round_up(0), Some(0));
        assert_eq!(round_up(1), Some(256));
        assert_eq!(round_up(256), Some(256));
        assert_eq!(round_up(MAX_CHUNK), Some(MAX_CHUNK));
        for bytes in [MAX_CHUNK + 1, u64::MAX - 255, u64::MAX - 254, u64::MAX] {
            assert_eq!(round_up(bytes), None);
            assert_eq!(round_up_saturating(bytes) % UNIT, 0);
        }
        assert_eq!(round_up_saturating(u64::MAX), u64::MAX - 255);
    }

    #[test]
    fn what_is_aligned_to_512_has_multiples_of_512() {
        let of = |bytes| [0, 256, 512, 4096].map(|alignment| round_up_aligned(bytes, alignment).unwrap());
        assert_eq!(of(0), [0; 4]);
        assert_eq!(of(1), [256, 256, 512, 512]);
        assert_eq!(of(513), [768, 768, 1024, 1024]);
        assert_eq!(of(1024), [1024; 4]);
        for bytes in [MAX_CHUNK - 1, MAX_CHUNK, MAX_CHUNK + 1, u64::MAX] {
            assert_eq!(round_up_aligned(bytes, 512), None);
        }
        assert_eq!(round_up_aligned(MAX_CHUNK - UNIT, 512), Some(MAX_CHUNK - UNIT));
    }

    #[test]
    fn bins_are_those_of_tensorflow() {
        assert_eq!([0, 1, 256, 511].map(bin_of), [0; 4]);
        assert_eq!([512, 1023].map(bin_of), [1; 2]);
        assert_eq!([256 << 20, 256 << 30].map(bin_of), [20; 2]);
        assert!((0..NUM_BINS).all(|bin| bin_of(bin_floor(bin)) == bin));
    }
}
