//! `cargo xtask wheel`: Python's package (python/) as a wheel, which carries the library.
//!
//! maturin builds it, with the bfc command among its scripts. Before that the library is built and put into the package
//! (`stage`); `pip install ./python` does the same two steps by python/backend. For manylinux both are linked by zig,
//! which has the symbols of old systems.

mod gate;
mod stage;
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::Args;

use crate::files;
use crate::python::{Environment, Packages, plainly};
use crate::workspace::Workspace;

pub use gate::wrong;
pub use toolchain::Toolchain;

/// What `cargo xtask wheel` takes.
#[derive(Args)]
pub struct Wheel {
    /// For all systems with glibc 2.28 and newer (fetches zig, 100 MB, once); else for this one
    #[arg(long)]
    manylinux: bool,
    /// Only build the library and put it into python/src/bfc, as `pip install ./python` does first
    #[arg(long, conflicts_with = "manylinux")]
    stage: bool,
}

const MATURIN: Packages = Packages {
    name: "maturin",
    about: "maturin (12 MB)",
    pip: &["--no-deps", "--only-binary=:all:", "maturin==1.16.0"],
};

/// With what looks at the result, auditwheel.
const MANYLINUX: Packages = Packages {
    name: "manylinux",
    about: "maturin, cargo-zigbuild, zig and auditwheel (115 MB, 500 MB on the disk)",
    pip: &[
        "--no-deps",
        "--only-binary=:all:",
        "maturin==1.16.0",
        "cargo-zigbuild==0.24.0",
        "ziglang==0.17.1",
        "auditwheel==6.8.2",
        "pyelftools==0.33",
        "packaging==26.3",
    ],
};

impl Wheel {
    /// Builds it, and says where it is.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        if self.stage {
            return stage::stage(workspace, &Toolchain::of_the_system());
        }
        let wheel = build(workspace, self.manylinux)?;
        println!("{}", wheel.display());
        println!("  pip install {}", wheel.display());
        Ok(())
    }
}

/// What builds it, which is fetched if need be.
pub fn tools(workspace: &Workspace, manylinux: bool) -> Result<Environment> {
    if manylinux { MANYLINUX } else { MATURIN }.find(workspace)
}

/// The wheel in target/wheels.
pub fn build(workspace: &Workspace, manylinux: bool) -> Result<PathBuf> {
    let environment = tools(workspace, manylinux)?;
    let toolchain = if manylinux { Toolchain::of_zig(&environment)? } else { Toolchain::of_the_system() };
    stage::stage(workspace, &toolchain)?;
    // Anew, so that the one that is found is the one that was built.
    let folder = workspace.target.join("wheels").join(toolchain.name());
    files::remove_all(&folder)?;
    let mut command = maturin(workspace, &environment);
    command.args(["build", "--release", "--out"]).arg(&folder);
    command.args(toolchain.maturin()).envs(toolchain.environment());
    workspace.run_well(&format!("maturin {}", toolchain.name()), command)?;
    let wheels = files::entries(&folder)?;
    let [wheel] = &wheels[..] else { anyhow::bail!("maturin left {wheels:?} in {}", folder.display()) };
    Ok(wheel.clone())
}

/// In the package's folder, where maturin finds what to build.
fn maturin(workspace: &Workspace, environment: &Environment) -> Command {
    let mut command = workspace.command(environment.bin("maturin"));
    plainly(&mut command);
    command.current_dir(workspace.path("python"));
    command
}

/// Installs a wheel into a folder for PYTHONPATH, by the pip of an interpreter.
pub fn install_into(workspace: &Workspace, wheel: &Path, python: &Path, folder: &Path) -> Result<()> {
    files::remove_all(folder)?;
    let mut command = workspace.command(python);
    plainly(&mut command);
    command.args([
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--target",
    ]);
    command.arg(folder).arg(wheel);
    workspace.run_well("pip install --target", command).map(drop)
}

/// What auditwheel says of a wheel.
pub fn audited(workspace: &Workspace, wheel: &Path) -> Result<String> {
    let environment = MANYLINUX.find(workspace)?;
    let mut command = environment.command(workspace);
    command.args(["-m", "auditwheel", "show"]).arg(wheel);
    workspace.run_well("auditwheel", command).context("auditwheel show")
}
