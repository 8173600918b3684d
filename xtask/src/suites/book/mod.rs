//! The suite `book`: the book is whole, its links lead somewhere, what its pages promise of commands is so, and the code on
//! the pages that are this suite's runs.

mod programs;
mod promises;
mod shell;
mod site;

use anyhow::Result;

use super::context::Context;
use crate::api;
use crate::book;
use crate::cargo::Profile;
use crate::files;
use crate::gates;
use crate::pages;
use crate::pages::exceptions::EXCEPTIONS;
use crate::pages::owned::Owned;
use crate::pages::owners::{self, BOOK, OWNERS};
use crate::workspace::Workspace;

/// All of it.
pub fn run(context: &mut Context) -> Result<()> {
    tables(context)?;
    the_book(context)?;
    promises::run(context)?;
    let prefix = context.prefix()?;
    let pages = Owned::of_suite(&context.workspace, BOOK)?;
    for page in &pages {
        programs::run(context, page, &prefix)?;
    }
    shell::run(context, &pages, &prefix)?;
    context.all_ran(&pages);
    Ok(())
}

/// Every page has an owner, every exception a block.
fn tables(context: &mut Context) -> Result<()> {
    let pages = pages::all(&context.workspace)?;
    let sources = sources(&context.workspace)?;
    let wrong = owners::wrong(&pages, OWNERS, EXCEPTIONS, &super::names(), &sources);
    context.gate("every page has a suite that runs its code", &wrong);
    context.gate("every page is in the book", &book::left_out(&context.workspace)?);
    Ok(())
}

/// The suites of xtask.
fn sources(workspace: &Workspace) -> Result<Vec<pages::Page>> {
    let paths = files::below(&workspace.path("xtask/src/suites"), "rs")?;
    let read = |path: std::path::PathBuf| Ok((path.display().to_string(), files::read(&path)?));
    paths.into_iter().map(read).collect()
}

/// Builds it, and looks at what came of it.
fn the_book(context: &mut Context) -> Result<()> {
    let command = context.built(Profile::Release)?.command.clone();
    let made = book::assemble(&context.workspace, &command)?;
    let list = files::read(&context.workspace.path("ffi-tests/symbols.txt"))?;
    let mut wrong = made.wrong;
    wrong.extend(api::differences(&list, &made.chapters));
    context.gate("every function and constant is explained once", &wrong);

    let mdbook = book::tool::find(&context.workspace);
    let Some(mdbook) = context.or_skip("the book itself", mdbook)? else { return Ok(()) };
    let built = book::build(&context.workspace, &mdbook, &made.source)?;
    context.check("mdBook builds it", |_| match built.success {
        true => Ok(()),
        false => anyhow::bail!("{}", built.complaint()),
    });
    context.gate("mdBook has nothing to complain of", &gates::book::warnings(&built.text));
    let site = site::read(&book::folder(&context.workspace))?;
    context.gate("links in the book", &gates::book::wrong(&site));
    Ok(())
}
