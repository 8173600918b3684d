//! The suite `preload`: libbfc_preload.so, and programs that know nothing of it, on the simulated driver.

mod behaviour;
mod chains;
mod deaths;
mod differences;
mod manners;
mod nvidia;
pub mod races;
mod reach;
mod records;
mod shape;
mod stage;

use anyhow::Result;

use super::context::Context;
use crate::tools;
use stage::Stage;

/// Builds interposer and simulation, and runs programs on both.
pub fn run(context: &mut Context) -> Result<()> {
    if !tools::works(&tools::c_compiler()) {
        context.skip("all of it", &format!("there is no {}", tools::c_compiler().display()));
        return Ok(());
    }
    let stage = Stage::build(context)?;
    shape::run(context, &stage)?;
    reach::run(context, &stage)?;
    chains::run(context, &stage)?;
    nvidia::run(context, &stage)?;
    behaviour::run(context, &stage)?;
    records::run(context, &stage)?;
    manners::run(context, &stage)?;
    deaths::run(context, &stage)?;
    races::run(context)?;
    Ok(())
}
