//! The suite `races`: many random programs on the simulated driver, with the release build, and under the interposer.

use anyhow::Result;

use super::context::{Context, Count};
use crate::cargo;
use crate::simcuda;

/// Of each of the seven kinds, a quarter as many of threads at once, and an eighth of the two kinds with granules: 150
/// thousand in all.
const PROGRAMS: &str = "20000";

/// The same of each of the kinds under the interposer.
const PRELOADED: &str = "5000";

/// As `cargo test --test races`, which runs some of them in the debug build.
pub fn run(context: &mut Context) -> Result<()> {
    let folder = simcuda::build_driver(&context.workspace)?;
    let command = cargo::cargo(&context.workspace, &["test", "--package=bfc", "--release", "--test=races"]);
    let mut command = context.plain(command);
    command.args(["--no-fail-fast", "--", "--nocapture"]);
    command.env("SIMCUDA_LIBRARY", folder.join("libcuda.so.1")).env("RACES_PROGRAMS", PROGRAMS);
    context.program("random programs on held streams", command, Count::Cargo)?;
    super::preload::races::programs(context, PRELOADED)
}
