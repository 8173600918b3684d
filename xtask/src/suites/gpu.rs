//! The suite `gpu`: libbfc on a real NVIDIA GPU, if there is one.
//!
//! The program is C and calls the release build by its C ABI, so that what is built here runs where there is a GPU and
//! no Rust: `target/gpu` is all of it, and `target/gpu/run` runs it there. On the simulated driver it runs too, with
//! kernels that the simulation knows by name, which shows that the program works and nothing of a GPU.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::context::{Context, Count};
use crate::files;
use crate::gates::version;
use crate::simcuda;
use crate::tools;
use crate::workspace::Workspace;

const SOURCES: [&str; 7] = ["main.c", "driver.c", "kernels.c", "basics.c", "streams.c", "ipc.c", "costs.c"];

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
    context.program("on this machine's driver", real, Count::Cargo)?;
    show(context, measured)
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
    let library = version::soname(&workspace.version);
    files::copy(&prefix.join("lib").join(&library), &folder.join(&library))?;
    files::copy(&workspace.path("ffi-tests/gpu/run"), &folder.join("run"))?;
    let mut command = workspace.command(tools::c_compiler());
    command
        .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(prefix.join("include"));
    command.args(SOURCES.map(|name| workspace.path("ffi-tests/gpu").join(name)));
    command.arg("-o").arg(folder.join("bfc-gpu")).arg("-L").arg(&folder).arg(format!("-l:{library}"));
    command.args(["-Wl,-rpath,$ORIGIN", "-ldl"]);
    workspace.run_well("bfc-gpu", command)?;
    Ok(folder)
}
