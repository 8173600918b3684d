//! The words of a comment in a header, as Markdown: what is declared somewhere becomes a link to it.

use std::collections::BTreeMap;

/// Where the names of the headers are explained: a name, and the page and anchor from the book's root.
pub type Places = BTreeMap<String, String>;

/// Comments turned into Markdown for a page of the book's folder api/.
pub struct Words<'a> {
    places: &'a Places,
}

impl<'a> Words<'a> {
    /// With the names that are known.
    pub fn new(places: &'a Places) -> Self {
        Self { places }
    }

    /// A comment's lines: paragraphs, lists, and the `@param`, `@return` and `Precondition:` of functions.
    pub fn comment(&self, lines: &[String]) -> String {
        let (mut page, mut is_in_parameters) = (String::new(), false);
        for line in &whole_spans(lines) {
            let is_deeper = line.starts_with("  ");
            if let Some((name, text)) = parameter(line) {
                if !is_in_parameters {
                    page += "\n**Parameters**\n\n";
                }
                is_in_parameters = true;
                page += &format!("- {}: {}\n", names(name), self.inline(text));
                continue;
            }
            is_in_parameters = is_in_parameters && is_deeper;
            if let Some(text) = line.strip_prefix("@return ") {
                page += &format!("\n**Returns** {}\n", self.inline(text.trim()));
            } else if let Some(text) = line.strip_prefix("Precondition: ") {
                page += &format!("\n**Precondition**: {}\n", self.inline(text));
            } else if let Some(text) = line.strip_prefix("- ") {
                page += &format!("- {}\n", self.inline(text));
            } else if is_deeper {
                // Of the list's item, or of the parameter.
                page += &format!("  {}\n", self.inline(line.trim()));
            } else {
                page += &self.inline(line);
                page.push('\n');
            }
        }
        page
    }

    /// A line of a comment.
    pub fn inline(&self, text: &str) -> String {
        let mut page = String::new();
        for (number, part) in text.split('`').enumerate() {
            if number % 2 == 1 {
                page += &self.code(part);
                continue;
            }
            let mut rest = part;
            while !rest.is_empty() {
                let end = rest.find(|letter: char| !is_of_name(letter)).unwrap_or(rest.len());
                let (word, behind) = rest.split_at(end);
                page += &self.word(word);
                let mut letters = behind.chars();
                // The dots of `BFC_BACKEND_...` were taken with the word.
                if let Some(letter) = letters.next() {
                    page += &escaped(letter);
                }
                rest = letters.as_str();
            }
        }
        page
    }

    /// The same for a cell of a table.
    pub fn cell(&self, text: &str) -> String {
        self.inline(text).replace('|', "\\|").replace('\n', " ")
    }

    fn word(&self, word: &str) -> String {
        let bare = word.trim_end_matches(['.', '/', ':', '=']);
        let end = &word[bare.len()..];
        if let Some(page) = bare.strip_prefix("docs/").filter(|page| page.ends_with(".md")) {
            return format!("[{page}](../{page}){end}");
        }
        if self.places.contains_key(bare) || bare.contains('_') || bare.contains("::") {
            // The dots of BFC_BACKEND_... are of the name.
            let (bare, end) = if bare.ends_with('_') { (word, "") } else { (bare, end) };
            return format!("{}{end}", self.code(bare));
        }
        word.chars().map(escaped).collect()
    }

    /// A code span, and the link to what it names.
    pub fn code(&self, text: &str) -> String {
        match self.places.get(text.trim_end_matches("()")) {
            Some(place) => format!("[`{text}`](../{place})"),
            None => format!("`{text}`"),
        }
    }
}

/// The code spans of a page of docs/ that name something of the headers become links; code and headings stay.
pub fn linked(page: &str, places: &Places) -> String {
    let (mut out, mut is_in_fence) = (String::new(), false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_in_fence = !is_in_fence;
        }
        let is_words = !is_in_fence && !line.starts_with(['#', ' ', '<']);
        out += &if is_words { linked_line(line, places) } else { line.to_owned() };
        out.push('\n');
    }
    out
}

fn linked_line(line: &str, places: &Places) -> String {
    let parts: Vec<&str> = line.split('`').collect();
    let (mut out, mut depth) = (String::new(), 0_i32);
    for (number, part) in parts.iter().enumerate() {
        let is_code = number % 2 == 1 && number + 1 < parts.len();
        // Within the words of a link there is no other link.
        let place = places.get(part.trim_end_matches("()")).filter(|_| is_code && depth <= 0);
        match place {
            Some(place) => out += &format!("[`{part}`]({place})"),
            None if number % 2 == 1 => out += &format!("`{part}{}", if is_code { "`" } else { "" }),
            None => {
                depth += part.matches('[').count() as i32 - part.matches(']').count() as i32;
                out += part;
            }
        }
    }
    out
}

/// The lines of a comment, but that a code span which goes over the end of one is on one line.
fn whole_spans(lines: &[String]) -> Vec<String> {
    let mut whole: Vec<String> = Vec::new();
    for line in lines {
        match whole.last_mut().filter(|last| last.matches('`').count() % 2 == 1) {
            Some(last) => *last = format!("{last} {}", line.trim_start()),
            None => whole.push(line.clone()),
        }
    }
    whole
}

/// `@param name, name2   text`
fn parameter(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("@param ")?.trim_start();
    let (names, text) = rest.split_once("  ")?;
    Some((names, text.trim()))
}

fn names(text: &str) -> String {
    let names: Vec<String> = text.split(", ").map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

fn is_of_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '/' | ':' | '=')
}

fn escaped(letter: char) -> String {
    match letter {
        '*' | '_' | '<' | '>' | '[' | ']' | '\\' | '#' => format!("\\{letter}"),
        letter => letter.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        let place = |name: &str| (name.to_owned(), format!("api/bfc.md#{name}"));
        ["bfc_free", "BFC_OK", "bfc_stream_t"].map(place).into()
    }

    #[test]
    fn names_become_links_and_signs_stay_signs() {
        let places = places();
        let words = Words::new(&places);
        assert_eq!(words.inline("See bfc_free."), "See [`bfc_free`](../api/bfc.md#bfc_free).");
        assert_eq!(words.inline("`bfc_free()`"), "[`bfc_free()`](../api/bfc.md#bfc_free)");
        assert_eq!(words.inline("'*' of bfc_x, BFC_..."), "'\\*' of `bfc_x`, `BFC_...`");
        assert_eq!(words.inline("in docs/run.md."), "in [run.md](../run.md).");
        assert_eq!(words.inline("`*out`, a|b <c>"), "`*out`, a|b \\<c\\>");
        assert_eq!(words.cell("a|b"), "a\\|b");
        assert_eq!(
            words.inline("BFC_LOG=error, std::bad_alloc: x = 1"),
            "`BFC_LOG=error`, `std::bad_alloc`: x = 1"
        );
    }

    #[test]
    fn a_function_s_comment_has_its_parts() {
        let places = places();
        let lines = [
            "Does it.",
            "",
            "@param a, b  Both",
            "             of them.",
            "@return BFC_OK; else",
            "        more.",
        ];
        let lines = lines.map(str::to_owned);
        let page = Words::new(&places).comment(&lines);
        let expected = "Does it.\n\n\n**Parameters**\n\n- `a`, `b`: Both\n  of them.\n\n**Returns** \
                        [`BFC_OK`](../api/bfc.md#BFC_OK); else\n  more.\n";
        assert_eq!(page, expected);
    }

    #[test]
    fn a_span_over_two_lines_is_one() {
        let lines = ["It is `a".to_owned(), "  *b` here.".to_owned()];
        assert_eq!(Words::new(&places()).comment(&lines), "It is `a *b` here.\n");
    }

    #[test]
    fn a_page_s_spans_become_links() {
        let page = "# `bfc_free`\n`bfc_free` and [see `bfc_free`](x.md), `a`\n```c\n`bfc_free`\n```\n    `bfc_free`\n";
        let expected = "# `bfc_free`\n[`bfc_free`](api/bfc.md#bfc_free) and [see `bfc_free`](x.md), `a`\n\
                        ```c\n`bfc_free`\n```\n    `bfc_free`\n";
        assert_eq!(linked(page, &places()), expected);
    }
}
