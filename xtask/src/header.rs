//! `cargo xtask header`: the checked-in header is a copy of the generated one.

use anyhow::Result;

use crate::cargo::{self, Profile};
use crate::files;
use crate::workspace::Workspace;

/// Copies the generated header to include/bfc.h, and says whether anything changed.
pub fn copy(workspace: &Workspace) -> Result<()> {
    let generated = files::read(&cargo::build(workspace, Profile::Debug)?.header)?;
    let path = workspace.path("include/bfc.h");
    if path.exists() && files::read(&path)? == generated {
        println!("include/bfc.h is up to date");
        return Ok(());
    }
    files::write(&path, generated)?;
    println!("include/bfc.h is new; look at it with `git diff include/bfc.h`");
    Ok(())
}
