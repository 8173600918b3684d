//! The suite `transformers`: GPT-2, BERT and ViT train on the simulated driver, with and without `bfc.torch`. See ffi-tests/transformers.

use anyhow::Result;

use super::context::Context;
use crate::tools;

/// See there.
pub fn run(context: &mut Context) -> Result<()> {
    match tools::missing_compiler() {
        Some(why) => context.skip("all of it", &why),
        None => context.pytest("transformers")?,
    }
    Ok(())
}
