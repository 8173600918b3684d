//! The suite `pytorch`: PyTorch's CUDA wheel trains on the simulated driver, with its own allocators, with libbfc in their place, and under
//! `bfc run`. See ffi-tests/pytorch.

use anyhow::Result;

use super::context::Context;
use crate::tools;

/// See there.
pub fn run(context: &mut Context) -> Result<()> {
    match tools::missing_compiler() {
        Some(why) => context.skip("all of it", &why),
        None => context.pytest("pytorch")?,
    }
    Ok(())
}
