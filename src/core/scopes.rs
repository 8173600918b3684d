//! Names of operations, stored once each.

use crate::sys::HostMemoryExhausted;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// More names than a program has operations; what comes after is counted as unnamed.
const MAX_NAMES: usize = 65_535;

/// Names are numbered from 1 in the order they come, and found by open addressing.
#[derive(Default)]
pub(crate) struct Names {
    names: Vec<String>,
    /// Numbers of names at the places their hashes lead to; 0 is empty. At most half full.
    table: Vec<u32>,
    bytes: usize,
}

impl Names {
    /// The number of a name; 0 where there are too many.
    pub(super) fn intern(&mut self, name: &str) -> Result<u32, HostMemoryExhausted> {
        if self.table.len() < 2 * (self.names.len() + 1) {
            self.grow()?;
        }
        let place = self.place_of(name);
        if self.table[place] != 0 || self.names.len() >= MAX_NAMES {
            return Ok(self.table[place]);
        }
        let mut owned = String::new();
        owned.try_reserve_exact(name.len())?;
        self.names.try_reserve(1)?;
        owned.push_str(name);
        self.names.push(owned);
        self.bytes += name.len();
        #[allow(clippy::cast_possible_truncation)] // at most MAX_NAMES
        let number = self.names.len() as u32;
        self.table[place] = number;
        Ok(number)
    }

    fn grow(&mut self) -> Result<(), HostMemoryExhausted> {
        let mut table = Vec::new();
        table.try_reserve_exact((self.table.len() * 2).max(64))?;
        table.resize((self.table.len() * 2).max(64), 0);
        self.table = table;
        for number in 1..=self.names.len() {
            let place = self.place_of(&self.names[number - 1]);
            #[allow(clippy::cast_possible_truncation)] // at most MAX_NAMES
            let number = number as u32;
            self.table[place] = number;
        }
        Ok(())
    }

    /// Where a name stands in the table, or where it would.
    fn place_of(&self, name: &str) -> usize {
        // Fixed keys: the standard's random ones live in thread-local storage, which may be gone at exit.
        let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(name);
        let mask = self.table.len() - 1;
        #[allow(clippy::cast_possible_truncation)] // 64-bit platforms only, see sys
        let mut place = hash as usize & mask;
        while self.name(self.table[place]).is_some_and(|there| there != name) {
            place = (place + 1) & mask;
        }
        place
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn name(&self, number: u32) -> Option<&str> {
        let index = (number as usize).checked_sub(1)?;
        self.names.get(index).map(String::as_str)
    }

    pub(crate) fn metadata_bytes(&self) -> u64 {
        let lists = self.names.capacity() * size_of::<String>() + self.table.capacity() * size_of::<u32>();
        (lists + self.bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_one_number() {
        let mut names = Names::default();
        let numbers: Vec<u32> = (0..1000).map(|i| names.intern(&format!("op{i}")).unwrap()).collect();
        assert!(numbers.iter().enumerate().all(|(i, &number)| number as usize == i + 1));
        assert_eq!((names.intern("op7").unwrap(), names.len()), (8, 1000));
        assert_eq!((names.name(8), names.name(0), names.name(1001)), (Some("op7"), None, None));
    }
}
