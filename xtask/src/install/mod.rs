//! `cargo xtask install`: the library as its clients find it.
//!
//! The installed tree has no absolute path in it: CMake's files and pkg-config's compute theirs from
//! where they lie, and the bfc command looks for the library beside itself.

pub mod pkg_config;
mod templates;

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::cargo::{self, Built, Profile};
use crate::files;
use crate::gates::version;
use crate::workspace::Workspace;

pub use templates::SYSTEM_LIBRARIES;

/// Where the CMake package lies below the prefix.
pub const CMAKE_FOLDER: &str = "lib/cmake/bfc";
/// Where the pkg-config file lies below the prefix.
pub const PKG_CONFIG_FILE: &str = "lib/pkgconfig/bfc.pc";

/// Builds the library and installs it below `prefix`.
pub fn install(workspace: &Workspace, prefix: &Path, profile: Profile) -> Result<()> {
    let built = cargo::build(workspace, profile)?;
    install_built(workspace, prefix, profile, &built)
        .with_context(|| format!("cannot install to {}", prefix.display()))
}

/// Installs what was built already.
pub fn install_built(workspace: &Workspace, prefix: &Path, profile: Profile, built: &Built) -> Result<()> {
    let soname = version::soname(&workspace.version);
    let shared = format!("libbfc.so.{}", workspace.version);
    let lib = prefix.join("lib");
    let binaries = [
        (&built.shared, lib.join(&shared)),
        (&built.archive, lib.join("libbfc.a")),
        (&built.command, prefix.join("bin/bfc")),
    ];
    for (from, to) in &binaries {
        files::copy(from, to)?;
        if profile == Profile::Release {
            strip(workspace, to)?;
        }
    }
    files::link(&shared, &lib.join(&soname))?;
    files::link(&soname, &lib.join("libbfc.so"))?;

    // The generated header, which is the one that fits the library; a test holds include/bfc.h to it.
    files::copy(&built.header, &prefix.join("include/bfc.h"))?;
    files::copy(&workspace.path("include/bfc.hpp"), &prefix.join("include/bfc.hpp"))?;

    for name in ["bfcConfig", "bfcConfigVersion", "bfcTargets"] {
        let text = templates::fill(workspace, &format!("{name}.cmake.in"))?;
        files::write(&prefix.join(CMAKE_FOLDER).join(format!("{name}.cmake")), text)?;
    }
    let text = templates::fill(workspace, "bfc.pc.in")?;
    files::write(&prefix.join(PKG_CONFIG_FILE), text)?;

    let doc = prefix.join("share/doc/bfc");
    for name in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        let path = workspace.path(name);
        if path.exists() {
            files::copy(&path, &doc.join(name))?;
        } else if name.starts_with("LICENSE") {
            bail!("{name} is missing, and the library may not be handed on without it");
        }
    }
    // Anew, so that what is gone from here goes there too.
    let folders = [("docs", doc.join("docs")), ("examples", prefix.join("share/bfc/examples"))];
    for (name, folder) in folders {
        files::remove_all(&folder)?;
        files::copy_all(&workspace.path(name), &folder)?;
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
    let prefix = prefix.display();
    format!(
        "libbfc is in {prefix}
  CMake       cmake -DCMAKE_PREFIX_PATH={prefix} ..., with find_package(bfc REQUIRED) and
              target_link_libraries(app PRIVATE bfc::bfc)
  pkg-config  export PKG_CONFIG_PATH={prefix}/lib/pkgconfig
              cc app.c $(pkg-config --cflags --libs bfc) -Wl,-rpath,{prefix}/lib
  try it      {prefix}/bin/bfc info"
    )
}
