//! From the paths in the code to the files that define what they name.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{Crate, Kind, Mention, Name};

/// One file that needs another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    /// The files, by their paths in the project.
    pub from: String,
    /// Where in the first.
    pub line: usize,
    pub to: String,
    /// As it is written there.
    pub path: String,
}

/// What a path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Module(usize),
    /// An item that is defined in this file, or one in a module of it that no source shows: a macro makes it.
    Item(usize),
}

/// What a path leads to, and the files with the imports that lead there.
#[derive(Default)]
struct Found {
    targets: BTreeSet<Target>,
    through: BTreeSet<usize>,
}

/// The imports between the files of a crate whose source is in this folder, in the order of files and lines. A file that
/// passes a name on by `pub use` is imported as well as the file that defines it.
pub fn imports(folder: &str, of: &Crate) -> Vec<Import> {
    let file = |file: usize| format!("{folder}/{}", of.files[file]);
    let (mut explicit, mut implied) = (BTreeSet::new(), BTreeMap::new());
    for mention in &of.mentions {
        let from = of.modules[mention.module].file;
        for to in files(of, mention).into_iter().filter(|to| *to != from) {
            let path = mention.path.join("::");
            let path = if mention.kind == Kind::Glob { format!("{path}::*") } else { path };
            let import = Import { from: file(from), to: file(to), line: mention.line, path };
            if is_explicit(mention) {
                explicit.insert(import);
            } else {
                implied.entry((import.from.clone(), import.to.clone())).or_insert(import);
            }
        }
    }
    // What an import is used for is no other one, unless it leads elsewhere.
    let known: BTreeSet<_> = explicit.iter().map(|import| (import.from.clone(), import.to.clone())).collect();
    explicit.extend(implied.into_iter().filter(|(pair, _)| !known.contains(pair)).map(|(_, import)| import));
    explicit.into_iter().collect()
}

/// Whether a mention needs no import that makes its first word known.
fn is_explicit(mention: &Mention) -> bool {
    let is_import = matches!(mention.kind, Kind::Import | Kind::Glob);
    is_import || mention.path.first().is_some_and(|word| ["crate", "self", "super"].contains(&&**word))
}

/// The files that a mention needs.
fn files(of: &Crate, mention: &Mention) -> BTreeSet<usize> {
    let found = match (mention.kind, &mention.path[..]) {
        (Kind::Macro, [name]) => macro_named(of, mention.module, name),
        (_, path) => resolve(of, mention.module, path, &mut Vec::new()),
    };
    let mut files = found.through;
    for target in found.targets {
        match target {
            Target::Item(file) => drop(files.insert(file)),
            // A single word in the code names no module; what follows the name of one is resolved by itself.
            Target::Module(_) if mention.kind == Kind::Inline && mention.path.len() == 1 => {}
            // The name of a module around this one says nothing yet; all of its names do.
            Target::Module(module)
                if mention.kind == Kind::Import && is_around(of, module, mention.module) => {}
            Target::Module(module) => drop(files.insert(of.modules[module].file)),
        }
    }
    files
}

/// Whether a module is the other or has it inside.
fn is_around(of: &Crate, outer: usize, inner: usize) -> bool {
    let mut next = Some(inner);
    while let Some(module) = next {
        if module == outer {
            return true;
        }
        next = of.modules[module].parent;
    }
    false
}

/// A macro that is called by one word: one in scope, else one of the modules around, which need not be imported.
fn macro_named(of: &Crate, module: usize, name: &str) -> Found {
    let found = lookup(of, module, name, false, &mut Vec::new());
    if !found.targets.is_empty() {
        return found;
    }
    let mut next = Some(module);
    while let Some(module) = next {
        if let Some(file) = of.modules[module].macros.get(name) {
            return Found { targets: [Target::Item(*file)].into(), ..Found::default() };
        }
        next = of.modules[module].parent;
    }
    Found::default()
}

/// Names that are being looked up, so that imports in a circle end.
type Busy = Vec<(usize, String)>;

/// What a path in a module leads to; nothing if it leads out of the crate.
fn resolve(of: &Crate, module: usize, path: &[String], busy: &mut Busy) -> Found {
    let Some((first, rest)) = path.split_first() else {
        return Found::default();
    };
    let mut found = match &**first {
        "crate" => Found { targets: [Target::Module(0)].into(), ..Found::default() },
        "self" => Found { targets: [Target::Module(module)].into(), ..Found::default() },
        "super" => parent(of, module),
        first => lookup(of, module, first, !rest.is_empty(), busy),
    };
    for (place, word) in rest.iter().enumerate() {
        let is_prefix = place + 1 < rest.len();
        let mut next = Found { targets: BTreeSet::new(), through: found.through };
        for target in found.targets {
            let Target::Module(module) = target else {
                // What comes behind a type belongs to it.
                next.targets.insert(target);
                continue;
            };
            let inner = match &**word {
                "super" => parent(of, module),
                "self" => Found { targets: [target].into(), ..Found::default() },
                word => lookup(of, module, word, is_prefix, busy),
            };
            next.through.extend(inner.through);
            if inner.targets.is_empty() {
                next.targets.insert(Target::Item(of.modules[module].file));
            }
            next.targets.extend(inner.targets);
        }
        found = next;
    }
    found
}

fn parent(of: &Crate, module: usize) -> Found {
    let targets = of.modules[module].parent.map(Target::Module).into_iter().collect();
    Found { targets, ..Found::default() }
}

/// What a name means in a module: by what is defined and imported there, else by what its glob imports bring.
/// Before `::` a module is meant where there is one, and not a function that has its name.
fn lookup(of: &Crate, module: usize, name: &str, is_prefix: bool, busy: &mut Busy) -> Found {
    let mut found = Found::default();
    let key = (module, name.to_owned());
    if busy.contains(&key) {
        return found;
    }
    busy.push(key);
    let own = &of.modules[module];
    let meanings = own.names.get(name).map_or(&[][..], Vec::as_slice);
    let is_module = |means: &&Name| matches!(means, Name::Module(_));
    let module_is_meant = is_prefix && meanings.iter().any(|means| is_module(&means));
    for means in meanings.iter().filter(|means| !module_is_meant || is_module(means)) {
        match means {
            Name::Module(module) => drop(found.targets.insert(Target::Module(*module))),
            Name::Item(file) => drop(found.targets.insert(Target::Item(*file))),
            Name::Import(path) => {
                let inner = resolve(of, module, path, busy);
                // A name of another crate is as good as defined by the file that passes it on.
                if inner.targets.is_empty() {
                    found.targets.insert(Target::Item(own.file));
                }
                found.targets.extend(inner.targets);
                found.through.extend(inner.through);
                found.through.insert(own.file);
            }
        }
    }
    if found.targets.is_empty() {
        for glob in &own.globs {
            let modules = resolve(of, module, glob, busy);
            for target in modules.targets {
                let Target::Module(inner) = target else {
                    continue;
                };
                let inner = lookup(of, inner, name, is_prefix, busy);
                if !inner.targets.is_empty() {
                    found.targets.extend(inner.targets);
                    found.through.extend(inner.through);
                    found.through.extend(&modules.through);
                    found.through.insert(own.file);
                }
            }
        }
    }
    busy.pop();
    found
}
