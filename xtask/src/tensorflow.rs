//! The benchmark's program in ffi-tests/tensorflow, with TensorFlow's own allocator from its wheel on PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::files;
use crate::tools;
use crate::uv;
use crate::workspace::Workspace;

const FOLDER: &str = "ffi-tests/tensorflow";

/// The package's folder in the virtual environment of the suite `tensorflow`: headers and one library.
pub fn find(workspace: &Workspace) -> Result<PathBuf> {
    let package = uv::packages(workspace, FOLDER)?.join("tensorflow");
    ensure!(package.exists(), "there is no TensorFlow at {}", package.display());
    Ok(package)
}

/// Compiles the program against the installed libbfc in `prefix`; without TensorFlow it is for libbfc alone.
pub fn compile(workspace: &Workspace, prefix: &Path, tensorflow: Option<&Path>) -> Result<PathBuf> {
    let mut sources = files::below(&workspace.path(FOLDER), "cc")?;
    let is_bench =
        |source: &PathBuf| source.file_name().is_some_and(|name| name.to_string_lossy().starts_with("bench"));
    sources.retain(is_bench);
    let program = workspace.target.join("bench/allocators");
    files::write(&program, "")?;
    let mut command = workspace.command(tools::cxx_compiler());
    command.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    command.arg("-I").arg(prefix.join("include"));
    match tensorflow {
        // A system folder: TensorFlow's headers are not clean under -Wall.
        Some(folder) => command.arg("-D_GLIBCXX_USE_CXX11_ABI=1").arg("-isystem").arg(folder.join("include")),
        None => command.arg("-DBFC_WITHOUT_TENSORFLOW"),
    };
    command.args(sources).arg("-o").arg(&program);
    tools::link(&mut command, &prefix.join("lib"), "libbfc.so");
    if let Some(folder) = tensorflow {
        tools::link(&mut command, folder, "libtensorflow_framework.so.2");
    }
    workspace.run_well("compile the benchmark beside TensorFlow", command)?;
    Ok(program)
}

/// Runs it. TensorFlow says things before `main` is reached, so it has to be told from outside to be quiet.
pub fn command(workspace: &Workspace, program: &Path) -> Command {
    let mut command = workspace.command(program);
    command.env("TF_CPP_MIN_LOG_LEVEL", "3");
    command.env("TF_ENABLE_ONEDNN_OPTS", "0");
    command
}
