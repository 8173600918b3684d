//! The tools that compile and link the wheel: the system's compilers, or zig for older systems than this one.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::cargo::{self, Built, Profile};
use crate::tools;
use crate::uv;
use crate::workspace::Workspace;

/// The glibc of manylinux_2_28.
const OLDEST_GLIBC: &str = "2.28";

/// Compilers of C and C++, and a cargo that links with them.
pub struct Toolchain {
    zig: Option<PathBuf>,
}

impl Toolchain {
    /// The available compilers.
    pub fn of_the_system() -> Self {
        Self { zig: None }
    }

    /// Zig, from the virtual environment of an interpreter.
    pub fn of_zig(python: &Path) -> Self {
        Self { zig: Some(python.with_file_name("python-zig")) }
    }

    /// The platform of a wheel that is built with it.
    pub fn platform(&self) -> String {
        match self.zig {
            Some(_) => format!("manylinux_{}_{ARCH}", OLDEST_GLIBC.replace('.', "_")),
            None => format!("linux_{ARCH}"),
        }
    }

    /// Whether what it links is for systems older than this one.
    pub fn is_for_old_systems(&self) -> bool {
        self.zig.is_some()
    }

    /// Builds the library, the interposer and the command.
    pub fn build(&self, workspace: &Workspace) -> Result<Built> {
        let Some(zig) = &self.zig else { return cargo::build(workspace, Profile::Release) };
        let path = uv::path(zig)?;
        cargo::build_by(workspace, Profile::Release, || {
            let mut command = cargo::cargo(workspace, &["zigbuild", "--target"]);
            // Zig and cargo-zigbuild are in the same folder.
            command.arg(format!("{ARCH}-unknown-linux-gnu.{OLDEST_GLIBC}")).env("PATH", &path);
            command
        })
    }

    /// The C compiler.
    pub fn cc(&self, workspace: &Workspace) -> Command {
        self.zig_as(workspace, "cc").unwrap_or_else(|| workspace.command(tools::c_compiler()))
    }

    /// The C++ compiler. None if there is none.
    pub fn cxx(&self, workspace: &Workspace) -> Option<Command> {
        let compiler = tools::cxx_compiler();
        let of_system = || tools::works(&compiler).then(|| workspace.command(&compiler));
        self.zig_as(workspace, "c++").or_else(of_system)
    }

    fn zig_as(&self, workspace: &Workspace, compiler: &str) -> Option<Command> {
        let mut command = workspace.command(self.zig.as_ref()?);
        command.args([compiler, "-target", &format!("{ARCH}-linux-gnu.{OLDEST_GLIBC}")]);
        Some(command)
    }
}
