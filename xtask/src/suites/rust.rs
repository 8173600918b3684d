//! The suite `rust`: the workspace's own tests.

use anyhow::Result;

use super::context::{Context, Count};
use crate::cargo::{self, Profile};
use crate::files;

/// All tests with the debug build, whose internal checks look on; then the recorded traces through the
/// release build, which is what is shipped; and the examples, which say themselves whether all is well.
pub fn run(context: &mut Context) -> Result<()> {
    // The bfc command's tests load the library as any client would.
    let debug = context.built(Profile::Debug)?;
    let mut command = cargo::cargo(&context.workspace, &["test", "--workspace", "--no-fail-fast"]);
    // The examples in the documentation are the suite doc's.
    command.args(["--lib", "--bins", "--tests", "--examples"]);
    // Its functions stand before the process's own: it is preloaded, by the suite preload, and has no tests inside.
    command.arg("--exclude=bfc-preload");
    let mut command = context.plain(command);
    command.env("BFC_LIBRARY", &debug.shared);
    context.program("cargo test", command, Count::Cargo)?;

    // As a test program an example is compiled and its main never called.
    for example in files::entries(&context.workspace.path("examples"))? {
        if example.extension().is_none_or(|end| end != "rs") {
            continue;
        }
        let name = example.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let args = ["run", "--quiet", "--package=libbfc", "--example", &*name];
        let command = context.plain(cargo::cargo(&context.workspace, &args));
        context.program(&format!("example {name}"), command, Count::One)?;
    }

    let release = context.built(Profile::Release)?;
    let mut command = cargo::cargo(&context.workspace, &["test", "--package=bfc-cli"]);
    command.args(["--test=cli", "golden"]);
    let mut command = context.plain(command);
    command.env("BFC_LIBRARY", &release.shared);
    context.program("golden placements, release build", command, Count::Cargo)?;
    Ok(())
}
