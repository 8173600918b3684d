//! `cargo xtask install`: the library as its clients find it.
//!
//! The installed tree has no absolute path in it: CMake's files and pkg-config's compute theirs from
//! where they lie, and the bfc command looks for the library beside itself.

mod templates;

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::cargo::{self, Built, Profile};
use crate::files;
use crate::header::NAMES;
use crate::workspace::Workspace;

/// Where the CMake package lies below the prefix.
const CMAKE_FOLDER: &str = "lib/cmake/bfc";
/// Where the pkg-config file lies below the prefix.
const PKG_CONFIG_FILE: &str = "lib/pkgconfig/bfc.pc";

/// What the interposer is called in lib/.
pub const INTERPOSER: &str = "libbfc_preload.so";

/// Builds the library and installs it below `prefix`.
pub fn install(workspace: &Workspace, prefix: &Path, profile: Profile) -> Result<()> {
    let built = cargo::build(workspace, profile)?;
    install_built(workspace, prefix, profile, &built)
        .with_context(|| format!("cannot install to {}", prefix.display()))
}

/// Installs what was built already.
pub fn install_built(workspace: &Workspace, prefix: &Path, profile: Profile, built: &Built) -> Result<()> {
    for name in ["docs", "examples"] {
        if std::path::absolute(prefix)?.starts_with(workspace.path(name)) {
            bail!("it lies in {name}/, all of which is installed: choose a folder outside");
        }
    }
    let soname = &workspace.soname;
    let shared = format!("libbfc.so.{}", workspace.version);
    let lib = prefix.join("lib");
    let binaries = [
        (&built.shared, lib.join(&shared)),
        (&built.archive, lib.join("libbfc.a")),
        // It finds libbfc.so beside itself, and is found by its path: no links to it.
        (&built.interposer, lib.join(INTERPOSER)),
        (&built.command, prefix.join("bin/bfc")),
    ];
    for (from, to) in &binaries {
        files::copy(from, to)?;
        if profile == Profile::Release {
            strip(workspace, to)?;
        }
    }
    files::link(&shared, &lib.join(soname))?;
    files::link(soname, &lib.join("libbfc.so"))?;

    // The suite `header` compares the generated ones with the library.
    for name in NAMES.into_iter().chain(["bfc.hpp"]) {
        files::copy(&workspace.path("include").join(name), &prefix.join("include").join(name))?;
    }
    // Anew, as below.
    files::remove_all(&prefix.join("include/bfc"))?;
    files::copy_all(&workspace.path("include/bfc"), &prefix.join("include/bfc"))?;

    for name in ["bfcConfig", "bfcConfigVersion", "bfcTargets"] {
        let text = templates::fill(workspace, &format!("{name}.cmake.in"))?;
        files::write(&prefix.join(CMAKE_FOLDER).join(format!("{name}.cmake")), text)?;
    }
    let text = templates::fill(workspace, "bfc.pc.in")?;
    files::write(&prefix.join(PKG_CONFIG_FILE), text)?;

    let doc = prefix.join("share/doc/bfc");
    // Anew, so that what is gone from here goes there too. README and ARCHITECTURE are about the source.
    for (name, folder) in [("docs", doc.clone()), ("examples", prefix.join("share/bfc/examples"))] {
        files::remove_all(&folder)?;
        files::copy_all(&workspace.path(name), &folder)?;
    }
    for name in ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md"] {
        files::copy(&workspace.path(name), &doc.join(name))?;
    }
    Ok(())
}

/// Takes the debug information out of an installed file: it is nine tenths of it. Where there is no strip
/// the file is as good, only larger.
fn strip(workspace: &Workspace, path: &Path) -> Result<()> {
    let Some(strip) = files::program("strip") else {
        return Ok(());
    };
    let mut command = workspace.command(strip);
    command.arg("--strip-debug").arg(path).stdin(Stdio::null());
    let status = command.status().context("cannot start strip")?;
    if !status.success() {
        bail!("strip --strip-debug {}: {status}", path.display());
    }
    Ok(())
}

/// What somebody who has just installed the library wants to know.
pub fn usage(prefix: &Path) -> String {
    let prefix = shell_quoted(&prefix.display().to_string());
    format!(
        "libbfc is in {prefix}
  CMake       cmake -DCMAKE_PREFIX_PATH={prefix} ..., with find_package(bfc REQUIRED) and
              target_link_libraries(app PRIVATE bfc::bfc)
  pkg-config  export PKG_CONFIG_PATH={prefix}/lib/pkgconfig
              cc app.c $(pkg-config --cflags --libs bfc) -Wl,-rpath,{prefix}/lib
  try it      {prefix}/bin/bfc info"
    )
}

fn shell_quoted(path: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+,:@%=".contains(letter);
    if path.chars().all(plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_can_be_pasted_into_a_shell() {
        assert!(usage(Path::new("/opt/bfc")).contains("PREFIX_PATH=/opt/bfc ..."));
        assert!(usage(Path::new("/with space/it's")).contains(r"PREFIX_PATH='/with space/it'\''s' ..."));
    }
}
