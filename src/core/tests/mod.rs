//! Tests of the engine as a whole; those of one file are in that file.

mod bounds;
mod cliffs;
pub(crate) mod model;
mod queues;
mod remap;
pub(in crate::core) mod sound;
mod stamp_bounds;
