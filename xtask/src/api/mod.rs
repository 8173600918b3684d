//! The chapters of the book that are made from the headers, and from what the bfc command says of itself.
//!
//! They are made when the book is built and are not checked in: a header would otherwise stand twice, and each change of a
//! comment would be a change of two files. The file tree has docs/api.md, which says what is in which header.

mod c;
mod command;
mod cpp;
mod groups;
mod header;
mod words;

use std::path::Path;

use anyhow::{Context, Result};

use crate::files;
use crate::header::NAMES;
use crate::workspace::Workspace;

pub use command::{options, page as command_page};
pub use words::{Places, linked};

/// A chapter.
pub struct Chapter {
    /// Its title in the table of contents.
    pub title: String,
    /// Its file, from the book's root.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// All chapters of the API, and where each name is explained.
pub struct Api {
    /// In order.
    pub chapters: Vec<Chapter>,
    /// Of the C headers.
    pub places: Places,
    /// What is in no group, or in two.
    pub wrong: Vec<String>,
}

/// Reads the headers in include/ and makes their chapters.
pub fn chapters(workspace: &Workspace) -> Result<Api> {
    let (mut headers, mut texts) = (Vec::new(), Vec::new());
    for name in NAMES {
        let text = files::read(&workspace.path("include").join(name))?;
        headers.push((name, header::read(&text).with_context(|| format!("include/{name}"))?));
        texts.push(text);
    }
    let (mut places, mut wrong) = (Places::new(), Vec::new());
    for (name, header) in &headers {
        let path = path_of(name);
        let own = header.items.iter().map(|item| (item.name.clone(), format!("{path}#{}", item.name)));
        places.extend(own);
        places.insert((*name).to_owned(), path);
    }
    texts.iter().for_each(|text| wrong.extend(overlooked(text, &places)));
    let mut chapters = Vec::new();
    for (name, header) in &headers {
        let (text, amiss) = c::page(name, header, &places);
        chapters.push(Chapter { title: (*name).to_owned(), path: path_of(name), text });
        wrong.extend(amiss);
    }
    let mut sources = vec![workspace.path("include/bfc.hpp")];
    sources.extend(files::below(&workspace.path("include/bfc"), "hpp")?);
    for path in sources {
        let inside = path.strip_prefix(workspace.path("include"))?.display().to_string();
        let text = cpp::page(&inside, &files::read(&path)?, &places);
        chapters.push(Chapter { path: path_of(&inside), title: inside, text });
    }
    Ok(Api { chapters, places, wrong })
}

/// Constants of a header that were not read.
fn overlooked(header: &str, places: &Places) -> Vec<String> {
    let defined = header.lines().filter_map(|line| line.strip_prefix("#define ")?.split_once(' '));
    let left = defined.filter(|(name, _)| !places.contains_key(*name));
    left.map(|(name, _)| format!("{name} was not read from its header")).collect()
}

/// bfc/pmr.hpp is told in api/bfc-pmr-hpp.md.
fn path_of(header: &str) -> String {
    let name: String =
        header.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '-' }).collect();
    format!("api/{}.md", name.replace('_', "-"))
}

/// Functions of the list that the chapters do not explain exactly once, and functions that are not in the list.
pub fn differences(list: &str, chapters: &[Chapter]) -> Vec<String> {
    let listed: Vec<&str> = list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let mut told = Vec::new();
    for chapter in chapters.iter().filter(|chapter| chapter.path.ends_with("-h.md")) {
        let headings = chapter.text.lines().filter_map(|line| line.strip_prefix("### `"));
        let functions = headings.filter_map(|line| line.split_once('`').map(|(name, _)| name));
        told.extend(functions.filter(|name| name.starts_with("bfc_") && !is_type(name)));
    }
    let mut wrong = Vec::new();
    for name in &listed {
        match told.iter().filter(|other| *other == name).count() {
            1 => {}
            times => wrong.push(format!("{name} is exported, and the book explains it {times} times")),
        }
    }
    let strangers = told.iter().filter(|name| !listed.contains(name));
    wrong.extend(strangers.map(|name| format!("the book explains {name}, which is not exported")));
    wrong
}

fn is_type(name: &str) -> bool {
    name.ends_with("_t")
}

/// Writes the chapters below a folder.
pub fn write(chapters: &[Chapter], folder: &Path) -> Result<()> {
    chapters.iter().try_for_each(|chapter| files::write(&folder.join(&chapter.path), &chapter.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chapter(text: &str) -> Chapter {
        Chapter { title: String::new(), path: path_of("bfc.h"), text: text.to_owned() }
    }

    #[test]
    fn every_function_is_to_be_explained_once() {
        let list = "# names\nbfc_a\nbfc_b\n";
        let good = [chapter("### `bfc_a` {#bfc_a}\n### `bfc_x_t` {#x}\n### `bfc_b` {#bfc_b}\n")];
        assert!(differences(list, &good).is_empty());
        let bad = [chapter("### `bfc_a` {#bfc_a}\n### `bfc_a` {#bfc_a}\n### `bfc_c` {#bfc_c}\n")];
        let expected = [
            "bfc_a is exported, and the book explains it 2 times",
            "bfc_b is exported, and the book explains it 0 times",
            "the book explains bfc_c, which is not exported",
        ];
        assert_eq!(differences(list, &bad), expected);
    }

    #[test]
    fn a_constant_that_was_overlooked_is_found() {
        let places = Places::from([("BFC_A".to_owned(), String::new())]);
        let wrong = overlooked("#define X_H\n#define BFC_A 1\n#define BFC_B 2\n", &places);
        assert_eq!(wrong, ["BFC_B was not read from its header"]);
    }

    #[test]
    fn headers_have_pages_of_their_own() {
        assert_eq!(path_of("bfc_adapters.h"), "api/bfc-adapters-h.md");
        assert_eq!(path_of("bfc/pmr.hpp"), "api/bfc-pmr-hpp.md");
    }
}
