//! Building with cargo, and where it put what it built.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::workspace::{Workspace, capture, shown, without};

/// How to build.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// With the internal checks.
    Debug,
    /// As it is used.
    Release,
}

impl Profile {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release => "release",
        }
    }

    /// Cargo's argument for it.
    pub fn args(self) -> &'static [&'static str] {
        match self {
            Self::Debug => &[],
            Self::Release => &["--release"],
        }
    }
}

/// What a build gave.
pub struct Built {
    /// libbfc.so
    pub shared: PathBuf,
    /// libbfc.a
    pub archive: PathBuf,
    /// libbfc_preload.so
    pub interposer: PathBuf,
    /// The bfc command.
    pub command: PathBuf,
}

/// The cargo that runs us, else the one on the PATH.
pub fn program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A cargo command in the checkout's root.
pub fn cargo(workspace: &Workspace, args: &[&str]) -> Command {
    let mut command = workspace.command(program());
    command.args(args);
    // What `cargo run` set for this xtask would look like a setting of the package being built.
    without(&mut command, &["CARGO_PKG_", "CARGO_MANIFEST_"]);
    command
}

/// A command of another toolchain's cargo, through rustup. The variables that rustup and cargo set for
/// this xtask would lead it back to the present one.
pub fn of_toolchain(workspace: &Workspace, toolchain: &str, args: &[&str]) -> Command {
    let mut command = workspace.command("rustup");
    command.args(["run", toolchain, "cargo"]).args(args);
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command
}

/// Builds the library, the interposer and the bfc command. Cargo's own progress is shown: this
/// may take a minute.
pub fn build(workspace: &Workspace, profile: Profile) -> Result<Built> {
    build_by(workspace, profile, cargo(workspace, &["build"]))
}

/// The same by a subcommand of cargo that takes the options of `build`.
pub fn build_by(workspace: &Workspace, profile: Profile, mut command: Command) -> Result<Built> {
    command.args(["--package=libbfc", "--package=bfc-preload", "--package=bfc-cli"]);
    command.args(profile.args());
    command.arg("--message-format=json-render-diagnostics");
    if !std::io::stderr().is_terminal() {
        command.arg("--quiet");
    }
    let what = shown(&command);
    let messages = capture(&mut command).context("the compiler says why above")?;
    Built::from_messages(&messages, &workspace.root).with_context(|| format!("cannot find what {what} built"))
}

impl Built {
    /// Reads cargo's messages. Guessing paths below target/ instead would miss a build.target or a
    /// target-dir of the user's.
    fn from_messages(text: &str, root: &Path) -> Result<Self> {
        let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let artifact = |folder: &Path, name: &str| {
            messages
                .iter()
                .filter(|message| is(message, "compiler-artifact", folder))
                .flat_map(|message| message["filenames"].as_array().into_iter().flatten())
                .filter_map(Value::as_str)
                .map(PathBuf::from)
                .find(|path| path.file_name().is_some_and(|file| file == name))
                .with_context(|| format!("cargo built no {name}"))
        };
        Ok(Self {
            shared: artifact(root, "libbfc.so")?,
            archive: artifact(root, "libbfc.a")?,
            interposer: artifact(&root.join("preload"), "libbfc_preload.so")?,
            command: artifact(&root.join("cli"), "bfc")?,
        })
    }
}

/// Whether a message is of a kind, and about the package in a folder.
fn is(message: &Value, reason: &str, folder: &Path) -> bool {
    let manifest = message["manifest_path"].as_str().map(Path::new);
    // A build script's message names the package by id only: path+file:///folder#name@version
    let id = message["package_id"].as_str().unwrap_or_default();
    let id = id.strip_prefix("path+file://").map(|id| id.split('#').next());
    let of = manifest.and_then(Path::parent).or(id.flatten().map(Path::new));
    message["reason"] == *reason && of == Some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGES: &str = r##"
{"reason":"build-script-executed","package_id":"registry+https://x#libc@0.2.1","out_dir":"/t/build/libc/out"}
{"reason":"build-script-executed","package_id":"path+file:///w#libbfc@0.1.0","out_dir":"/t/build/bfc/out"}
{"reason":"compiler-artifact","manifest_path":"/w/Cargo.toml","package_id":"path+file:///w#libbfc@0.1.0","filenames":["/t/release/libbfc.so","/t/release/libbfc.a"]}
{"reason":"compiler-artifact","manifest_path":"/w/preload/Cargo.toml","package_id":"path+file:///w/preload#bfc-preload@0.1.0","filenames":["/t/release/libbfc_preload.so"]}
{"reason":"compiler-artifact","manifest_path":"/w/cli/Cargo.toml","package_id":"path+file:///w/cli#bfc-cli@0.1.0","filenames":["/t/release/bfc"]}
"##;

    #[test]
    fn what_was_built_is_found_in_cargo_s_messages() {
        let built = Built::from_messages(MESSAGES, Path::new("/w")).expect("all there");
        assert_eq!(built.shared, Path::new("/t/release/libbfc.so"));
        assert_eq!(built.archive, Path::new("/t/release/libbfc.a"));
        assert_eq!(built.interposer, Path::new("/t/release/libbfc_preload.so"));
        assert_eq!(built.command, Path::new("/t/release/bfc"));
    }

    #[test]
    fn another_package_s_files_are_not_taken() {
        assert!(Built::from_messages(MESSAGES, Path::new("/elsewhere")).is_err());
        assert!(Built::from_messages("", Path::new("/w")).is_err());
    }
}
