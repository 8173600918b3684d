//! Reuse races through cudaMalloc and cudaFree: the tests of tests/preload_races, with the installed interposer.

use anyhow::Result;

use crate::cargo;
use crate::simcuda;
use crate::suites::context::{Context, Count};

/// Random programs of each kind where the suite is one of many: some seconds of them.
const SOME: &str = "200";

/// A quarter as many of threads at once, and an eighth of the kinds with granules.
pub fn run(context: &mut Context) -> Result<()> {
    programs(context, SOME)
}

/// Runs so many of each kind. The tests themselves build the mutation that they are to see.
pub fn programs(context: &mut Context, count: &str) -> Result<()> {
    let interposer = context.prefix()?.join("lib").join(crate::install::INTERPOSER);
    let driver = simcuda::build_driver(&context.workspace)?.join("libcuda.so.1");
    let args = ["test", "--package=bfc", "--release", "--test=preload_races"];
    let mut command = context.plain(cargo::cargo(&context.workspace, &args));
    command.args(["--no-fail-fast", "--", "--nocapture"]).env_remove("LD_PRELOAD");
    command.env("SIMCUDA_LIBRARY", driver).env("PRELOAD_LIBRARY", interposer).env("RACES_PROGRAMS", count);
    context.program("random programs with the interposer on held streams", command, Count::Cargo)?;
    Ok(())
}
