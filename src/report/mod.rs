//! Reports: the layout of memory, and why a request failed. Reports are read-only.
//!
//! Reports are written to any `fmt::Write`, from a copy taken at one moment and with the lock open. Without host memory
//! for a copy they are written in place, with the lock held, because they are needed most when memory has run out.

mod costs;
pub(crate) mod failure;
pub(crate) mod layout;
pub(crate) mod live;
pub(crate) mod map;
pub(crate) mod metrics;
pub(crate) mod occupancy;
pub(crate) mod resolved_options;
mod tally;

pub(crate) use self::tally::each_holder;

use crate::error::Fallible;
use bfc_core::arena::View;
use bfc_core::stats::Stats;
use bfc_hostmem::HostMemoryExhausted;
use os::terms::{NO_LIMIT, is_no_limit};
use std::fmt;

/// The data of a report.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) device: i32,
    pub(crate) name: &'a str,
    pub(crate) backend: &'static str,
    pub(crate) stats: Stats,
    pub(crate) view: View<'a>,
    /// Present if the debug mode is on.
    pub(crate) guards: Option<Guarding<'a>>,
}

/// The findings of the debug mode so far.
#[derive(Clone, Copy)]
pub(crate) struct Guarding<'a> {
    pub(crate) violations: u64,
    /// The number of frees whose guards were not checked.
    pub(crate) unchecked: u64,
    /// The message of the last violation. Empty if there was none.
    pub(crate) last: &'a str,
}

/// A number of bytes in a readable unit, with the exact number where that adds information.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let power = (self.0.max(1).ilog2() / 10) as usize;
        match power.checked_sub(1).and_then(|unit| units.get(unit)) {
            None => write!(f, "{} B", self.0),
            // Avoids floating point, which takes 2 KiB of stack to format.
            Some(unit) => {
                let one = 1u128 << (power * 10);
                let hundredths = ((u128::from(self.0) * 100 + one / 2) / one) as u64;
                write!(f, "{}.{:02} {unit}", hundredths / 100, hundredths % 100)
            }
        }
    }
}

/// A limit, worded for a sentence.
pub(crate) struct Limit(pub(crate) u64);

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_no_limit(self.0) { f.write_str(NO_LIMIT) } else { write!(f, "{} bytes", self.0) }
    }
}

/// A number of things: `1 region`, `2 regions`.
pub(crate) struct Counted(pub(crate) u64, pub(crate) &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0 == 1 { "" } else { "s" };
        write!(f, "{} {}{plural}", self.0, self.1)
    }
}

/// Returns the text that `write` writes.
pub(crate) fn to_string(
    write: impl FnOnce(&mut dyn fmt::Write) -> fmt::Result,
) -> Result<String, HostMemoryExhausted> {
    let mut text = Fallible::default();
    write(&mut text).map_err(|_| HostMemoryExhausted)?;
    Ok(text.0)
}

#[cfg(test)]
mod tests {
    use super::{Bytes, Counted};

    #[test]
    fn one_thing_is_not_things() {
        let text = [0, 1, 2].map(|count| Counted(count, "region").to_string());
        assert_eq!(text, ["0 regions", "1 region", "2 regions"]);
    }

    #[test]
    fn bytes_are_readable() {
        let text = [0, 255, 1024, 1536, 5 << 30, u64::MAX].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(text, ["0 B", "255 B", "1.00 KiB", "1.50 KiB", "5.00 GiB", "16.00 EiB"]);
    }
}
