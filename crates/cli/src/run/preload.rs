//! Finding libbfc_preload.so.

use std::env;
use std::path::{self, Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::environment::PRELOAD_LIBRARY;
use crate::library::{SONAME, beside};

/// The interposer. The only place where it is certain to find the library is beside itself.
const NAME: &str = "libbfc_preload.so";

const ADVICE: &str = "install libbfc, or name the interposer with --preload PATH or BFC_PRELOAD_LIBRARY=PATH";

/// Returns the absolute path of the interposer: the one `given`, else the variable's, else the first beside this
/// command.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    let variable = env::var_os(PRELOAD_LIBRARY).filter(|value| !value.is_empty());
    let found = match (given, variable) {
        (Some(path), _) => named(path, "--preload")?,
        (None, Some(path)) => named(Path::new(&path), PRELOAD_LIBRARY)?,
        (None, None) => first(&beside(&env::current_exe().unwrap_or_default(), &[NAME]))?,
    };
    let found =
        path::absolute(&found).with_context(|| format!("cannot tell where {} is", found.display()))?;
    with_library(found)
}

/// A path that the user named. There is no fallback from it.
fn named(path: &Path, source: &str) -> Result<PathBuf> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    if !path.is_dir() {
        bail!("there is no {} (from {source}); {ADVICE}", path.display());
    }
    let file = path.join(NAME);
    if !file.is_file() {
        bail!("{source} names the folder {}, which contains no {NAME}", path.display());
    }
    Ok(file)
}

/// The first that exists.
fn first(tried: &[PathBuf]) -> Result<PathBuf> {
    if let Some(file) = tried.iter().find(|file| file.is_file()) {
        return Ok(file.clone());
    }
    let tried: Vec<String> = tried.iter().map(|file| file.display().to_string()).collect();
    bail!("{NAME} was not found; tried\n  {}\n{ADVICE}", tried.join("\n  "))
}

/// Without the library every program would report that the interposer cannot be preloaded, and continue.
fn with_library(file: PathBuf) -> Result<PathBuf> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    if !folder.join(SONAME).exists() {
        let [file, folder] = [&*file, folder].map(Path::display);
        bail!(
            "{file} needs {SONAME} beside it, and {folder} has none; install both (cargo xtask install), or make \
             {folder}/{SONAME} a link to libbfc.so"
        );
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_tried_is_told() {
        let tried = beside(Path::new("/nonexistent/bin/bfc"), &[NAME]);
        let error = first(&tried).expect_err("nothing there").to_string();
        for tried in ["bin/libbfc_preload.so", "bin/../lib64/libbfc_preload.so"] {
            assert!(error.contains(&format!("\n  /nonexistent/{tried}\n")), "{error}");
        }
        assert!(error.contains("--preload PATH or BFC_PRELOAD_LIBRARY=PATH"), "{error}");
    }

    #[test]
    fn what_is_named_must_be_there() {
        let error = named(Path::new("/nonexistent"), "--preload").expect_err("nothing there").to_string();
        assert!(error.starts_with("there is no /nonexistent (from --preload)"), "{error}");
        let error = named(Path::new("/"), PRELOAD_LIBRARY).expect_err("not there").to_string();
        assert_eq!(error, "BFC_PRELOAD_LIBRARY names the folder /, which contains no libbfc_preload.so");
    }
}
