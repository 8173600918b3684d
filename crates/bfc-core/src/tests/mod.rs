//! Tests of the whole algorithm. Tests of a single file are in that file.

mod bounds;
mod cliffs;
pub mod model;
mod queues;
mod remap;
pub(crate) mod sound;
mod stamp_bounds;

/// Random programs of a test, unless RACES_PROGRAMS says how many. Rare cases are found by number alone, in the suite races.
pub fn programs() -> u64 {
    std::env::var("RACES_PROGRAMS").map_or(300, |number| number.parse().expect("RACES_PROGRAMS is a number"))
}
