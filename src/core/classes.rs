//! Size classes: which tree of the index a free chunk hangs in, and which trees are not empty.
//!
//! A class is an exponent and the next [`MANTISSA_BITS`] bits of the size in units, as in TLSF (Masmano
//! et al., 2004), but much finer: with 1024 classes an octave a tree rarely holds more than a few chunks,
//! so that a search is a bitmap scan and one or two comparisons. Classes partition the sizes in order,
//! therefore best fit over classes and then within one is best fit over all.

use super::units::UNIT;

const MANTISSA_BITS: u32 = 10;
const PER_OCTAVE: u64 = 1 << MANTISSA_BITS;
/// Sizes have at most 40 bits in units; those below an octave have a class each. Rounded up to a power of
/// two, so that a masked class needs no bounds check.
pub(super) const CLASSES: usize = ((40 - MANTISSA_BITS as usize) << MANTISSA_BITS).next_power_of_two();
const WORDS: usize = CLASSES / 64;
const SUMMARY: usize = WORDS / 64;

/// The class of a size in bytes (a multiple of 256, not 0).
#[inline]
#[allow(clippy::cast_possible_truncation)] // at most CLASSES
pub(super) fn class_of(bytes: u64) -> usize {
    let units = bytes / UNIT;
    // Below an octave nothing is shifted out: the class is the size.
    let shift = (units | PER_OCTAVE).ilog2() - MANTISSA_BITS;
    // The mantissa's leading one counts as the first step of the next octave.
    ((u64::from(shift) << MANTISSA_BITS) + (units >> shift)) as usize % CLASSES
}

/// A set of classes with a fast 'next one from here'.
pub(super) struct ClassSet {
    words: [u64; WORDS],
    /// Which words are not 0.
    summary: [u64; SUMMARY],
    /// Which words of the summary are not 0.
    top: u64,
}

impl ClassSet {
    pub(super) const fn new() -> Self {
        ClassSet { words: [0; WORDS], summary: [0; SUMMARY], top: 0 }
    }

    #[inline]
    pub(super) fn insert(&mut self, class: usize) {
        let word = class / 64 % WORDS;
        self.words[word] |= 1 << (class % 64);
        self.summary[word / 64] |= 1 << (word % 64);
        self.top |= 1 << (word / 64);
    }

    #[inline]
    pub(super) fn remove(&mut self, class: usize) {
        let word = class / 64 % WORDS;
        self.words[word] &= !(1 << (class % 64));
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
            if self.summary[word / 64] == 0 {
                self.top &= !(1 << (word / 64));
            }
        }
    }

    pub(super) fn contains(&self, class: usize) -> bool {
        self.words[class / 64] >> (class % 64) & 1 != 0
    }

    /// The least member greater than `class`.
    #[inline]
    pub(super) fn next_after(&self, class: usize) -> Option<usize> {
        let word = class / 64 % WORDS;
        // Shifting twice: a member at the end of its word has all of the word behind it.
        let bits = self.words[word] & (u64::MAX << (class % 64) << 1);
        if bits != 0 {
            return Some(word * 64 + bits.trailing_zeros() as usize);
        }
        let group = word / 64;
        let mut bits = self.summary[group] & (u64::MAX << (word % 64) << 1);
        let mut word = group * 64;
        if bits == 0 {
            let groups = self.top & (u64::MAX << group << 1);
            if groups == 0 {
                return None;
            }
            let group = groups.trailing_zeros() as usize % SUMMARY;
            bits = self.summary[group];
            word = group * 64;
        }
        word = (word + bits.trailing_zeros() as usize) % WORDS;
        Some((word * 64 + self.words[word].trailing_zeros() as usize) % CLASSES)
    }

    /// The greatest member.
    pub(super) fn last(&self) -> Option<usize> {
        let group = self.summary.iter().rposition(|&bits| bits != 0)?;
        let word = group * 64 + self.summary[group].ilog2() as usize;
        Some(word * 64 + self.words[word].ilog2() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::super::units::MAX_CHUNK;
    use super::*;

    #[test]
    fn classes_rise_with_the_size_and_end_where_the_table_ends() {
        let mut sizes: Vec<u64> = (0..40u32).flat_map(|e| [-1i64, 0, 1].map(|d| (1i64 << e) + d)).filter(|&u| u > 0).map(|u| u as u64 * UNIT).collect();
        sizes.extend([MAX_CHUNK, 1000 * UNIT, 1023 * UNIT, 1025 * UNIT, 123_456_789 * UNIT]);
        sizes.sort_unstable();
        assert!(sizes.windows(2).all(|w| class_of(w[0]) <= class_of(w[1])));
        assert!((1..2048).all(|u| class_of(u * UNIT) == u as usize), "one class for each small size");
        assert!(class_of(MAX_CHUNK) < CLASSES && class_of(MAX_CHUNK) == sizes.iter().copied().map(class_of).max().unwrap());
    }

    #[test]
    fn next_after_agrees_with_a_scan() {
        let mut set = ClassSet::new();
        assert_eq!((set.next_after(0), set.last()), (None, None));
        let members = [1, 2, 63, 64, 65, 4095, 4096, 9000, CLASSES - 1];
        members.iter().for_each(|&class| set.insert(class));
        for class in 0..CLASSES {
            assert_eq!(set.next_after(class), members.iter().copied().find(|&m| m > class));
            assert_eq!(set.contains(class), members.contains(&class));
        }
        assert_eq!(set.last(), Some(CLASSES - 1));
        members.iter().for_each(|&class| set.remove(class));
        assert_eq!((set.next_after(0), set.last()), (None, None));
    }
}
