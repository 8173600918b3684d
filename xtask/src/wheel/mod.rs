//! `cargo xtask wheel`: Python's package (python/) as a wheel, which carries the library.
//!
//! The library and the bfc command are built and put into the package (`stage`), from which hatchling then builds a
//! wheel. `pip install .` does the same two steps in reverse: python/backend calls the first. For manylinux zig links
//! the binaries, because it has the symbols of old systems.

mod stage;
mod toolchain;
mod torch_shims;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::files;
use crate::tools::Unavailable;
use crate::uv;
use crate::workspace::{Workspace, plainly};

use toolchain::Toolchain;

/// Where the tested release of PyTorch is listed.
const PYTORCH: &str = "ffi-tests/pytorch";

/// The arguments of `cargo xtask wheel`.
#[derive(Args)]
pub struct Wheel {
    /// Build for glibc 2.28 and newer (fetches zig, 100 MB, once) instead of for this system
    #[arg(long)]
    manylinux: bool,
    /// Only build the library and copy it to python/src/bfc, like the first step of `pip install .`
    #[arg(long, conflicts_with = "manylinux")]
    stage: bool,
    /// Without shims for PyTorch: bfc.torch and bfc.torch_cpu then compile theirs at the first use. Otherwise they are
    /// compiled against the release that the suite pytorch tests (fetches it, 600 MB, once)
    #[arg(long)]
    no_pytorch: bool,
}

impl Wheel {
    /// Builds it, and prints its path.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        if self.stage {
            // pip does this on users' machines: nothing is fetched.
            let pytorch = uv::existing(workspace, &workspace.path(PYTORCH))?.filter(|_| !self.no_pytorch);
            return stage::stage(workspace, &Toolchain::of_the_system(), pytorch.as_deref());
        }
        let folder = if self.manylinux { "xtask/wheel/manylinux" } else { "xtask/wheel" };
        let python = uv::environment(workspace, &workspace.path(folder))?;
        let toolchain = if self.manylinux { Toolchain::of_zig(&python) } else { Toolchain::of_the_system() };
        stage::stage(workspace, &toolchain, self.pytorch(workspace)?.as_deref())?;
        // In a new folder, so that the only wheel there is the one that was built.
        let folder = workspace.target.join("wheels").join(toolchain.platform());
        files::remove_all(&folder)?;
        let mut command = workspace.command(python.with_file_name("hatchling"));
        plainly(&mut command);
        command.env("BFC_WHEEL_PLATFORM", toolchain.platform());
        command.args(["build", "--target", "wheel", "--directory"]).arg(&folder);
        workspace.run_well(&format!("hatchling {}", toolchain.platform()), command)?;
        let wheels = files::entries(&folder)?;
        let [wheel] = &wheels[..] else { anyhow::bail!("hatchling left {wheels:?} in {}", folder.display()) };
        println!("{0}\n  pip install {0}", wheel.display());
        Ok(())
    }

    /// The interpreter of an environment with the tested PyTorch. The wheel works without it, so it is left out
    /// offline.
    fn pytorch(&self, workspace: &Workspace) -> Result<Option<PathBuf>> {
        let why = if self.no_pytorch {
            "--no-pytorch".to_owned()
        } else {
            match uv::environment(workspace, &workspace.path(PYTORCH)) {
                Ok(python) => return Ok(Some(python)),
                Err(error) if error.is::<Unavailable>() => format!("{error:#}"),
                Err(error) => return Err(error),
            }
        };
        let line = why.lines().next().unwrap_or_default();
        println!("  no shims for PyTorch are in this wheel, they are compiled at the first use: {line}");
        Ok(None)
    }
}
