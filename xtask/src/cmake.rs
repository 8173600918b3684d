//! CMake, which may be missing, and building with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::files;
use crate::tools;
use crate::uv;
use crate::workspace::Workspace;

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

/// Configures a project and builds it. CMake's cache is removed, so that it searches for everything again. A user may
/// run several commands at once, and two builds in one folder would remove each other's files.
pub fn build(
    workspace: &Workspace,
    cmake: &CMake,
    source: &Path,
    folder: &Path,
    defines: &[(&str, &Path)],
) -> Result<()> {
    let _lock = tools::lock(folder)?;
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let mut command = cmake.command(workspace, "cmake");
    command.args(["--fresh", "-G", "Ninja", "-S"]).arg(source).arg("-B").arg(folder);
    let make = [("CMAKE_MAKE_PROGRAM", &*cmake.ninja)];
    for (name, value) in make.iter().chain(defines) {
        command.arg(format!("-D{name}={}", value.display()));
    }
    let said = workspace.run_well(&format!("cmake {name}"), command)?;
    ensure!(!said.contains("Manually-specified variables were not used"), "{said}");
    let mut command = cmake.command(workspace, "cmake");
    command.arg("--build").arg(folder).args(["--parallel", "2"]);
    workspace.run_well(&format!("cmake --build {name}"), command).map(drop)
}
