//! Links in the documentation lead somewhere.

use std::path::Path;

/// The links to files in a page of Markdown that lies in `folder` which name none. Links to the web, and
/// within a page, are nobody's business here.
pub fn broken(page: &str, text: &str, folder: &Path) -> Vec<String> {
    let targets = text.match_indices("](").filter_map(|(at, open)| {
        let rest = &text[at + open.len()..];
        rest.split_once(')').map(|(target, _)| target)
    });
    let files = targets.filter(|target| !target.contains("://") && !target.starts_with(['#', '!']));
    let names = files.map(|target| target.split('#').next().unwrap_or_default());
    names
        .filter(|name| !folder.join(name).exists())
        .map(|name| format!("{page}: the link to {name} leads nowhere"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let good = "See [a](Cargo.toml), [b](src/main.rs#L1), [c](https://example.org/x) and [d](#here).";
        assert!(broken("page", good, folder).is_empty());
        let bad = broken("page", "[a](Cargo.toml) [b](no/such.md#part)", folder);
        assert_eq!(bad, ["page: the link to no/such.md leads nowhere"]);
    }
}
