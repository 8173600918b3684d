//! JSON that is written piece by piece, without characters that control a terminal or, on a page, end an element.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

use os::terminal::is_harmful;

/// Writes a document for people and programs. A harmful character is escaped by its number.
pub fn write(out: impl Write, document: &impl Serialize) -> io::Result<()> {
    serialize(out, document, PrettyFormatter::new(), is_harmful)
}

/// Writes such a document on one line.
pub fn write_line(out: impl Write, document: &impl Serialize) -> io::Result<()> {
    serialize(out, document, CompactFormatter, is_harmful)
}

/// Writes a document for an element of a page: no character in it has a meaning there.
pub fn write_for_page(out: impl Write, document: &impl Serialize) -> io::Result<()> {
    serialize(out, document, CompactFormatter, |character| {
        is_harmful(character) || matches!(character, '<' | '>' | '&')
    })
}

fn serialize<F: Formatter>(
    out: impl Write,
    document: &impl Serialize,
    inner: F,
    is_numbered: fn(char) -> bool,
) -> io::Result<()> {
    let formatter = Escaping { inner, is_numbered };
    Ok(document.serialize(&mut Serializer::with_formatter(out, formatter))?)
}

/// Escapes some characters of strings by their numbers.
struct Escaping<F> {
    inner: F,
    /// All are in the basic multilingual plane, where one number in JSON is enough for a character.
    is_numbered: fn(char) -> bool,
}

macro_rules! as_inner {
    ($($name:ident($($argument:ident: $of:ty)?);)*) => {
        $(fn $name<W: ?Sized + Write>(&mut self, out: &mut W $(, $argument: $of)?) -> io::Result<()> {
            self.inner.$name(out $(, $argument)?)
        })*
    };
}

impl<F: Formatter> Formatter for Escaping<F> {
    as_inner! {
        begin_array();
        end_array();
        begin_array_value(is_first: bool);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(is_first: bool);
        end_object_key();
        begin_object_value();
        end_object_value();
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, character)) = rest.char_indices().find(|&(_, found)| (self.is_numbered)(found)) {
            out.write_all(&rest.as_bytes()[..at])?;
            write!(out, "\\u{:04x}", character as u32)?;
            rest = &rest[at + character.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_have_no_harmful_characters_and_mean_the_same() {
        let document = ["\u{1b}[2J\u{9b}31m\u{7f}\u{202e}\n</b>&é", ""];
        let text = |write: fn(&mut Vec<u8>, &[&str; 2]) -> io::Result<()>| {
            let mut out = Vec::new();
            write(&mut out, &document).expect("into memory");
            let text = String::from_utf8(out).expect("text");
            assert_eq!(serde_json::from_str::<Vec<String>>(&text).expect("JSON"), document);
            text
        };
        assert_eq!(
            text(|out, document| super::write(out, document)),
            "[\n  \"\\u001b[2J\\u009b31m\\u007f\\u202e\\n</b>&é\",\n  \"\"\n]"
        );
        assert_eq!(
            text(|out, document| write_for_page(out, document)),
            "[\"\\u001b[2J\\u009b31m\\u007f\\u202e\\n\\u003c/b\\u003e\\u0026é\",\"\"]"
        );
    }
}
