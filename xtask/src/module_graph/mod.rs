//! Which file of a crate needs which other, by the paths in its source.
//!
//! The source is parsed (`syn`) and not compiled, so this takes a fraction of a second and needs no build of the crate.
//! Every path is resolved over the tree of modules: of `use` declarations, inline ones, and those among a macro's tokens.
//! Code for tests only is left out. A call of a method names no path and is not seen, nor is a name that a macro makes up:
//! a path to it counts as one to the module it would be in.

mod cfg;
mod circles;
mod read;
mod resolve;
mod source;
#[cfg(test)]
mod tests;
mod tokens;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

pub use self::circles::tangles;
pub use self::resolve::Import;
use crate::files;

/// The files of a crate that are not for tests only, and their imports of each other.
#[derive(Debug)]
pub struct ModuleGraph {
    /// Paths in the project.
    pub files: Vec<String>,
    pub imports: Vec<Import>,
    /// What could not be understood, one line each.
    pub not_understood: Vec<String>,
}

impl ModuleGraph {
    /// Reads a crate; its source is in this folder of the project.
    pub fn read(project: &Path, folder: &str) -> Result<Self> {
        let path = project.join(folder);
        let mut texts = BTreeMap::new();
        for file in files::below(&path, "rs")? {
            let inside = file.strip_prefix(&path).context("it lies in the folder")?;
            texts.insert(inside.to_string_lossy().into_owned(), files::read(&file)?);
        }
        Self::of(folder, &texts)
    }

    /// The same of texts, by their paths in the folder.
    pub fn of(folder: &str, texts: &BTreeMap<String, String>) -> Result<Self> {
        let root = ["lib.rs", "main.rs"].into_iter().find(|root| texts.contains_key(*root));
        let root = root.with_context(|| format!("{folder} has neither lib.rs nor main.rs"))?;
        let found = read::read(root, texts).with_context(|| format!("in {folder}"))?;
        let within = |path: &String| format!("{folder}/{path}");
        Ok(Self {
            files: found.files.iter().map(within).collect(),
            imports: resolve::imports(folder, &found),
            not_understood: found.not_understood.iter().map(within).collect(),
        })
    }
}
