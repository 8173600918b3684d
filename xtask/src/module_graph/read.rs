//! Reading a crate: from its root along the `mod` declarations, leaving out what is for tests only.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use proc_macro2::Ident;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ImplItem, Item, Lit, Meta, Path, Stmt, TraitItem, UseTree};

use super::cfg::is_test_only;
use super::source::{Crate, Kind, Mention, Name};
use super::tokens;

/// Reads the crate whose root is this file; the texts are by their paths from the crate's source folder.
pub fn read(root: &str, texts: &BTreeMap<String, String>) -> Result<Crate> {
    let mut found = Crate { files: vec![root.to_owned()], ..Crate::default() };
    let module = found.add_module(None, 0);
    read_file(&mut found, texts, module, "")?;
    Ok(found)
}

/// Reads the file of a module and the modules that it declares, which are in this folder.
fn read_file(found: &mut Crate, texts: &BTreeMap<String, String>, module: usize, folder: &str) -> Result<()> {
    let path = found.files[found.modules[module].file].clone();
    let text = texts.get(&path).with_context(|| format!("there is no {path}"))?;
    let parsed = syn::parse_file(text).with_context(|| format!("cannot parse {path}"))?;
    let mut reader = Reader { found, module, path: &path, folder: folder.to_owned(), declared: Vec::new() };
    reader.visit_file(&parsed);
    // Children come after, so that this file's macros are known to be its own.
    for Declared { module: parent, name, folder, path: given, uses_macros } in reader.declared {
        let (beside, inside) = (format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs"));
        let own = match &given {
            Some(given) => [beside_of(&path, given)].into_iter().find(|path| texts.contains_key(path)),
            None => [beside, inside].into_iter().find(|path| texts.contains_key(path)),
        };
        let Some(own) = own else {
            // A `#[path]` leads to a file that belongs to another crate.
            if given.is_none() {
                found.not_understood.push(format!("{path}: mod {name} has no file"));
            }
            let file = found.modules[parent].file;
            found.modules[parent].name(&name, Name::Item(file));
            continue;
        };
        found.files.push(own);
        let child = found.add_module(Some(parent), found.files.len() - 1);
        found.modules[parent].name(&name, Name::Module(child));
        read_file(found, texts, child, &format!("{folder}{name}/"))?;
        if uses_macros {
            let macros = found.modules[child].macros.clone();
            found.modules[parent].macros.extend(macros);
        }
    }
    Ok(())
}

/// A path that is relative to a file's folder.
fn beside_of(file: &str, given: &str) -> String {
    match file.rsplit_once('/') {
        Some((folder, _)) => format!("{folder}/{given}"),
        None => given.to_owned(),
    }
}

/// A module that has a file of its own.
struct Declared {
    module: usize,
    name: String,
    folder: String,
    path: Option<String>,
    uses_macros: bool,
}

/// Reads one file.
struct Reader<'a> {
    found: &'a mut Crate,
    /// The module that the code is in.
    module: usize,
    path: &'a str,
    /// Where the files of the module's children are.
    folder: String,
    declared: Vec<Declared>,
}

impl Reader<'_> {
    fn define(&mut self, name: &Ident) {
        let module = &mut self.found.modules[self.module];
        module.name(name.to_string(), Name::Item(module.file));
    }

    fn mention(&mut self, path: Vec<String>, line: usize, kind: Kind) {
        self.found.mentions.push(Mention { module: self.module, path, line, kind });
    }

    fn import(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.import(&path.tree, prefix);
                prefix.pop();
            }
            UseTree::Name(name) => self.import_one(prefix, &name.ident, &name.ident),
            UseTree::Rename(rename) => self.import_one(prefix, &rename.ident, &rename.rename),
            UseTree::Glob(glob) => {
                let line = glob.star_token.spans[0].start().line;
                self.found.modules[self.module].globs.push(prefix.clone());
                self.mention(prefix.clone(), line, Kind::Glob);
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, prefix)),
        }
    }

    fn import_one(&mut self, prefix: &[String], name: &Ident, known_as: &Ident) {
        let mut path = prefix.to_vec();
        let mut known_as = known_as.to_string();
        if name == "self" {
            if known_as == "self" {
                known_as = path.last().cloned().unwrap_or_default();
            }
        } else {
            path.push(name.to_string());
        }
        self.mention(path.clone(), name.span().start().line, Kind::Import);
        self.found.modules[self.module].name(known_as, Name::Import(path));
    }

    fn module(&mut self, item: &syn::ItemMod) {
        let name = item.ident.to_string();
        let is_macro_use = item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_use"));
        let Some((_, items)) = &item.content else {
            let (module, folder) = (self.module, self.folder.clone());
            let path = item.attrs.iter().find_map(path_attribute);
            self.declared.push(Declared { module, name, folder, path, uses_macros: is_macro_use });
            return;
        };
        let (parent, file) = (self.module, self.found.modules[self.module].file);
        let child = self.found.add_module(Some(parent), file);
        self.found.modules[parent].name(&name, Name::Module(child));
        let folder = format!("{}{name}/", self.folder);
        let outer = std::mem::replace(&mut self.folder, folder);
        self.module = child;
        items.iter().for_each(|item| self.visit_item(item));
        (self.module, self.folder) = (parent, outer);
        if is_macro_use {
            let macros = self.found.modules[child].macros.clone();
            self.found.modules[parent].macros.extend(macros);
        }
    }

    fn macro_rules(&mut self, name: &Ident, attributes: &[Attribute]) {
        self.define(name);
        let module = &mut self.found.modules[self.module];
        let file = module.file;
        module.macros.insert(name.to_string(), file);
        if attributes.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
            self.found.modules[0].name(name.to_string(), Name::Item(file));
        }
    }
}

fn line_of(path: &Path) -> usize {
    path.segments.first().map_or(0, |segment| segment.ident.span().start().line)
}

/// The file that a `#[path = "..."]` names.
fn path_attribute(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else {
        return None;
    };
    match &pair.value {
        Expr::Lit(literal) if pair.path.is_ident("path") => match &literal.lit {
            Lit::Str(path) => Some(path.value()),
            _ => None,
        },
        _ => None,
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test_only(attributes(item)) {
            return;
        }
        match item {
            Item::Mod(item) => return self.module(item),
            Item::Use(item) if item.leading_colon.is_none() => {
                return self.import(&item.tree, &mut Vec::new());
            }
            Item::Use(_) | Item::ExternCrate(_) => return,
            Item::Const(item) => self.define(&item.ident),
            Item::Enum(item) => self.define(&item.ident),
            Item::Fn(item) => self.define(&item.sig.ident),
            Item::Static(item) => self.define(&item.ident),
            Item::Struct(item) => self.define(&item.ident),
            Item::Trait(item) => self.define(&item.ident),
            Item::TraitAlias(item) => self.define(&item.ident),
            Item::Type(item) => self.define(&item.ident),
            Item::Union(item) => self.define(&item.ident),
            Item::Macro(item) => {
                if let Some(name) = &item.ident {
                    self.macro_rules(name, &item.attrs);
                }
            }
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_foreign_item(&mut self, item: &'ast syn::ForeignItem) {
        match item {
            syn::ForeignItem::Fn(item) => self.define(&item.sig.ident),
            syn::ForeignItem::Static(item) => self.define(&item.ident),
            syn::ForeignItem::Type(item) => self.define(&item.ident),
            _ => {}
        }
        visit::visit_foreign_item(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !is_test_only(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = match item {
            TraitItem::Const(item) => &item.attrs,
            TraitItem::Fn(item) => &item.attrs,
            TraitItem::Macro(item) => &item.attrs,
            TraitItem::Type(item) => &item.attrs,
            _ => return visit::visit_trait_item(self, item),
        };
        if !is_test_only(attributes) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_test_only(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        if !is_test_only(&variant.attrs) {
            visit::visit_variant(self, variant);
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if !is_test_only(&arm.attrs) {
            visit::visit_arm(self, arm);
        }
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        if !is_test_only(&field.attrs) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let attributes: &[Attribute] = match statement {
            Stmt::Local(local) => &local.attrs,
            Stmt::Macro(called) => &called.attrs,
            Stmt::Expr(Expr::Block(inner), _) => &inner.attrs,
            Stmt::Expr(Expr::Call(inner), _) => &inner.attrs,
            Stmt::Expr(Expr::If(inner), _) => &inner.attrs,
            Stmt::Expr(Expr::MethodCall(inner), _) => &inner.attrs,
            Stmt::Expr(..) | Stmt::Item(_) => &[],
        };
        if !is_test_only(attributes) {
            visit::visit_stmt(self, statement);
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none() {
            let words = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.mention(words, line_of(path), Kind::Inline);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        let path = &called.path;
        if path.leading_colon.is_none() && !path.is_ident("macro_rules") {
            let words: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let line = line_of(path);
            if words == ["include"] {
                self.found.not_understood.push(format!("{}:{line}: include! is not followed", self.path));
            }
            self.mention(words, line, Kind::Macro);
        }
        for (path, line, kind) in tokens::paths(called.tokens.clone()) {
            self.mention(path, line, kind);
        }
    }

    /// Says who sees an item, and imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
