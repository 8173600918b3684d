//! A header for C++ as a page, in brief: what it says at its head, and its types and functions with their comments. Members
//! are left to the header.

use std::fmt::Write;

use super::words::{Places, Words};

/// Something at the level of a namespace.
struct Entry {
    name: String,
    comment: Vec<String>,
}

/// The page.
pub fn page(name: &str, text: &str, places: &Places) -> String {
    let words = Words::new(places);
    let (head, rest) = match text.strip_prefix("/*").and_then(|rest| rest.split_once("*/")) {
        Some((head, rest)) => (stripped(head), rest),
        None => (Vec::new(), text),
    };
    let mut page = format!("# {name}\n\n`#include <{name}>`, for C++17.\n\n{}", head_page(&words, &head));
    let entries = entries(rest);
    if !entries.is_empty() {
        page += "\n| in namespace `bfc` | |\n|---|---|\n";
    }
    for Entry { name, comment } in entries {
        // Lists and examples are left to the header.
        let first = comment.iter().take_while(|line| !line.is_empty()).cloned().collect::<Vec<_>>().join(" ");
        let first = first.strip_suffix(':').map_or(first.clone(), |words| format!("{words}."));
        let _ = writeln!(page, "| `{name}` | {} |", words.cell(&first));
    }
    page
}

/// The comment at the head: words, and code, which is indented by four more spaces.
fn head_page(words: &Words<'_>, lines: &[String]) -> String {
    let lines: Vec<String> = lines.iter().filter(|line| !line.contains("SPDX")).cloned().collect();
    let is_deep = |line: &String| line.starts_with("    ");
    let mut page = String::new();
    for part in lines.chunk_by(|line, next| is_deep(line) == is_deep(next)) {
        if part.iter().all(is_deep) {
            let code: Vec<&str> = part.iter().filter_map(|line| line.strip_prefix("    ")).collect();
            let _ = write!(page, "```cpp\n{}\n```\n", code.join("\n"));
        } else {
            page += &words.comment(part);
        }
    }
    page
}

/// A comment's lines without its marks.
fn stripped(comment: &str) -> Vec<String> {
    let bare = |line: &str| {
        let line = line.trim_end();
        let words = line.trim_start();
        let words = words.strip_prefix('*').unwrap_or(words);
        words.strip_prefix(' ').unwrap_or(words).to_owned()
    };
    let mut lines: Vec<String> = comment.lines().map(bare).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Types and functions that begin a line, in the namespace bfc itself; what is detail is nobody's business.
fn entries(text: &str) -> Vec<Entry> {
    let (mut found, mut namespace, mut comment) = (Vec::<Entry>::new(), String::new(), Vec::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("namespace ") {
            namespace = rest.trim_end_matches('{').trim().to_owned();
        } else if line.starts_with("}  // namespace") || line.starts_with("} // namespace") {
            // The namespaces within bfc are closed before it is.
            namespace = if namespace == "bfc" { String::new() } else { "bfc".to_owned() };
        } else if line.starts_with("/*") || line.starts_with("//") {
            let mut whole = line.to_owned();
            while line.starts_with("/*") && !whole.contains("*/") {
                let Some(line) = lines.next() else { break };
                whole = format!("{whole}\n{line}");
            }
            let bare = whole.replace("/**", "").replace("/*", "").replace("*/", "");
            let more: Vec<String> =
                stripped(&bare).iter().map(|line| line.trim_start_matches("// ").to_owned()).collect();
            comment.extend(more);
            continue;
        } else if line.starts_with("template") && !line.contains("class ...") && line.ends_with('>') {
            continue;
        } else if let Some(name) = name(line).filter(|_| namespace == "bfc") {
            let is_known = found.iter().any(|entry| entry.name == name);
            if !is_known || !comment.is_empty() {
                let comment = std::mem::take(&mut comment);
                found.push(Entry { name, comment });
            }
        }
        comment.clear();
    }
    found.dedup_by(|second, first| second.name == first.name);
    found
}

/// What a line declares.
fn name(line: &str) -> Option<String> {
    let first_word = |rest: &str| {
        let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    for start in ["enum class ", "class ", "struct ", "using "] {
        if let Some(rest) = line.strip_prefix(start) {
            let is_only_announced = line.ends_with(';') && start != "using ";
            return Some(first_word(rest)).filter(|name| !name.is_empty() && !is_only_announced);
        }
    }
    let rest = line.strip_prefix("[[nodiscard]] ").unwrap_or(line).strip_prefix("inline ")?;
    let before = rest.split(['(', '=', '{', ';']).next()?.trim();
    let name = before.rsplit([' ', '&', '*']).next()?;
    let is_function = rest.contains('(') && !rest.starts_with("constexpr");
    let is_plain = |name: &str| name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    (!name.is_empty() && is_plain(name) && name != "operator")
        .then(|| if is_function { format!("{name}()") } else { name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "/* For C++.\n *\n * SPDX-License-Identifier: x\n *\n *     bfc::pool pool(256);\n *\n * - More.\n */\n\
        #include \"bfc.h\"\nnamespace bfc {\n\n/* A pool of\n * a device:\n *\n *     pool x;\n */\nclass pool {\n public:\n  /* inside */\n\
        \x20 int x;\n};\n\nstruct announced;\n\ninline bool operator==(pool a, pool b) { return true; }\n\n\
        namespace detail {\nclass hidden {};\n}  // namespace detail\n\n/* The host. */\n\
        inline constexpr std::int32_t host_device = 256;\n\n/* Words; see bfc_last_error. */\n\
        inline std::string last_error() {\n}\n\n}  // namespace bfc\n\nclass outside {};\n";

    #[test]
    fn the_entries_are_those_of_the_namespace() {
        let found: Vec<_> =
            entries(HEADER).into_iter().map(|entry| (entry.name, entry.comment.join(" "))).collect();
        let expected = [
            ("pool", "A pool of a device:      pool x;"),
            ("host_device", "The host."),
            ("last_error()", "Words; see bfc_last_error."),
        ];
        assert_eq!(found, expected.map(|(name, comment)| (name.to_owned(), comment.to_owned())));
    }

    #[test]
    fn the_head_is_words_and_code() {
        let page = page("bfc.hpp", HEADER, &Places::new());
        assert!(page.contains("For C++.\n"), "{page}");
        assert!(page.contains("\n```cpp\nbfc::pool pool(256);\n```\n\n- More.\n"), "{page}");
        assert!(!page.contains("SPDX"), "{page}");
        assert!(page.contains("| `pool` | A pool of a device. |\n"), "{page}");
    }
}
