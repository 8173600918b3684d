//! The suite `rust`: the workspace's own tests.

use anyhow::Result;

use super::context::{Context, Count};
use crate::cargo::Profile;
use crate::files;

/// All tests with the debug build, whose internal checks look on; then the recorded traces through the
/// release build, which is what is shipped; and the examples, which say themselves whether all is well.
pub fn run(context: &mut Context) -> Result<()> {
    // The bfc command's tests load the library as any client would.
    let debug = context.built(Profile::Debug)?;
    // The interposer's functions stand before the process's own: it is preloaded, by the suite preload, and has no tests
    // inside. The examples in the documentation are the suite doc's.
    let args = "test --workspace --exclude=bfc-preload --no-fail-fast --lib --bins --tests --examples";
    let mut command = context.cargo(&args.split(' ').collect::<Vec<_>>());
    command.env("BFC_LIBRARY", &debug.shared);
    context.program("cargo test", command, Count::Cargo)?;

    // As a test program an example is compiled and its main never called.
    for example in files::below(&context.workspace.path("examples"), "rs")? {
        let name = example.file_stem().unwrap_or_default().to_string_lossy();
        let command = context.cargo(&["run", "--quiet", "--package=libbfc", "--example", &name]);
        context.program(&format!("example {name}"), command, Count::One)?;
    }

    let release = context.built(Profile::Release)?;
    let mut command = context.cargo(&["test", "--package=bfc-cli", "--test=cli", "golden"]);
    command.env("BFC_LIBRARY", &release.shared);
    context.program("golden placements, release build", command, Count::Cargo).map(drop)
}
