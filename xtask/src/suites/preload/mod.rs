//! The suite `preload`: libbfc_preload.so, and programs that know nothing of it, on the simulated driver.

mod stage;

use anyhow::Result;

use super::context::Context;
use crate::tools;
use stage::{Link, Stage};

/// Builds interposer and simulation, and runs programs on both.
pub fn run(context: &mut Context) -> Result<()> {
    if !tools::works(&tools::c_compiler()) {
        context.skip("all of it", &format!("there is no {}", tools::c_compiler().display()));
        return Ok(());
    }
    let stage = Stage::build(context)?;
    let smoke = stage.compile(context, "smoke", "smoke.c", Link::Runtime(12), &[])?;
    let run = stage.run(context, &smoke)?;
    stage.served(context, "a program linked to libcudart.so.12", run);
    Ok(())
}
