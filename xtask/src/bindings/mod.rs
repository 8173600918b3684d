//! The files generated from the headers in include/ for clients in Rust and Python.
//!
//! bindgen reads the headers (xtask/generate). Its result is the source of Python's prototypes too.

mod python;

use anyhow::Result;

use crate::cargo;
use crate::files;
use crate::header::Generated;
use crate::tools;
use crate::uv;
use crate::workspace::{Workspace, capture};

/// Generates all files from the headers as they are in include/.
pub fn generate(workspace: &Workspace) -> Result<Vec<Generated>> {
    let folder = workspace.target.join("xtask");
    let mut command = cargo::cargo(workspace, &["run", "--package", "bfc-generate", "--"]);
    command.arg("include/bfc_adapters.h").arg(&folder).arg("-Iinclude");
    // libclang lacks the headers of a compiler, such as stddef.h.
    let mut compiler = workspace.command(tools::c_compiler());
    let builtin = capture(compiler.arg("-print-file-name=include"))?;
    command.arg(format!("-I{}", builtin.trim()));
    // The version of libclang makes no difference to the result. bindgen needs 9 or later.
    if std::env::var_os("LIBCLANG_PATH").is_none() {
        command
            .env("LIBCLANG_PATH", uv::packages(workspace, "xtask/generate")?.join("clang/native"));
    }
    workspace.run_well("bindgen", command)?;
    let [bindings, pointers] = ["bindings.rs", "pointers.rs"].map(|file| files::read(&folder.join(file)));
    let (bindings, pointers) = (bindings?, pointers?);
    let python = python::module(&bindings)?;
    Ok(vec![
        Generated { path: "crates/bfc-sys/src/bindings.rs".to_owned(), text: bindings },
        Generated { path: "crates/bfc-sys/src/pointers.rs".to_owned(), text: pointers },
        Generated { path: "python/src/bfc/_abi.py".to_owned(), text: python },
    ])
}
