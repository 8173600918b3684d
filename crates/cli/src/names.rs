//! Names from a program or a file, as they are shown.

use os::terminal::is_harmful;
use os::terms::NO_OPERATION;

/// A name without characters that control a terminal, or the direction of text. It has no line ends either.
pub fn shown(name: &str) -> String {
    name.chars().map(|character| if is_harmful(character) { '\u{fffd}' } else { character }).collect()
}

/// The operation that holds memory.
pub fn operation(name: Option<&str>) -> String {
    name.map_or(NO_OPERATION.into(), shown)
}

/// What a pool is on.
pub fn device(ordinal: Option<i32>) -> String {
    ordinal.map_or("an unknown device".into(), |ordinal| format!("device {ordinal}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_neither_steers_a_terminal_nor_turns_the_text() {
        assert_eq!(shown("a\u{1b}[2Jb\nc\u{202e}d\u{200b}é"), "a\u{fffd}[2Jb\u{fffd}c\u{fffd}d\u{fffd}é");
    }
}
