//! The suite `simcuda`: the simulated driver and runtimes themselves, as others use them.

use anyhow::Result;

use super::context::{Context, Count};
use super::ctest;
use crate::cargo;
use crate::simcuda;
use crate::tools::CMake;

/// Builds everything as other suites do, and runs its own tests against that build.
pub fn run(context: &mut Context) -> Result<()> {
    let folder = simcuda::build_driver(&context.workspace)?;
    let args = ["test", "--package=simcuda", "--no-fail-fast", "--tests"];
    let mut command = context.plain(cargo::cargo(&context.workspace, &args));
    command.env("SIMCUDA_LIBRARY", folder.join("libcuda.so.1"));
    context.program("the simulated driver", command, Count::Cargo)?;

    let built = simcuda::build(&context.workspace).and_then(|_| CMake::find(&context.workspace));
    let Some(cmake) = context.or_skip("the simulated runtimes", built)? else { return Ok(()) };
    ctest::tests(context, &cmake, &context.workspace.target.join("simcuda"), &["-L", "simcuda"])
}
