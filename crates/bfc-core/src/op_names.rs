//! Names of operations, each stored once.

use crate::seed::Seed;
use crate::steps;
use crate::tables::{copy_table, room_for};
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;

/// More names than a program has operations. Operations with later names are counted as unnamed.
const MAX_NAMES: usize = 65_535;

/// A table of names, numbered from 1 in the order of their first use, and found by open addressing.
#[derive(Default)]
pub struct Names {
    /// All names, one after the other.
    text: Vec<u8>,
    /// The end of each name in `text`, and its hash.
    ends: Vec<(usize, u64)>,
    /// Numbers of names at the places their hashes lead to. 0 is empty. At most half of the places are taken.
    table: Vec<u32>,
}

/// A name in UTF-8 with its hash, which is computed once for many requests.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    text: &'a [u8],
    hash: u64,
}

impl<'a> Name<'a> {
    #[cfg(test)]
    pub(crate) fn new(text: &'a str) -> Self {
        Self::with_hash(text.as_bytes(), hash(Seed::new(7), text.as_bytes()))
    }

    /// Creates a name whose hash is known. It must be the result of [`hash`].
    pub fn with_hash(text: &'a [u8], hash: u64) -> Self {
        Name { text, hash }
    }
}

/// Computes the hash of a name, eight bytes at a time. The standard library's hash takes random keys from thread-local
/// storage, which may be destroyed already at exit.
pub fn hash(seed: Seed, name: &[u8]) -> u64 {
    name.chunks(8).fold(name.len() as u64, |hash, bytes| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        seed.hash(hash ^ u64::from_le_bytes(word))
    })
}

impl Names {
    /// Returns the number of a name, which is added if it is new. Returns 0 for a new name if there are too many.
    pub(crate) fn intern(&mut self, name: Name<'_>) -> Result<u32, HostMemoryExhausted> {
        if self.table.len() < 2 * (self.ends.len() + 1) {
            self.grow()?;
        }
        let place = self.place_of(name);
        if self.table[place] != 0 || self.ends.len() >= MAX_NAMES {
            return Ok(self.table[place]);
        }
        self.text.try_reserve(name.text.len())?;
        self.ends.try_reserve(1)?;
        self.text.extend_from_slice(name.text);
        self.ends.push((self.text.len(), name.hash));
        #[allow(clippy::cast_possible_truncation)] // at most MAX_NAMES
        let number = self.ends.len() as u32;
        self.table[place] = number;
        Ok(number)
    }

    fn grow(&mut self) -> Result<(), HostMemoryExhausted> {
        let mut table = Vec::new();
        table.try_reserve_exact((self.table.len() * 2).max(64))?;
        table.resize((self.table.len() * 2).max(64), 0);
        self.table = table;
        for (number, &(_, hash)) in (1..).zip(&self.ends) {
            let mut place = self.first_place(hash);
            while self.table[place] != 0 {
                place = self.next_place(place);
            }
            self.table[place] = number;
        }
        Ok(())
    }

    /// Returns the place of a name in the table, or the place for it.
    fn place_of(&self, name: Name<'_>) -> usize {
        let mut place = self.first_place(name.hash);
        while self.bytes(self.table[place]).is_some_and(|there| there != name.text) {
            steps::count();
            place = self.next_place(place);
        }
        place
    }

    #[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
    fn first_place(&self, hash: u64) -> usize {
        (hash ^ hash >> 32) as usize & (self.table.len() - 1)
    }

    fn next_place(&self, place: usize) -> usize {
        (place + 1) & (self.table.len() - 1)
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there is no name.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the name with a number, from 1.
    pub fn name(&self, number: u32) -> Option<&str> {
        // Only whole names were stored, so this is valid UTF-8.
        core::str::from_utf8(self.bytes(number)?).ok()
    }

    fn bytes(&self, number: u32) -> Option<&[u8]> {
        let index = (number as usize).checked_sub(1)?;
        let &(end, _) = self.ends.get(index)?;
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before].0);
        Some(&self.text[begin..end])
    }

    /// Returns the host memory of the names, in bytes.
    pub fn metadata_bytes(&self) -> u64 {
        let ends = self.ends.capacity() * size_of::<(usize, u64)>();
        (ends + self.table.capacity() * size_of::<u32>() + self.text.capacity()) as u64
    }

    /// Returns the lengths of the tables that a copy needs.
    pub(crate) fn lengths(&self) -> [usize; 2] {
        [self.text.len(), self.ends.len()]
    }

    /// Makes room for a copy of tables of these lengths.
    pub(crate) fn make_room(&mut self, [text, ends]: [usize; 2]) -> Result<(), HostMemoryExhausted> {
        room_for(&mut self.text, text, 0)?;
        room_for(&mut self.ends, ends, (0, 0))
    }

    /// Becomes a read-only copy of `other`. Returns false if there is not enough room.
    pub(crate) fn copy_from(&mut self, other: &Self) -> bool {
        copy_table(&mut self.text, &other.text) && copy_table(&mut self.ends, &other.ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_number() {
        let mut names = Names::default();
        let mut intern = |name: &str| names.intern(Name::new(name)).unwrap();
        let numbers: Vec<u32> = (0..1000).map(|i| intern(&format!("op{i}"))).collect();
        assert!(numbers.iter().enumerate().all(|(i, &number)| number as usize == i + 1));
        assert_eq!((intern("op7"), names.len()), (8, 1000));
        assert_eq!((names.name(8), names.name(0), names.name(1001)), (Some("op7"), None, None));
        assert_eq!((names.name(1), names.name(1000)), (Some("op0"), Some("op999")));
    }

    #[test]
    fn names_beyond_the_most_are_unnamed() {
        let mut names = Names::default();
        let mut intern = |number: usize| names.intern(Name::new(&number.to_string())).unwrap();
        assert!((0..MAX_NAMES).all(|number| intern(number) != 0));
        assert_eq!([intern(MAX_NAMES), intern(MAX_NAMES + 1)], [0, 0]);
        assert_eq!([intern(0), intern(MAX_NAMES - 1)], [1, 65_535], "known names keep their numbers");
    }

    /// Names that collide under a known hash do not under another seed.
    #[test]
    fn names_chosen_to_collide_are_found_in_few_steps() {
        const NAMES: usize = 1000;
        let chosen = (0u64..).map(|number| number.to_string());
        let chosen = chosen.filter(|name| {
            let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
            (hash ^ hash >> 32) % 2048 == 0
        });
        let mut names = Names::default();
        let (steps, ()) =
            steps::of(|| chosen.take(NAMES).for_each(|name| _ = names.intern(Name::new(&name)).unwrap()));
        assert!(steps < 4 * NAMES as u64, "{steps} steps for {NAMES} names");
    }

    /// Different names with the same hash get different numbers.
    #[test]
    fn names_with_one_hash_are_told_apart() {
        let mut names = Names::default();
        let numbers: Vec<u32> =
            [b"a", b"b", b"c", b"b"].map(|name| names.intern(Name::with_hash(name, 7)).unwrap()).to_vec();
        assert_eq!(numbers, [1, 2, 3, 2]);
        (0..100).for_each(|i| assert!(names.intern(Name::with_hash(format!("{i}").as_bytes(), 7)).is_ok()));
        assert_eq!(names.intern(Name::with_hash(b"c", 7)).unwrap(), 3);
    }
}
