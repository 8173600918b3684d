//! Tools that may be missing: compilers by their usual names, and Python packages in virtual environments, such as
//! CMake.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::fs::FlockOperation;

use crate::files;
use crate::uv;
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

/// CMake, with the programs beside it, and Ninja.
pub struct CMake {
    cmake: PathBuf,
    ninja: PathBuf,
}

/// The oldest version with all options that are used.
const OLDEST_CMAKE: (u32, u32) = (3, 24);

impl CMake {
    /// Those in the user's cache, as ffi-tests/package/requirements.txt lists them, because a test needs these
    /// versions.
    pub fn pinned(workspace: &Workspace) -> Result<Self> {
        let python = uv::environment(workspace, &workspace.path("ffi-tests/package"))?;
        Ok(Self { cmake: python.with_file_name("cmake"), ninja: python.with_file_name("ninja") })
    }

    /// Those on the PATH, which need no network, if they are new enough, else those in the user's cache.
    pub fn found(workspace: &Workspace) -> Result<Self> {
        let there = files::program("cmake").zip(files::program("ninja"));
        match there.filter(|(cmake, _)| version(cmake).is_some_and(|version| version >= OLDEST_CMAKE)) {
            Some((cmake, ninja)) => Ok(Self { cmake, ninja }),
            None => Self::pinned(workspace).with_context(|| {
                let (major, minor) = OLDEST_CMAKE;
                format!(
                    "CMake {major}.{minor} or newer and Ninja are not on the PATH (Debian: apt-get install cmake \
                     ninja-build), and cannot be fetched"
                )
            }),
        }
    }

    /// A program of CMake: cmake, ctest or cpack.
    pub fn command(&self, workspace: &Workspace, name: &str) -> Command {
        workspace.command(self.cmake.with_file_name(name))
    }
}

/// The version of a CMake.
fn version(cmake: &Path) -> Option<(u32, u32)> {
    let output = Command::new(cmake).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text.strip_prefix("cmake version ")?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
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

/// Configures a project and builds it. CMake's cache is removed, so that it searches for everything again. A user may
/// run several commands at once, and two builds in one folder would remove each other's files.
pub fn cmake_build(
    workspace: &Workspace,
    tools: &CMake,
    source: &Path,
    folder: &Path,
    defines: &[(&str, &Path)],
) -> Result<()> {
    let _lock = lock(folder)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let mut command = tools.command(workspace, "cmake");
    command.args(["--fresh", "-G", "Ninja", "-S"]).arg(source).arg("-B").arg(folder);
    let make = [("CMAKE_MAKE_PROGRAM", &*tools.ninja)];
    for (name, value) in make.iter().chain(defines) {
        command.arg(format!("-D{name}={}", value.display()));
    }
    let said = workspace.run_well(&format!("cmake {name}"), command)?;
    ensure!(!said.contains("Manually-specified variables were not used"), "{said}");
    let mut command = tools.command(workspace, "cmake");
    command.arg("--build").arg(folder).args(["--parallel", "2"]);
    workspace.run_well(&format!("cmake --build {name}"), command).map(drop)
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
