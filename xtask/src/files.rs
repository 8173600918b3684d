//! Files and folders: helpers that name the path in their errors.

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The text of a file.
pub fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes a file and the folders above it.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    parents(path)?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Copies a file, unless the same file exists already. That one keeps its time, so that what was built from it stays up
/// to date. A different file is unlinked first instead of overwritten, because a program may have it mapped, and
/// continues with the old one.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let copy = || -> io::Result<()> {
        if to.exists() && fs::read(from)? == fs::read(to)? {
            return Ok(());
        }
        unless_absent(fs::remove_file(to))?;
        fs::copy(from, to).map(drop)
    };
    parents(to)?;
    copy().with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Copies a folder with everything in it, except files that version control ignores.
pub fn copy_all(from: &Path, to: &Path) -> Result<()> {
    for file in all(from)? {
        let inside = file.strip_prefix(from)?;
        if !inside.iter().any(|part| part == "target" || part == "__pycache__" || part == "build") {
            copy(&file, &to.join(inside))?;
        }
    }
    Ok(())
}

/// Creates a link to a name in its own folder.
pub fn link(target: &str, path: &Path) -> Result<()> {
    parents(path)?;
    remove(path)?;
    symlink(target, path).with_context(|| format!("cannot link {}", path.display()))
}

/// Removes a file or link, if there is one.
pub fn remove(path: &Path) -> Result<()> {
    unless_absent(fs::remove_file(path)).with_context(|| format!("cannot replace {}", path.display()))
}

/// Removes a folder with everything in it, if there is one.
pub fn remove_all(path: &Path) -> Result<()> {
    unless_absent(fs::remove_dir_all(path)).with_context(|| format!("cannot remove {}", path.display()))
}

/// The contents of a folder, by name. Empty if it does not exist.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let found = fs::read_dir(folder).and_then(|found| found.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<_> = found.with_context(|| format!("cannot list {}", folder.display()))?;
    paths.sort();
    Ok(paths)
}

/// The files and links below a folder, by path.
pub fn all(folder: &Path) -> Result<Vec<PathBuf>> {
    let inside = |path: PathBuf| if path.is_dir() { all(&path) } else { Ok(vec![path]) };
    Ok(entries(folder)?.into_iter().map(inside).collect::<Result<Vec<_>>>()?.concat())
}

/// The files below a folder whose names end in `.extension`, by path.
pub fn below(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let is_of = |path: &PathBuf| path.extension().is_some_and(|end| end == extension);
    Ok(all(folder)?.into_iter().filter(is_of).collect())
}

/// The path of a program on the PATH.
pub fn program(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    })
}

fn parents(path: &Path) -> Result<()> {
    let Some(folder) = path.parent() else {
        return Ok(());
    };
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn unless_absent(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_copied_without_what_was_built_in_it() {
        let folder = env::temp_dir().join(format!("xtask-files-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let (from, to) = (folder.join("from"), folder.join("to"));
        write(&from.join("a/one.c"), "1").expect("writable");
        write(&from.join("build/out.o"), "2").expect("writable");
        copy_all(&from, &to).expect("copied");
        assert_eq!(below(&to, "c").expect("a list"), [to.join("a/one.c")]);
        assert!(!to.join("build").exists());
        link("one.c", &to.join("a/two.c")).expect("linked");
        link("one.c", &to.join("a/two.c")).expect("linked again");
        assert_eq!(read(&to.join("a/two.c")).expect("a file"), "1");
        remove_all(&folder).expect("removed");
        remove_all(&folder).expect("absent is fine");
        assert!(entries(&folder).expect("absent is empty").is_empty());
    }
}
