//! What a crate's source says: its modules, the names in them, and the paths that it mentions.

use std::collections::BTreeMap;

/// A crate. Files and modules are numbers in its lists; module 0 is the crate's root.
#[derive(Debug, Default)]
pub struct Crate {
    /// Paths from the crate's source folder.
    pub files: Vec<String>,
    pub modules: Vec<Module>,
    /// Every path in code that is not for tests only.
    pub mentions: Vec<Mention>,
    /// What could not be understood, one line each.
    pub not_understood: Vec<String>,
}

/// A module, inline or of a file of its own.
#[derive(Debug, Default)]
pub struct Module {
    pub parent: Option<usize>,
    pub file: usize,
    /// One name can mean several things: a type, a value and a macro have a namespace each.
    pub names: BTreeMap<String, Vec<Name>>,
    /// What is before `::*` in its imports.
    pub globs: Vec<Vec<String>>,
    /// The `macro_rules!` of the module and of its `#[macro_use]` children, with their files: macros are visible in
    /// child modules without a path.
    pub macros: BTreeMap<String, usize>,
}

/// What a name in a module means.
#[derive(Clone, Debug, PartialEq)]
pub enum Name {
    /// A module.
    Module(usize),
    /// Another item, and the file that defines it.
    Item(usize),
    /// An import of this path, which others can import in turn.
    Import(Vec<String>),
}

/// A path in the code.
#[derive(Clone, Debug, PartialEq)]
pub struct Mention {
    /// The module in whose scope it is resolved.
    pub module: usize,
    pub path: Vec<String>,
    pub line: usize,
    pub kind: Kind,
}

/// How a path is mentioned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// In a `use`.
    Import,
    /// In a `use`, before `::*`.
    Glob,
    /// Inline: a type, a value, a pattern, a trait, or a word of a macro's tokens.
    Inline,
    /// A macro that is called.
    Macro,
}

impl Crate {
    /// Adds a module; its number.
    pub fn add_module(&mut self, parent: Option<usize>, file: usize) -> usize {
        self.modules.push(Module { parent, file, ..Module::default() });
        self.modules.len() - 1
    }
}

impl Module {
    /// Gives a name another meaning.
    pub fn name(&mut self, name: impl Into<String>, means: Name) {
        let meanings = self.names.entry(name.into()).or_default();
        if !meanings.contains(&means) {
            meanings.push(means);
        }
    }
}
