//! Hashes of addresses, different in each pool.
//!
//! The sizes that a program requests decide where its chunks begin, so with a known hash there are
//! sizes, harmless to look at, whose chunks all collide. A pool draws a seed at its creation.

/// A member of the family of hashes.
#[derive(Clone, Copy)]
pub(in crate::core) struct Seed {
    mask: u64,
    /// Odd.
    factor: u64,
}

impl Seed {
    pub(in crate::core) fn new(number: u64) -> Self {
        Seed { mask: mixed(number), factor: mixed(!number) | 1 }
    }

    /// Another one, which depends on nothing but this one.
    pub(in crate::core) fn next(self) -> Self {
        Seed::new(self.mask.rotate_left(32) ^ self.factor)
    }

    /// All bits of an address in all of the hash, the highest ones the best: both halves of a product, where
    /// neither alone tells close addresses or common differences apart, multiplied once more.
    #[inline(always)]
    #[allow(clippy::cast_possible_truncation)] // the halves
    pub(in crate::core) fn hash(self, addr: u64) -> u64 {
        let product = u128::from(addr ^ self.mask) * u128::from(self.factor);
        (product as u64 ^ (product >> 64) as u64).wrapping_mul(self.factor)
    }
}

/// The finalizer of SplitMix64, behind one step of it.
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
