//! The text of a plan, as `bfc plan` writes it (docs/plan-format.md).

use super::entry::{Entry, NO_PLACE};
use super::placement_plan::PlacementPlan;
use crate::units::{MAX_CHUNK, UNIT};
use alloc::vec::Vec;
use bfc_hostmem::HostMemoryExhausted;
use core::fmt;

/// The entries of a plan, at most.
const MOST_ENTRIES: usize = 1 << 20;

/// Why a text is no plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// The first line is not that of a plan.
    NoPlan,
    /// The version is not the one that this library reads.
    Version,
    /// A line is wrong.
    Line(usize, &'static str),
    /// The text ends before its last line.
    Truncated,
    /// The checksum does not match.
    Checksum,
    /// There is no host memory for the plan.
    HostMemory,
}

impl From<HostMemoryExhausted> for Malformed {
    fn from(_: HostMemoryExhausted) -> Self {
        Malformed::HostMemory
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::NoPlan => f.write_str("not a plan of bfc plan: it begins with bfc-plan and a version"),
            Malformed::Version => f.write_str("a plan of another version: make it again with bfc plan"),
            Malformed::Line(line, what) => write!(f, "line {line}: {what}"),
            Malformed::Truncated => f.write_str("truncated: the line with the checksum is missing"),
            Malformed::Checksum => f.write_str("damaged: the checksum does not match"),
            Malformed::HostMemory => f.write_str("out of host memory (allocator metadata)"),
        }
    }
}

/// The lines of a text, with their numbers and the position behind each.
struct Lines<'a> {
    text: &'a [u8],
    at: usize,
    number: usize,
}

impl<'a> Lines<'a> {
    /// Returns the next line without its end. A line without an end is not whole.
    fn next(&mut self) -> Result<&'a [u8], Malformed> {
        let rest = &self.text[self.at..];
        let length = rest.iter().position(|&byte| byte == b'\n').ok_or(Malformed::Truncated)?;
        self.at += length + 1;
        self.number += 1;
        Ok(&rest[..length])
    }

    /// Reads a line that consists of a word and a number.
    fn field(&mut self, name: &'static str, expected: &'static str) -> Result<u64, Malformed> {
        let line = self.next()?;
        let number = line.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b" "));
        number.and_then(decimal).ok_or(Malformed::Line(self.number, expected))
    }
}

impl PlacementPlan {
    /// Reads a plan.
    pub fn parse(text: &[u8]) -> Result<Self, Malformed> {
        let mut lines = Lines { text, at: 0, number: 0 };
        let version = lines.next().ok().and_then(|line| line.strip_prefix(b"bfc-plan "));
        let version = version.ok_or(Malformed::NoPlan)?;
        if version != b"1" {
            return Err(Malformed::Version);
        }
        let alignment = lines.field("alignment", "it must be: alignment NUMBER")?;
        if alignment != UNIT && alignment != 2 * UNIT {
            return Err(Malformed::Line(lines.number, "the alignment must be 256 or 512"));
        }
        let bytes = lines.field("bytes", "it must be: bytes NUMBER")?;
        let prologue = lines.field("prologue", "it must be: prologue NUMBER")?;
        let repeated = lines.field("repeated", "it must be: repeated NUMBER")?;
        let count = |entries: u64| usize::try_from(entries).ok().filter(|&count| count <= MOST_ENTRIES);
        let total = prologue.checked_add(repeated).and_then(count).filter(|&count| count > 0);
        let total = total.ok_or(Malformed::Line(lines.number, "a plan has 1 to 1048576 requests"))?;
        let mut entries = Vec::new();
        // Each entry has a line, so a text that promises more than it has takes no more memory than itself.
        let possible = total.min(text.len());
        entries.try_reserve_exact(possible).map_err(|_| Malformed::HostMemory)?;
        for _ in 0..total {
            let line = lines.next()?;
            let entry = entry(line, alignment, bytes).map_err(|what| Malformed::Line(lines.number, what))?;
            // There are at least as many bytes as entries, so this does not allocate.
            entries.push(entry);
        }
        let covered = lines.at;
        let last = lines.next()?;
        let sum = last.strip_prefix(b"checksum ").and_then(hexadecimal);
        let sum = sum.ok_or(Malformed::Line(lines.number, "it must be: checksum and 16 digits"))?;
        if sum != fnv1a64(&text[..covered]) {
            return Err(Malformed::Checksum);
        }
        if lines.at != text.len() {
            return Err(Malformed::Line(lines.number + 1, "there is more text after the checksum"));
        }
        let repeated_from = count(prologue).unwrap_or(total);
        Ok(PlacementPlan::new(entries, repeated_from, bytes)?)
    }
}

/// Reads a request: its size and its place, or `-` if it has none.
fn entry(line: &[u8], alignment: u64, bytes: u64) -> Result<Entry, &'static str> {
    const EXPECTED: &str = "it must be: SIZE OFFSET, or SIZE -";
    let space = line.iter().position(|&byte| byte == b' ').ok_or(EXPECTED)?;
    let size = decimal(&line[..space]).ok_or(EXPECTED)?;
    if size == 0 || size > MAX_CHUNK || !size.is_multiple_of(alignment) {
        return Err("the size must be a multiple of the alignment, and not 0");
    }
    let offset = match &line[space + 1..] {
        b"-" => return Ok(Entry::new(size, NO_PLACE)),
        offset => decimal(offset).ok_or(EXPECTED)?,
    };
    let end = offset.checked_add(size).filter(|&end| end <= bytes && offset.is_multiple_of(alignment));
    end.ok_or("the place must begin at a multiple of the alignment and end within the plan's bytes")?;
    Ok(Entry::new(size, offset))
}

fn decimal(digits: &[u8]) -> Option<u64> {
    number(digits, 10, 20)
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    number(digits, 16, 16).filter(|_| digits.len() == 16)
}

/// Reads a number of at most `most` digits without a sign.
fn number(digits: &[u8], radix: u64, most: usize) -> Option<u64> {
    if digits.is_empty() || digits.len() > most {
        return None;
    }
    let mut value: u64 = 0;
    for &digit in digits {
        let digit = (digit as char).to_digit(16).filter(|&digit| u64::from(digit) < radix)?;
        value = value.checked_mul(radix)?.checked_add(digit.into())?;
    }
    Some(value)
}

/// FNV-1a, as for the recorded placements (tests/traces/golden.tsv).
fn fnv1a64(bytes: &[u8]) -> u64 {
    let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
    bytes.iter().fold(1_469_598_103_934_665_603, step)
}

#[cfg(test)]
pub(crate) fn with_checksum(text: &str) -> String {
    format!("{text}checksum {:016x}\n", fnv1a64(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "bfc-plan 1\nalignment 256\nbytes 4096\nprologue 1\nrepeated 2\n256 0\n512 256\n768 -\n";

    fn why(text: &str) -> Option<Malformed> {
        PlacementPlan::parse(text.as_bytes()).err()
    }

    #[test]
    fn a_plan_is_read() {
        let plan = PlacementPlan::parse(with_checksum(GOOD).as_bytes()).unwrap();
        assert_eq!((plan.len(), plan.bytes()), (3, 4096));
    }

    #[test]
    fn the_example_of_the_page_is_a_plan() {
        let page = include_str!("../../../../docs/plan-format.md");
        let example = page.split("at once:").nth(1).expect("an example");
        let lines: Vec<&str> = example.lines().filter_map(|line| line.strip_prefix("    ")).collect();
        let plan = PlacementPlan::parse(format!("{}\n", lines.join("\n")).as_bytes()).unwrap();
        assert_eq!((plan.len(), plan.bytes()), (3, 4096));
    }

    #[test]
    fn every_truncation_and_every_damaged_byte_is_noticed() {
        let text = with_checksum(GOOD);
        for end in 0..text.len() {
            let expected =
                if end < GOOD.find('\n').unwrap() + 1 { Malformed::NoPlan } else { Malformed::Truncated };
            assert_eq!(why(&text[..end]), Some(expected), "{end}");
        }
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut damaged = text.clone().into_bytes();
                damaged[at] ^= 1 << bit;
                // The digits of the checksum may be of either case.
                let is_same = damaged.eq_ignore_ascii_case(text.as_bytes()) && at > GOOD.len() + 8;
                assert_eq!(PlacementPlan::parse(&damaged).is_err(), !is_same, "{at} {bit}");
            }
        }
        assert_eq!(
            why(&format!("{text}\n")),
            Some(Malformed::Line(10, "there is more text after the checksum"))
        );
    }

    #[test]
    fn wrong_lines_are_told_by_number() {
        assert_eq!(why(""), Some(Malformed::NoPlan));
        assert_eq!(why("+ 1 256 0\n"), Some(Malformed::NoPlan));
        assert_eq!(why("bfc-plan 2\n"), Some(Malformed::Version));
        for (from, to, line) in [
            ("alignment 256", "alignment 128", 2),
            ("alignment 256", "alignment 0", 2),
            ("bytes 4096", "bytes -1", 3),
            ("bytes 4096", "bytes 512", 7),
            ("prologue 1\nrepeated 2", "prologue 0\nrepeated 0", 5),
            ("prologue 1", "prologue 18446744073709551615", 5),
            ("prologue 1", "prologue 2000000", 5),
            ("256 0", "0 0", 6),
            ("256 0", "256", 6),
            ("256 0", "255 0", 6),
            ("256 0", "256 +0", 6),
            ("256 0", "256 0 ", 6),
            ("512 256", "512 128", 7),
            ("512 256", "512 18446744073709551360", 7),
            ("512 256", "99999999999999999999 0", 7),
            ("768 -", "70368744177664 -", 8),
        ] {
            let text = with_checksum(&GOOD.replace(from, to));
            let found = why(&text);
            assert!(matches!(found, Some(Malformed::Line(at, _)) if at == line), "{to}: {found:?}");
        }
        let longer = with_checksum(&GOOD.replace("repeated 2", "repeated 3"));
        assert!(matches!(why(&longer), Some(Malformed::Line(9, _))));
        let foreign = format!("{GOOD}checksum 0123456789abcdef\n");
        assert_eq!(why(&foreign), Some(Malformed::Checksum));
    }
}
