//! `cargo xtask header`: the checked-in headers are copies of the generated ones.

use anyhow::Result;

use crate::cargo::{self, Profile};
use crate::files;
use crate::workspace::Workspace;

/// Copies the generated headers to include/, and says whether anything changed.
pub fn copy(workspace: &Workspace) -> Result<()> {
    let built = cargo::build(workspace, Profile::Debug)?;
    for (generated, name) in built.headers.iter().zip(cargo::HEADERS) {
        let generated = files::read(generated)?;
        let path = workspace.path("include").join(name);
        if path.exists() && files::read(&path)? == generated {
            println!("include/{name} is up to date");
            continue;
        }
        files::write(&path, generated)?;
        println!("include/{name} is new; look at it with `git diff include/{name}`");
    }
    Ok(())
}
