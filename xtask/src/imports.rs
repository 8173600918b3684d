//! `cargo xtask imports`: the import circles of a folder, without the gate.

use std::path::Path;

use anyhow::{Context, Result};
use clap::Args;

use crate::gates::rooms::{self, TREES, Tree};
use crate::module_graph::ModuleGraph;
use crate::workspace::Workspace;

/// What `cargo xtask imports` takes.
#[derive(Args)]
pub struct Imports {
    /// Folders of Rust files in a crate of the project, such as src/core; without one all that have rooms
    #[arg(value_name = "FOLDER")]
    folders: Vec<String>,
    /// Print every import between files of the folder as well
    #[arg(long)]
    all: bool,
}

impl Imports {
    /// Prints what there is.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        if self.folders.is_empty() {
            return TREES.iter().try_for_each(|tree| self.print(workspace, tree.folder));
        }
        self.folders.iter().try_for_each(|folder| self.print(workspace, folder.trim_end_matches('/')))
    }

    fn print(&self, workspace: &Workspace, folder: &str) -> Result<()> {
        let source = crate_folder(&workspace.root, folder)?;
        let graph = ModuleGraph::read(&workspace.root, &source)?;
        if self.all {
            for import in rooms::within(folder, &graph) {
                println!("{}", rooms::told(&import));
            }
        }
        let mut found = rooms::circles(folder, &graph);
        let tree = [&rooms::LAYERS].into_iter().chain(TREES).find(|tree: &&Tree| tree.folder == folder);
        found.extend(tree.map(|tree| rooms::steps_up(tree, &graph)).unwrap_or_default());
        if found.is_empty() {
            println!("{folder}: no circle of imports{}", if tree.is_some() { ", no step up" } else { "" });
        }
        found.iter().for_each(|line| println!("{line}"));
        Ok(())
    }
}

/// The folder with the root of the crate that a folder belongs to.
fn crate_folder(project: &Path, folder: &str) -> Result<String> {
    let is_root =
        |path: &&Path| ["lib.rs", "main.rs"].iter().any(|root| project.join(path).join(root).is_file());
    let source = Path::new(folder).ancestors().find(is_root);
    let source = source.with_context(|| format!("{folder} is no folder of a crate of the project"))?;
    Ok(source.to_string_lossy().into_owned())
}
