//! The suite `doc`: the documentation.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::context::{Context, Count};
use crate::gates::links;
use crate::{cargo, files, hooks};

/// rustdoc's warnings are errors, its examples run, and links lead somewhere.
pub fn run(context: &mut Context) -> Result<()> {
    // Each by itself: the library and the command are both called bfc, and their pages would collide.
    for package in ["bfc", "xtask"] {
        let mut command = cargo::cargo(&context.workspace, &["doc", "--no-deps"]);
        command.arg(format!("--package={package}"));
        command.env("RUSTDOCFLAGS", "-D warnings");
        context.program(&format!("cargo doc, {package}"), command, Count::One)?;
    }
    let root = context.workspace.root.clone();
    let mut pages = files::entries(&root)?;
    pages.retain(|path| path.extension().is_some_and(|end| end == "md"));
    for folder in ["docs", "ffi-tests", "fuzz", "tests"] {
        pages.extend(files::below(&root.join(folder), "md")?);
    }
    links(context, "links in the source's pages", &pages)?;
    let installed = context.prefix()?.join("share/doc/bfc");
    links(context, "links in the installed pages", &files::below(&installed, "md")?)?;

    let is_made = files::read(&root.join(hooks::PAGE))? == hooks::page();
    let wrong = if is_made { vec![] } else { vec!["it is not what `cargo xtask hooks` makes".to_owned()] };
    context.gate("docs/hooks.md is made from the list of hooks", &wrong);

    let command = cargo::cargo(&context.workspace, &["test", "--doc", "--package=bfc"]);
    let command = context.plain(command);
    context.program("examples in the documentation", command, Count::Cargo)?;
    Ok(())
}

fn links(context: &mut Context, name: &str, pages: &[PathBuf]) -> Result<()> {
    if pages.is_empty() {
        bail!("{name}: there is no page");
    }
    let mut wrong = Vec::new();
    for page in pages {
        let folder = page.parent().unwrap_or(Path::new("."));
        wrong.extend(links::broken(&page.display().to_string(), &files::read(page)?, folder));
    }
    context.gate(name, &wrong);
    Ok(())
}
