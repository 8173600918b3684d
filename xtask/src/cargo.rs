//! Building with cargo, and finding the files that it built.

use std::ffi::OsStr;
use std::fs;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::files;
use crate::progress::Waiting;
use crate::tools::Unavailable;
use crate::workspace::{self, Workspace, capture, without};

/// How to build.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// With the internal checks.
    Debug,
    /// As it is used.
    Release,
}

/// What a build gave.
pub struct Built {
    /// How it was built.
    pub profile: Profile,
    /// libbfc.so
    pub shared: PathBuf,
    /// libbfc.a
    pub archive: PathBuf,
    /// libbfc_preload.so
    pub interposer: PathBuf,
    /// The bfc command.
    pub command: PathBuf,
}

/// A cargo command in the checkout's root.
pub fn cargo(workspace: &Workspace, args: &[&str]) -> Command {
    let mut command = workspace.command(workspace::cargo());
    command.args(args);
    // The variables that `cargo run` sets for this xtask would look like settings of the package being built.
    without(&mut command, &["CARGO_PKG_", "CARGO_MANIFEST_"]);
    command
}

/// A command of another toolchain's cargo, through rustup. The variables that rustup and cargo set for this xtask would
/// select the current toolchain again.
pub fn of_toolchain(workspace: &Workspace, toolchain: &str, args: &[&str]) -> Command {
    let mut command = workspace.command("rustup");
    command.args(["run", toolchain, "cargo"]).args(args);
    for name in ["CARGO", "RUSTC", "RUSTDOC", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(name);
    }
    command
}

/// Fails if there is no nightly toolchain, or it lacks that component.
pub fn need_nightly(workspace: &Workspace, component: Option<&str>) -> Result<()> {
    let mut list = workspace.command("rustup");
    list.args(["component", "list", "--installed", "--toolchain", "nightly"]);
    let listed = match files::program("rustup") {
        Some(_) => workspace.run("nightly components", list)?,
        None => bail!(Unavailable("there is no rustup, which brings the nightly toolchain".to_owned())),
    };
    let has = |name: &str| listed.text.lines().any(|line| line.starts_with(name));
    let why = "there is no nightly toolchain: rustup toolchain install nightly";
    ensure!(listed.success, Unavailable(why.to_owned()));
    if let Some(name) = component.filter(|name| !has(name)) {
        let why =
            format!("the nightly toolchain lacks {name}: rustup component add --toolchain nightly {name}");
        bail!(Unavailable(why));
    }
    Ok(())
}

/// Builds the library, the interposer and the bfc command. Cargo's own progress is shown: this
/// may take a minute.
pub fn build(workspace: &Workspace, profile: Profile) -> Result<Built> {
    let built = build_by(workspace, profile, || cargo(workspace, &["build"]))?;
    link_soname(&built.shared, &workspace.soname)?;
    Ok(built)
}

/// Adds a link with the library's SONAME beside it. The interposer loads the library by that name, so `bfc run` works
/// from the folder that cargo builds into.
fn link_soname(shared: &Path, soname: &str) -> Result<()> {
    let link = shared.with_file_name(soname);
    let target =
        shared.file_name().and_then(OsStr::to_str).context("cargo built a library without a name")?;
    // A correct link is kept, because programs of another build may be loading it.
    if fs::read_link(&link).is_ok_and(|old| old == Path::new(target)) {
        Ok(())
    } else {
        files::link(target, &link)
    }
}

/// Builds by a subcommand of cargo that takes the options of `build`. In a release only what programs load is optimized in
/// one piece: for the command that takes a minute longer, and it is no faster.
pub fn build_by(workspace: &Workspace, profile: Profile, command: impl Fn() -> Command) -> Result<Built> {
    let files = |packages: &[&str], settings: &[&str]| {
        let mut command = command();
        command.args(packages.iter().flat_map(|package| ["--package", package]));
        if profile == Profile::Release {
            release(workspace, &mut command);
        }
        command.args(settings.iter().flat_map(|setting| ["--config", setting]));
        artifacts(command)
    };
    let files = match profile {
        Profile::Debug => files(&["libbfc", "bfc-preload", "bfc-cli"], &[])?,
        Profile::Release => {
            let quickly = ["profile.release.lto=\"off\"", "profile.release.codegen-units=16"];
            [files(&["libbfc", "bfc-preload"], &[])?, files(&["bfc-cli"], &quickly)?].concat()
        }
    };
    found(profile, files)
}

/// Finds the files among those that cargo reports.
fn found(profile: Profile, files: Vec<PathBuf>) -> Result<Built> {
    let find = |name: &str| {
        let path = files.iter().find(|path| path.ends_with(name)).cloned();
        path.with_context(|| format!("cargo built no {name}"))
    };
    Ok(Built {
        profile,
        shared: find("libbfc.so")?,
        archive: find("libbfc.a")?,
        interposer: find("libbfc_preload.so")?,
        command: find("bfc")?,
    })
}

/// Adds the options of a release build. Shipped files name no folder of this machine, so the same sources result in the
/// same files in any folder, without a user's name. Cargo joins these flags with `build.rustflags` of the user's
/// configuration. `RUSTFLAGS` and flags of a target replace them, and then the files name folders.
pub fn release(workspace: &Workspace, command: &mut Command) {
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        if std::env::var_os(name).is_some() {
            println!("note: {name} is set, so the files name folders of this machine: see docs/install.md");
        }
    }
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let is_elsewhere = |folder: &PathBuf| home.as_ref().is_none_or(|home| !folder.starts_with(home));
    // Without it for a registry, which is in cargo's home, and is filled only by the first build.
    let vendored = folder_of_crates(workspace).filter(is_elsewhere);
    // The last one that fits counts.
    let folders = [(vendored, "/vendor"), (Some(workspace.root.clone()), "/libbfc"), (home, "/cargo")];
    let named = folders.into_iter().filter_map(|(folder, name)| Some((folder?, name)));
    let flags = named.map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display()));
    command
        .args(["--release", "--locked", "--config"])
        .arg(format!("build.rustflags={:?}", flags.collect::<Vec<_>>()));
}

/// Returns the folder of the crates that are built, if all are there. `cargo vendor` writes them to a folder that the user names.
fn folder_of_crates(workspace: &Workspace) -> Option<PathBuf> {
    let mut command = cargo(workspace, &["metadata", "--format-version=1", "--locked", "--offline"]);
    // Crates for other systems are never fetched, and only some machines have them from another project.
    command.arg(format!("--filter-platform={}-unknown-linux-gnu", std::env::consts::ARCH));
    let output = command.stdin(Stdio::null()).output().ok()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).ok()?;
    let manifest = metadata["packages"].as_array()?.iter().find(|package| package["name"] == "libc")?;
    Some(Path::new(manifest["manifest_path"].as_str()?).ancestors().nth(2)?.to_owned())
}

/// Runs a building command of cargo. Returns the files that it reports. Guessing paths below target/ would miss the
/// user's build.target or target-dir.
pub fn artifacts(mut command: Command) -> Result<Vec<PathBuf>> {
    command.arg("--message-format=json-render-diagnostics");
    let messages = match std::io::stderr().is_terminal() {
        true => capture(&mut command),
        false => capture_watched(&mut command),
    };
    let messages = messages.context("see the compiler's message above")?;
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let files = messages.flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    Ok(files.filter_map(|file| file.as_str().map(PathBuf::from)).collect())
}

/// Like [`capture`], for a cargo whose progress is not on a terminal.
fn capture_watched(command: &mut Command) -> Result<String> {
    let what = format!("{command:?}");
    // Without a width cargo shows none.
    command.env("CARGO_TERM_PROGRESS_WHEN", "always").env("CARGO_TERM_PROGRESS_WIDTH", "120");
    // Its lines are read.
    command.env("CARGO_TERM_COLOR", "never");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start {what}"))?;
    let mut said = child.stderr.take().context("it is a pipe")?;
    let watcher = thread::spawn(move || {
        let waiting = Waiting::begin("cargo build", false);
        let (mut rest, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(length @ 1..) = said.read(&mut buffer) {
            rest.extend_from_slice(&buffer[..length]);
            // An update of the progress bar ends with a carriage return.
            while let Some(end) = rest.iter().position(|byte| b"\r\n".contains(byte)) {
                let line = String::from_utf8_lossy(&rest[..end]).into_owned();
                rest.drain(..=end);
                match status(&line) {
                    Some(status) => waiting.line(status),
                    None => eprintln!("{line}"),
                }
            }
        }
    });
    let output = child.wait_with_output()?;
    let _ = watcher.join();
    ensure!(output.status.success(), "{what}: {}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("{what} did not print text"))
}

/// Returns what a line of cargo says about its progress: a word at the end of twelve columns, or the number of crates
/// in its progress bar. None for a line of a compiler.
fn status(line: &str) -> Option<&str> {
    let (word, rest) = line.split_at_checked(12)?;
    let is_word = word.starts_with(' ') && word.trim_start().chars().all(char::is_alphabetic);
    if !is_word || word.trim().is_empty() || !rest.starts_with(' ') {
        return None;
    }
    Some(line.split_once("] ").map_or(line, |(_, count)| count).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_by_its_soname() {
        let folder = std::env::temp_dir().join(format!("bfc-xtask-soname-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("writable");
        let shared = folder.join("libbfc.so");
        fs::write(&shared, "the library").expect("writable");
        let link = folder.join("libbfc.so.0");
        // Twice, because the second build finds the link of the first. An outdated one is replaced.
        for old in [None, Some("libbfc.so"), Some("elsewhere")] {
            if let Some(old) = old {
                files::link(old, &link).expect("writable");
            }
            link_soname(&shared, "libbfc.so.0").expect("a link");
            assert_eq!(fs::read_to_string(&link).expect("it is there"), "the library", "{old:?}");
        }
        fs::remove_dir_all(&folder).expect("its own folder");
    }

    #[test]
    fn the_folder_of_crates_is_found() {
        let workspace = Workspace::find().expect("a checkout");
        // On a new machine only those of the first suite are there.
        let fetched = cargo(&workspace, &["fetch", "--quiet", "--locked"]).status();
        assert!(fetched.expect("cargo").success());
        let crates = folder_of_crates(&workspace).expect("libc is there");
        let libc = fs::read_dir(&crates).expect("a folder").filter_map(Result::ok);
        let mut libc = libc.filter(|entry| entry.file_name().to_string_lossy().starts_with("libc"));
        assert!(libc.any(|entry| entry.path().join("Cargo.toml").exists()), "{}", crates.display());
    }
}
