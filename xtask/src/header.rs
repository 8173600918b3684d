//! `cargo xtask header`: generates bfc.h and bfc_adapters.h from src/capi by cbindgen, and from them by bindgen what clients
//! in Rust and Python declare. xtask/generate does it, a package of its own, so that nothing else waits for its dependencies.
//!
//! A build of the library does not generate them: a Rust user of the crate needs no header, and no cbindgen.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cargo;
use crate::files;
use crate::generated::Generated;
use crate::tools;
use crate::uv;
use crate::workspace::{Workspace, capture};

/// The headers in include/ that are generated.
pub const NAMES: [&str; 2] = ["bfc.h", "bfc_adapters.h"];

/// Generates both headers.
pub fn headers(workspace: &Workspace) -> Result<Vec<Generated>> {
    let to = NAMES.map(|name| format!("include/{name}"));
    generated(workspace, "headers", &[&workspace.soname], &[], &to)
}

/// Generates what clients in Rust and Python declare, from the headers as they are in include/.
pub fn clients(workspace: &Workspace) -> Result<Vec<Generated>> {
    // libclang lacks the headers of a compiler, such as stddef.h.
    let mut compiler = workspace.command(tools::c_compiler());
    let builtin = capture(compiler.arg("-print-file-name=include"))?;
    let builtin = format!("-I{}", builtin.trim());
    // The version of libclang makes no difference to the result. bindgen needs 9 or later.
    let libclang: PathBuf = match std::env::var_os("LIBCLANG_PATH") {
        Some(folder) => folder.into(),
        None => uv::packages(workspace, "xtask/generate")?.join("clang/native"),
    };
    let to = ["crates/bfc-sys/src/bindings.rs", "crates/bfc-sys/src/pointers.rs", "python/src/bfc/_abi.py"];
    let arguments = ["include/bfc_adapters.h", "-Iinclude", &builtin];
    generated(workspace, "clients", &arguments, &[("LIBCLANG_PATH", &libclang)], &to.map(str::to_owned))
}

/// Runs the generator. It writes files to a folder under the names that they have in the project.
fn generated(
    workspace: &Workspace,
    what: &str,
    arguments: &[&str],
    variables: &[(&str, &Path)],
    to: &[String],
) -> Result<Vec<Generated>> {
    let folder = workspace.target.join("xtask");
    let mut command = cargo::cargo(workspace, &["run", "--package", "bfc-generate", "--", what]);
    command.arg(&folder).args(arguments).envs(variables.iter().copied());
    workspace.run_well(&format!("generating {what}"), command)?;
    let read = |path: &String| {
        let name = Path::new(path).file_name().context("a path of a file")?;
        Ok(Generated { path: path.clone(), text: files::read(&folder.join(name))? })
    };
    to.iter().map(read).collect()
}

/// Writes the headers to include/ and the files generated from them, and prints whether anything changed.
pub fn write(workspace: &Workspace) -> Result<()> {
    headers(workspace)?.iter().try_for_each(|header| header.write(workspace))?;
    clients(workspace)?.iter().try_for_each(|client| client.write(workspace))
}
