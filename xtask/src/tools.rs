//! The tools that are not a matter of course: compilers by their usual names, and Python packages in
//! virtual environments, CMake among them.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::files;
use crate::workspace::{Workspace, capture, without};

/// What this machine cannot have, for want of a network say: a test that needs it is skipped. Every other error is a fault.
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

/// Which of the compilers of C and C++ there is not.
pub fn missing_compiler() -> Option<String> {
    let missing = [c_compiler(), cxx_compiler()].into_iter().find(|compiler| !works(compiler));
    missing.map(|compiler| format!("there is no {}", compiler.display()))
}

/// CMake with what it needs to build.
pub struct CMake {
    /// The cmake command.
    pub cmake: PathBuf,
    /// The ctest command beside it.
    pub ctest: PathBuf,
    /// The generator's name.
    pub generator: &'static str,
    /// What runs the build.
    pub make: PathBuf,
}

/// The oldest CMake that is good enough if the system has one. Debian 11's, which is older, is not used.
const OLDEST_CMAKE: (u32, u32) = (3, 20);

impl CMake {
    /// The system's CMake, else one from PyPI in a virtual environment under target/.
    pub fn find(workspace: &Workspace) -> Result<Self> {
        if let Some(cmake) = files::program("cmake")
            && let Some(ctest) = files::program("ctest")
            && recent(&cmake)
            && let Some((generator, make)) = generator()
        {
            return Ok(Self { cmake, ctest, generator, make });
        }
        let venv = workspace.target.join("tools/cmake");
        let bin = venv.join("bin");
        let [cmake, ctest, make] = ["cmake", "ctest", "ninja"].map(|name| bin.join(name));
        // Looked at by running it: what an interrupted pip has left may be there and not work.
        let works = make.exists() && ctest.exists() && recent(&cmake);
        if !works {
            println!("  fetching CMake and Ninja from PyPI into {}", venv.display());
            virtual_environment(workspace, &venv, &["cmake>=3.20,<5", "ninja"])?;
        }
        Ok(Self { cmake, ctest, generator: "Ninja", make })
    }
}

impl CMake {
    /// The command that configures a project; to be completed with its options.
    pub fn configure(&self, workspace: &Workspace, source: &Path, folder: &Path) -> Command {
        let mut command = workspace.command(&self.cmake);
        command.arg("-S").arg(source).arg("-B").arg(folder);
        command.args(["-G", self.generator]);
        command.arg(format!("-DCMAKE_MAKE_PROGRAM={}", self.make.display()));
        command
    }
}

/// Ninja if there is one, else make.
fn generator() -> Option<(&'static str, PathBuf)> {
    let ninja = files::program("ninja").map(|path| ("Ninja", path));
    ninja.or_else(|| files::program("make").map(|path| ("Unix Makefiles", path)))
}

fn recent(cmake: &Path) -> bool {
    if !cmake.exists() {
        return false;
    }
    let mut command = Command::new(cmake);
    let said = capture(command.arg("--version"));
    said.is_ok_and(|text| cmake_version(&text).is_some_and(|version| version >= OLDEST_CMAKE))
}

/// `cmake version 3.31.2` and so on.
fn cmake_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix("cmake version ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Makes a virtual environment anew and installs packages into it.
pub fn virtual_environment(workspace: &Workspace, folder: &Path, pip: &[&str]) -> Result<()> {
    let python = files::program("python3").ok_or_else(|| {
        let words =
            "there is no python3 on the PATH: install it (Debian: apt-get install python3 python3-venv)";
        Unavailable(words.to_owned())
    })?;
    files::remove_all(folder)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut command = workspace.command(python);
    command.args(["-m", "venv"]).arg(folder);
    // What the user's variable names would count as installed, and not be there when a test runs.
    without(&mut command, &["PYTHON"]);
    let made = workspace.run("python venv", command)?;
    if !made.success {
        // Debian has it in a package of its own, and venv fails after making half of the folder.
        files::remove_all(folder)?;
        let words = made.complaint();
        let words = format!("python3 -m venv failed (Debian: apt-get install python3-venv): {words}");
        return Err(Unavailable(words).into());
    }
    let mut command = workspace.command(folder.join("bin/python"));
    command.args(["-m", "pip", "install", "--disable-pip-version-check"]);
    command.args(["--no-input", "--progress-bar=off"]).args(pip);
    without(&mut command, &["PYTHON"]);
    let installed = workspace.run("pip install", command)?;
    if !installed.success {
        files::remove_all(folder)?;
        let (packages, words) = (pip.join(" "), installed.complaint());
        let words = format!(
            "pip could not install {packages} (is PyPI reachable, and Python as new as they want it?): {words}"
        );
        return Err(Unavailable(words).into());
    }
    Ok(())
}

/// The user's cache, where all checkouts share what is large.
pub fn cache() -> Result<PathBuf> {
    // An empty or relative XDG_CACHE_HOME counts as unset, by its specification.
    let named = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    named
        .filter(|path| path.is_absolute())
        .or_else(|| env::home_dir().map(|home| home.join(".cache")))
        .context("there is no home folder to keep what is fetched in: set XDG_CACHE_HOME")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cmake_s_version_is_read() {
        let text = "cmake version 3.31.2\n\nCMake suite maintained and supported by Kitware\n";
        assert_eq!(cmake_version(text), Some((3, 31)));
        assert_eq!(cmake_version("cmake version 4.0.0-rc1"), Some((4, 0)));
        assert_eq!(cmake_version("command not found"), None);
        assert!(cmake_version("cmake version 3.18.4") < Some(OLDEST_CMAKE));
    }
}
