//! The suite `peers`: the benchmark beside other allocators, for a moment. It is there to see that each of them runs and that
//! none returns memory that overlaps, not to compare.

use anyhow::Result;

use super::context::{Context, Count};
use crate::peers;
use crate::tools::{self, Unavailable};

pub fn run(context: &mut Context) -> Result<()> {
    tools::need_compilers()?;
    let mut clippy = peers::cargo(&context.workspace, &["clippy", "--release", "--all-targets", "--quiet"]);
    clippy.args(["--", "-D", "warnings"]);
    context.program("clippy, benches/peers", context.plain(clippy), Count::One)?;
    let tests = peers::cargo(&context.workspace, &["test", "--release", "--quiet"]);
    context.program("cargo test, benches/peers", context.plain(tests), Count::Cargo)?;

    let prefix = context.prefix()?;
    let (command, missing) = peers::command(&context.workspace, &prefix, true)?;
    for (peer, why) in missing {
        match why.is::<Unavailable>() {
            true => context.skip(peer, &format!("{why:#}")),
            false => context.fail(peer, &format!("{why:#}")),
        }
    }
    context.program("all that can be had runs, and nothing overlaps", command, Count::One).map(drop)
}
