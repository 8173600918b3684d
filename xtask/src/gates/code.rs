//! What the gates need of Rust's sources: enough to find names in them, not to understand them.

/// The text with its line comments blanked; the lines stay where they were.
pub fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// The text with its inner modules for tests blanked: from `#[cfg(test)]` at the start of a line, with a
/// `mod ... {` in the next one, to the brace that closes it; the lines stay where they were.
pub fn without_tests(text: &str) -> String {
    let (mut kept, mut lines) = (Vec::new(), text.lines().peekable());
    while let Some(line) = lines.next() {
        let of_tests = line == "#[cfg(test)]"
            && lines.peek().is_some_and(|next| next.contains("mod ") && next.ends_with('{'));
        if !of_tests {
            kept.push(line);
            continue;
        }
        kept.push("");
        for line in lines.by_ref() {
            kept.push("");
            if line == "}" {
                break;
            }
        }
    }
    kept.join("\n")
}

/// The modules that a file declares for tests only, as in `#[cfg(test)] mod broken_tests;`.
pub fn test_modules(text: &str) -> Vec<String> {
    let lines = text.lines().zip(text.lines().skip(1));
    let declared = lines.filter(|(line, _)| *line == "#[cfg(test)]").filter_map(|(_, line)| {
        let (_, name) = line.strip_suffix(';')?.rsplit_once("mod ")?;
        Some(name.to_owned())
    });
    declared.collect()
}

/// The places of a path's beginning, where it is not the end of a longer word.
pub fn occurrences<'a>(code: &'a str, path: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    code.match_indices(path).filter(|(start, _)| {
        let before = code[..*start].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
    })
}

/// The number of the line that a place is in.
pub fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// The paths that a text begins with: `a::b` of `a::b`, and of `{a::b, c::{d, e}}` each of the three.
pub fn paths(text: &str) -> Vec<String> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        return members(group).into_iter().flat_map(paths).collect();
    }
    let letters = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '*';
    let end = text.find(|letter| !letters(letter)).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    if word.is_empty() {
        return Vec::new();
    }
    let inner = rest.strip_prefix("::").map(paths).unwrap_or_default();
    match inner.is_empty() {
        true => vec![word.to_owned()],
        false => inner.iter().map(|inner| format!("{word}::{inner}")).collect(),
    }
}

/// What stands between the commas of a group, up to the brace that closes it.
fn members(group: &str) -> Vec<&str> {
    let (mut found, mut start, mut open) = (Vec::new(), 0, 1);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => open += 1,
            '}' => open -= 1,
            ',' if open == 1 => {
                found.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        if open == 0 {
            found.push(&group[start..at]);
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart() {
        assert_eq!(paths("a::b as c;"), ["a::b"]);
        assert_eq!(paths("{a::b, c::{\n    d,\n    e::*,\n},}; x"), ["a::b", "c::d", "c::e::*"]);
        assert_eq!(paths("a(b::c)"), ["a"]);
        assert_eq!(paths("Vec::<u8>::new()"), ["Vec"]);
        assert_eq!(paths("!"), [""; 0]);
    }

    #[test]
    fn comments_and_tests_are_blanked_and_lines_stay() {
        assert_eq!(without_comments("a // b\n//! c\nd"), "a \n\nd");
        let text = "a\n#[cfg(test)]\nmod tests {\n    mod inner {\n    }\n}\nb";
        assert_eq!(without_tests(text), "a\n\n\n\n\n\nb");
        for kept in ["#[cfg(test)]\nmod tests;\na", "    #[cfg(test)]\n    a {\n}", "mod tests {\n}"] {
            assert_eq!(without_tests(kept), kept);
        }
    }

    #[test]
    fn modules_for_tests_are_those_that_say_so() {
        let text = "mod a;\n#[cfg(test)]\nmod b_tests;\n#[cfg(test)]\npub(crate) mod c;\nmod d_tests;\n";
        assert_eq!(test_modules(text), ["b_tests", "c"]);
        assert_eq!(test_modules("#[cfg(test)]\nmod tests {\n"), [""; 0]);
    }
}
