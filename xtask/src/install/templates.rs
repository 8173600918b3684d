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
    fill_text(workspace, name, files::read(&workspace.path("cmake").join(name))?, libdir)
}

fn fill_text(workspace: &Workspace, name: &str, text: String, libdir: &Path) -> Result<String> {
    let flags = SYSTEM_LIBRARIES.map(|library| format!("-l{library}"));
    let values = [
        ("@VERSION@", workspace.version.clone()),
        ("@SONAME@", workspace.soname.clone()),
        ("@LIBDIR@", libdir.display().to_string()),
        // From the folder for libraries to the prefix.
        ("@UP@", vec![".."; libdir.components().count()].join("/")),
        // As CMake names the processor.
        ("@ARCH@", std::env::consts::ARCH.to_owned()),
        ("@SYSTEM_LIBS_CMAKE@", SYSTEM_LIBRARIES.join(";")),
        ("@SYSTEM_LIBS_PC@", flags.join(" ")),
    ];
    let filled = values.iter().fold(text, |text, (placeholder, value)| text.replace(placeholder, value));
    if let Some(line) = filled.lines().find(|line| line.contains('@')) {
        bail!("cmake/{name} has a placeholder that xtask does not know: {line}");
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in_and_an_unknown_one_is_refused() {
        let workspace = Workspace::find().expect("a checkout");
        let fill = |text: &str| fill_text(&workspace, "x", text.to_owned(), Path::new("lib/a"));
        let filled = fill("@LIBDIR@ @UP@ @SYSTEM_LIBS_PC@").expect("all known");
        assert_eq!(filled, "lib/a ../.. -lutil -lrt -lpthread -lm -ldl -lc");
        assert!(fill("@VERSOIN@").is_err());
    }
}
