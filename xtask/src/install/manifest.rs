//! The list of the files that an installation has put below a prefix, in the format of `sha256sum`. `cargo xtask
//! uninstall` removes the files that it names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::files;
use crate::workspace::{Workspace, capture};

/// Its path below the prefix.
pub const FILE: &str = "share/bfc/install-manifest.txt";

/// The beginning of the remarks that name the folders which were created.
const FOLDER: &str = "# folder ";

/// The paths that a manifest names, all of them below the prefix.
#[derive(Default)]
struct Named {
    folders: Vec<PathBuf>,
    files: BTreeSet<PathBuf>,
}

/// Copies a tree below `root`, and removes files of an earlier installation that this one lacks.
pub fn install(workspace: &Workspace, tree: &Path, root: &Path) -> Result<()> {
    let place = root.join(FILE);
    let old = if place.exists() { named(&files::read(&place)?)? } else { Named::default() };
    let names = files::all(tree)?;
    let names: Vec<&Path> = names.iter().map(|path| path.strip_prefix(tree)).collect::<Result<_, _>>()?;
    let mut command = workspace.command("sha256sum");
    let sums = capture(command.args(&names).current_dir(tree)).context("sha256sum is part of coreutils")?;

    // Outer folders before those inside them. An empty path is the prefix itself.
    let mut folders = old.folders;
    for name in names.iter().copied().chain([Path::new(FILE)]) {
        let above: Vec<_> = name.ancestors().skip(1).collect();
        let new = above.into_iter().rev().filter(|folder| !root.join(folder).exists());
        let new: Vec<_> = new.map(Path::to_owned).filter(|folder| !folders.contains(folder)).collect();
        folders.extend(new);
    }
    let kept =
        remove(workspace, root, old.files.into_iter().filter(|file| !names.contains(&file.as_path())))?;
    if kept > 0 {
        println!("{kept} files of an earlier version were changed and are kept");
    }
    for name in names {
        let (from, to) = (tree.join(name), root.join(name));
        match fs::read_link(&from) {
            Ok(target) => files::link(&target.to_string_lossy(), &to)?,
            Err(_) => files::copy(&from, &to)?,
        }
    }
    let folders = folders.iter().map(|folder| format!("{FOLDER}{}\n", folder.display()));
    files::write(&place, folders.chain([sums]).collect::<String>())
}

/// Removes the files that the manifest below `root` names, and the folders that were created for them, if they are then
/// empty.
pub fn uninstall(workspace: &Workspace, root: &Path) -> Result<()> {
    let place = root.join(FILE);
    let shown = place.display();
    ensure!(place.exists(), "nothing was installed there by `cargo xtask install`: there is no {shown}");
    let Named { folders, files } = named(&files::read(&place)?)?;
    let kept = remove(workspace, root, files)?;
    if kept > 0 {
        bail!("{kept} changed files were kept, and so was the manifest: remove them and try again");
    }
    files::remove(&place)?;
    for folder in folders.iter().rev() {
        // A folder with other contents stays.
        let _ = fs::remove_dir(root.join(folder));
    }
    Ok(())
}

/// Removes the files that are unchanged since the installation. Prints the others and returns their number.
fn remove(workspace: &Workspace, root: &Path, files: impl IntoIterator<Item = PathBuf>) -> Result<usize> {
    if !root.join(FILE).exists() {
        return Ok(0);
    }
    let mut command = workspace.command("sha256sum");
    command.args(["--check", FILE]).env("LC_ALL", "C").current_dir(root);
    let said = command.output().context("cannot start sha256sum")?.stdout;
    let said = String::from_utf8_lossy(&said);
    let unchanged: BTreeSet<_> =
        said.lines().filter_map(|line| line.strip_suffix(": OK")).map(Path::new).collect();
    let mut kept = 0;
    for file in files {
        let path = root.join(&file);
        if unchanged.contains(&*file) {
            files::remove(&path)?;
        } else if path.symlink_metadata().is_ok() {
            println!("kept {}: it was changed after the installation", path.display());
            kept += 1;
        }
    }
    Ok(kept)
}

/// The paths in a manifest. A path that leads out of the prefix is refused.
fn named(text: &str) -> Result<Named> {
    let mut found = Named::default();
    for line in text.lines() {
        let folder = line.strip_prefix(FOLDER).map(PathBuf::from);
        let file = line.split_once("  ").map(|(_, path)| PathBuf::from(path));
        let path =
            folder.as_ref().or(file.as_ref()).with_context(|| format!("{FILE} has the line {line}"))?;
        let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
        ensure!(inside, "{FILE} names {}, which is not a path below the prefix", path.display());
        found.folders.extend(folder.clone());
        found.files.extend(file.filter(|_| folder.is_none()));
    }
    Ok(found)
}
