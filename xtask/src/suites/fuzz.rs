//! The suite `fuzz`: the fuzz targets and the search for cliffs, for a short while each. It shows that they work and
//! find nothing at once. To find more, let them run for hours (fuzz/README.md).

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::context::{Context, Count, Needs};
use crate::cargo;
use crate::files;
use crate::simcuda;
use crate::tools::Unavailable;
use crate::workspace::Workspace;

/// For each target, unless FUZZ_SECONDS says how long.
const SECONDS: u32 = 10;

/// With fewer inputs than this in that time a target is useless.
const LEAST_RUNS: u64 = 100;

/// Runs the search, and every target with cargo-fuzz, which is built here if it is not installed.
pub fn run(context: &mut Context) -> Result<()> {
    let simulation = simcuda::build_driver(&context.workspace)?;
    context.pytest("cliffs", Needs::Prefix, &[("LIBBFC_TESTS_SIMULATION", &simulation)])?;
    ready(&context.workspace)?;
    let list = nightly(&context.workspace, &["fuzz", "list"]);
    let targets = context.workspace.run_well("cargo fuzz list", list)?;
    // All of them first, so that only the fuzzing is timed.
    let build = nightly(&context.workspace, &["fuzz", "build"]);
    if !context.program("cargo fuzz build", build, Count::One)?.success {
        return Ok(());
    }
    let seconds = match std::env::var("FUZZ_SECONDS") {
        Ok(text) => text.parse().context("FUZZ_SECONDS is not a number")?,
        Err(_) => SECONDS,
    };
    for target in targets.split_whitespace() {
        let mut command = context.plain(nightly(&context.workspace, &["fuzz", "run", target, "--"]));
        command.arg(format!("-max_total_time={seconds}"));
        // A single input that takes this long counts as a hang.
        command.args(["-timeout=20", "-print_final_stats=1"]);
        context.check(&format!("fuzz {target}"), |workspace| {
            let runs = runs(&workspace.run_well(&format!("fuzz {target}"), command)?);
            ensure!(runs >= Some(LEAST_RUNS), "{runs:?} inputs are too few");
            Ok(())
        });
    }
    Ok(())
}

/// How many inputs libFuzzer has run. It prints `Done 12345 runs in 31 second(s)`.
fn runs(said: &str) -> Option<u64> {
    let mut done = said.lines().filter_map(|line| line.strip_prefix("Done ")?.split(' ').next());
    done.next_back()?.parse().ok()
}

/// A command of the nightly toolchain's cargo, which finds the cargo-fuzz that was built here.
fn nightly(workspace: &Workspace, args: &[&str]) -> Command {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(workspace.target.join("tools/cargo-fuzz/bin"));
    let mut command = cargo::of_toolchain(workspace, "nightly", args);
    command.env("PATH", path);
    command
}

/// Builds cargo-fuzz if it is not installed. The error says what is missing and how to get it.
fn ready(workspace: &Workspace) -> Result<()> {
    cargo::need_nightly(workspace, None)?;
    if workspace.run("cargo fuzz version", nightly(workspace, &["fuzz", "--version"]))?.success {
        return Ok(());
    }
    let root = workspace.target.join("tools/cargo-fuzz");
    println!("   building cargo-fuzz into {}", root.display());
    let mut command = cargo::cargo(workspace, &["install", "cargo-fuzz", "--locked", "--root"]);
    // Not beside this workspace's files, because it belongs to another workspace, with its own profiles.
    command.arg(&root).arg("--target-dir").arg(root.join("build"));
    let built = workspace.run_well("cargo install cargo-fuzz", command);
    built.context(Unavailable("cargo-fuzz cannot be built (is crates.io reachable?)".to_owned()))?;
    files::remove_all(&root.join("build"))
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn the_number_of_inputs_is_the_last_that_libfuzzer_says() {
        assert_eq!(
            runs("#9 DONE cov: 3\nDone 9 runs in 1 second(s)\nDone 31415 runs in 31 second(s)\n"),
            Some(31415)
        );
        assert_eq!(runs("error: no such target"), None);
    }
}
