//! The suite `peers`: short runs of the benchmarks beside other allocators. It checks that each of them runs, that none
//! returns memory that overlaps, and that programs have the same results with each. It does not compare times.

use anyhow::Result;

use super::context::{Context, Count};
use crate::cpu;
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
    context.program("available allocators run, and nothing overlaps", command, Count::One)?;
    let command = cpu::command(&context.workspace, &prefix, true)?;
    context.program("real programs on the CPU have equal results", command, Count::One).map(drop)
}
