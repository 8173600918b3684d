//! NVIDIA's own headers, from its wheels on PyPI, and a C file that holds the lists of cuda-sys against them.

mod check;

use std::path::PathBuf;

use anyhow::{Context as _, Result};

pub use check::Lists;

use crate::python::Packages;
use crate::tools::Unavailable;
use crate::workspace::Workspace;

/// cuda.h of 13 may include a header of crt.
const PACKAGES: Packages = Packages {
    name: "cuda-headers",
    about: "NVIDIA's headers (6 MB)",
    pip: &[
        "--no-deps",
        "--only-binary=:all:",
        "nvidia-cuda-runtime-cu12==12.9.79",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia-cuda-crt==13.5.37",
    ],
};

/// The package of the newest headers, and its version above.
pub const NEWEST: &str = "nvidia-cuda-runtime";
/// The version above.
pub const PINNED: &str = "13.5.37";

/// The newest version of that package on PyPI.
pub fn published(workspace: &Workspace) -> Result<String> {
    let environment = PACKAGES.find(workspace)?;
    let mut command = environment.command(workspace);
    command.args(["-m", "pip", "--disable-pip-version-check", "index", "versions", NEWEST]);
    let asked = workspace.run_well("cuda headers: newest version", command);
    let text =
        asked.map_err(|error| Unavailable(format!("PyPI does not say which is the newest: {error:#}")))?;
    let version =
        text.lines().find_map(|line| line.strip_prefix(NEWEST)?.trim().strip_prefix('(')?.strip_suffix(')'));
    Ok(version.context("pip names no version")?.to_owned())
}

/// cuTensorNet's and nvJPEG's own, which want those of CUDA 12.
const HANDLERS: Packages = Packages {
    name: "handler-headers",
    about: "the headers of cuTensorNet and nvJPEG (9 MB)",
    pip: &["--no-deps", "--only-binary=:all:", "cutensornet-cu12==2.14.0", "nvidia-nvjpeg-cu12==12.4.0.76"],
};

/// The folders of cuTensorNet's and nvJPEG's headers, which are fetched if need be.
pub fn handlers(workspace: &Workspace) -> Result<[PathBuf; 2]> {
    let environment = HANDLERS.find(workspace)?;
    let folder = |name| environment.packages().join(name);
    Ok(["cuquantum/include", "nvidia/nvjpeg/include"].map(folder))
}

/// A version of the headers.
pub struct Headers {
    /// The first number of their version.
    pub major: u32,
    /// Where they lie.
    pub include: PathBuf,
}

/// All versions, which are fetched if need be.
pub fn find(workspace: &Workspace) -> Result<Vec<Headers>> {
    let environment = PACKAGES.find(workspace)?;
    let headers = [(12, "nvidia/cuda_runtime/include"), (13, "nvidia/cu13/include")]
        .map(|(major, folder)| Headers { major, include: environment.packages().join(folder) });
    Ok(headers.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_among_the_packages() {
        assert!(PACKAGES.pip.contains(&format!("{NEWEST}=={PINNED}").as_str()));
    }
}
