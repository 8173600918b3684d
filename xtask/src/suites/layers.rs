//! The suite `layers`.

use anyhow::{Context as _, Result};

use super::context::Context;
use crate::files;
use crate::gates::layers::{self, Source};
use crate::gates::rooms::{self, LAYERS, TREES};
use crate::module_graph::ModuleGraph;

/// Reads src/ and the other folders with rooms, and looks at their imports.
pub fn run(context: &mut Context) -> Result<()> {
    let sources = sources(context)?;
    context.gate("imports go down only", &layers::violations(&sources));
    context.gate("the driver is for its backends only", &layers::drivers(&sources));
    context.gate("the engine knows numbers only", &layers::worldly(&sources));
    let read = |tree: &rooms::Tree| ModuleGraph::read(&context.workspace.root, tree.crate_folder);
    let library = read(&LAYERS)?;
    let graphs = TREES.iter().map(read).collect::<Result<Vec<_>>>()?;
    context.gate("paths go down only", &rooms::steps_up(&LAYERS, &library));
    for (tree, graph) in TREES.iter().zip(&graphs) {
        let name = format!("{}: no import circle, no step up", tree.folder);
        context.gate(&name, &rooms::violations(tree, graph));
    }
    Ok(())
}

/// The library's files, by their paths in src.
pub fn sources(context: &Context) -> Result<Vec<Source>> {
    sources_in(context, "src")
}

/// The Rust files of a folder of the project, by their paths in it.
pub fn sources_in(context: &Context, folder: &str) -> Result<Vec<Source>> {
    let folder = context.workspace.path(folder);
    let read = |path: &std::path::PathBuf| -> Result<Source> {
        let inside = path.strip_prefix(&folder).context("it lies in the folder")?;
        Ok((inside.to_string_lossy().into_owned(), files::read(path)?))
    };
    files::below(&folder, "rs")?.iter().map(read).collect()
}
