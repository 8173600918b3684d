//! Printing of text of unknown origin.

use std::fmt::{self, Display};

/// Returns whether a character controls a terminal, or the direction of text.
pub fn is_harmful(character: char) -> bool {
    let is_format = matches!(character,
        '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    is_format || character.is_control()
}

/// Returns whether a character is replaced when text is printed. Line ends and tabs are not.
fn is_replaced(character: char) -> bool {
    is_harmful(character) && !matches!(character, '\n' | '\t')
}

/// Text with U+FFFD in place of each harmful character except line ends and tabs.
pub struct Printable<'a>(pub &'a str);

impl<'a> Printable<'a> {
    /// Returns whether the text is printed unchanged.
    pub fn is_unchanged(&self) -> bool {
        !self.0.contains(is_replaced)
    }

    /// Returns the text in parts, as printed.
    pub fn parts(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.0.split_inclusive(is_replaced).flat_map(|part| match part.char_indices().next_back() {
            Some((at, last)) if is_replaced(last) => [&part[..at], "\u{fffd}"],
            _ => [part, ""],
        })
    }
}

impl Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.parts().try_for_each(|part| f.write_str(part))
    }
}

/// Bytes as text, with U+FFFD for invalid UTF-8.
pub struct Lossy<'a>(pub &'a [u8]);

impl Display for Lossy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.utf8_chunks().try_for_each(|chunk| {
            f.write_str(chunk.valid())?;
            f.write_str(if chunk.invalid().is_empty() { "" } else { "\u{fffd}" })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_neither_steers_a_terminal_nor_turns_its_direction() {
        let shown = |text| Printable(text).to_string();
        assert_eq!(shown("a\u{1b}[2Jb\nc\td\r"), "a\u{fffd}[2Jb\nc\td\u{fffd}");
        assert_eq!(shown("\u{9b}31mé\u{202e}\u{61c}\u{7f}"), "\u{fffd}31mé\u{fffd}\u{fffd}\u{fffd}");
        assert!(Printable("a\n").is_unchanged() && !Printable("a\u{9b}").is_unchanged());
        assert_eq!([shown(""), shown("plain\n")], ["", "plain\n"]);
        assert_eq!(Lossy(b"a\xffb\xc3").to_string(), "a\u{fffd}b\u{fffd}");
    }
}
