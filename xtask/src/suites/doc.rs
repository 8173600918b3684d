//! The suite `doc`: the documentation.

use anyhow::Result;

use super::context::{Context, Count};
use crate::cargo;

/// rustdoc's warnings are errors, and its examples run.
pub fn run(context: &mut Context) -> Result<()> {
    // Each by itself: the library and the command are both called bfc, and their pages would collide.
    for package in ["bfc", "xtask"] {
        let mut command = cargo::cargo(&context.workspace, &["doc", "--no-deps"]);
        command.arg(format!("--package={package}"));
        command.env("RUSTDOCFLAGS", "-D warnings");
        context.program(&format!("cargo doc, {package}"), command, Count::One)?;
    }
    let command = cargo::cargo(&context.workspace, &["test", "--doc", "--package=bfc"]);
    let command = context.plain(command);
    context.program("examples in the documentation", command, Count::Cargo)?;
    Ok(())
}
