//! The suite `lints`: formatting, clippy, and the script that CI runs.

use anyhow::Result;

use super::context::{Context, Count};
use crate::cargo;
use crate::files;

/// Everything that can be said about the sources without running them.
pub fn run(context: &mut Context) -> Result<()> {
    if !available(context, "fmt") {
        context.skip("cargo fmt", "it is not there: rustup component add rustfmt");
    } else {
        // Only the files' names: what is to be changed in them `cargo fmt` does by itself.
        let names = ["--", "--check", "-l"];
        let mut command = cargo::cargo(&context.workspace, &["fmt", "--all"]);
        command.args(names);
        context.program("cargo fmt", command, Count::One)?;
        // A workspace of its own, for its dependencies are no one else's.
        let fuzz = context.workspace.path("fuzz/Cargo.toml");
        if fuzz.exists() {
            let mut command = cargo::cargo(&context.workspace, &["fmt", "--manifest-path"]);
            command.arg(fuzz).args(names);
            context.program("cargo fmt, fuzz", command, Count::One)?;
        }
    }
    if !available(context, "clippy") {
        context.skip("cargo clippy", "it is not there: rustup component add clippy");
    } else {
        let mut command = cargo::cargo(&context.workspace, &["clippy", "--workspace"]);
        command.args(["--all-targets", "--", "-D", "warnings"]);
        context.program("cargo clippy", command, Count::One)?;
    }
    if files::program("bash").is_some() {
        let mut command = context.workspace.command("bash");
        command.args(["-n", ".ci/run"]);
        context.program(".ci/run is bash", command, Count::One)?;
    }
    Ok(())
}

fn available(context: &Context, tool: &str) -> bool {
    let command = cargo::cargo(&context.workspace, &[tool, "--version"]);
    let asked = context.workspace.run(&format!("cargo {tool} version"), command);
    asked.is_ok_and(|ended| ended.success)
}
