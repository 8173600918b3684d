//! The suite `package`: the installed library, as clients use it who know nothing of cargo.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::context::Context;
use super::{ctest, examples, find_package, pkg_config};
use crate::cargo::Profile;
use crate::files;
use crate::gates::elf;
use crate::install::SYSTEM_LIBRARIES;
use crate::tools::{self, CMake};
use crate::workspace::{Workspace, capture};

/// Installs, builds and runs the C and C++ programs against it, moves the tree, and does it again.
pub fn run(context: &mut Context) -> Result<()> {
    let prefix = context.prefix()?;
    no_path_of_this_machine(context, &prefix)?;
    archive_libraries(context)?;
    pkg_config::run(context, &prefix, "installed")?;
    ctest::run(context, &["-LE", "simcuda|stack|valgrind"])?;

    let found = CMake::find(&context.workspace);
    let cmake = context.or_skip("what needs CMake", found)?;
    if let Some(cmake) = &cmake {
        find_package::run(context, cmake, &prefix)?;
        examples::run(context, cmake, &prefix)?;
    }
    let elsewhere = context.workspace.target.join("install-test/moved/to/here");
    move_tree(&prefix, &elsewhere)?;
    let moved = pkg_config::run(context, &elsewhere, "moved");
    // The later suites want it where it was, whatever came of this.
    moved.and(move_tree(&elsewhere, &prefix))
}

fn move_tree(from: &Path, to: &Path) -> Result<()> {
    files::remove_all(to)?;
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::rename(from, to).with_context(|| format!("cannot move {} to {}", from.display(), to.display()))
}

/// Compiles the probe with the given flags and runs it, from `libraries` if that is named; what it
/// printed.
pub fn probe(
    workspace: &Workspace,
    name: &str,
    flags: &[String],
    libraries: Option<&Path>,
) -> Result<String> {
    let executable = compile_probe(workspace, name, flags)?;
    let mut command = workspace.command(executable);
    if let Some(folder) = libraries {
        command.env("LD_LIBRARY_PATH", folder);
    }
    capture(&mut command)
}

/// Compiles the probe with the given flags.
pub fn compile_probe(workspace: &Workspace, name: &str, flags: &[String]) -> Result<PathBuf> {
    let folder = workspace.target.join("xtask/probe");
    let source = folder.join("probe.c");
    files::write(&source, include_str!("probe.c"))?;
    let executable = folder.join(name.replace(' ', "-"));
    files::remove(&executable)?;
    let mut command = workspace.command(tools::c_compiler());
    command.args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
    command.arg(&source).arg("-o").arg(&executable).args(flags);
    workspace.run_well(&format!("compile probe {name}"), command)?;
    Ok(executable)
}

/// The texts that are installed name no folder of the machine they were installed on.
fn no_path_of_this_machine(context: &mut Context, prefix: &Path) -> Result<()> {
    let mut wrong = Vec::new();
    let lib = prefix.join("lib");
    let mut texts = files::below(&lib, "cmake")?;
    texts.extend(files::below(&lib, "pc")?);
    let own = prefix.display().to_string();
    for path in texts {
        if files::read(&path)?.contains(&own) {
            wrong.push(format!("{} names {own}", path.display()));
        }
    }
    context.gate("the installed files may be moved", &wrong);
    Ok(())
}

/// Asked of rustc with an empty crate: what is needed is the standard library's doing.
fn archive_libraries(context: &mut Context) -> Result<()> {
    context.built(Profile::Release)?;
    let workspace = &context.workspace;
    let folder = workspace.target.join("xtask");
    let source = folder.join("empty.rs");
    files::write(&source, "//! Nothing.\n")?;
    let mut command = workspace.command(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    command.args(["--crate-type=staticlib", "--print=native-static-libs"]);
    command.arg("--out-dir").arg(&folder).arg(&source);
    let said = workspace.run_well("native static libs", command)?;
    let wrong = elf::archive_libraries(&said, &SYSTEM_LIBRARIES);
    context.gate("the archive's system libraries", &wrong);
    Ok(())
}
