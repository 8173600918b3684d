//! Planned placements: where the requests of a recorded program are to lie, and which of them comes next.
//!
//! A plan is computed offline (`bfc plan`). It consists of numbers only and owns no memory: a planned place is taken if
//! it is free, and the request is served as without a plan if not. So a plan that does not match the program does no harm.
//!
//! ```text
//!   entry           a request and its place
//!   placement_plan  the entries, and the one that the next request is compared with
//!   runs            short runs of sizes, by which a program that left the plan finds it again
//!   parse           the text of a plan
//! ```

mod entry;
mod parse;
mod placement_plan;
mod runs;

pub use self::parse::Malformed;
pub use self::placement_plan::PlacementPlan;

#[cfg(test)]
pub(crate) use self::parse::with_checksum;
