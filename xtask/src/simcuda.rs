//! Building the simulated driver (ffi-tests/simcuda), for the tests that want a driver.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::cargo;
use crate::files;
use crate::workspace::{Workspace, capture, shown};

/// Builds it and gives the folder with `libcuda.so.1` in it: a program that has it on its LD_LIBRARY_PATH finds
/// the simulation where it would find NVIDIA's driver.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    let mut command = cargo::cargo(workspace, &["build", "--package=simcuda", "--release"]);
    command.arg("--message-format=json-render-diagnostics");
    if !std::io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let what = shown(&command);
    let messages = capture(&mut command).context("the compiler says why above")?;
    let driver = artifact(&messages).with_context(|| format!("{what} built no libsimcuda.so"))?;
    let folder = workspace.target.join("simcuda/lib");
    files::copy(&driver, &folder.join("libcuda.so.1"))?;
    Ok(folder)
}

/// The library among what cargo says that it built.
fn artifact(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = messages.flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    let mut paths = files.filter_map(|file| file.as_str().map(PathBuf::from));
    paths.find(|path| path.file_name() == Some(Path::new("libsimcuda.so").as_os_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_in_cargo_s_messages() {
        let messages = r#"{"reason":"compiler-artifact","filenames":["/t/release/liblibc.rlib"]}
{"reason":"compiler-artifact","filenames":["/t/release/libsimcuda.so","/t/release/libsimcuda.rlib"]}"#;
        assert_eq!(artifact(messages), Some(PathBuf::from("/t/release/libsimcuda.so")));
        assert_eq!(artifact(""), None);
    }
}
