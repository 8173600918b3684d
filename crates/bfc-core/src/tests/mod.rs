//! Tests of the whole algorithm. Tests of a single file are in that file.

mod bounds;
mod cliffs;
pub mod model;
mod queues;
mod remap;
pub(crate) mod sound;
mod stamp_bounds;
