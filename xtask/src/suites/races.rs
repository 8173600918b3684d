//! The suite `races`: many random programs on the simulated driver, with the release build, and under the interposer.
//!
//! A long run: `RACES_PROGRAMS=1000000 cargo xtask test --suite races --verbose`, which prints each minute how far it is.
//! Under the interposer each kind runs a quarter of that.

use std::env;

use anyhow::{Context as _, Result};

use super::context::{Context, Count};
use crate::cargo;
use crate::simcuda;

/// Of each of the seven kinds, a quarter as many of threads at once and of the kinds with contexts, receives and captures
/// of all modes, and an eighth of those with granules; the list of suites says how many that are.
const PROGRAMS: u64 = 20_000;

/// How many of each kind.
fn programs() -> Result<u64> {
    match env::var("RACES_PROGRAMS") {
        Ok(text) => text.parse().context("RACES_PROGRAMS is not a number"),
        Err(_) => Ok(PROGRAMS),
    }
}

/// As `cargo test --test races`, which runs some of them in the debug build.
pub fn run(context: &mut Context) -> Result<()> {
    let programs = programs()?;
    let folder = simcuda::build_driver(&context.workspace)?;
    let command =
        cargo::cargo(&context.workspace, &["test", "--package=libbfc", "--release", "--test=races"]);
    let mut command = context.plain(command);
    command.args(["--no-fail-fast", "--", "--nocapture"]);
    command.env("SIMCUDA_LIBRARY", folder.join("libcuda.so.1")).env("RACES_PROGRAMS", programs.to_string());
    context.program("random programs on held streams", command, Count::Cargo)?;
    // The same of each of the kinds under the interposer.
    super::preload::races(context, &(programs / 4).to_string())
}
