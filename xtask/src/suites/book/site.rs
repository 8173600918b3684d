//! The built book as a gate wants it.

use std::path::Path;

use anyhow::{Result, bail};

use crate::files;
use crate::gates::book::Site;

/// Reads it. The page for what is not there counts its links from the root of a server, and is left out; a table of contents
/// that scripts put beside each page stands in toc.html, too.
pub fn read(folder: &Path) -> Result<Site> {
    let mut site = Site { files: Default::default(), pages: Default::default() };
    collect(folder, folder, &mut site)?;
    site.pages.remove("404.html");
    if !site.pages.contains_key("index.html") || site.pages.len() < 10 {
        bail!("{} is no book", folder.display());
    }
    Ok(site)
}

fn collect(root: &Path, folder: &Path, site: &mut Site) -> Result<()> {
    for path in files::entries(folder)? {
        if path.is_dir() {
            collect(root, &path, site)?;
            continue;
        }
        let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
        if name.ends_with(".html") {
            site.pages.insert(name.clone(), files::read(&path)?);
        }
        site.files.insert(name);
    }
    Ok(())
}
