//! Tools that may be missing: compilers by their usual names.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use rustix::fs::FlockOperation;

use crate::files;
use crate::workspace::Workspace;

/// A tool that is unavailable on this machine, for example without a network. A test that needs it is skipped. Every
/// other error is a failure.
#[derive(Debug)]
pub struct Unavailable(pub String);

impl std::fmt::Display for Unavailable {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// The C compiler: CC's, else cc.
pub fn c_compiler() -> OsString {
    compiler("CC", "cc")
}

/// The C++ compiler: CXX's, else c++.
pub fn cxx_compiler() -> OsString {
    compiler("CXX", "c++")
}

fn compiler(variable: &str, name: &str) -> OsString {
    env::var_os(variable).filter(|value| !value.is_empty()).unwrap_or_else(|| name.into())
}

/// Whether a compiler can be started at all.
pub fn works(compiler: &OsStr) -> bool {
    let mut command = Command::new(compiler);
    command.arg("--version").stdin(Stdio::null());
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Fails if there is no compiler for C or for C++.
pub fn need_compilers() -> Result<()> {
    match [c_compiler(), cxx_compiler()].into_iter().find(|compiler| !works(compiler)) {
        Some(compiler) => Err(Unavailable(format!("there is no {}", compiler.display())).into()),
        None => Ok(()),
    }
}

/// Waits for other processes that build in a folder. The lock, a file beside it, ends when the returned file is closed.
pub fn lock(folder: &Path) -> Result<File> {
    let path = folder.with_extension("lock");
    files::write(&path, "")?;
    let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive)
        .with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// A compiler with its standard, and folders of headers: the project's, and foreign ones, which would cause warnings.
pub fn compiler_of(workspace: &Workspace, standard: &str, own: &Path, others: &[PathBuf]) -> Command {
    let compiler = if standard.contains("++") { cxx_compiler() } else { c_compiler() };
    let mut command = workspace.command(compiler);
    command.arg(format!("-std={standard}")).args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    command.arg("-I").arg(own);
    for folder in others {
        command.arg("-isystem").arg(folder);
    }
    command
}

/// Compiles files to a binary that finds its libraries, given by their exact names, in their current folders.
pub fn compile(
    workspace: &Workspace,
    mut command: Command,
    sources: &[PathBuf],
    libraries: &[(&Path, &str)],
    output: &Path,
) -> Result<()> {
    files::write(output, "")?;
    command.args(sources).arg("-o").arg(output);
    for (folder, library) in libraries {
        let folder = folder.display();
        command.arg(format!("-L{folder}")).arg(format!("-l:{library}")).arg(format!("-Wl,-rpath,{folder}"));
    }
    workspace.run_well(&format!("compile {}", output.display()), command).map(drop)
}
