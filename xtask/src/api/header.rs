//! Reading a header that cbindgen has written: what it declares, each with the comment above it.
//!
//! It is no C parser. It knows the few shapes that our two headers have, and refuses what it does not know: a gate holds
//! what it found against the list of exported symbols.

use anyhow::{Result, bail};

/// What kind of thing is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `#define NAME VALUE`
    Constant,
    /// A struct with its fields.
    Struct,
    /// Any other typedef.
    Type,
    /// A function.
    Function,
}

/// A declaration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What it is.
    pub kind: Kind,
    /// Its name.
    pub name: String,
    /// The comment's lines, without `//`.
    pub comment: Vec<String>,
    /// The declaration as it stands there; of a struct without its fields' comments.
    pub text: String,
    /// A constant's value.
    pub value: String,
    /// The fields of a struct.
    pub fields: Vec<Field>,
}

/// A field of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its declaration.
    pub text: String,
    /// The comment above it.
    pub comment: String,
}

/// A header.
pub struct Header {
    /// The comment at its head, by lines, without the marks.
    pub head: Vec<String>,
    /// What it declares, in order.
    pub items: Vec<Item>,
}

impl Header {
    /// Those of a kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(move |item| item.kind == kind)
    }
}

/// Reads a header.
pub fn read(text: &str) -> Result<Header> {
    let mut lines = text.lines().peekable();
    let head = block_comment(&mut lines);
    let (mut items, mut comment) = (Vec::new(), Vec::new());
    while let Some(line) = lines.next() {
        if let Some(words) = line.strip_prefix("//") {
            comment.push(words.strip_prefix(' ').unwrap_or(words).to_owned());
        } else if let Some(words) = line.strip_prefix("/*") {
            comment = rest_of_block(words, &mut lines);
        } else if let Some(rest) = line.strip_prefix("#define ") {
            // One comment may stand above several; that of a guard of inclusion is no matter.
            if let Some((name, value)) = rest.split_once(' ') {
                items.push(constant(name, value, &comment));
            }
            if lines.peek().is_none_or(|next| !next.starts_with("#define ")) {
                comment.clear();
            }
        } else if line.starts_with("#if") && line.contains(PER_THREAD) {
            skip_conditional(&mut lines)?;
            comment.clear();
        } else if line.is_empty() || line.starts_with(['#', '}']) || line.starts_with("extern \"C\"") {
            comment.clear();
        } else {
            let mut text = line.to_owned();
            let end = if line.ends_with('{') { "}" } else { "" };
            while !(text.ends_with(';') && text.lines().last().is_some_and(|line| line.starts_with(end))) {
                let Some(line) = lines.next() else { bail!("a declaration without an end: {text}") };
                text.push('\n');
                text.push_str(line);
            }
            items.push(declaration(&text, std::mem::take(&mut comment))?);
        }
    }
    Ok(Header { head, items })
}

type Lines<'a> = std::iter::Peekable<std::str::Lines<'a>>;

/// What a unit defines that is compiled for the per-thread default stream. Its macros change what 0 is, and declare nothing
/// beside; the comment at the head of the header describes them.
const PER_THREAD: &str = "CUDA_API_PER_THREAD_DEFAULT_STREAM";

/// Leaves out the rest of a conditional part, with those inside.
fn skip_conditional(lines: &mut Lines<'_>) -> Result<()> {
    let mut depth = 1_u32;
    for line in lines {
        match line {
            _ if line.starts_with("#if") => depth += 1,
            _ if line.starts_with("#endif") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(());
        }
    }
    bail!("a part that depends on {PER_THREAD} has no end")
}

/// The comment that a header begins with.
fn block_comment(lines: &mut Lines<'_>) -> Vec<String> {
    match lines.next_if(|line| line.starts_with("/*")) {
        Some(line) => rest_of_block(&line[2..], lines),
        None => Vec::new(),
    }
}

fn rest_of_block(first: &str, lines: &mut Lines<'_>) -> Vec<String> {
    let (mut found, mut line) = (Vec::new(), first);
    loop {
        let is_last = line.contains("*/");
        let words = line.split("*/").next().unwrap_or_default().trim_end();
        let words = words.trim_start_matches(' ').strip_prefix('*').unwrap_or(words.trim_start_matches(' '));
        found.push(words.strip_prefix(' ').unwrap_or(words).to_owned());
        // What stands behind the end of a comment, on its line, is nothing of ours.
        match lines.next_if(|_| !is_last) {
            Some(next) => line = next,
            None => break,
        }
    }
    while found.last().is_some_and(String::is_empty) {
        found.pop();
    }
    found
}

fn constant(name: &str, value: &str, comment: &[String]) -> Item {
    Item {
        kind: Kind::Constant,
        name: name.to_owned(),
        comment: comment.to_vec(),
        text: format!("#define {name} {value}"),
        value: value.to_owned(),
        fields: Vec::new(),
    }
}

fn declaration(text: &str, comment: Vec<String>) -> Result<Item> {
    let (kind, name) = if text.starts_with("typedef struct") {
        (Kind::Struct, text.rsplit('}').next().map(|end| end.trim().trim_end_matches(';')))
    } else if let Some((_, name)) = text.split_once("(*").filter(|_| text.starts_with("typedef")) {
        (Kind::Type, name.split(')').next())
    } else if text.starts_with("typedef") {
        (Kind::Type, text.trim_end_matches(';').rsplit([' ', '*']).next())
    } else {
        let name = text.split('(').next().unwrap_or_default();
        (Kind::Function, name.rsplit([' ', '*']).next().filter(|_| text.contains('(')))
    };
    let Some(name) = name.filter(|name| name.starts_with("bfc_")) else {
        bail!("what is this? {text}");
    };
    let fields = if kind == Kind::Struct { fields(text) } else { Vec::new() };
    let mut shown: Vec<&str> = text.lines().collect();
    if kind == Kind::Struct {
        shown.retain(|line| !line.trim_start().starts_with("//"));
    }
    let (name, text) = (name.to_owned(), shown.join("\n"));
    Ok(Item { kind, name, comment, text, value: String::new(), fields })
}

fn fields(text: &str) -> Vec<Field> {
    let (mut found, mut comment) = (Vec::new(), Vec::new());
    for line in text.lines().skip(1).map(str::trim) {
        if let Some(words) = line.strip_prefix("//") {
            comment.push(words.trim());
        } else if let Some(text) = line.strip_suffix(';').filter(|line| !line.starts_with('}')) {
            let name = text.rsplit([' ', '*']).next().unwrap_or_default().to_owned();
            found.push(Field { name, text: text.to_owned(), comment: comment.join(" ") });
            comment.clear();
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "/* A head.\n *\n * - one\n *   more\n */\n\n#ifndef X_H\n#define X_H\n#include <stddef.h>\n\
        /* Both of\n * them. */\n#define BFC_A 1\n#define BFC_B { 0, 1 }\n\n// Shift.\n#define BFC_C (1u << 2)\n\n\
        // A callback.\ntypedef void *(*bfc_f_t)(int x,\n                         int y);\n\ntypedef int32_t bfc_n_t;\n\n\
        // A struct.\ntypedef struct bfc_s_t {\n  // One,\n  // first.\n  size_t one;\n  const char *two;\n} bfc_s_t;\n\n\
        #ifdef __cplusplus\nextern \"C\" {\n#endif\n\n// Does.\n//\n// @param x  It.\nbfc_n_t bfc_do(int x,\n    int y);\n\
        \nconst char *bfc_say(void);\n#ifdef __cplusplus\n}  // end\n#endif\n";

    #[test]
    fn declarations_are_read_with_their_comments() {
        let header = read(HEADER).expect("a good header");
        assert_eq!(header.head, ["A head.", "", "- one", "  more"]);
        let found: Vec<_> = header.items.iter().map(|item| (item.kind, item.name.as_str())).collect();
        let (constant, kind) = (Kind::Constant, Kind::Type);
        assert_eq!(found[..3], [(constant, "BFC_A"), (constant, "BFC_B"), (constant, "BFC_C")]);
        assert_eq!(found[3..6], [(kind, "bfc_f_t"), (kind, "bfc_n_t"), (Kind::Struct, "bfc_s_t")]);
        assert_eq!(found[6..], [(Kind::Function, "bfc_do"), (Kind::Function, "bfc_say")]);
        assert_eq!(header.items[1].comment, ["Both of", "them."]);
        assert_eq!(
            (header.items[2].value.as_str(), header.items[2].comment[0].as_str()),
            ("(1u << 2)", "Shift.")
        );
        assert_eq!(header.items[6].comment, ["Does.", "", "@param x  It."]);
        assert_eq!(header.items[6].text, "bfc_n_t bfc_do(int x,\n    int y);");
        assert!(header.items[7].comment.is_empty());
    }

    #[test]
    fn a_struct_has_its_fields() {
        let header = read(HEADER).expect("a good header");
        let fields = &header.items[5].fields;
        let found: Vec<_> =
            fields.iter().map(|field| [&*field.name, &*field.text, &*field.comment]).collect();
        assert_eq!(found, [["one", "size_t one", "One, first."], ["two", "const char *two", ""]]);
        assert!(!header.items[5].text.contains("//"));
    }

    #[test]
    fn what_it_does_not_know_it_refuses() {
        assert!(read("int x;\n").is_err());
        assert!(read("bfc_n_t bfc_do(int x,\n").is_err());
        assert!(read("static inline void f(void) {\n}\n").is_err());
    }

    /// What a unit for the per-thread default stream gets beside is described at the head.
    #[test]
    fn the_macros_of_the_per_thread_default_stream_are_left_out() {
        let unit = "#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM\n/* A unit. */\nstatic inline int f(int x) {\n#ifdef __cplusplus\n  \
            return x;\n#endif\n}\n#endif\n#if defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)\nint g;\n#endif\n// It.\nint bfc_h(void);\n";
        let items = read(unit).expect("a good header").items;
        assert_eq!(items.len(), 1);
        assert_eq!((items[0].name.as_str(), items[0].comment.join(" ").as_str()), ("bfc_h", "It."));
    }
}
