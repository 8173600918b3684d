//! The suite `onnxruntime`: the real ONNX Runtime runs a model with libbfc's memory. See ffi-tests/onnxruntime.

use anyhow::Result;

use super::context::Context;
use crate::tools;

/// With each version of the headers that can be had, and in Python.
pub fn run(context: &mut Context) -> Result<()> {
    match tools::missing_compiler() {
        Some(why) => context.skip("all of it", &why),
        None => context.pytest("onnxruntime")?,
    }
    Ok(())
}
