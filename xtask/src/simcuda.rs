//! Building the simulated driver and runtimes (ffi-tests/simcuda), for the tests that want a driver.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cargo;
use crate::files;
use crate::tools;
use crate::workspace::{Workspace, capture, shown};

/// The CUDA versions of which there is a simulated runtime that is tested by itself.
pub const MAJORS: [u32; 2] = [12, 13];
/// And one that is there for its ways to the driver only.
const OLD: u32 = 11;

/// What every C file of the simulation is compiled with.
pub const C_FLAGS: [&str; 6] = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"];

/// The simulated runtime is made of these.
pub const RUNTIME: [&str; 5] =
    ["cudart/cudart.c", "cudart/kernels.c", "cudart/properties.c", "cudart/rest.c", "cudart/absent.c"];

/// Where it is, once it is built.
pub fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("simcuda/lib")
}

/// Builds all of it, and gives the folder: `libcuda.so.1`, `libcudart.so.11.0`, `libcudart.so.12`,
/// `libcudart.so.13` and `libcudart_static.a`. A program that has it on its LD_LIBRARY_PATH finds the simulation where it would find
/// NVIDIA's libraries.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    let folder = build_driver(workspace)?;
    for major in [OLD].into_iter().chain(MAJORS) {
        shared_runtime(workspace, &folder, major)?;
    }
    static_runtime(workspace, &folder)?;
    Ok(folder)
}

/// Builds the driver alone, which needs no C compiler.
pub fn build_driver(workspace: &Workspace) -> Result<PathBuf> {
    let mut command = cargo::cargo(workspace, &["build", "--package=simcuda", "--release"]);
    command.arg("--message-format=json-render-diagnostics");
    if !std::io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let what = shown(&command);
    let messages = capture(&mut command).context("the compiler says why above")?;
    let driver = artifact(&messages).with_context(|| format!("{what} built no libsimcuda.so"))?;
    let folder = folder(workspace);
    files::copy(&driver, &folder.join("libcuda.so.1"))?;
    Ok(folder)
}

/// A command that compiles C files of the simulation for a major version.
pub fn compile(workspace: &Workspace, sources: &[&str], major: u32) -> Command {
    let mut command = workspace.command(tools::c_compiler());
    command.args(C_FLAGS).arg(format!("-DCUDART_MAJOR={major}"));
    let folder = workspace.path("ffi-tests/simcuda");
    command.args(sources.iter().map(|source| folder.join(source)));
    command
}

/// What the shared runtime of a major version is called.
pub fn runtime(major: u32) -> String {
    if major == OLD { "libcudart.so.11.0".to_owned() } else { format!("libcudart.so.{major}") }
}

/// The runtime as a shared library, with the SONAME and the version node of NVIDIA's.
fn shared_runtime(workspace: &Workspace, folder: &Path, major: u32) -> Result<()> {
    let name = runtime(major);
    let map = workspace.target.join(format!("simcuda/{name}.map"));
    files::write(&map, format!("{name} {{ global: cuda*; __cuda*; local: *; }};\n"))?;
    let mut command = compile(workspace, &RUNTIME, major);
    command.args(["-shared", "-fPIC", "-fvisibility=hidden"]);
    command.arg(format!("-Wl,-soname,{name}")).arg(format!("-Wl,--version-script={}", map.display()));
    command.arg("-o").arg(folder.join(&name)).args(["-ldl", "-lpthread"]);
    workspace.run_well(&format!("simulated {name}"), command).map(drop)
}

/// The runtime as an archive whose symbols no loader ever sees, as nvcc links it by default.
fn static_runtime(workspace: &Workspace, folder: &Path) -> Result<()> {
    let archive = folder.join("libcudart_static.a");
    // What an older build put there would stay.
    files::remove(&archive)?;
    let mut archiver = workspace.command("ar");
    archiver.arg("rcs").arg(&archive);
    for source in RUNTIME {
        let object = workspace.target.join("simcuda").join(source).with_extension("o");
        files::write(&object, "")?;
        let mut command = compile(workspace, &[source], MAJORS[0]);
        command.args(["-fPIC", "-DCUDART_STATIC", "-c", "-o"]).arg(&object);
        workspace.run_well(&format!("simulated static runtime, {source}"), command)?;
        archiver.arg(object);
    }
    workspace.run_well("simulated static runtime, archive", archiver).map(drop)
}

/// The library among what cargo says that it built.
fn artifact(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = messages.flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    let mut paths = files.filter_map(|file| file.as_str().map(PathBuf::from));
    paths.find(|path| path.file_name() == Some(Path::new("libsimcuda.so").as_os_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_in_cargo_s_messages() {
        let messages = r#"{"reason":"compiler-artifact","filenames":["/t/release/liblibc.rlib"]}
{"reason":"compiler-artifact","filenames":["/t/release/libsimcuda.so","/t/release/libsimcuda.rlib"]}"#;
        assert_eq!(artifact(messages), Some(PathBuf::from("/t/release/libsimcuda.so")));
        assert_eq!(artifact(""), None);
    }
}
