//! Which sizes are usually freed soon, learnt from the frees of a pool.
//!
//! Programs repeat their requests, so an allocation lives about as long as earlier ones of its size. A size counts as
//! short-lived once several allocations of it in a row were freed early, and no longer counts as such after one that
//! was not. The table has one place for all sizes with the same hash, which belongs to the last one freed. A collision only
//! loses a hint.

use crate::units::UNIT;

/// The number of sizes that are known at a time.
const PLACES: usize = 256;

/// An allocation is short-lived if it is freed before so many further ones were made.
const SHORT: u64 = 16;

/// So many short-lived allocations in a row make their size short-lived.
const ENOUGH: u64 = 4;

/// What is known about sizes.
pub struct Lifetimes {
    /// By hash: a size, and in the bits below [`UNIT`] how many allocations of it in a row were short-lived.
    places: [u64; PLACES],
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self::new()
    }
}

impl Lifetimes {
    /// Begins without any size known.
    pub const fn new() -> Self {
        Lifetimes { places: [0; PLACES] }
    }

    /// Returns whether allocations of a size, a multiple of [`UNIT`], are usually short-lived.
    #[inline]
    pub(crate) fn is_short(&self, size: u64) -> bool {
        self.places[place_of(size)] == size | ENOUGH
    }

    /// Records a free of an allocation that `age` further ones were made after.
    #[inline]
    pub(crate) fn freed(&mut self, size: u64, age: u64) {
        let place = &mut self.places[place_of(size)];
        let before = if *place & !(UNIT - 1) == size { *place & (UNIT - 1) } else { 0 };
        let in_a_row = if age <= SHORT { (before + 1).min(ENOUGH) } else { 0 };
        *place = size | in_a_row;
    }
}

/// Fibonacci hashing, as in Knuth, The Art of Computer Programming, volume 3, section 6.4.
#[inline]
fn place_of(size: u64) -> usize {
    #[allow(clippy::cast_possible_truncation)] // 8 bits
    let place = ((size / UNIT).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.ilog2())) as usize;
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(frees: &[(u64, u64)]) -> Lifetimes {
        let mut lifetimes = Lifetimes::new();
        frees.iter().for_each(|&(size, age)| lifetimes.freed(size, age));
        lifetimes
    }

    #[test]
    fn a_size_is_short_lived_after_some_in_a_row() {
        let lifetimes = learnt(&[(UNIT, 0); ENOUGH as usize - 1]);
        assert!(!lifetimes.is_short(UNIT));
        let lifetimes = learnt(&[(UNIT, SHORT); ENOUGH as usize]);
        assert!(lifetimes.is_short(UNIT) && !lifetimes.is_short(2 * UNIT));
        // The count goes no further than into its bits.
        assert!(learnt(&[(UNIT, 1); 1000]).is_short(UNIT));
    }

    #[test]
    fn one_that_lives_longer_ends_that() {
        let mut lifetimes = learnt(&[(UNIT, 0); ENOUGH as usize]);
        lifetimes.freed(UNIT, SHORT + 1);
        assert!(!lifetimes.is_short(UNIT));
        (1..ENOUGH).for_each(|_| lifetimes.freed(UNIT, 0));
        assert!(!lifetimes.is_short(UNIT));
        lifetimes.freed(UNIT, 0);
        assert!(lifetimes.is_short(UNIT));
    }

    #[test]
    fn a_size_with_the_same_hash_takes_the_place() {
        let other = (2..).map(|units| units * UNIT).find(|&size| place_of(size) == place_of(UNIT)).unwrap();
        let mut lifetimes = learnt(&[(UNIT, 0); ENOUGH as usize]);
        lifetimes.freed(other, 0);
        assert!(!lifetimes.is_short(UNIT) && !lifetimes.is_short(other));
        // Neighbouring sizes have places of their own.
        let places: std::collections::BTreeSet<_> = (1..=64).map(|units| place_of(units * UNIT)).collect();
        assert_eq!(places.len(), 64);
    }
}
