//! Options, variables and limits.

#[path = "../common/mod.rs"]
mod common;
#[path = "../plan_files/mod.rs"]
mod plan_files;

mod control_group;
mod environment;
mod limits;
mod resolved_options;
mod setting_pairs;
