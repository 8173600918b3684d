//! What compiles and links the wheel: the system's compilers, or zig for older systems than this one.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::cargo::{self, Built, Profile};
use crate::tools;
use crate::uv;
use crate::workspace::Workspace;

/// The glibc of manylinux_2_28.
pub const OLDEST_GLIBC: (u32, u32) = (2, 28);

/// Compilers of C and C++, and a cargo that links with them.
pub struct Toolchain {
    zig: Option<Zig>,
}

struct Zig {
    /// With the folder of zig and cargo-zigbuild in front.
    path: OsString,
    zig: OsString,
    target: String,
}

impl Toolchain {
    /// The compilers that there are.
    pub fn of_the_system() -> Self {
        Self { zig: None }
    }

    /// Zig, from the virtual environment of an interpreter.
    pub fn of_zig(python: &Path) -> Result<Self> {
        let zig = python.with_file_name("python-zig");
        let path = uv::path(python)?;
        let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
        Ok(Self { zig: Some(Zig { path, zig: zig.into(), target }) })
    }

    /// The platform of a wheel that is built with it.
    pub fn platform(&self) -> String {
        let ((major, minor), architecture) = (OLDEST_GLIBC, env::consts::ARCH);
        match self.zig {
            Some(_) => format!("manylinux_{major}_{minor}_{architecture}"),
            None => format!("linux_{architecture}"),
        }
    }

    /// Builds the library, the interposer and the command.
    pub fn build(&self, workspace: &Workspace) -> Result<Built> {
        let Some(zig) = &self.zig else { return cargo::build(workspace, Profile::Release) };
        let (major, minor) = OLDEST_GLIBC;
        let mut command = cargo::cargo(workspace, &["zigbuild", "--target"]);
        command.arg(format!("{}.{major}.{minor}", zig.target)).env("PATH", &zig.path);
        cargo::build_by(Profile::Release, command)
    }

    /// The C++ compiler, to compile a file; nothing where there is none.
    pub fn cxx(&self, workspace: &Workspace) -> Option<Command> {
        match &self.zig {
            Some(_) => self.zig_as(workspace, "c++"),
            None => {
                let compiler = tools::cxx_compiler();
                tools::works(&compiler).then(|| workspace.command(compiler))
            }
        }
    }

    /// The C compiler, to link.
    pub fn cc(&self, workspace: &Workspace) -> Command {
        self.zig_as(workspace, "cc").unwrap_or_else(|| workspace.command(tools::c_compiler()))
    }

    fn zig_as(&self, workspace: &Workspace, what: &str) -> Option<Command> {
        let zig = self.zig.as_ref()?;
        let (major, minor) = OLDEST_GLIBC;
        let mut command = workspace.command(&zig.zig);
        let target = format!("{}-linux-gnu.{major}.{minor}", env::consts::ARCH);
        command.args([what, "-target"]).arg(target);
        Some(command)
    }
}
