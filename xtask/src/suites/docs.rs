//! The suite `docs`: the documentation. See ffi-tests/docs.

use anyhow::Result;

use super::context::{Context, Count, Needs};
use crate::hooks;

/// rustdoc's warnings are errors, its examples are run, and so is the code on the pages.
pub fn run(context: &mut Context) -> Result<()> {
    // Each separately, because the library and the command are both called bfc, and their pages would collide.
    let published =
        ["core", "cuda-sys", "formats", "hostmem", "os", "sys"].map(|name| format!("libbfc-{name}"));
    for package in published.iter().map(String::as_str).chain(["libbfc", "xtask"]) {
        let mut command = context.cargo(&["doc", "--no-deps", "--all-features", "--package", package]);
        command.env("RUSTDOCFLAGS", "-D warnings");
        context.program(&format!("cargo doc, {package}"), command, Count::One)?;
    }
    context.check("docs/hooks.md is made from the list of hooks", |workspace| {
        hooks::generate().check(workspace)
    });
    let command = context.cargo(&[
        "test",
        "--doc",
        "--package=libbfc",
        "--package=libbfc-core",
        "--package=libbfc-formats",
        "--package=libbfc-hostmem",
    ]);
    context.program("examples in the documentation", command, Count::Cargo)?;
    context.pytest("docs", Needs::Simulation, &[])
}
