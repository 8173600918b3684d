//! Building the simulated driver and runtimes (crates/simcuda), for the tests that need a driver.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::cargo;
use crate::cmake::{self, CMake};
use crate::files;
use crate::tools;
use crate::workspace::Workspace;

/// Builds all of it, and returns the folder: `libcuda.so.1`, `libcudart.so.11.0`, `libcudart.so.12`, `libcudart.so.13`
/// and `libcudart_static.a`. See crates/simcuda/CMakeLists.txt.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    let driver = cargo_build(workspace)?;
    let project = workspace.path("crates/simcuda");
    let build = workspace.target.join("simcuda");
    cmake::build(workspace, &CMake::pinned(workspace)?, &project, &build, &[("SIMCUDA_DRIVER", &driver)])?;
    Ok(build.join("lib"))
}

/// Builds the driver alone, which needs no C compiler.
pub fn build_driver(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target.join("simcuda/lib");
    let driver = cargo_build(workspace)?;
    let _lock = tools::lock(&workspace.target.join("simcuda"))?;
    files::copy(&driver, &folder.join("libcuda.so.1"))?;
    files::link("libcuda.so.1", &folder.join("libcuda.so"))?;
    Ok(folder)
}

fn cargo_build(workspace: &Workspace) -> Result<PathBuf> {
    let mut command = cargo::cargo(workspace, &["build", "--package=simcuda"]);
    cargo::release(workspace, &mut command);
    let mut libraries = cargo::artifacts(command)?.into_iter();
    libraries.find(|path| path.ends_with("libsimcuda.so")).context("cargo built no libsimcuda.so")
}
