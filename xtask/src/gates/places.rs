//! The files and folders that a page names in inline code are there.

use std::path::Path;

/// The folders of the project that such a name begins with.
const FOLDERS: [&str; 10] =
    ["src", "cli", "preload", "xtask", "tests", "ffi-tests", "include", "python", "docs", "benches"];

/// Names like `src/pool/slot` and `tests/conformance_*.rs` of which nothing is there.
pub fn missing(page: &str, text: &str, root: &Path) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2);
    let names = quoted.filter(|name| {
        let folder = name.split('/').next().unwrap_or_default();
        name.contains('/') && FOLDERS.contains(&folder) && !name.contains(char::is_whitespace)
    });
    names
        .filter(|name| !is_there(&root.join(name.trim_end_matches('/'))))
        .map(|name| format!("{page}: there is no {name}"))
        .collect()
}

/// A file, with or without `.rs`, a folder, or with a star something of that form.
fn is_there(path: &Path) -> bool {
    let name = path.to_string_lossy();
    if let Some((before, after)) = name.split_once('*') {
        let Some((folder, start)) = before.rsplit_once('/') else { return false };
        return crate::files::entries(Path::new(folder)).unwrap_or_default().iter().any(|entry| {
            let entry = entry.file_name().unwrap_or_default().to_string_lossy();
            entry.starts_with(start) && entry.ends_with(after)
        });
    }
    path.exists() || path.with_extension("rs").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_named() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the project");
        let text = "`src/pool/slot`, `xtask/src/gates/places.rs`, `tests/conformance_*.rs`, `src/lib`, `a/b`, `ls src/x`";
        assert_eq!(missing("P", text, root), [""; 0]);
        let text = "see `src/options.rs`, `tests/nothing_*.rs` and `docs/absent/`";
        let wrong = ["src/options.rs", "tests/nothing_*.rs", "docs/absent/"]
            .map(|name| format!("P: there is no {name}"));
        assert_eq!(missing("P", text, root), wrong);
    }
}
