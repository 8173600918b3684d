//! What is generated from the headers in include/ for clients in Rust and Python.
//!
//! bindgen reads the headers (bfc-sys/generate). Its result is the source of Python's prototypes too.

mod python;

use std::path::PathBuf;

use anyhow::Result;

use crate::cargo;
use crate::files;
use crate::header::Generated;
use crate::tools::{self, Unavailable};
use crate::workspace::{Workspace, capture};

/// The version that PyPI has; bindgen needs 9 or later.
const LIBCLANG: &str = "libclang==18.1.1";

/// Generates all files from the headers as they are in include/.
pub fn generate(workspace: &Workspace) -> Result<[Generated; 2]> {
    let output = workspace.target.join("xtask/bindings.rs");
    let mut command = cargo::cargo(workspace, &["run", "--quiet", "--package", "bfc-sys-generate", "--"]);
    command.arg("include/bfc_adapters.h").arg(&output).arg("-Iinclude");
    // libclang comes without the headers that belong to a compiler, such as stddef.h.
    let mut compiler = workspace.command(tools::c_compiler());
    let builtin = capture(compiler.arg("-print-file-name=include"))?;
    command.arg(format!("-I{}", builtin.trim()));
    command.env("LIBCLANG_PATH", libclang(workspace)?);
    workspace.run_well("bindgen", command)?;
    let bindings = files::read(&output)?;
    let python = python::module(&bindings)?;
    Ok([
        Generated { path: "bfc-sys/src/bindings.rs".to_owned(), text: bindings },
        Generated { path: "python/src/bfc/_abi.py".to_owned(), text: python },
    ])
}

/// The folder of a libclang: the user's `LIBCLANG_PATH`, else one from PyPI under target/. Which libclang it is makes no
/// difference to the result.
fn libclang(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("LIBCLANG_PATH").map(PathBuf::from) {
        return Ok(folder);
    }
    let venv = workspace.target.join("tools/libclang");
    let find = || {
        let libraries = files::below(&venv.join("lib"), "so").unwrap_or_default();
        libraries.into_iter().find(|path| path.file_name().is_some_and(|name| name == "libclang.so"))
    };
    if find().is_none() {
        println!("  fetching libclang from PyPI into {}", venv.display());
        tools::virtual_environment(workspace, &venv, &[LIBCLANG])?;
    }
    let library =
        find().ok_or_else(|| Unavailable(format!("there is no libclang.so in PyPI's {LIBCLANG}")))?;
    Ok(library.parent().map(PathBuf::from).unwrap_or_default())
}
