//! The suite `tensorflow`: libbfc in lock step with TensorFlow's own allocator.
//! See ffi-tests/tensorflow.

use anyhow::Result;

use super::context::Context;
use crate::tools;

/// See there.
pub fn run(context: &mut Context) -> Result<()> {
    match tools::missing_compiler() {
        Some(why) => context.skip("all of it", &why),
        None => context.pytest("tensorflow")?,
    }
    Ok(())
}
