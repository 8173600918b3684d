//! Building the simulated driver and runtimes (ffi-tests/simcuda), for the tests that want a driver.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cargo;
use crate::files;
use crate::tools::CMake;
use crate::workspace::{Workspace, capture, shown};

/// The CUDA versions of which there is a simulated runtime that is tested by itself.
pub const MAJORS: [u32; 2] = [12, 13];

/// What every C file of the simulation is compiled with.
pub const C_FLAGS: [&str; 6] = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror"];

/// Where it is, once it is built.
pub fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("simcuda/lib")
}

/// Builds all of it, and gives the folder: `libcuda.so.1`, `libcudart.so.11.0`, `libcudart.so.12`, `libcudart.so.13` and
/// `libcudart_static.a`. See ffi-tests/simcuda/CMakeLists.txt.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    let driver = cargo_build(workspace)?;
    let project = workspace.path("ffi-tests/simcuda");
    let build = workspace.target.join("simcuda");
    CMake::find(workspace)?.build(workspace, &project, &build, &[("SIMCUDA_DRIVER", driver.as_os_str())])?;
    Ok(folder(workspace))
}

/// Builds the driver alone, which needs no C compiler.
pub fn build_driver(workspace: &Workspace) -> Result<PathBuf> {
    let folder = folder(workspace);
    files::copy(&cargo_build(workspace)?, &folder.join("libcuda.so.1"))?;
    Ok(folder)
}

fn cargo_build(workspace: &Workspace) -> Result<PathBuf> {
    let mut command = cargo::cargo(workspace, &["build", "--package=simcuda", "--release"]);
    command.arg("--message-format=json-render-diagnostics");
    if !std::io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let what = shown(&command);
    let messages = capture(&mut command).context("the compiler says why above")?;
    artifact(&messages).with_context(|| format!("{what} built no libsimcuda.so"))
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
