//! The suite `symbols`: what libbfc.so shows the linker and the loader, and one version everywhere.

use anyhow::{Context as _, Result};

use super::context::Context;
use super::package;
use crate::cargo::Profile;
use crate::files;
use crate::gates::elf::{self, Dynamic, Exports};
use crate::gates::version::{self, Said};
use crate::install;
use crate::workspace::{Workspace, capture};

/// The gates over nm's and readelf's words on the release build.
pub fn run(context: &mut Context) -> Result<()> {
    let built = context.built(Profile::Release)?;
    let library = &built.shared;
    let nm = |workspace: &Workspace, which: &str| {
        capture(workspace.command("nm").args(["-D", which]).arg(library))
            .context("nm is part of binutils, which comes with the C compiler")
    };
    let defined = nm(&context.workspace, "--defined-only")?;
    let list = files::read(&context.workspace.path("ffi-tests/symbols.txt"))?;
    let listed = Exports { library: "libbfc.so", listed_in: "ffi-tests/symbols.txt", list: &list };
    context.gate("the listed exports, no others", &elf::exports(&defined, &listed));

    let undefined = nm(&context.workspace, "--undefined-only")?;
    let wrong = elf::glibc(&undefined, elf::NEWEST_GLIBC);
    let (major, minor) = elf::NEWEST_GLIBC;
    context.gate(&format!("runs with glibc {major}.{minor}"), &wrong);

    let soname = version::soname(&context.workspace.version);
    let dynamic = capture(context.workspace.command("readelf").arg("-dW").arg(library))?;
    let expected = Dynamic { library: "libbfc.so", soname: &soname, runpath: None, needed: &[] };
    context.gate("SONAME, NODELETE, NOW, what is loaded", &elf::dynamic(&dynamic, &expected));

    versions(context)
}

/// Everything that names a version, in the installed tree and at run time.
fn versions(context: &mut Context) -> Result<()> {
    let prefix = context.prefix()?;
    let workspace = &context.workspace;
    let header = files::read(&prefix.join("include/bfc.h"))?;
    let pc = files::read(&prefix.join(install::PKG_CONFIG_FILE))?;
    let cmake = prefix.join(install::CMAKE_FOLDER).join("bfcConfigVersion.cmake");
    let cmake = files::read(&cmake)?;
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    let flags = [format!("-I{}", include.display()), format!("-L{}", lib.display()), "-lbfc".to_owned()];
    let printed = package::probe(workspace, "versions", &flags, Some(&lib))?;
    let mut words = printed.split_whitespace().map(str::to_owned);
    let said = [
        Said::new("include/bfc.h", version::of_header(&header)),
        Said::new(install::PKG_CONFIG_FILE, version::of_pkg_config(&pc)),
        Said::new("bfcConfigVersion.cmake", version::of_cmake(&cmake)),
        Said::new("bfc.h's macros in a C program", words.next()),
        Said::new("bfc_version()", words.next()),
    ];
    let wrong = version::disagreements(&context.workspace.version, &said);
    context.gate("one version everywhere", &wrong);
    Ok(())
}
