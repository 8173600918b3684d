//! `cargo xtask bench --only cpu`: real programs on the CPU, with several allocators (benches/cpu).

use std::env;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::workspace::{Workspace, succeed};
use crate::{simcuda, simulate, uv};

/// Programs and rounds for a check that everything runs.
const QUICK: [&str; 8] =
    ["--rounds=1", "--seconds=0.2", "--only", "small", "--only", "numpy_chain", "--only", "arrow_query"];

/// Measures, and writes tables and figures to target/bench/cpu.
pub fn measure(workspace: &Workspace, prefix: &Path, is_quick: bool) -> Result<()> {
    let command = command(workspace, prefix, is_quick)?;
    println!("\nMeasuring real programs on the CPU; leave the machine alone meanwhile");
    succeed(command)
}

/// The measuring command. Fetches what the programs need.
pub fn command(workspace: &Workspace, prefix: &Path, is_quick: bool) -> Result<Command> {
    let torch = uv::environment(workspace, &workspace.path("ffi-tests/pytorch-cpu"))?;
    let arrays = uv::environment(workspace, &workspace.path("ffi-tests/arrow"))?;
    let others = match is_quick {
        true => vec![],
        false => vec![("--tensorflow", "ffi-tests/tensorflow"), ("--onnx", "ffi-tests/onnxruntime")],
    };
    let simulation = simcuda::build(workspace)?;
    // PyTorch's wheel requires NVIDIA's libraries although no GPU is used.
    let libraries = [simulate::stubs(workspace, &torch, &simulation)?, simulation];
    let mut command = workspace.command("python3");
    command
        .arg(workspace.path("benches/cpu/compare.py"))
        .arg("--torch")
        .arg(torch)
        .arg("--arrays")
        .arg(arrays);
    command.arg("--torch-libraries").arg(env::join_paths(libraries)?);
    for (argument, folder) in others {
        command.arg(argument).arg(uv::environment(workspace, &workspace.path(folder))?);
    }
    command.arg("--out").arg(workspace.target.join("bench/cpu"));
    command.args(QUICK.iter().filter(|_| is_quick));
    command.env("PYTHONPATH", workspace.path("python/src")).env("BFC_LIBRARY", prefix.join("lib"));
    Ok(command)
}
