//! The code of a page, handed out to the suite that runs it, and the account of what has run.
//!
//! Each block is a file in a folder of its own, target/pages/PAGE. Whoever has run one to its end leaves a file of the
//! same name and `.ran` beside it: [`Owned::ran`], or `page.py` of ffi-tests where a program in Python does. So what a
//! test forgot is seen, and nothing counts as run that was only read.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::exceptions::EXCEPTIONS;
use super::owners::OWNERS;
use super::{Block, blocks};
use crate::files;
use crate::workspace::Workspace;

/// The code of a page.
pub struct Owned {
    /// The page, from the checkout's root.
    pub page: &'static str,
    /// What is to be run, in order.
    pub blocks: Vec<Block>,
    folder: PathBuf,
}

impl Owned {
    /// The pages of a suite, laid out anew. At the end the suite owes [`Owned::not_run`] of each to a gate.
    pub fn of_suite(workspace: &Workspace, suite: &str) -> Result<Vec<Self>> {
        let owners: Vec<_> = OWNERS.iter().filter(|owner| owner.suite == suite).collect();
        if owners.is_empty() {
            bail!("xtask/src/pages/owners.rs has no page of the suite {suite}");
        }
        owners.iter().map(|owner| Self::lay_out(workspace, owner.page)).collect()
    }

    fn lay_out(workspace: &Workspace, page: &'static str) -> Result<Self> {
        let text = files::read(&workspace.path(page))?;
        let stem = Path::new(page).file_stem().unwrap_or_default();
        Self::lay_out_in(page, &text, workspace.target.join("pages").join(stem))
    }

    fn lay_out_in(page: &'static str, text: &str, folder: PathBuf) -> Result<Self> {
        files::remove_all(&folder)?;
        let is_excepted = |block: &Block| EXCEPTIONS.iter().any(|exception| exception.is_of(page, block));
        let mut blocks = blocks(text);
        blocks.retain(|block| block.is_code() && !is_excepted(block));
        for block in &blocks {
            files::write(&folder.join(block.file()), &block.text)?;
        }
        Ok(Self { page, blocks, folder })
    }

    /// Says to a program in Python where all pages lie; its `Page("pytorch")` of ffi-tests/page.py is one of them.
    pub fn tell(workspace: &Workspace, command: &mut Command) {
        command.env("XTASK_PAGES", workspace.target.join("pages"));
    }

    /// A block's file, by the block's name; an error if the page has none of that name.
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        Ok(self.folder.join(self.block(name)?.file()))
    }

    /// All blocks of a language, one after another, as one program in a file. Who has run it says so by
    /// [`Owned::ran_together`].
    pub fn together(&self, language: &str) -> Result<PathBuf> {
        let own: Vec<&Block> = self.of(language).collect();
        let Some(first) = own.first() else { bail!("{} has no {language}", self.page) };
        let path = self.folder.join(format!("all-{}", first.file()));
        let text: Vec<&str> = own.iter().map(|block| block.text.as_str()).collect();
        files::write(&path, text.join("\n"))?;
        Ok(path)
    }

    /// That program has run to its end.
    pub fn ran_together(&self, language: &str) -> Result<()> {
        self.of(language).try_for_each(|block| self.ran(&block.name))
    }

    fn of(&self, language: &str) -> impl Iterator<Item = &Block> {
        self.blocks.iter().filter(move |block| block.language == language)
    }

    /// A block by its name.
    pub fn block(&self, name: &str) -> Result<&Block> {
        let found = self.blocks.iter().find(|block| block.name == name);
        found.with_context(|| format!("{} has no block {name}", self.page))
    }

    /// A block has run to its end, and well.
    pub fn ran(&self, name: &str) -> Result<()> {
        files::write(&self.marker(self.block(name)?), "")
    }

    /// What has not run, for a gate.
    pub fn not_run(&self) -> Vec<String> {
        let is_done = |block: &&Block| self.marker(block).exists();
        let left = self.blocks.iter().filter(|block| !is_done(block));
        let told = |block: &Block| {
            let Block { name, line, .. } = block;
            format!("{}:{line}: {name} was not run to its end: {}", self.page, block.first_line())
        };
        left.map(told).collect()
    }

    fn marker(&self, block: &Block) -> PathBuf {
        self.folder.join(format!("{}.ran", block.file()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "```python\na\n```\n```\noutput\n```\n```python\nb\n```\n";

    #[test]
    fn blocks_may_be_one_program() {
        let folder = std::env::temp_dir().join(format!("xtask-pages-together-{}", std::process::id()));
        let page = Owned::lay_out_in("x.md", PAGE, folder.clone()).expect("writable");
        assert_eq!(files::read(&page.together("python").expect("it has some")).expect("a file"), "a\n\nb\n");
        assert!(page.together("cpp").is_err() && page.not_run().len() == 2);
        page.ran_together("python").expect("writable");
        assert!(page.not_run().is_empty());
        files::remove_all(&folder).expect("removed");
    }

    #[test]
    fn what_was_not_run_is_told() {
        let folder = std::env::temp_dir().join(format!("xtask-pages-{}", std::process::id()));
        let lay_out = || Owned::lay_out_in("x.md", PAGE, folder.clone()).expect("writable");
        let page = lay_out();
        assert_eq!(page.blocks.len(), 2);
        assert_eq!(files::read(&page.file("python-2").expect("it is there")).expect("a file"), "b\n");
        assert!(page.file("python-3").is_err() && page.ran("c-1").is_err());
        assert_eq!(page.not_run().len(), 2);
        page.ran("python-1").expect("writable");
        assert_eq!(page.not_run(), ["x.md:8: python-2 was not run to its end: b"]);
        page.ran("python-2").expect("writable");
        assert!(page.not_run().is_empty());
        // What ran in an earlier test has not run in this one.
        assert_eq!(lay_out().not_run().len(), 2);
        files::remove_all(&folder).expect("removed");
    }
}
