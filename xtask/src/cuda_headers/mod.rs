//! NVIDIA's own headers, from its wheels on PyPI, and a C file that holds the lists of cuda-sys against them.
//!
//! The wheels are kept in the user's cache, where all checkouts share them, and installed anew if one is absent,
//! half there, or of another version.

mod check;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

pub use check::Lists;

use crate::files;
use crate::tools;
use crate::workspace::Workspace;

/// The packages, with their versions. cuda.h of 13 may include a header of crt.
const PACKAGES: [(&str, &str); 3] = [
    ("nvidia-cuda-runtime-cu12", "12.9.79"),
    ("nvidia-cuda-runtime", "13.5.37"),
    ("nvidia-cuda-crt", "13.5.37"),
];

/// A version of the headers.
pub struct Headers {
    /// The first number of their version.
    pub major: u32,
    /// Where they lie.
    pub include: PathBuf,
}

/// All versions, which are fetched if need be.
pub fn find(workspace: &Workspace) -> Result<Vec<Headers>> {
    let venv = tools::cache()?.join("libbfc/cuda-headers");
    if let Some(found) = inside(&venv)? {
        return Ok(found);
    }
    println!("  fetching NVIDIA's headers from PyPI into {} (about 6 MB, once)", venv.display());
    let packages = PACKAGES.map(|(name, version)| format!("{name}=={version}"));
    let mut arguments = vec!["--no-deps", "--only-binary=:all:"];
    arguments.extend(packages.iter().map(String::as_str));
    tools::virtual_environment(workspace, &venv, &arguments)?;
    inside(&venv)?.with_context(|| {
        format!(
            "{} were installed into {} and are not as expected there",
            packages.join(", "),
            venv.display()
        )
    })
}

/// What a virtual environment holds, if it is whole and of the right versions.
fn inside(venv: &Path) -> Result<Option<Vec<Headers>>> {
    for python in files::entries(&venv.join("lib"))? {
        let packages = python.join("site-packages");
        // pip writes RECORD last: an installation that was cut off has none.
        let whole = PACKAGES.iter().all(|(name, version)| {
            packages.join(format!("{}-{version}.dist-info/RECORD", name.replace('-', "_"))).exists()
        });
        let headers = [(12, "nvidia/cuda_runtime/include"), (13, "nvidia/cu13/include")]
            .map(|(major, folder)| Headers { major, include: packages.join(folder) });
        if whole && headers.iter().all(|headers| headers.include.join("cudaTypedefs.h").exists()) {
            return Ok(Some(headers.into()));
        }
    }
    Ok(None)
}
