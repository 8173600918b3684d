//! Columns of numbers, as the page reads them.
//!
//! A column contains the lowest bytes of all its numbers, then the next bytes, up to the highest that any of them
//! needs. Similar bytes are thus adjacent, and compress well. crates/cli/assets/report/data.js is the reader.

use std::io::{self, Write};

use serde::Serialize;

/// JavaScript has integers up to here.
pub const MOST: u64 = (1 << 53) - 1;

/// What the page needs to unpack a column.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Where its bytes begin.
    offset: usize,
    count: usize,
    /// How many bytes a number has.
    width: usize,
    /// Whether the numbers are differences from those before them.
    is_delta: bool,
}

/// The bytes of all columns.
#[derive(Default)]
pub struct Columns {
    bytes: Vec<u8>,
}

impl Columns {
    /// Adds a column.
    pub fn add(&mut self, numbers: &[u64]) -> Column {
        self.add_numbers(numbers.iter().map(|&number| number.min(MOST)), false)
    }

    /// Adds a column whose numbers do not decrease.
    pub fn add_ascending(&mut self, numbers: &[u64]) -> Column {
        let mut before = 0;
        let deltas: Vec<u64> = numbers
            .iter()
            .map(|&number| number.min(MOST))
            .map(|number| number.saturating_sub(std::mem::replace(&mut before, number)))
            .collect();
        self.add_numbers(deltas.iter().copied(), true)
    }

    fn add_numbers(&mut self, numbers: impl ExactSizeIterator<Item = u64> + Clone, is_delta: bool) -> Column {
        let (offset, count) = (self.bytes.len(), numbers.len());
        let most = numbers.clone().max().unwrap_or(0);
        let width = (8 - most.leading_zeros() as usize / 8).max(1);
        self.bytes.reserve(width * count);
        for byte in 0..width {
            self.bytes.extend(numbers.clone().map(|number| number.to_le_bytes()[byte]));
        }
        Column { offset, count, width, is_delta }
    }

    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_equal_weight_lie_side_by_side() {
        let mut columns = Columns::default();
        assert_eq!(columns.add(&[]), Column { offset: 0, count: 0, width: 1, is_delta: false });
        assert_eq!(columns.add(&[1, 0x0203]), Column { offset: 0, count: 2, width: 2, is_delta: false });
        let ascending = columns.add_ascending(&[1000, 1001, 1003]);
        assert_eq!(ascending, Column { offset: 4, count: 3, width: 2, is_delta: true });
        assert_eq!(columns.add(&[u64::MAX]).width, 7);
        assert_eq!(columns.bytes[..10], [1, 3, 0, 2, 0xe8, 1, 2, 3, 0, 0]);
    }
}
