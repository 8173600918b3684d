//! NVIDIA's own headers, from the wheels that ffi-tests/cuda-headers/requirements.txt lists.

use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::files;
use crate::uv;
use crate::workspace::Workspace;

/// A version of the headers.
pub struct Headers {
    /// The first number of their version.
    pub major: u32,
    /// Where they lie.
    pub include: PathBuf,
}

/// All versions, which are fetched if need be.
pub fn find(workspace: &Workspace) -> Result<Vec<Headers>> {
    let python = uv::environment(workspace, &workspace.path("ffi-tests/cuda-headers"))?;
    let lib = python.ancestors().nth(2).context("it lies in bin")?.join("lib");
    let found = |(major, folder)| {
        let headers = files::below(&lib, "h")?.into_iter().find(|path| path.ends_with(folder));
        let include = headers.as_deref().and_then(|path| path.parent()).context("the wheels have headers")?;
        Ok(Headers { major, include: include.to_owned() })
    };
    [(12, "nvidia/cuda_runtime/include/cuda.h"), (13, "nvidia/cu13/include/cuda.h")]
        .into_iter()
        .map(found)
        .collect()
}
