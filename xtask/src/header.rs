//! `cargo xtask header`: generates bfc.h and bfc_adapters.h from src/capi by cbindgen, and from them by bindgen what clients
//! in Rust and Python declare. xtask/generate does it, a package of its own, so that nothing else waits for its dependencies.
//!
//! A build of the library does not generate them: a Rust user of the crate needs no header, and no cbindgen.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cargo;
use crate::files;
use crate::tools;
use crate::uv;
use crate::workspace::{Workspace, capture};

/// The headers in include/ that are generated.
pub const NAMES: [&str; 2] = ["bfc.h", "bfc_adapters.h"];

/// A file of the project that is generated.
pub struct Generated {
    /// Its path in the project.
    pub path: String,
    /// What it is to contain.
    pub text: String,
}

impl Generated {
    /// Writes it, and prints whether anything changed.
    pub fn write(&self, workspace: &Workspace) -> Result<()> {
        let Self { path, text } = self;
        if files::read(&workspace.path(path)).is_ok_and(|old| old == *text) {
            println!("{path} is up to date");
            return Ok(());
        }
        files::write(&workspace.path(path), text)?;
        println!("{path} is new; look at it with `git diff {path}`");
        Ok(())
    }

    /// Returns an error with the first line that differs, unless the file is up to date.
    pub fn check(&self, workspace: &Workspace) -> Result<()> {
        let Self { path, text } = self;
        let checked_in = files::read(&workspace.path(path))?;
        let same = checked_in.lines().zip(text.lines()).take_while(|(old, new)| old == new).count();
        let line = |text: &str| text.lines().nth(same).unwrap_or("(the end)").to_owned();
        ensure!(
            checked_in == *text,
            "{path} is not the generated file, run `cargo xtask header`, `hooks` or `licenses`; line {}:\n  - {}\n  + {}",
            same + 1,
            line(&checked_in),
            line(text)
        );
        Ok(())
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_the_generated_one_is_an_error_with_the_line() {
        let workspace = Workspace::find().expect("a checkout");
        let path = "LICENSE-MIT".to_owned();
        let text = files::read(&workspace.path(&path)).expect("it is there");
        let check = |text: &str| Generated { path: path.clone(), text: text.to_owned() }.check(&workspace);
        check(&text).expect("the same");
        let changed = text.replacen('\n', "\nmore\n", 1);
        assert!(check(&changed).unwrap_err().to_string().contains("line 2:\n"));
        for changed in [format!("{text}more"), text.replace('\n', "\r\n"), String::new()] {
            assert!(check(&changed).is_err());
        }
    }
}
