//! The pages of the documentation, docs/*.md and README.md, and the code on them, which the tests run.
//!
//! A block is fenced, and names its language, or is indented by four spaces. [`owners`] says which suite runs a page's
//! code, [`owned`] hands it out and keeps account of what has run, and [`exceptions`] has what nobody runs, and why.

pub mod exceptions;
pub mod owned;
pub mod owners;

/// What a block is written in, if it is code. A fence without a language has output, or a picture.
const LANGUAGES: [(&str, &str); 8] = [
    ("c", "c"),
    ("cpp", "cpp"),
    ("rust", "rs"),
    ("cmake", "cmake"),
    ("sh", "sh"),
    ("python", "py"),
    ("json", "json"),
    ("diff", "diff"),
];

/// How a line begins that somebody is to type.
const COMMANDS: [&str; 9] = ["bfc", "cargo", "cc", "c++", "cmake", "export", "pip", "python", "python3"];

/// A block of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its language and its number among those of that language, from 1: `python-2`; of what is no code `text-1`.
    pub name: String,
    /// One of [`LANGUAGES`], or `text`; an unknown one as it stands there.
    pub language: String,
    /// The line of the page on which its text begins, from 1.
    pub line: usize,
    /// Its lines.
    pub text: String,
}

impl Block {
    /// Whether somebody could run it.
    pub fn is_code(&self) -> bool {
        self.language != "text"
    }

    /// The first line, by which it is known in the table of exceptions.
    pub fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }

    /// What its file is called.
    pub fn file(&self) -> String {
        let end = LANGUAGES.iter().find(|(language, _)| *language == self.language);
        format!("{}.{}", self.name, end.map_or("txt", |(_, end)| end))
    }
}

/// The blocks of a page, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut lines = page.lines().enumerate().peekable();
    let (mut is_after_gap, mut is_in_list) = (true, false);
    while let Some((at, line)) = lines.next() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            let text: String = lines
                .by_ref()
                .take_while(|(_, line)| line.trim() != "```")
                .map(|(_, line)| format!("{}\n", line.get(indent..).unwrap_or_default()))
                .collect();
            push(&mut found, of_fence(language, &text), at + 2, text);
        } else if let Some(first) = line.strip_prefix("    ").filter(|_| is_after_gap && !is_in_list) {
            let mut text = format!("{first}\n");
            while let Some((_, line)) = lines.next_if(|(_, line)| line.starts_with("    ")) {
                text += &line[4..];
                text.push('\n');
            }
            push(&mut found, if is_command(first) { "sh" } else { "text" }, at + 1, text);
        } else if !line.is_empty() && !line.starts_with(' ') {
            // What is indented below an item belongs to it.
            let number = line.trim_start_matches(|letter: char| letter.is_ascii_digit());
            is_in_list = line.starts_with("- ") || (number.len() < line.len() && number.starts_with(". "));
        }
        is_after_gap = line.is_empty();
    }
    found
}

fn push(found: &mut Vec<Block>, language: &str, line: usize, text: String) {
    let number = found.iter().filter(|block| block.language == language).count() + 1;
    found.push(Block { name: format!("{language}-{number}"), language: language.to_owned(), line, text });
}

/// The language that a fence names. What names none and looks like code is taken for it, so that nothing escapes.
fn of_fence<'a>(named: &'a str, text: &str) -> &'a str {
    match named.trim() {
        "" | "text" => match text.lines().find(|line| !line.trim().is_empty()) {
            Some(line) if is_command(line) => "sh",
            Some(line) if line.starts_with("#include") => "c",
            Some(line) if line.starts_with("import ") || line.starts_with("from ") => "python",
            _ => "text",
        },
        "c++" => "cpp",
        "shell" | "bash" | "console" => "sh",
        "py" => "python",
        named => named,
    }
}

/// Whether a line is one to type: a command that is known, a path to one, or a variable before one.
fn is_command(line: &str) -> bool {
    let mut words = line.strip_prefix("$ ").unwrap_or(line).split(' ');
    let is_setting = |word: &&str| {
        let name = word.split_once('=').map_or("", |(name, _)| name);
        !name.is_empty() && name.bytes().all(|letter| letter.is_ascii_uppercase() || letter == b'_')
    };
    let is_set = words.clone().next().is_some_and(|word| is_setting(&word));
    let Some(word) = words.find(|word| !is_setting(word)) else { return false };
    is_set || COMMANDS.contains(&word) || word.starts_with("./") || word.contains("/bin/")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Title\n\n    bfc info\n    BFC_LOG=info bfc info\n\nwords\n\n    some: output\n\n\
                        ```c\nint x;\n\nint y;\n```\n- item\n\n  ```sh\n  cc a.c\n    more\n  ```\n\n    of the item\n\
                        \nwords\n    no block\n\n```\n+--+\n```\n```c\n```\n";

    fn names(page: &str) -> Vec<String> {
        blocks(page).iter().map(|block| format!("{} {}", block.name, block.line)).collect()
    }

    #[test]
    fn blocks_are_found_with_their_languages() {
        assert_eq!(names(PAGE), ["sh-1 3", "text-1 8", "c-1 11", "sh-2 18", "text-2 28", "c-2 31"]);
        let found = blocks(PAGE);
        assert_eq!(found[0].text, "bfc info\nBFC_LOG=info bfc info\n");
        assert_eq!((found[0].first_line(), found[0].file().as_str()), ("bfc info", "sh-1.sh"));
        assert_eq!(found[2].text, "int x;\n\nint y;\n");
        assert_eq!(found[3].text, "cc a.c\n  more\n");
        assert!(found[2].is_code() && !found[4].is_code());
    }

    #[test]
    fn code_that_names_no_language_is_code_all_the_same() {
        let language = |text: &str| blocks(&format!("```\n{text}\n```\n")).remove(0).language;
        assert_eq!(language("bfc run -- ./a"), "sh");
        assert_eq!(language("LD_PRELOAD=x ./train"), "sh");
        assert_eq!(language("DIR/bin/bfc info"), "sh");
        assert_eq!(language("#include <bfc.h>"), "c");
        assert_eq!(language("import torch"), "python");
        assert_eq!(language("bfc: check: it did not"), "text");
        assert_eq!(language("limit = 3"), "text");
        assert_eq!(blocks("```bash\ntrue\n```\n")[0].name, "sh-1");
        assert_eq!(blocks("```cuda\nx\n```\n")[0].language, "cuda");
    }
}
