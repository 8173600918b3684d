//! The suite `layers`: see ffi-tests/layers.

use anyhow::Result;

use super::context::Context;

/// Reads the sources, and builds nothing.
pub fn run(context: &mut Context) -> Result<()> {
    context.pytest_alone("layers")
}
