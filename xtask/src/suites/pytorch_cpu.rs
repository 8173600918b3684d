//! The suite `pytorch-cpu`: PyTorch trains on the CPU, with libbfc's memory and without. See ffi-tests/pytorch-cpu.

use anyhow::Result;

use super::context::Context;
use crate::tools;

/// See there.
pub fn run(context: &mut Context) -> Result<()> {
    match tools::missing_compiler() {
        Some(why) => context.skip("all of it", &why),
        None => context.pytest("pytorch-cpu")?,
    }
    Ok(())
}
