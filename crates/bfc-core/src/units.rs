//! Sizes: the allocation unit and TensorFlow's bins.

/// Every chunk size and every address is a multiple of this.
pub const UNIT: u64 = 256;

/// The largest chunk: 64 TiB minus one unit. Its size in units has 38 bits, and it has a class of its own.
pub const MAX_CHUNK: u64 = (1 << 38) * UNIT - UNIT;

/// The number of bins that TensorFlow publishes. They appear in reports. The index has finer classes.
pub const NUM_BINS: usize = 21;

/// Rounds `bytes` up to a multiple of [`UNIT`]. Returns `None` if no chunk can be that large.
#[inline]
pub fn round_up(bytes: u64) -> Option<u64> {
    if bytes > MAX_CHUNK {
        return None;
    }
    Some((bytes + (UNIT - 1)) & !(UNIT - 1))
}

/// Rounds up to a multiple of 512, for clients whose addresses are all multiples of 512. Chunks of other sizes would
/// leave gaps of 256 bytes between them. Such a client could not use the gaps, and each of its searches would examine
/// them.
pub fn round_up_to_512(bytes: u64) -> Option<u64> {
    let size = round_up(bytes)?;
    Some((size + UNIT) & !(2 * UNIT - 1)).filter(|&size| size <= MAX_CHUNK)
}

/// Rounds up like `round_up`, for limits and hints of any value. The result saturates at the largest multiple.
pub fn round_up_saturating(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(UNIT).unwrap_or(round_down(u64::MAX))
}

/// Returns the multiple of 256 at or below a number of bytes.
pub fn round_down(bytes: u64) -> u64 {
    bytes & !(UNIT - 1)
}

/// Returns the bin of a chunk of `bytes`: `min(20, floor(log2(max(bytes, 256) / 256)))`.
pub fn bin_of(bytes: u64) -> usize {
    let log = (bytes.max(UNIT) / UNIT).ilog2() as usize;
    log.min(NUM_BINS - 1)
}

/// Returns the smallest size in `bin`.
pub fn bin_floor(bin: usize) -> u64 {
    UNIT << bin
}

/// A range of addresses. In a reserved range it consists of whole granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first address.
    pub base: u64,
    /// Its size in bytes.
    pub bytes: u64,
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
    fn multiples_of_512() {
        assert_eq!([0, 1, 512, 513, 1024].map(round_up_to_512), [0, 512, 512, 1024, 1024].map(Some));
        for bytes in [MAX_CHUNK - 1, MAX_CHUNK, MAX_CHUNK + 1, u64::MAX] {
            assert_eq!(round_up_to_512(bytes), None);
        }
        assert_eq!(round_up_to_512(MAX_CHUNK - UNIT), Some(MAX_CHUNK - UNIT));
    }

    #[test]
    fn bins_are_those_of_tensorflow() {
        assert_eq!([0, 1, 256, 511].map(bin_of), [0; 4]);
        assert_eq!([512, 1023].map(bin_of), [1; 2]);
        assert_eq!([256 << 20, 256 << 30].map(bin_of), [20; 2]);
        assert!((0..NUM_BINS).all(|bin| bin_of(bin_floor(bin)) == bin));
    }
}
