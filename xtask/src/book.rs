//! `cargo xtask book`: docs/ as a book, by MkDocs, with the headers and the bfc command's help.

use anyhow::{Context, Result};
use clap::Args;

use crate::cargo::{self, Profile};
use crate::files;
use crate::uv;
use crate::workspace::{Workspace, succeed};

/// The arguments of `cargo xtask book`.
#[derive(Args)]
pub struct Book {
    /// Open it in the browser
    #[arg(long)]
    open: bool,
}

impl Book {
    /// Builds the book. Warnings of MkDocs are errors.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let bfc = cargo::build(workspace, Profile::Debug)?.command;
        let folder = workspace.path("xtask/book");
        let mut command = workspace.command(uv::environment(workspace, &folder)?);
        command.args(["-m", "mkdocs", "build", "--strict", "--quiet", "--config-file"]);
        command.arg(folder.join("mkdocs.yml"));
        command.arg("--site-dir").arg(workspace.target.join("book")).env("BFC", bfc);
        workspace.run_well("mkdocs", command)?;
        let page = workspace.target.join("book/index.html");
        println!("{}", page.display());
        if self.open {
            let opener = ["xdg-open", "open"].into_iter().find_map(files::program);
            let mut command = workspace.command(opener.context("there is no xdg-open: open it yourself")?);
            command.arg(&page);
            succeed(command)?;
        }
        Ok(())
    }
}
