//! `cargo xtask clean`: removing what the chores have built and fetched.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use indicatif::HumanBytes;

use crate::files;
use crate::uv;
use crate::workspace::Workspace;

/// What `cargo xtask clean` takes.
#[derive(Args)]
pub struct Clean {
    /// Remove as well what all checkouts share: ~/.cache/libbfc, with the packages that tests have fetched
    #[arg(long)]
    cache: bool,
}

impl Clean {
    /// Removes the target folder, and the cache if that is wanted.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let cache = if self.cache { Some(uv::cache()?) } else { None };
        for folder in
            [Some(workspace.target.clone()), cache].into_iter().flatten().filter(|path| path.exists())
        {
            let size = HumanBytes(size_of(&folder));
            files::remove_all(&folder)?;
            println!("removed {}: {size}", folder.display());
        }
        Ok(())
    }
}

/// Bytes of all files in a folder.
fn size_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => size_of(&entry.path()),
        Ok(found) => found.len(),
        // Another process may remove files at the same time.
        Err(_) => 0,
    };
    entries.map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_goes_only_where_that_is_said() {
        let folder = std::env::temp_dir().join(format!("xtask-clean-{}", std::process::id()));
        let cache = folder.join("cache/libbfc");
        let workspace = Workspace { target: folder.join("target"), ..Workspace::find().expect("a checkout") };
        files::write(&workspace.target.join("debug/a"), "12345").expect("writable");
        files::write(&cache.join("env/b"), "123").expect("writable");
        assert_eq!(size_of(&folder), 8);
        Clean { cache: false }.run(&workspace).expect("removed");
        assert!(!workspace.target.exists() && cache.exists());
        files::remove_all(&folder).expect("removed");
    }
}
