//! Hashes of addresses, different in each pool, and of names, different in each process.
//!
//! The sizes that a program requests determine where its chunks begin. So with a known hash there are harmless-looking
//! sizes whose chunks all collide, as there are such names. Each pool therefore draws a seed at its creation.

/// One function of the family of hashes.
#[derive(Clone, Copy)]
pub struct Seed {
    mask: u64,
    /// An odd number.
    factor: u64,
}

impl Seed {
    /// Creates a function from a number that should be unpredictable.
    pub fn new(number: u64) -> Self {
        Seed { mask: mixed(number), factor: mixed(!number) | 1 }
    }

    /// Returns another seed, which depends only on this one.
    pub(crate) fn next(self) -> Self {
        Seed::new(self.mask.rotate_left(32) ^ self.factor)
    }

    /// Hashes an address. Every bit of the address affects every bit of the hash, the highest bits best. One half of
    /// the product alone does not separate close addresses or addresses with common differences, so both halves are
    /// multiplied once more.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // the two halves
    pub(crate) fn hash(self, addr: u64) -> u64 {
        let product = u128::from(addr ^ self.mask) * u128::from(self.factor);
        (product as u64 ^ (product >> 64) as u64).wrapping_mul(self.factor)
    }
}

/// One step of SplitMix64 and its finalizer.
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
