//! `cargo xtask clean`: removes what the commands have built and fetched.

use anyhow::Result;
use clap::Args;

use crate::files;
use crate::progress::Waiting;
use crate::uv;
use crate::workspace::Workspace;

/// The arguments of `cargo xtask clean`.
#[derive(Args)]
pub struct Clean {
    /// Also remove ~/.cache/libbfc, which all checkouts share: the packages that tests have fetched
    #[arg(long)]
    cache: bool,
}

impl Clean {
    /// Removes the target folder, and the cache if that is wanted.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let cache = if self.cache { Some(uv::cache()?) } else { None };
        for folder in std::iter::once(&workspace.target).chain(&cache).filter(|path| path.exists()) {
            let waiting = Waiting::begin(&format!("removing {}", folder.display()), false);
            files::remove_all(folder)?;
            drop(waiting);
            println!("removed {}", folder.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_goes_only_where_that_is_said() {
        let folder = std::env::temp_dir().join(format!("xtask-clean-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let cache = folder.join("cache/libbfc");
        let workspace = Workspace { target: folder.join("target"), ..Workspace::find().expect("a checkout") };
        files::write(&workspace.target.join("debug/a"), "12345").expect("writable");
        files::write(&cache.join("env/b"), "123").expect("writable");
        Clean { cache: false }.run(&workspace).expect("removed");
        assert!(!workspace.target.exists() && cache.exists());
        files::remove_all(&folder).expect("removed");
    }
}
