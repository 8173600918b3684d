//! `cargo xtask wheel`: Python's package (python/) as a wheel, which carries the library.
//!
//! The library and the bfc command are built and put into the package (`stage`), of which hatchling then makes a wheel.
//! `pip install .` does the same two steps in reverse: python/backend asks for the first. For manylinux zig links them,
//! which has the symbols of old systems.

mod gate;
mod stage;
mod toolchain;

use std::path::{Path, PathBuf};

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
    /// Only build the library and put it into python/src/bfc, as `pip install .` does first
    #[arg(long, conflicts_with = "manylinux")]
    stage: bool,
}

const HATCHLING: Packages = Packages {
    name: "hatchling",
    about: "hatchling (1 MB)",
    pip: &["--only-binary=:all:", "hatchling==1.33.0"],
};

/// With what looks at the result, auditwheel.
const MANYLINUX: Packages = Packages {
    name: "manylinux",
    about: "hatchling, cargo-zigbuild, zig and auditwheel (105 MB, 480 MB on the disk)",
    pip: &[
        "--only-binary=:all:",
        "hatchling==1.33.0",
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
    if manylinux { MANYLINUX } else { HATCHLING }.find(workspace)
}

/// The wheel in target/wheels.
pub fn build(workspace: &Workspace, manylinux: bool) -> Result<PathBuf> {
    let environment = tools(workspace, manylinux)?;
    let toolchain = if manylinux { Toolchain::of_zig(&environment)? } else { Toolchain::of_the_system() };
    stage::stage(workspace, &toolchain)?;
    // Anew, so that the one that is found is the one that was built.
    let folder = workspace.target.join("wheels").join(toolchain.platform());
    files::remove_all(&folder)?;
    let mut command = workspace.command(environment.bin("hatchling"));
    plainly(&mut command);
    command.env("BFC_WHEEL_PLATFORM", toolchain.platform());
    command.args(["build", "--target", "wheel", "--directory"]).arg(&folder);
    workspace.run_well(&format!("hatchling {}", toolchain.platform()), command)?;
    let wheels = files::entries(&folder)?;
    let [wheel] = &wheels[..] else { anyhow::bail!("hatchling left {wheels:?} in {}", folder.display()) };
    Ok(wheel.clone())
}

/// What auditwheel says of a wheel.
pub fn audited(workspace: &Workspace, wheel: &Path) -> Result<String> {
    let environment = MANYLINUX.find(workspace)?;
    let mut command = environment.command(workspace);
    command.args(["-m", "auditwheel", "show"]).arg(wheel);
    workspace.run_well("auditwheel", command).context("auditwheel show")
}
