//! `cargo xtask install` and `uninstall`: the library as its clients find it.
//!
//! The installed tree contains no absolute path: the files for CMake and pkg-config compute paths relative to
//! themselves, and the bfc command looks for the library beside itself.

mod cross;
mod manifest;

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::cargo::{self, Built, Profile};
use crate::files;
use crate::header::NAMES;
use crate::workspace::{VERSION, Workspace, capture};

/// The folder of the library below the prefix, by default.
const LIB: &str = "lib";

/// The system libraries that the archive needs, in the linker's order: the output of `rustc --print
/// native-static-libs`, which a test compares, without gcc_s. That would prevent -static, and compilers link it anyway.
const SYSTEM_LIBRARIES: [&str; 6] = ["util", "rt", "pthread", "m", "dl", "c"];

/// The name of the interposer in lib/.
pub const INTERPOSER: &str = "libbfc_preload.so";

/// The arguments of `cargo xtask install`.
#[derive(Args)]
pub struct Install {
    #[command(flatten)]
    place: Place,
    /// The folder for libraries, below the prefix: lib64, or Debian's lib/x86_64-linux-gnu
    #[arg(long, value_name = "DIR", default_value = LIB)]
    libdir: PathBuf,
    /// Install the debug build: slow, with internal checks and debug information
    #[arg(long)]
    debug: bool,
    /// Install for another machine, such as aarch64-unknown-linux-gnu; needs its linker and Rust's standard library
    /// for it
    #[arg(long, value_name = "TRIPLE")]
    target: Option<String>,
}

/// The arguments of `cargo xtask uninstall`.
#[derive(Args)]
pub struct Uninstall {
    #[command(flatten)]
    place: Place,
}

#[derive(Args)]
struct Place {
    /// The folder for bin/, include/, lib/ and share/. If $DESTDIR is set, `install` puts it below that folder, which
    /// should be empty, and writes no list of the files
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,
}

impl Place {
    /// The folder that is written to.
    fn root(&self) -> Result<PathBuf> {
        let prefix = std::path::absolute(&self.prefix)?;
        Ok(match staging() {
            Some(folder) => std::path::absolute(folder)?.join(prefix.strip_prefix("/")?),
            None => prefix,
        })
    }
}

/// The folder for making a package.
fn staging() -> Option<OsString> {
    std::env::var_os("DESTDIR").filter(|folder| !folder.is_empty())
}

impl Install {
    /// Builds the library, installs it, and prints how to use it.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let profile = if self.debug { Profile::Debug } else { Profile::Release };
        let prefix = std::path::absolute(&self.place.prefix)?;
        let libdir = below(&prefix, &self.libdir)?;
        if profile == Profile::Release {
            println!(
                "building libbfc, the interposer and bfc: six minutes of processor time, if none of it is built"
            );
        }
        let built = match &self.target {
            Some(triple) => cross::build(workspace, profile, triple)?,
            None => cargo::build(workspace, profile)?,
        };
        let root = self.place.root()?;
        install_into(workspace, &root, &libdir, &built)?;
        if staging().is_some() {
            // A package's tools strip and compress files, and its manager keeps its own list.
            files::remove(&root.join(manifest::FILE))?;
        }
        match staging() {
            Some(_) => {
                println!("libbfc is staged in {}, for the prefix {}", root.display(), prefix.display())
            }
            None => println!("{}", usage(&prefix, &libdir)),
        }
        Ok(())
    }
}

impl Uninstall {
    /// Removes what was installed.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let root = self.place.root()?;
        manifest::uninstall(workspace, &root)
            .with_context(|| format!("cannot uninstall from {}", root.display()))?;
        println!("removed libbfc from {}", root.display());
        Ok(())
    }
}

/// The folder for libraries as a path below the prefix.
fn below(prefix: &Path, libdir: &Path) -> Result<PathBuf> {
    let inside = libdir.strip_prefix(prefix).unwrap_or(libdir);
    let is_below = inside.components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(is_below, "--libdir {}: it is not a folder below {}", libdir.display(), prefix.display());
    Ok(inside.to_owned())
}

/// Installs what was built below `prefix`.
pub fn install(workspace: &Workspace, prefix: &Path, built: &Built) -> Result<()> {
    install_into(workspace, prefix, Path::new(LIB), built)
}

fn install_into(workspace: &Workspace, root: &Path, libdir: &Path, built: &Built) -> Result<()> {
    // Two installations may run at the same time.
    let stage = workspace.target.join(format!("xtask/stage-{}", std::process::id()));
    let installed = stage_tree(workspace, &stage, libdir, built)
        .and_then(|()| manifest::install(workspace, &stage, root))
        .with_context(|| format!("cannot install to {}", root.display()));
    installed.and(files::remove_all(&stage))
}

/// Creates the tree to install, in a new folder.
pub fn stage_tree(workspace: &Workspace, root: &Path, libdir: &Path, built: &Built) -> Result<()> {
    files::remove_all(root)?;
    let processor = cross::processor(&built.shared)?;
    let soname = &workspace.soname;
    let shared = format!("libbfc.so.{VERSION}");
    let lib = root.join(libdir);
    let binaries = [
        (&built.shared, lib.join(&shared)),
        (&built.archive, lib.join("libbfc.a")),
        // It finds libbfc.so beside itself, and is found by its path, so it needs no links.
        (&built.interposer, lib.join(INTERPOSER)),
        (&built.command, root.join("bin/bfc")),
    ];
    // Debug information is nine tenths of a release build, and the compiler's intermediate code, which no linker of a
    // program reads, is three quarters of the rest of the archive. With them the files would only be larger.
    let is_release = built.profile == Profile::Release;
    let strip = is_release.then(|| cross::strip(processor)).flatten();
    if is_release && strip.is_none() {
        println!("there is no strip for {processor}: the files keep their debug information");
    }
    for (from, to) in &binaries {
        files::copy(from, to)?;
        if let Some(strip) = &strip {
            let dropped = ["--strip-debug", "--remove-section=.llvmbc", "--remove-section=.llvmcmd"];
            capture(workspace.command(strip).args(dropped).arg(to))?;
        }
    }
    files::link(&shared, &lib.join(soname))?;
    files::link(soname, &lib.join("libbfc.so"))?;

    // The suite `header` compares the generated ones with the library.
    for name in NAMES.into_iter().chain(["bfc.hpp"]) {
        files::copy(&workspace.path("include").join(name), &root.join("include").join(name))?;
    }
    files::copy_all(&workspace.path("include/bfc"), &root.join("include/bfc"))?;

    for file in [
        "cmake/bfc/bfcConfig.cmake",
        "cmake/bfc/bfcConfigVersion.cmake",
        "cmake/bfc/bfcTargets.cmake",
        "pkgconfig/bfc.pc",
    ] {
        let name = file.rsplit('/').next().unwrap_or(file);
        let template = files::read(&workspace.path("cmake").join(format!("{name}.in")))?;
        files::write(&lib.join(file), filled(workspace, template, libdir, processor).context(name)?)?;
    }

    let (share, doc) = (root.join("share"), root.join("share/doc/bfc"));
    // README and ARCHITECTURE describe the source.
    files::copy_all(&workspace.path("docs"), &doc)?;
    files::copy_all(&workspace.path("examples"), &share.join("bfc/examples"))?;
    for name in ["LICENSE-APACHE", "LICENSE-MIT", "LICENSE-THIRD-PARTY", "CHANGELOG.md"] {
        files::copy(&workspace.path(name), &doc.join(name))?;
    }
    // Man pages and completions.
    let command = cross::command(workspace, built, processor)?;
    capture(workspace.command(command).arg("generate").arg(share)).map(drop)
}

/// A template of cmake/ with a value for each `@NAME@`.
fn filled(workspace: &Workspace, template: String, libdir: &Path, processor: &str) -> Result<String> {
    let values = [
        ("@VERSION@", VERSION.to_owned()),
        ("@SONAME@", workspace.soname.clone()),
        ("@LIBDIR@", libdir.display().to_string()),
        // The relative path from the folder for libraries to the prefix.
        ("@UP@", vec![".."; libdir.components().count()].join("/")),
        ("@ARCH@", processor.to_owned()),
        ("@SYSTEM_LIBS_CMAKE@", SYSTEM_LIBRARIES.join(";")),
        ("@SYSTEM_LIBS_PC@", SYSTEM_LIBRARIES.map(|library| format!("-l{library}")).join(" ")),
    ];
    let filled = values.iter().fold(template, |text, (name, value)| text.replace(name, value));
    match filled.lines().find(|line| line.contains('@')) {
        Some(line) => bail!("an unknown placeholder: {line}"),
        None => Ok(filled),
    }
}

/// The information for a user who has just installed the library.
fn usage(prefix: &Path, libdir: &Path) -> String {
    let prefix = shell_quoted(&prefix.display().to_string());
    let lib = libdir.display();
    format!(
        "libbfc is in {prefix}
  shell       export PATH={prefix}/bin:$PATH
  try it      bfc info
  a program   bfc run -- ./train
  CMake       cmake -DCMAKE_PREFIX_PATH={prefix} ..., with find_package(bfc REQUIRED) and
              target_link_libraries(app PRIVATE bfc::bfc)
  pkg-config  export PKG_CONFIG_PATH={prefix}/{lib}/pkgconfig
              cc app.c $(pkg-config --cflags --libs bfc) -Wl,-rpath,{prefix}/{lib}"
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
    fn placeholders_are_filled_in_and_an_unknown_one_is_refused() {
        let workspace = Workspace::find().expect("a checkout");
        let fill = |text: &str| filled(&workspace, text.to_owned(), Path::new("lib/a"), "aarch64");
        let text = fill("@LIBDIR@ @UP@ @SYSTEM_LIBS_PC@ @ARCH@").expect("all known");
        assert_eq!(text, "lib/a ../.. -lutil -lrt -lpthread -lm -ldl -lc aarch64");
        assert!(fill("@VERSOIN@").is_err());
    }

    #[test]
    fn hints_can_be_pasted_into_a_shell() {
        assert!(usage(Path::new("/opt/bfc"), Path::new("lib64")).contains("PREFIX_PATH=/opt/bfc ..."));
        assert!(
            usage(Path::new("/with space/it's"), Path::new(LIB))
                .contains(r"PREFIX_PATH='/with space/it'\''s' ...")
        );
        // The most common first steps come first.
        let text = usage(Path::new("/opt/bfc"), Path::new(LIB));
        let [path, run] =
            ["export PATH=/opt/bfc/bin:$PATH\n", "bfc run -- ./train\n"].map(|line| text.find(line));
        assert!(path.is_some() && path < run && run < text.find("CMake "), "{text}");
    }
}
