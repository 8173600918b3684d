//! What the libraries of a wheel have to be: without links, for old systems, and with the system's unwinder.

use std::path::Path;

use anyhow::Result;

use super::toolchain::OLDEST_GLIBC;
use crate::files;
use crate::gates::elf;
use crate::install::INTERPOSER;
use crate::workspace::{Workspace, capture};

/// What is wrong with the package below a folder, of an unpacked or installed wheel.
pub fn wrong(workspace: &Workspace, package: &Path, manylinux: bool) -> Result<Vec<String>> {
    let soname = &workspace.soname;
    let lib = package.join("_prefix/lib");
    let mut wrong = Vec::new();
    let libraries = [lib.join(soname), lib.join(INTERPOSER), package.join("shims/torch_alloc.so")];
    for library in &libraries {
        let name = library.strip_prefix(package).unwrap_or(library).display();
        if !library.is_file() || library.is_symlink() {
            wrong.push(format!("{name} is no file"));
            continue;
        }
        let undefined = capture(workspace.command("nm").args(["-D", "--undefined-only"]).arg(library))?;
        if manylinux {
            let newer = elf::glibc(&undefined, OLDEST_GLIBC);
            wrong.extend(newer.into_iter().map(|words| format!("{name}: {words}")));
        }
    }
    let needed = capture(workspace.command("readelf").arg("-dW").arg(&libraries[0]))?;
    if !needed.contains("[libgcc_s.so.1]") {
        wrong.push(format!("{soname} has an unwinder of its own: a C++ exception could not pass through it"));
    }
    if files::read(&lib.join("libbfc.so"))?.lines().last() != Some(&format!("INPUT({soname})")) {
        wrong.push("libbfc.so does not lead the linker to the library".to_owned());
    }
    Ok(wrong)
}
