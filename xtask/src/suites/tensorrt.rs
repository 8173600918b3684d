//! The suite `tensorrt`: libbfc's allocator against TensorRT's headers, on the simulated driver. See ffi-tests/tensorrt.

use anyhow::Result;

use super::context::Context;
use crate::tools;

/// Compiles against each version, and runs the cases with that of TensorRT itself.
pub fn run(context: &mut Context) -> Result<()> {
    match tools::missing_compiler() {
        Some(why) => context.skip("all of it", &why),
        None => context.pytest("tensorrt")?,
    }
    Ok(())
}
