//! The driver as called by the interposer: its own functions for the hooks, and their names.

mod functions;
mod names;

pub(crate) use functions::{Function, at, load, real, real_unanalyzed};
pub(crate) use names::{by_version, has_name, is_hooked, is_touching, may_touch_unseen};
