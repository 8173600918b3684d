//! The suites `rust` and `release`: the workspace's own tests.

use std::path::PathBuf;

use anyhow::Result;

use super::context::{Context, Count};
use crate::cargo::Profile;
use crate::files;

/// All tests with the debug build and its internal checks.
pub fn debug(context: &mut Context) -> Result<()> {
    // The tests of the bfc command load the library as any client would.
    let debug = context.built(Profile::Debug)?;
    // The interposer's functions precede those of the process, so it contains no tests. The suites preload, simcuda and
    // header test what is left out, the suite docs runs the examples in the documentation.
    let args = "test --workspace --no-fail-fast --lib --bins --tests --examples";
    let mut command = context.cargo(&args.split(' ').collect::<Vec<_>>());
    command.args(["--exclude=bfc-preload", "--exclude=simcuda", "--exclude=bfc-generate"]);
    command.env("BFC_LIBRARY", &debug.shared);
    context.program("cargo test", command, Count::Cargo).map(drop)
}

/// The recorded traces with the release build, which is shipped, and the examples, which check themselves.
pub fn release(context: &mut Context) -> Result<()> {
    let release = context.built(Profile::Release)?;
    let mut command = context.cargo(&["test", "--package=bfc-cli", "--test=cli", "golden"]);
    command.env("BFC_LIBRARY", &release.shared);
    context.program("golden placements, release build", command, Count::Cargo)?;

    // As a test program, an example is compiled and its main is never called.
    let is_example = |path: &PathBuf| path.extension().is_some_and(|end| end == "rs");
    // examples/cuda-rust is a package of its own, which the suite docs runs.
    for example in files::entries(&context.workspace.path("examples"))?.into_iter().filter(is_example) {
        let name = example.file_stem().unwrap_or_default().to_string_lossy();
        let command = context.cargo(&["run", "--quiet", "--package=libbfc", "--example", &name]);
        context.program(&format!("example {name}"), command, Count::One)?;
    }
    Ok(())
}
