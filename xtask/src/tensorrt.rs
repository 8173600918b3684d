//! NVIDIA's headers of TensorRT, which the crate trtx-sys carries. Nothing of that crate is compiled.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cargo;
use crate::files;
use crate::tools::{self, Unavailable};
use crate::workspace::Workspace;

/// The crate and its version, as a request and as the folder that cargo unpacks it to.
const CRATE: (&str, &str) = ("trtx-sys@0.9.1", "trtx-sys-0.9.1+rtx1.7");

/// The headers of a version.
pub struct Headers {
    /// As the crate calls it: `TRT-Enterprise-11.4`, `TRT-RTX-1.7`.
    pub version: String,
    /// Where they lie.
    pub include: PathBuf,
}

/// All versions, from the user's cache, which is filled if need be.
pub fn find(workspace: &Workspace) -> Result<Vec<Headers>> {
    let cache = tools::cache()?.join("libbfc/tensorrt-headers").join(CRATE.1);
    if !cache.exists() {
        println!("  fetching the headers of TensorRT from crates.io into {} (1 MB, once)", cache.display());
        fetch(workspace, &cache)?;
    }
    let folders =
        files::entries(&cache)?.into_iter().filter(|folder| folder.join("NvInferRuntime.h").exists());
    let mut found: Vec<Headers> = folders.filter_map(named).collect();
    found.sort_by(|one, other| one.version.cmp(&other.version));
    Ok(found)
}

fn named(include: PathBuf) -> Option<Headers> {
    let version = include.file_name()?.to_str()?.to_owned();
    Some(Headers { version, include })
}

/// `cargo info` downloads a crate without those that it depends on, which are many.
fn fetch(workspace: &Workspace, cache: &Path) -> Result<()> {
    let mut command = workspace.command(cargo::program());
    command.args(["info", "--registry=crates-io", CRATE.0]).current_dir(std::env::temp_dir());
    let fetched = workspace.run_well("fetch the headers of TensorRT", command);
    fetched.map_err(|error| Unavailable(format!("cargo could not fetch {}: {error:#}", CRATE.0)))?;
    let unpacked = registry()?.join(CRATE.1).join("TensorRT-Headers");
    // Under another name first: what is cut off is not taken for the whole.
    let half = cache.with_extension("half");
    files::remove_all(&half)?;
    files::copy_all(&unpacked, &half)?;
    std::fs::rename(&half, cache).with_context(|| format!("cannot make {}", cache.display()))
}

/// The folder of a registry in which cargo has unpacked the crate.
fn registry() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let sources = home.context("there is no home folder")?.join("registry/src");
    let mut registries = files::entries(&sources)?.into_iter();
    let found = registries.find(|registry| registry.join(CRATE.1).exists());
    found.with_context(|| format!("cargo did not unpack {} in {}", CRATE.1, sources.display()))
}
