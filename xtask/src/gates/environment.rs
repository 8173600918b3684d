//! The documented environment variables are those that the library and the interposer read.

use std::collections::BTreeSet;

use super::code::{without_comments, without_tests};
use super::layers::Source;

/// Documented with the others, and not the library's: the bfc command reads them.
const OF_THE_COMMAND: [&str; 2] = ["BFC_LIBRARY", "BFC_PRELOAD_LIBRARY"];

/// Both ask for a variable by a C string, and for nothing else by one that begins so.
const READ: &str = "c\"BFC_";

/// Variables of the sources that have no row in the page's table, and rows of variables that nobody reads.
pub fn differences(sources: &[Source], page: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut read = BTreeSet::from(OF_THE_COMMAND.map(str::to_owned));
    for (_, text) in sources {
        let code = without_comments(&without_tests(text));
        read.extend(code.match_indices(READ).filter_map(|(at, _)| {
            let name = &code[at + READ.len() - "BFC_".len()..];
            name.split_once('"').map(|(name, _)| name.to_owned())
        }));
    }
    if read.len() == OF_THE_COMMAND.len() {
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

    /// Rows of the command's variables, of two more, and a few other lines.
    fn page() -> String {
        let rows = OF_THE_COMMAND.map(|name| format!("| `{name}` | a path |\n")).concat();
        format!(
            "Set `BFC_OTHER`.\n| name | values |\n|---|---|\n| `BFC_LOG` | a level |\n\
             {rows}| `BFC_GC` | sets the flag `BFC_FLAG` |\n"
        )
    }

    fn of(code: &str, page: &str) -> Vec<String> {
        differences(&[("options.rs".to_owned(), code.to_owned())], page)
    }

    #[test]
    fn the_same_on_both_sides_passes() {
        let code = "let a = with(c\"BFC_LOG\");\n[(c\"BFC_GC\", GC)] // c\"BFC_OLD\"\n";
        assert_eq!(of(code, &page()), [""; 0]);
        let tests = "#[cfg(test)]\nmod tests {\n    fn f() { set(c\"BFC_NOT_THERE\") }\n}\n";
        assert_eq!(of(&format!("{code}{tests}"), &page()), [""; 0]);
    }

    #[test]
    fn a_missing_and_an_idle_row_fail() {
        let code = "f(c\"BFC_LOG\", c\"BFC_GC\");";
        let more = of(&format!("{code} f(c\"BFC_NEW\")"), &page());
        assert_eq!(more, ["BFC_NEW is read, and docs/environment.md has no row of it"]);
        let less = of("f(c\"BFC_LOG\")", &page());
        assert_eq!(less, ["BFC_GC has a row in docs/environment.md, and nobody reads it"]);
        assert_eq!(of(code, &page().replace("`BFC_LIBRARY", "`BFC_LIBRARIES")).len(), 2);
        assert_eq!(of(code, &format!("{}| `BFC_GC` | again |\n", page())).len(), 1);
    }

    #[test]
    fn nothing_on_one_side_fails() {
        assert_eq!(of("", &page()).len(), 3);
        assert_eq!(of("f(c\"BFC_LOG\")", "").len(), 1 + OF_THE_COMMAND.len());
        let none_read = page().replace("| `BFC_LOG` |", "").replace("| `BFC_GC` |", "");
        assert_eq!(differences(&[], &none_read).len(), 1);
    }
}
