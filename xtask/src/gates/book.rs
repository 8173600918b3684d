//! The book leads nowhere but to what is there, and needs nothing of the network.

use std::collections::{BTreeMap, BTreeSet};

/// What a built book consists of: the names of its files, and the text of those in HTML.
pub struct Site {
    /// All files, by their paths from the book's root.
    pub files: BTreeSet<String>,
    /// Of those that end in .html the text.
    pub pages: BTreeMap<String, String>,
}

/// Links that lead nowhere, anchors included, and what a browser would fetch from elsewhere. What the reader may follow
/// to the web is not looked at.
pub fn wrong(site: &Site) -> Vec<String> {
    let anchors: BTreeMap<&str, BTreeSet<&str>> =
        site.pages.iter().map(|(path, text)| (path.as_str(), values(text, " id=\"").collect())).collect();
    let mut wrong = Vec::new();
    for (path, text) in &site.pages {
        let (links, sources) = (values(text, " href=\""), values(text, " src=\""));
        for target in links.chain(sources.clone()) {
            if let Some(words) = broken(site, &anchors, path, target) {
                wrong.push(format!("{path}: {words}"));
            }
        }
        let is_foreign = |target: &&str| target.contains("://") || target.starts_with("//");
        let styles = text.split("<link ").skip(1).filter_map(|tag| tag.split('>').next());
        let styles = styles.filter_map(|tag| values(tag, " href=\"").next());
        for target in sources.chain(styles).filter(is_foreign) {
            wrong.push(format!("{path}: it fetches {target}"));
        }
    }
    wrong
}

/// The values of an attribute.
fn values<'a>(text: &'a str, attribute: &'a str) -> impl Iterator<Item = &'a str> + Clone {
    text.split(attribute).skip(1).filter_map(|rest| rest.split('"').next())
}

fn broken(site: &Site, anchors: &BTreeMap<&str, BTreeSet<&str>>, page: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") || target.starts_with("data:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { page.to_owned() } else { beside(page, file) };
    if !site.files.contains(&path) {
        return Some(format!("the link to {target} leads nowhere"));
    }
    let is_there = |anchors: &BTreeSet<&str>| anchor.is_empty() || anchors.contains(anchor);
    if anchors.get(path.as_str()).is_none_or(is_there) {
        return None;
    }
    Some(format!("the link to {target}: {path} has no place of that name"))
}

/// A path that a page names, from the root.
fn beside(page: &str, file: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            "." | "" => {}
            ".." if !parts.is_empty() => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// What mdBook says that is more than that it works.
pub fn warnings(said: &str) -> Vec<String> {
    let is_one = |line: &&str| ["WARN", "ERROR", "warning", "error"].iter().any(|word| line.contains(word));
    said.lines().filter(is_one).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(pages: &[(&str, &str)], others: &[&str]) -> Site {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let pages: BTreeMap<String, String> = pages.iter().map(own).collect();
        let files = pages.keys().cloned().chain(others.iter().map(|path| (*path).to_owned())).collect();
        Site { files, pages }
    }

    const API: (&str, &str) =
        ("api/b.html", "<h3 id=\"f\"><a href=\"../a.html#x\">a</a> <img src=\"../p.svg\"></h3>");

    #[test]
    fn a_book_whose_links_lead_somewhere_passes() {
        let a = "<h1 id=\"x\"><a href=\"#x\">x</a><a href=\"api/b.html#f\">f</a><a href=\"https://e.org/#n\">w</a>\
                 <link rel=\"icon\" href=\"p.svg\"></h1>";
        assert!(wrong(&site(&[("a.html", a), API], &["p.svg"])).is_empty());
    }

    #[test]
    fn links_and_anchors_that_lead_nowhere_are_found() {
        let a =
            "<h1 id=\"x\"><a href=\"#y\">y</a><a href=\"api/b.html#g\">g</a><a href=\"c.html\">c</a></h1>";
        let expected = [
            "a.html: the link to #y: a.html has no place of that name",
            "a.html: the link to api/b.html#g: api/b.html has no place of that name",
            "a.html: the link to c.html leads nowhere",
            "api/b.html: the link to ../p.svg leads nowhere",
        ];
        assert_eq!(wrong(&site(&[("a.html", a), API], &[])), expected);
    }

    #[test]
    fn what_comes_from_elsewhere_is_found() {
        let a = "<script src=\"https://cdn.org/x.js\"></script><link rel=\"stylesheet\" href=\"https://cdn.org/x.css\">";
        let expected =
            ["a.html: it fetches https://cdn.org/x.js", "a.html: it fetches https://cdn.org/x.css"];
        assert_eq!(wrong(&site(&[("a.html", a)], &[])), expected);
    }

    #[test]
    fn a_warning_is_found() {
        assert!(warnings(" INFO Book building has started\n").is_empty());
        assert_eq!(warnings(" INFO x\n WARN unclosed HTML tag\n"), [" WARN unclosed HTML tag"]);
    }
}
