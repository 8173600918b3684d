//! The templates in cmake/: `@NAME@` stands for a value.

use std::path::Path;

use anyhow::{Result, bail};

use crate::files;
use crate::workspace::Workspace;

/// What the archive needs of the system, in the linker's order: what `rustc --print native-static-libs`
/// says, which a test compares, but for gcc_s. That would rule -static out, and compilers link it anyway.
const SYSTEM_LIBRARIES: [&str; 6] = ["util", "rt", "pthread", "m", "dl", "c"];

/// A template of cmake/, filled in.
pub fn fill(workspace: &Workspace, name: &str, libdir: &Path) -> Result<String> {
    let text = files::read(&workspace.path("cmake").join(name))?;
    fill_text(name, &text, &workspace.version, &workspace.soname, libdir)
}

fn fill_text(name: &str, text: &str, version: &str, soname: &str, libdir: &Path) -> Result<String> {
    let flags = SYSTEM_LIBRARIES.map(|library| format!("-l{library}"));
    let values = [
        ("@VERSION@", version.to_owned()),
        ("@SONAME@", soname.to_owned()),
        ("@LIBDIR@", libdir.display().to_string()),
        // From the folder for libraries to the prefix.
        ("@UP@", vec![".."; libdir.components().count()].join("/")),
        // As CMake names the processor.
        ("@ARCH@", std::env::consts::ARCH.to_owned()),
        ("@SYSTEM_LIBS_CMAKE@", SYSTEM_LIBRARIES.join(";")),
        ("@SYSTEM_LIBS_PC@", flags.join(" ")),
    ];
    let mut filled = text.to_owned();
    for (placeholder, value) in values {
        filled = filled.replace(placeholder, &value);
    }
    if let Some(line) = filled.lines().find(|line| line.contains('@')) {
        bail!("cmake/{name} has a placeholder that xtask does not know: {line}");
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in() {
        let text = "v @VERSION@ @SONAME@ @LIBDIR@ @UP@ @SYSTEM_LIBS_PC@";
        let filled = fill_text("x", text, "1.2.3", "libbfc.so.4", Path::new("lib/a")).expect("all known");
        assert_eq!(filled, "v 1.2.3 libbfc.so.4 lib/a ../.. -lutil -lrt -lpthread -lm -ldl -lc");
    }

    #[test]
    fn an_unknown_placeholder_is_refused() {
        assert!(fill_text("x", "@VERSOIN@", "1.2.3", "libbfc.so.4", Path::new("lib")).is_err());
    }
}
