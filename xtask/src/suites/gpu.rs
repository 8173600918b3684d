//! The suite `gpu`: libbfc on a real NVIDIA GPU, if there is one.
//!
//! The program is C and calls the release build by its C ABI, so that what is built here runs where there is a GPU and
//! no Rust: `target/gpu` is all of it, and `target/gpu/run` runs it there. On the simulated driver it runs too, with
//! kernels that the simulation knows by name, which shows that the program works and nothing of a GPU.
//!
//! Beside it there is the conformance suite of `cargo test`, over the driver that is there, and programs that know nothing
//! of libbfc, with the interposer, and frameworks with the Python package.

mod frameworks;
mod interposed;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::context::{Context, Count};
use crate::cargo;
use crate::files;
use crate::simcuda;
use crate::tools;
use crate::workspace::{Workspace, capture};

const SOURCES: [&str; 7] = ["main.c", "driver.c", "kernels.c", "basics.c", "streams.c", "ipc.c", "costs.c"];

/// The conformance suite over a device's backends.
const CONFORMANCE: [&str; 2] = ["conformance_cuda", "conformance_cuda_vmm"];

/// What bfc-gpu says where there is no device.
const NO_DEVICE: &str = "test gpu ... ignored";

/// Builds it, and runs it on the simulation and on whatever driver there is.
pub fn run(context: &mut Context) -> Result<()> {
    if !tools::works(&tools::c_compiler()) {
        context.skip("all of it", &format!("there is no {}", tools::c_compiler().display()));
        return Ok(());
    }
    let prefix = context.prefix()?;
    let folder = build(&context.workspace, &prefix)?;
    let simulated = simcuda::build_driver(&context.workspace)?;

    let on = |program: &str, libraries: Option<&Path>| {
        let mut command = context.workspace.command(folder.join("bfc-gpu"));
        if !program.is_empty() {
            command.arg(program);
        }
        command.envs(libraries.map(|folder| ("LD_LIBRARY_PATH", folder)));
        context.plain(command)
    };
    let (tests, costs) = (on("", Some(&simulated)), on("costs", Some(&simulated)));
    let (real, measured) = (on("", None), on("costs", None));
    context.program("on the simulated driver, with simulated kernels", tests, Count::Cargo)?;
    context.program("the costs, on the simulated driver: that they are printed", costs, Count::One)?;
    let ended = context.program("on this machine's driver", real, Count::Cargo)?;
    show(context, measured)?;

    interposed::run(context, &folder)?;
    frameworks::run(context, &folder)?;

    conformance(&context.workspace, &folder)?;
    let over = |name: &str, simulation: Option<&Path>| {
        let mut command = context.plain(context.workspace.command(folder.join(name)));
        command.env("LIBBFC_TESTS_ON_DEVICE", "1").env_remove("SIMCUDA_LIBRARY");
        command.envs(simulation.map(|folder| ("SIMCUDA_LIBRARY", folder.join("libcuda.so.1"))));
        // Of a device there is one of everything: no two tests at once.
        command.arg("--test-threads=1");
        command
    };
    let commands = CONFORMANCE.map(|name| (name, over(name, Some(&simulated)), over(name, None)));
    for (name, on_simulation, on_device) in commands {
        context.program(
            &format!("{name} as on a device, on the simulated driver"),
            on_simulation,
            Count::Cargo,
        )?;
        let name = format!("{name} on this machine's driver");
        if ended.text.contains(NO_DEVICE) {
            context.skip(&name, "as above");
        } else {
            context.program(&name, on_device, Count::Cargo)?;
        }
    }
    Ok(())
}

/// Puts the programs of the conformance suite beside bfc-gpu.
fn conformance(workspace: &Workspace, folder: &Path) -> Result<()> {
    let tests = CONFORMANCE.map(|name| format!("--test={name}"));
    let mut args = vec!["test", "--package=libbfc", "--no-run", "--quiet"];
    args.extend(tests.iter().map(String::as_str));
    let mut command = cargo::cargo(workspace, &args);
    command.arg("--message-format=json-render-diagnostics");
    let messages = capture(&mut command).context("the compiler says why above")?;
    for name in CONFORMANCE {
        let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut ours = messages.filter(|message| message["target"]["name"] == name);
        let program = ours.find_map(|message| message["executable"].as_str().map(PathBuf::from));
        let program = program.with_context(|| format!("cargo built no {name}"))?;
        files::copy(&program, &folder.join(name))?;
    }
    Ok(())
}

/// The table of costs is for people.
fn show(context: &Context, command: Command) -> Result<()> {
    let ended = context.workspace.run("costs on this machine", command)?;
    ended.text.lines().for_each(|line| println!("     | {line}"));
    Ok(())
}

/// The folder that can be carried to another machine.
fn build(workspace: &Workspace, prefix: &Path) -> Result<PathBuf> {
    let folder = workspace.target.join("gpu");
    let library = &workspace.soname;
    files::copy(&prefix.join("lib").join(library), &folder.join(library))?;
    files::copy(&workspace.path("ffi-tests/gpu/run"), &folder.join("run"))?;
    let mut command = workspace.command(tools::c_compiler());
    command
        .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(prefix.join("include"));
    command.args(SOURCES.map(|name| workspace.path("ffi-tests/gpu").join(name)));
    command.arg("-o").arg(folder.join("bfc-gpu")).arg("-L").arg(&folder).arg(format!("-l:{library}"));
    command.args(["-Wl,-rpath,$ORIGIN", "-ldl"]);
    workspace.run_well("bfc-gpu", command)?;
    interposed::build(workspace, prefix, &folder)?;
    frameworks::build(workspace, prefix, &folder)?;
    Ok(folder)
}
