//! The documented environment variables are those that the library reads.

use std::collections::BTreeSet;

use super::code::{without_comments, without_tests};
use super::layers::Source;

/// Documented with the others, and not the library's: the bfc command reads it.
const OF_THE_COMMAND: &str = "BFC_LIBRARY";

/// The library asks for a variable by a C string, and for nothing else by one that begins so.
const READ: &str = "c\"BFC_";

/// Variables of the sources that have no row in the page's table, and rows of variables that nobody reads.
pub fn differences(sources: &[Source], page: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut read = BTreeSet::from([OF_THE_COMMAND.to_owned()]);
    for (_, text) in sources {
        let code = without_comments(&without_tests(text));
        read.extend(code.match_indices(READ).filter_map(|(at, _)| {
            let name = &code[at + READ.len() - "BFC_".len()..];
            name.split_once('"').map(|(name, _)| name.to_owned())
        }));
    }
    if read.len() == 1 {
        wrong.push("the sources read no variable: has the way in which they do changed?".to_owned());
    }
    let rows: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `BFC_"))
        .filter_map(|line| line.split_once("` |"))
        .map(|(name, _)| name)
        .collect();
    let documented: BTreeSet<String> = rows.iter().map(|name| format!("BFC_{name}")).collect();
    if documented.len() < rows.len() {
        wrong.push("docs/environment.md has two rows of one variable".to_owned());
    }
    let missing = read.difference(&documented);
    wrong.extend(missing.map(|name| format!("{name} is read, and docs/environment.md has no row of it")));
    let idle = documented.difference(&read);
    wrong.extend(idle.map(|name| format!("{name} has a row in docs/environment.md, and nobody reads it")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "Set `BFC_OTHER`.\n| name | values |\n|---|---|\n| `BFC_LOG` | a level |\n\
                        | `BFC_LIBRARY` | a path |\n| `BFC_GC` | sets the flag `BFC_FLAG` |\n";

    fn of(code: &str, page: &str) -> Vec<String> {
        differences(&[("options.rs".to_owned(), code.to_owned())], page)
    }

    #[test]
    fn the_same_on_both_sides_passes() {
        let code = "let a = with(c\"BFC_LOG\");\n[(c\"BFC_GC\", GC)] // c\"BFC_OLD\"\n";
        assert_eq!(of(code, PAGE), [""; 0]);
        let tests = "#[cfg(test)]\nmod tests {\n    fn f() { set(c\"BFC_NOT_THERE\") }\n}\n";
        assert_eq!(of(&format!("{code}{tests}"), PAGE), [""; 0]);
    }

    #[test]
    fn a_missing_and_an_idle_row_fail() {
        let code = "f(c\"BFC_LOG\", c\"BFC_GC\");";
        let more = of(&format!("{code} f(c\"BFC_NEW\")"), PAGE);
        assert_eq!(more, ["BFC_NEW is read, and docs/environment.md has no row of it"]);
        let less = of("f(c\"BFC_LOG\")", PAGE);
        assert_eq!(less, ["BFC_GC has a row in docs/environment.md, and nobody reads it"]);
        assert_eq!(of(code, &PAGE.replace("LIBRARY", "LIBRARIES")).len(), 2);
        assert_eq!(of(code, &format!("{PAGE}| `BFC_GC` | again |\n")).len(), 1);
    }

    #[test]
    fn nothing_on_one_side_fails() {
        assert_eq!(of("", PAGE).len(), 3);
        assert_eq!(of("f(c\"BFC_LOG\")", "").len(), 2);
        assert_eq!(differences(&[], "| `BFC_LIBRARY` | a path |\n").len(), 1);
    }
}
