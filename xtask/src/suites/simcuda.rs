//! The suite `simcuda`: the simulated driver and runtimes themselves, as others use them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use super::context::{Context, Count};
use crate::cargo;
use crate::cuda_headers;
use crate::simcuda::{self, MAJORS, RUNTIME};
use crate::tools;
use crate::workspace::{Workspace, capture};

/// Builds everything as other suites do, and runs its own tests against that build.
pub fn run(context: &mut Context) -> Result<()> {
    if !tools::works(&tools::c_compiler()) {
        let folder = simcuda::build_driver(&context.workspace)?;
        driver(context, &folder)?;
        context.skip("the simulated runtimes", &format!("there is no {}", tools::c_compiler().display()));
        return Ok(());
    }
    let folder = simcuda::build(&context.workspace)?;
    driver(context, &folder)?;
    runtimes(context, &folder)?;
    signatures(context)?;
    Ok(())
}

fn driver(context: &mut Context, folder: &Path) -> Result<()> {
    let args = ["test", "--package=simcuda", "--no-fail-fast", "--tests"];
    let mut command = context.plain(cargo::cargo(&context.workspace, &args));
    command.env("SIMCUDA_LIBRARY", folder.join("libcuda.so.1"));
    context.program("the simulated driver", command, Count::Cargo)?;
    Ok(())
}

/// The programs with each of the runtimes.
fn runtimes(context: &mut Context, folder: &Path) -> Result<()> {
    let programs = folder.with_file_name("bin");
    std::fs::create_dir_all(&programs)?;
    for major in MAJORS {
        let name = format!("libcudart.so.{major}");
        let link = |command: &mut Command| {
            command.arg("-L").arg(folder).arg(format!("-l:{name}"));
        };
        tried(context, &name, major, &programs, &link)?;
    }
    let link = |command: &mut Command| {
        // What the program has it exports: the runtime's symbols are not among it.
        command.args(["-DLINKED_STATICALLY", "-rdynamic"]).arg(folder.join("libcudart_static.a"));
    };
    let program = tried(context, "libcudart_static.a", MAJORS[0], &programs, &link)?;
    context.check("libcudart_static.a has hidden symbols only", |workspace| hidden(workspace, folder));
    let command = context.workspace.command(&program);
    context.program("libcudart_static.a without a driver", argument(command, "none"), Count::One)?;
    Ok(())
}

/// Compiles the programs and runs them, the first also on a driver that is too old for the runtime; that one is given.
fn tried(
    context: &mut Context,
    name: &str,
    major: u32,
    programs: &Path,
    link: &dyn Fn(&mut Command),
) -> Result<PathBuf> {
    let [program, kernels] = ["runtime", "kernels"].map(|source| programs.join(format!("{source}-{name}")));
    for (source, program) in [("tests/c/runtime.c", &program), ("tests/c/kernels.c", &kernels)] {
        let mut command = simcuda::compile(&context.workspace, &[source], major);
        command.arg("-o").arg(program);
        link(&mut command);
        command.args(["-ldl", "-lpthread"]);
        context.workspace.run_well(&format!("{source} with the simulated {name}"), command)?;
    }
    let libraries = simcuda::folder(&context.workspace);
    let on = |program: &Path, version: Option<String>| {
        let mut command = context.workspace.command(program);
        command.env("LD_LIBRARY_PATH", &libraries).env("SIMCUDA_DEVICES", "2");
        command.env_remove("SIMCUDA_DRIVER_VERSION");
        command.envs(version.map(|version| ("SIMCUDA_DRIVER_VERSION", version)));
        command
    };
    let (usual, launches) = (on(&program, None), on(&kernels, None));
    let old = argument(on(&program, Some(format!("{}080", major - 1))), "old");
    context.program(name, usual, Count::One)?;
    context.program(&format!("{name}, launches"), launches, Count::One)?;
    context.program(&format!("{name} on an old driver"), old, Count::One)?;
    Ok(program)
}

fn argument(mut command: Command, word: &str) -> Command {
    command.arg(word);
    command
}

/// As in NVIDIA's archive, all that is not local is hidden.
fn hidden(workspace: &Workspace, folder: &Path) -> Result<()> {
    let table = capture(workspace.command("readelf").arg("-sW").arg(folder.join("libcudart_static.a")))?;
    let exported = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(3) == Some(&"FUNC") && words.get(4) == Some(&"GLOBAL") && words.get(5) != Some(&"HIDDEN")
    };
    if !table.contains("cudaMalloc") {
        bail!("it has no cudaMalloc at all:\n{table}");
    }
    match table.lines().find(exported) {
        None => Ok(()),
        Some(line) => bail!("{line}"),
    }
}

/// The runtime's functions have the signatures of NVIDIA's, as far as there are any.
fn signatures(context: &mut Context) -> Result<()> {
    let found = cuda_headers::find(&context.workspace);
    let Some(versions) = context.or_skip("signatures of the runtimes", found)? else { return Ok(()) };
    // The headers of 12 want some of nvcc's, which are in another wheel; those of 13 will do.
    let others: Vec<_> = versions.iter().map(|headers| headers.include.clone()).collect();
    for headers in &versions {
        context.check(&format!("signatures of the runtime {}", headers.major), |workspace| {
            let mut command = simcuda::compile(workspace, &RUNTIME, headers.major);
            command.args(["-fsyntax-only", "-DWITH_NVIDIA_HEADERS", "-isystem"]).arg(&headers.include);
            for include in &others {
                command.arg("-idirafter").arg(include);
            }
            let name = format!("signatures of the simulated runtime {}", headers.major);
            workspace.run_well(&name, command).map(drop)
        });
    }
    Ok(())
}
