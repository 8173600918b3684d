//! The suite `fuzz`: the fuzz targets and the search for cliffs, for a short while each. It is there to see that they work
//! and that nothing is found at once; to look for more, let them run for hours (fuzz/README.md).

use std::process::Command;

use anyhow::{Context as _, Result};

use super::context::{Context, Count};
use crate::cargo;
use crate::files;
use crate::simcuda;
use crate::workspace::Workspace;

/// For each target.
const SECONDS: u32 = 30;

/// Runs the search, and every target with cargo-fuzz, which is built here if it is not installed.
pub fn run(context: &mut Context) -> Result<()> {
    let simulation = simcuda::build_driver(&context.workspace)?;
    context.pytest_installed("cliffs", &[("LIBBFC_TESTS_SIMULATION", simulation)])?;
    if !context.workspace.path("fuzz/Cargo.toml").exists() {
        context.skip("all of it", "there is no fuzz/Cargo.toml");
        return Ok(());
    }
    if let Err(why) = ready(&context.workspace) {
        context.skip("all of it", &format!("{why:#}"));
        return Ok(());
    }
    let list = nightly(&context.workspace, &["fuzz", "list"]);
    let targets = context.workspace.run_well("cargo fuzz list", list)?;
    let targets: Vec<&str> = targets.split_whitespace().collect();
    // All at first: then what is timed is the fuzzing.
    let build = nightly(&context.workspace, &["fuzz", "build"]);
    let built = context.program("cargo fuzz build", build, Count::One)?;
    if !built.success {
        return Ok(());
    }
    for target in targets {
        let mut command = nightly(&context.workspace, &["fuzz", "run", target, "--"]);
        command.arg(format!("-max_total_time={SECONDS}"));
        // A single input that takes this long hangs.
        command.args(["-timeout=20", "-print_final_stats=1"]);
        let command = context.plain(command);
        let ended = context.program(&format!("fuzz {target}"), command, Count::One)?;
        if ended.success {
            context.gate(&format!("fuzz {target}: it ran"), &too_few(&ended.text));
        }
    }
    Ok(())
}

/// A command of the nightly toolchain's cargo, which finds the cargo-fuzz that was built here.
fn nightly(workspace: &Workspace, args: &[&str]) -> Command {
    let mut command = cargo::of_toolchain(workspace, "nightly", args);
    let bin = workspace.target.join("tools/cargo-fuzz/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([bin]);
    // A PATH that cannot be put together is left as it is.
    if let Ok(path) = std::env::join_paths(folders) {
        command.env("PATH", path);
    }
    command
}

/// Sees to what fuzzing needs, or says what is missing and how to get it.
fn ready(workspace: &Workspace) -> Result<()> {
    files::program("rustup").context("fuzzing needs a nightly toolchain, and rustup to call it")?;
    workspace.run_well("nightly version", nightly(workspace, &["--version"])).map_err(|_| {
        anyhow::anyhow!(
            "there is no nightly toolchain, which fuzzing needs: rustup toolchain install nightly"
        )
    })?;
    let version = nightly(workspace, &["fuzz", "--version"]);
    if workspace.run("cargo fuzz version", version)?.success {
        return Ok(());
    }
    let root = workspace.target.join("tools/cargo-fuzz");
    println!("   building cargo-fuzz into {}", root.display());
    let mut command = cargo::cargo(workspace, &["install", "cargo-fuzz", "--locked"]);
    command.arg("--root").arg(&root);
    // Not beside what this workspace builds: it is another one's, with profiles of its own.
    command.arg("--target-dir").arg(root.join("build"));
    workspace
        .run_well("cargo install cargo-fuzz", command)
        .context("cargo-fuzz is not there and cannot be built (is crates.io reachable?)")?;
    files::remove_all(&root.join("build"))
}

/// Reads `Done 12345 runs in 31 second(s)`.
fn too_few(said: &str) -> Vec<String> {
    let runs = said
        .lines()
        .filter_map(|line| line.strip_prefix("Done "))
        .filter_map(|line| line.split(" runs in ").next())
        .filter_map(|count| count.parse::<u64>().ok())
        .next_back();
    match runs {
        // A target that never gets anywhere is as good as none.
        Some(100..) => Vec::new(),
        Some(runs) => vec![format!("{runs} inputs are next to nothing")],
        None => vec!["libFuzzer does not say how many inputs it has run".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_runs_pass_and_few_or_none_fail() {
        assert!(too_few("#9 DONE cov: 3\nDone 31415 runs in 31 second(s)\n").is_empty());
        assert_eq!(too_few("Done 2 runs in 31 second(s)\n").len(), 1);
        assert_eq!(too_few("error: no such target").len(), 1);
    }
}
