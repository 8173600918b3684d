//! The interposer, staged with the libbfc.so that it links, for tests that run under it.

use super::cargo;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The variants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Interposer {
    /// The shipped one.
    Shipped,
    /// The one that reuses freed memory at once: a test for races must detect them.
    WithoutQuarantine,
    /// The one that does not announce captures to libbfc.
    WithoutAnnouncement,
}

/// Returns its file, to be preloaded. It is built at the first call, unless PRELOAD_LIBRARY (for the first mutation
/// PRELOAD_MUTATION) names one with its libbfc in the same folder.
pub fn library(which: Interposer) -> &'static Path {
    static SHIPPED: OnceLock<PathBuf> = OnceLock::new();
    static WITHOUT_QUARANTINE: OnceLock<PathBuf> = OnceLock::new();
    static WITHOUT_ANNOUNCEMENT: OnceLock<PathBuf> = OnceLock::new();
    let (place, variable) = match which {
        Interposer::Shipped => (&SHIPPED, "PRELOAD_LIBRARY"),
        Interposer::WithoutQuarantine => (&WITHOUT_QUARANTINE, "PRELOAD_MUTATION"),
        Interposer::WithoutAnnouncement => (&WITHOUT_ANNOUNCEMENT, "PRELOAD_UNANNOUNCED"),
    };
    place.get_or_init(|| env::var_os(variable).map_or_else(|| stage(which), PathBuf::from))
}

fn stage(which: Interposer) -> PathBuf {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    // A fuzz target that is built with these files stages nothing.
    let Some(tmp) = option_env!("CARGO_TARGET_TMPDIR") else { panic!("this was not built as a test") };
    let tmp = Path::new(tmp);
    // In a folder of its own, so that the mutation is not found in the place of the interposer.
    let target = tmp.join("preload-mutation");
    let target = target.to_str().expect("UTF-8");
    // The feature of bfc-preload that it is built with.
    let (name, feature) = match which {
        Interposer::Shipped => ("shipped", None),
        Interposer::WithoutQuarantine => ("mutated", Some("bfc-preload/without-quarantine")),
        Interposer::WithoutAnnouncement => ("unannounced", Some("bfc-preload/without-announcement")),
    };
    let args = feature.map_or_else(Vec::new, |feature| vec!["--features", feature, "--target-dir", target]);
    // The folder belongs to this profile. Processes that have the files loaded keep them, because files are replaced by
    // renaming.
    let folder = tmp.join(format!("preload-{profile}-{name}"));
    fs::create_dir_all(&folder).expect("a folder");
    copy(&own("bfc-preload", "libbfc_preload.so", &args), &folder.join("libbfc_preload.so"));
    copy(&own("libbfc", "libbfc.so", &[]), &folder.join("libbfc.so.0"));
    folder.join("libbfc_preload.so")
}

/// Replaces a file that another process may have loaded.
fn copy(from: &Path, to: &Path) {
    let fresh = to.with_extension(format!("new{}", std::process::id()));
    fs::copy(from, &fresh).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    fs::rename(&fresh, to).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
}

/// Returns a library that cargo builds, in this test's own profile.
fn own(package: &str, library: &str, args: &[&str]) -> PathBuf {
    let release: &[&str] = if cfg!(debug_assertions) { &[] } else { &["--release"] };
    cargo::built(package, library, &[args, release].concat())
}
