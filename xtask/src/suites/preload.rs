//! The suite `preload`: libbfc_preload.so, and programs that know nothing of it, on the simulated driver. See
//! ffi-tests/preload.

use anyhow::Result;

use super::context::{Context, Count};
use crate::cargo;
use crate::simcuda;
use crate::tools;

/// Random programs of each kind where the suite is one of many: some seconds of them.
const SOME: &str = "200";

/// Builds interposer and simulation, and runs programs on both.
pub fn run(context: &mut Context) -> Result<()> {
    if !tools::works(&tools::c_compiler()) {
        context.skip("all of it", &format!("there is no {}", tools::c_compiler().display()));
        return Ok(());
    }
    context.pytest("preload")?;
    races(context, SOME)
}

/// Reuse races through cudaMalloc and cudaFree: so many random programs of each kind, a quarter as many of threads at once,
/// and an eighth of the kinds with granules. The tests themselves build the mutation that they are to see.
pub fn races(context: &mut Context, count: &str) -> Result<()> {
    let interposer = context.prefix()?.join("lib").join(crate::install::INTERPOSER);
    let driver = simcuda::build_driver(&context.workspace)?.join("libcuda.so.1");
    let args = ["test", "--package=libbfc", "--release", "--test=preload_races"];
    let mut command = context.plain(cargo::cargo(&context.workspace, &args));
    command.args(["--no-fail-fast", "--", "--nocapture"]).env_remove("LD_PRELOAD");
    command.env("SIMCUDA_LIBRARY", driver).env("PRELOAD_LIBRARY", interposer).env("RACES_PROGRAMS", count);
    context.program("random programs with the interposer on held streams", command, Count::Cargo)?;
    Ok(())
}
