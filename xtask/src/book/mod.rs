//! `cargo xtask book`: docs/ as a book, with the C API from the headers.
//!
//! The sources stay in docs/, and links between them are those of the file tree. What mdBook builds is a copy, in which the
//! chapters of the API lie beside them, and names of functions are links to these.

pub mod tool;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::api::{self, Api, Chapter};
use crate::cargo::{self, Profile};
use crate::files;
use crate::pages;
use crate::workspace::{Ended, Workspace};

/// What the chapters of the API stand below, in docs/SUMMARY.md.
const ABOVE_THE_API: &str = "- [The C API](api.md)\n";

/// What `cargo xtask book` takes.
#[derive(Args)]
pub struct Book {
    /// Open it in the browser
    #[arg(long)]
    open: bool,
}

impl Book {
    /// Builds the book.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let command = cargo::build(workspace, Profile::Debug)?.command;
        let made = assemble(workspace, &command)?;
        for line in &made.wrong {
            eprintln!("warning: {line}");
        }
        let built = build(workspace, &tool::find(workspace)?, &made.source)?;
        if !built.success {
            bail!("mdbook: {}\n{}", built.status, built.text);
        }
        let page = folder(workspace).join("index.html");
        println!("{}", page.display());
        if self.open {
            open(workspace, &page)?;
        }
        Ok(())
    }
}

/// Where the book is, once it is built.
pub fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("book")
}

/// What mdBook is given.
pub struct Source {
    /// The folder.
    pub source: PathBuf,
    /// The API, from which some of it was made.
    pub chapters: Vec<Chapter>,
    /// What the headers have that no chapter has a place for.
    pub wrong: Vec<String>,
}

/// Puts the source together: docs/, and what is made.
pub fn assemble(workspace: &Workspace, command: &Path) -> Result<Source> {
    let source = workspace.target.join("xtask/book");
    files::remove_all(&source)?;
    files::copy_all(&workspace.path("docs"), &source)?;
    let Api { mut chapters, places, wrong } = api::chapters(workspace)?;
    let of_headers = chapters.len();
    let text = api::command_page(workspace, command)?;
    chapters.push(Chapter { title: "The bfc command".to_owned(), path: "command.md".to_owned(), text });
    api::write(&chapters, &source)?;
    for path in files::below(&workspace.path("docs"), "md")? {
        let inside = path.strip_prefix(workspace.path("docs"))?;
        files::write(&source.join(inside), api::linked(&files::read(&path)?, &places))?;
    }
    let summary = files::read(&workspace.path("docs/SUMMARY.md"))?;
    let (headers, command) = chapters.split_at(of_headers);
    files::write(&source.join("SUMMARY.md"), with_chapters(&summary, headers, command)?)?;
    Ok(Source { source, chapters, wrong })
}

/// The table of contents with the chapters that are made.
fn with_chapters(summary: &str, headers: &[Chapter], others: &[Chapter]) -> Result<String> {
    let (before, after) = summary
        .split_once(ABOVE_THE_API)
        .with_context(|| format!("docs/SUMMARY.md has no line {}", ABOVE_THE_API.trim_end()))?;
    let line = |indent: &str, chapter: &Chapter| format!("{indent}- [{}]({})\n", chapter.title, chapter.path);
    let below: String = headers.iter().map(|chapter| line("  ", chapter)).collect();
    let beside: String = others.iter().map(|chapter| line("", chapter)).collect();
    Ok(format!("{before}{ABOVE_THE_API}{below}{beside}{after}"))
}

/// Has mdBook build it.
pub fn build(workspace: &Workspace, mdbook: &Path, source: &Path) -> Result<Ended> {
    let folder = folder(workspace);
    files::remove_all(&folder)?;
    let mut command = workspace.command(mdbook);
    // Its variables are settings of the book.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("MDBOOK_") {
            command.env_remove(name);
        }
    }
    command.arg("build").arg(source).arg("--dest-dir").arg(&folder).env_remove("RUST_LOG");
    workspace.run("mdbook", command)
}

fn open(workspace: &Workspace, page: &Path) -> Result<()> {
    let Some(opener) = ["xdg-open", "open"].into_iter().find_map(files::program) else {
        bail!("there is no xdg-open: open {} yourself", page.display());
    };
    let status = workspace.command(opener).arg(page).status()?;
    if status.success() { Ok(()) } else { bail!("the browser did not start: {status}") }
}

/// Pages of docs/ that the table of contents leaves out.
pub fn left_out(workspace: &Workspace) -> Result<Vec<String>> {
    let summary = files::read(&workspace.path("docs/SUMMARY.md"))?;
    let pages = pages::all(workspace)?;
    let pages = pages.iter().filter_map(|(path, _)| path.strip_prefix("docs/"));
    Ok(not_in(&summary, &pages.collect::<Vec<_>>()))
}

fn not_in(summary: &str, pages: &[&str]) -> Vec<String> {
    let left = pages.iter().filter(|page| !summary.contains(&format!("]({page})")));
    left.map(|page| format!("docs/{page} is not in docs/SUMMARY.md")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = "# Summary\n\n- [A](a.md)\n- [The C API](api.md)\n- [Z](z.md)\n";

    fn chapter(title: &str, path: &str) -> Chapter {
        Chapter { title: title.to_owned(), path: path.to_owned(), text: String::new() }
    }

    #[test]
    fn chapters_come_below_the_api() {
        let [header, other] = [chapter("bfc.h", "api/bfc-h.md"), chapter("The command", "command.md")];
        let summary = with_chapters(SUMMARY, &[header], &[other]).expect("it has the line");
        let expected =
            "- [The C API](api.md)\n  - [bfc.h](api/bfc-h.md)\n- [The command](command.md)\n- [Z](z.md)\n";
        assert!(summary.ends_with(expected), "{summary}");
        assert!(with_chapters("# Summary\n", &[], &[]).is_err());
    }

    #[test]
    fn a_page_that_is_left_out_is_found() {
        assert!(not_in(SUMMARY, &["a.md", "api.md"]).is_empty());
        assert_eq!(not_in(SUMMARY, &["a.md", "new.md"]), ["docs/new.md is not in docs/SUMMARY.md"]);
    }
}
