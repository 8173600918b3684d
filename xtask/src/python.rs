//! Packages from PyPI, each set of them in a virtual environment of its own.
//!
//! They are large. They are kept in the user's cache, where all checkouts share them, and made anew if one is absent, cut
//! off, or of other packages.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::files;
use crate::pages::owned::Owned;
use crate::tools;
use crate::workspace::{Workspace, without};

/// What a virtual environment is to hold.
pub struct Packages {
    /// The environment's name in the cache.
    pub name: &'static str,
    /// What it is and how much, for whoever waits for it.
    pub about: &'static str,
    /// Arguments for `pip install`: options, and packages with their versions.
    pub pip: &'static [&'static str],
}

/// A virtual environment that holds all it should.
#[derive(Debug)]
pub struct Environment {
    folder: PathBuf,
    packages: PathBuf,
}

impl Packages {
    /// The one in the cache, which is filled if need be.
    pub fn find(&self, workspace: &Workspace) -> Result<Environment> {
        if let Some(found) = self.kept()? {
            return Ok(found);
        }
        let folder = self.folder()?;
        println!("  fetching {} from PyPI into {} (once)", self.about, folder.display());
        tools::virtual_environment(workspace, &folder, self.pip)?;
        files::write(&marker(&folder), self.wanted())?;
        self.inside(&folder)?.with_context(|| format!("{} is not as it was made", folder.display()))
    }

    /// The one in the cache, if it is there: for tests that are not worth the download.
    pub fn kept(&self) -> Result<Option<Environment>> {
        self.inside(&self.folder()?)
    }

    fn folder(&self) -> Result<PathBuf> {
        Ok(tools::cache()?.join("libbfc").join(self.name))
    }

    /// What a folder holds, if it is whole and of these packages.
    fn inside(&self, folder: &Path) -> Result<Option<Environment>> {
        let marker = marker(folder);
        if !marker.exists() || files::read(&marker)? != self.wanted() || !starts(folder) {
            return Ok(None);
        }
        let pythons = files::entries(&folder.join("lib"))?.into_iter();
        let mut packages = pythons.map(|python| python.join("site-packages"));
        let packages = packages.find(|packages| packages.exists());
        Ok(packages.map(|packages| Environment { folder: folder.to_owned(), packages }))
    }

    fn wanted(&self) -> String {
        self.pip.join("\n")
    }
}

/// Says what was installed; written last.
fn marker(folder: &Path) -> PathBuf {
    folder.join("installed.txt")
}

/// It is a link to the system's Python, which may be gone or another by now.
fn starts(folder: &Path) -> bool {
    let mut command = Command::new(folder.join("bin/python"));
    command.args(["-c", "import pip"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Environment {
    /// The interpreter.
    pub fn python(&self) -> PathBuf {
        self.bin("python")
    }

    /// A command that the packages brought.
    pub fn bin(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// Where the packages lie.
    pub fn packages(&self) -> &Path {
        &self.packages
    }

    /// The interpreter with a test to run: without what the user has set, see [`plainly`]. ffi-tests/page.py finds the
    /// pages' code.
    pub fn command(&self, workspace: &Workspace) -> Command {
        let mut command = workspace.command(self.python());
        plainly(&mut command);
        Owned::tell(workspace, &mut command);
        command
    }
}

/// Without the variables that steer the library, a framework, Python or the simulation: a test is about the checkout and
/// not about what the user has set.
pub fn plainly(command: &mut Command) {
    const OF_THE_USER: [&str; 12] = [
        "BFC_", "PYTORCH_", "TORCH_", "CUDA_", "SIMCUDA_", "PYTHON", "TF_", "KERAS_", "HF_", "CUPY_",
        "NUMBA_", "LD_",
    ];
    // What Python compiles of ours would lie in the checkout.
    without(command, &OF_THE_USER).env("PYTHONDONTWRITEBYTECODE", "1");
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIP: Packages = Packages { name: "test", about: "nothing", pip: &["--no-deps", "pip"] };

    #[test]
    fn others_and_what_was_cut_off_are_not_taken() {
        let folder = std::env::temp_dir().join(format!("xtask-python-{}", std::process::id()));
        let taken = |packages: &Packages| packages.inside(&folder).expect("readable").is_some();
        assert!(!taken(&PIP));
        files::write(&folder.join("lib/python3.11/site-packages/pip.py"), "").expect("writable");
        files::write(&marker(&folder), "--no-deps\npip").expect("writable");
        assert!(!taken(&PIP), "it has no interpreter");
        std::fs::create_dir_all(folder.join("bin")).expect("writable");
        std::os::unix::fs::symlink("/bin/true", folder.join("bin/python")).expect("writable");
        assert!(taken(&PIP));
        assert!(!taken(&Packages { pip: &["--no-deps", "wheel"], ..PIP }));
        std::fs::remove_file(marker(&folder)).expect("it is there");
        assert!(!taken(&PIP), "pip has not come to its end");
        files::remove_all(&folder).expect("removed");
    }
}
