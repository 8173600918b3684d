//! The suite `preload`: libbfc_preload.so with unmodified programs on the simulated driver, see ffi-tests/preload. The
//! suite `races`: many random programs on the simulated driver, optimized, and under the interposer.
//!
//! A long run: `RACES_PROGRAMS=1000000 cargo xtask test --suite races --verbose`, which prints each minute how far it is.
//! Under the interposer each kind runs a quarter of that.

use std::process::Command;

use anyhow::{Context as _, Result};

use super::context::{Context, Count, Needs};
use crate::simcuda;
use crate::tools;

/// The programs of each kind. A quarter as many have concurrent threads, or are of the kinds with contexts, receives
/// and captures of all modes, and an eighth as many have granules.
const PROGRAMS: u64 = 5_000;

/// The profile of the tests, in Cargo.toml.
const PROFILE: &str = "--profile=races";

/// Builds interposer and simulation, and runs programs on both. Some random ones with the interposer are in the suite
/// rust.
pub fn run(context: &mut Context) -> Result<()> {
    tools::need_compilers()?;
    context.pytest("preload", Needs::Simulation, &[])
}

/// As `cargo test --test races`, which runs some of them in the debug build, and the same under the interposer.
pub fn races(context: &mut Context) -> Result<()> {
    let programs = match std::env::var("RACES_PROGRAMS") {
        Ok(text) => text.parse().context("RACES_PROGRAMS is not a number")?,
        Err(_) => PROGRAMS,
    };
    // The core's own are the fastest, and the debug build runs only a few of them.
    let mut command = context.cargo(&["test", PROFILE, "--package=libbfc-core", "--no-fail-fast", "--lib"]);
    command.args(["--", "tests::queues"]).env("RACES_PROGRAMS", programs.to_string());
    context.program("random programs of the core", command, Count::Cargo)?;
    let command = random_programs(context, "library::", programs)?;
    context.program("random programs on held streams", command, Count::Cargo)?;

    // Reuse races through cudaMalloc and cudaFree.
    let interposer = context.prefix()?.join("lib").join(crate::install::INTERPOSER);
    let mut command = random_programs(context, "hooked::", programs / 4)?;
    command.env_remove("LD_PRELOAD").env("PRELOAD_LIBRARY", interposer);
    context.program("random programs with the interposer on held streams", command, Count::Cargo)?;

    // In the debug build with its usual number of programs, which suffices.
    let mut command = context.cargo(&["test", "--package=libbfc", "--no-fail-fast", "--test=races"]);
    command.args(["--", "--ignored"]).env_remove("RACES_PROGRAMS");
    context.program("that random programs detect defects", command, Count::Cargo).map(drop)
}

/// The tests of a module of tests/races, optimized, on the simulated driver.
fn random_programs(context: &Context, module: &str, programs: u64) -> Result<Command> {
    let driver = simcuda::build_driver(&context.workspace)?.join("libcuda.so.1");
    let mut command =
        context.cargo(&["test", "--package=libbfc", PROFILE, "--no-fail-fast", "--test", "races"]);
    // Those that show that defects are detected follow in the debug build.
    command.args(["--", "--nocapture", "--skip=mutation", "--skip=not_announced", module]);
    command.env("SIMCUDA_LIBRARY", driver).env("RACES_PROGRAMS", programs.to_string());
    Ok(command)
}
