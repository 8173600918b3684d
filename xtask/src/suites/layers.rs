//! The suite `layers`.

use anyhow::{Context as _, Result};

use super::context::Context;
use crate::files;
use crate::gates::layers::{self, Source};

/// Reads src/ and looks at its imports.
pub fn run(context: &mut Context) -> Result<()> {
    let sources = sources(context)?;
    context.gate("imports go down only", &layers::violations(&sources));
    context.gate("the driver is for its backends only", &layers::drivers(&sources));
    context.gate("the engine knows numbers only", &layers::worldly(&sources));
    Ok(())
}

/// The library's files.
pub fn sources(context: &Context) -> Result<Vec<Source>> {
    let folder = context.workspace.path("src");
    let read = |path: &std::path::PathBuf| -> Result<Source> {
        let inside = path.strip_prefix(&folder).context("it lies in src")?;
        Ok((inside.to_string_lossy().into_owned(), files::read(path)?))
    };
    files::below(&folder, "rs")?.iter().map(read).collect()
}
