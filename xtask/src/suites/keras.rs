//! The suite `keras`: Keras trains with libbfc in the place of TensorFlow's own BFC allocator, on the CPU and with nothing simulated.
//! See ffi-tests/keras.

use anyhow::Result;

use super::context::Context;
use crate::tools;

/// See there.
pub fn run(context: &mut Context) -> Result<()> {
    match tools::missing_compiler() {
        Some(why) => context.skip("all of it", &why),
        None => context.pytest("keras")?,
    }
    Ok(())
}
