//! mdBook itself, kept in the user's cache, where all checkouts share it.
//!
//! It is built from crates.io, as its authors publish it, without the parts that serve and watch. There is no package of it
//! from them on PyPI or npm (npm's `mdbook` is another program), and none in Debian 12. As a dependency of xtask it would make
//! every chore wait for its 120 crates. A debug build is fast enough for this book, and built in a minute of one core.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::cargo;
use crate::files;
use crate::tools::{self, Unavailable};
use crate::workspace::Workspace;

/// The version that the tests have seen.
const VERSION: &str = "0.5.4";

/// The one on the PATH if it is of that version, else the one in the cache, which is built if need be.
pub fn find(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(path) = files::program("mdbook").filter(|path| is_it(path)) {
        return Ok(path);
    }
    let folder = tools::cache()?.join("libbfc").join(format!("mdbook-{VERSION}"));
    let path = folder.join("bin/mdbook");
    if !is_it(&path) {
        println!("  building mdBook {VERSION} from crates.io into {} (once)", folder.display());
        install(workspace, &folder)?;
    }
    if !is_it(&path) {
        bail!("{} is not mdBook {VERSION}", path.display());
    }
    Ok(path)
}

fn install(workspace: &Workspace, folder: &Path) -> Result<()> {
    // Its own, so that it neither waits for a build of ours nor stays there: it takes 330 MB.
    let target = workspace.target.join("mdbook-build");
    let mut command = cargo::cargo(workspace, &["install", "mdbook", "--locked", "--debug", "--force"]);
    command.args(["--version", VERSION, "--no-default-features", "--features=search"]);
    command.arg("--root").arg(folder).arg("--target-dir").arg(&target);
    command.env("CARGO_PROFILE_DEV_DEBUG", "false").env_remove("RUSTFLAGS");
    let built = workspace.run("cargo install mdbook", command);
    files::remove_all(&target)?;
    let built = built?;
    if !built.success {
        let words = format!("cargo could not build mdBook (is crates.io reachable?): {}", built.complaint());
        return Err(Unavailable(words).into());
    }
    Ok(())
}

/// Whether a program can be started and is mdBook of our version.
fn is_it(path: &Path) -> bool {
    let mut command = Command::new(path);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
    let said = command.output().map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    said.is_ok_and(|said| said.trim() == format!("mdbook v{VERSION}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_program_is_not_taken() {
        assert!(!is_it(Path::new("/bin/true")));
        assert!(!is_it(Path::new("/no/such/mdbook")));
    }
}
