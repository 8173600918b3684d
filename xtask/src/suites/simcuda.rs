//! The suite `simcuda`: the simulated driver itself, as others use it.

use anyhow::Result;

use super::context::{Context, Count};
use crate::cargo;
use crate::simcuda;

/// Builds it as other suites do, and runs its own tests against that build.
pub fn run(context: &mut Context) -> Result<()> {
    let folder = simcuda::build(&context.workspace)?;
    let command =
        cargo::cargo(&context.workspace, &["test", "--package=simcuda", "--no-fail-fast", "--tests"]);
    let mut command = context.plain(command);
    command.env("SIMCUDA_LIBRARY", folder.join("libcuda.so.1"));
    context.program("the simulated driver's tests", command, Count::Cargo)?;
    Ok(())
}
