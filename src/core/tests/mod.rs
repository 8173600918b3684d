//! Tests of the whole algorithm. Tests of a single file are in that file.

mod bounds;
mod cliffs;
pub(crate) mod model;
mod queues;
mod remap;
pub(in crate::core) mod sound;
mod stamp_bounds;
