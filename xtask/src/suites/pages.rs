//! The Python on a page of docs/, run as it stands there; and what a program with libbfc must not say.

use std::process::Command;

use anyhow::Result;

use super::context::{Context, Count};
use crate::files;

/// Runs all blocks of Python on a page one after another, as one program.
pub fn run(context: &mut Context, page: &str, mut python: Command) -> Result<()> {
    let text = files::read(&context.workspace.path(page))?;
    let program = blocks(&text).join("\n");
    let file = context.workspace.target.join("xtask/page.py");
    files::write(&file, &program)?;
    python.arg(&file).env("BFC_LOG", "warn");
    let ended = context.program(&format!("the code of {page}"), python, Count::One)?;
    let mut wrong = complaints(&ended.text);
    if program.is_empty() {
        wrong.push("there is no code on it".to_owned());
    }
    context.gate(&format!("the code of {page}: no complaint"), &wrong);
    Ok(())
}

/// The blocks of Python.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while lines.any(|line| line == "```python") {
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push(block.join("\n") + "\n");
    }
    blocks
}

/// What libbfc complains of on the standard error stream, with BFC_LOG=warn, and what Python swallows at its end.
pub fn complaints(said: &str) -> Vec<String> {
    const SIGNS: [&str; 4] =
        ["libbfc warn", "libbfc error", "libbfc: a tensor's memory", "Exception ignored"];
    let is_one = |line: &&str| SIGNS.iter().any(|sign| line.starts_with(sign));
    said.lines().filter(is_one).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_python_of_a_page_is_found() {
        let page = "a\n```python\none\n\ntwo\n```\n```sh\nthree\n```\n```python\nfour\n```\n";
        assert_eq!(blocks(page), ["one\n\ntwo\n", "four\n"]);
        assert!(blocks("```sh\nls\n```").is_empty());
    }

    #[test]
    fn complaints_are_told_from_what_is_usual() {
        let said =
            "done\nlibbfc: can't allocate\nException ignored in: <x>\nlibbfc: a tensor's memory at 0x1: no\n";
        assert_eq!(complaints(said).len(), 2);
    }
}
