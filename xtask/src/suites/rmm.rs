//! The suite `rmm`: libbfc as a memory resource of RMM, in C++ and in Python, on the simulated driver. See ffi-tests/rmm.

use anyhow::Result;

use super::context::Context;
use crate::tools;

/// Both versions of RMM, and Python.
pub fn run(context: &mut Context) -> Result<()> {
    match tools::missing_compiler() {
        Some(why) => context.skip("all of it", &why),
        None => context.pytest("rmm")?,
    }
    Ok(())
}
