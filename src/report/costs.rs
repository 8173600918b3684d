//! Settings that make a pool hold more than a program needs. They are named in reports if they cost much, and for
//! settings that are resolved without a pool.

use super::{Bytes, Subject};
use bfc_core::arena::{RegionGrowth, View};
use bfc_core::stats::Stats;
use bfc_core::units::round_up_saturating;
use std::fmt;

/// A choice is named if it costs at least an eighth of the memory, which is twice what growth by need obtains in
/// advance, and never below [`LEAST`] bytes.
const SHARE: u64 = 8;
pub(crate) const LEAST: u64 = 64 << 20;

/// A choice that can cost memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    NoGrowth,
    Doubling,
    Remainders,
}

impl Choice {
    /// Returns the setting, by its name among the resolved settings.
    pub(super) fn setting(self) -> &'static str {
        match self {
            Choice::NoGrowth => "allow_growth",
            Choice::Doubling => "growth_policy",
            Choice::Remainders => "split_always",
        }
    }

    /// Returns the effect of the choice.
    pub(super) fn effect(self) -> &'static str {
        match self {
            Choice::NoGrowth => "the first allocation takes one region of the whole limit",
            Choice::Doubling => "regions double, so that up to half of what is held is not needed",
            Choice::Remainders => "chunks have up to twice the size that was requested",
        }
    }

    /// Returns the recommended alternative. The flags of `bfc_options_t` and the variables have the same names.
    pub(super) fn advice(self) -> &'static str {
        match self {
            Choice::NoGrowth => "set BFC_ALLOW_GROWTH",
            Choice::Doubling => "set BFC_GROWTH_NEED (or BFC_GROWTH=need)",
            Choice::Remainders => "set BFC_SPLIT_ALWAYS",
        }
    }
}

/// The cost of a choice for a pool. `Display` is the line of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cost {
    pub(super) choice: Choice,
    pub(super) bytes: u64,
    /// The bytes held, or those in use.
    pub(super) of: u64,
}

impl Cost {
    fn new(choice: Choice, bytes: u64, of: u64) -> Option<Self> {
        (bytes >= LEAST && bytes >= of / SHARE).then_some(Cost { choice, bytes, of })
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bytes, of] = [Bytes(self.bytes), Bytes(self.of)];
        match self.choice {
            Choice::NoGrowth => write!(f, "no growth: {bytes} of the {of} held were never used")?,
            Choice::Doubling => write!(f, "regions double: {bytes} of the {of} held were never used")?,
            Choice::Remainders => {
                write!(f, "no splits below twice the size: {bytes} of the {of} in use are remainders")?;
            }
        }
        write!(f, "; {}, as BFC_OPTIONS_RECOMMENDED does", self.choice.advice())
    }
}

/// Returns the costs of a pool's choices, if they are large. Empty in the debug mode, whose guard bytes are in the
/// chunks too.
pub(super) fn of(subject: &Subject<'_>) -> impl Iterator<Item = Cost> {
    let costs = if subject.guards.is_some() { [None; 2] } else { of_view(&subject.stats, &subject.view) };
    costs.into_iter().flatten()
}

fn of_view(stats: &Stats, view: &View<'_>) -> [Option<Cost>; 2] {
    let is_range = view.unmapped_bytes().is_some();
    let growth = match view.growth() {
        // Granules can be moved, so memory that was not in use at the same time was not needed.
        RegionGrowth::Whole if is_range => {
            let unused = stats.pool_bytes.saturating_sub(stats.peak_bytes_in_use);
            Cost::new(Choice::NoGrowth, unused, stats.pool_bytes)
        }
        RegionGrowth::Whole => Cost::new(Choice::NoGrowth, view.never_used_bytes(), stats.pool_bytes),
        RegionGrowth::Doubling if !is_range => {
            Cost::new(Choice::Doubling, view.never_used_bytes(), stats.pool_bytes)
        }
        RegionGrowth::Doubling | RegionGrowth::ByNeed => None,
    };
    let remainders = (!view.splits_always())
        .then(|| Cost::new(Choice::Remainders, remainder_bytes(view), stats.bytes_in_use))
        .flatten();
    [growth, remainders]
}

/// Returns the bytes of the chunks in use that a split would have left free.
fn remainder_bytes(view: &View<'_>) -> u64 {
    let in_use = view.chunks.ids().filter(|&id| view.chunks.in_use(id));
    in_use
        .map(|id| view.chunks.size(id).saturating_sub(round_up_saturating(view.chunks.cold(id).requested)))
        .sum()
}
