//! The live allocations in one line: for a destruction that is refused, and for a forced one.

use super::{Bytes, Counted, tally};
use bfc_core::arena::View;
use os::terms::NO_OPERATION;
use std::fmt;

/// The number of operations that are named.
const SHOWN: usize = 3;

/// The operations that hold most: `: 4.00 MiB in 2 of weights, 1.00 KiB in 1 of (no operation)`. Empty if nothing is
/// live, or if there is no host memory for the sums.
pub(crate) struct LargestHolders<'a>(pub(crate) View<'a>);

impl fmt::Display for LargestHolders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LargestHolders(view) = self;
        let holders = tally::holders(view).unwrap_or_default();
        for (position, holder) in holders.iter().take(SHOWN).enumerate() {
            let gap = if position == 0 { ": " } else { ", " };
            let name = view.names.name(holder.name).unwrap_or(NO_OPERATION);
            write!(f, "{gap}{} in {} of {name}", Bytes(holder.bytes), holder.chunks)?;
        }
        match holders.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            hidden => write!(f, ", and {}", Counted(hidden as u64, "other operation")),
        }
    }
}
