//! The suite `python`: the package bfc as wheels, in clean virtual environments, the sdist and the crates. See
//! ffi-tests/python.

use anyhow::Result;

use super::context::Context;
use crate::tools;

/// See there.
pub fn run(context: &mut Context) -> Result<()> {
    match tools::missing_compiler() {
        Some(why) => context.skip("all of it", &why),
        None => context.pytest("python")?,
    }
    Ok(())
}
