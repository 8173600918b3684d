//! The library's modules import only from those below them.

/// The modules of src/ from the bottom up; those of one line may use each other.
const LAYERS: [&[&str]; 10] = [
    &["sys"],
    &["error", "log"],
    &["core"],
    &["backend"],
    &["options"],
    &["report"],
    &["pool"],
    &["scope"],
    &["device"],
    &["capi"],
];

/// A file of src/: its path there, and its text.
pub type Source = (String, String);

/// Every import that goes up, and every one whose direction cannot be told.
pub fn violations(sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (path, text) in sources {
        // The crate's root sees all modules, and none may see it.
        if path == "lib.rs" {
            continue;
        }
        let module = path.split(['/', '.']).next().unwrap_or(path);
        let Some(own) = layer(module) else {
            wrong.push(format!(
                "src/{path}: the module {module} is in no layer; give it one in xtask/src/gates/layers.rs"
            ));
            continue;
        };
        for (line, used) in imports(path, text) {
            match layer(&used) {
                Some(other) if other <= own => {}
                Some(_) => wrong.push(format!("src/{path}:{line}: {module} uses {used}, which is above it")),
                None => wrong.push(format!(
                    "src/{path}:{line}: crate::{used} is no module: import it from the module it lives in"
                )),
            }
        }
    }
    if sources.iter().all(|(path, _)| path == "lib.rs") {
        wrong.push("there is no module to look at".to_owned());
    }
    wrong
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

/// The modules of the root that a file names, each with its line: by `crate::x`, in an import or in the
/// midst of the code, by `crate::{x, y}`, and by as many `super::` as lead to the root.
fn imports(path: &str, text: &str) -> Vec<(usize, String)> {
    let code = without_comments(text);
    let depth = path.trim_end_matches("/mod.rs").matches('/').count() + 1;
    let up = "super::".repeat(depth);
    let mut found = Vec::new();
    for (start, root) in occurrences(&code, "crate::").chain(occurrences(&code, &up)) {
        // An inner module, such as one for tests, is indented and its `super` is the file itself.
        let line_start = code[..start].rfind('\n').map_or(0, |at| at + 1);
        let indented = code[line_start..].starts_with(' ');
        if root.starts_with("super") && (indented || code[..start].ends_with("super::")) {
            continue;
        }
        let line = code[..start].matches('\n').count() + 1;
        let rest = code[start + root.len()..].trim_start();
        found.extend(first_names(rest).into_iter().map(|name| (line, name)));
    }
    found.retain(|(_, name)| name != "super");
    found.sort();
    found
}

/// The places of a path's beginning, where it is not the end of a longer word.
fn occurrences<'a>(code: &'a str, path: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    code.match_indices(path).filter(|(start, _)| {
        let before = code[..*start].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
    })
}

/// `a` of `a::b`, `a` and `c` of `{a::b, c::{d, e}}`.
fn first_names(text: &str) -> Vec<String> {
    let word = |text: &str| -> String {
        let letters = text.trim_start().chars();
        letters.take_while(|letter| letter.is_alphanumeric() || *letter == '_' || *letter == '*').collect()
    };
    let Some(group) = text.strip_prefix('{') else {
        return vec![word(text)];
    };
    let mut names = vec![word(group)];
    let mut open = 1;
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => open += 1,
            '}' => open -= 1,
            ',' if open == 1 => names.push(word(&group[at + 1..])),
            _ => {}
        }
        if open == 0 {
            break;
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The text with its line comments blanked; the lines stay where they were.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, text: &str) -> Vec<String> {
        violations(&[(path.to_owned(), text.to_owned())])
    }

    #[test]
    fn steps_down_and_sideways_pass() {
        let text = "use super::Pool;\nuse crate::core::arena::Arena;\nuse crate::{log, report};\n";
        assert_eq!(of("pool/life.rs", text), [""; 0]);
        assert_eq!(of("pool/mod.rs", "use crate::pool::slot::Slot;\n"), [""; 0]);
        assert_eq!(of("log.rs", "use crate::error::Text;\n"), [""; 0]);
        assert_eq!(of("error.rs", "use crate::log::Level;\n"), [""; 0]);
    }

    #[test]
    fn a_step_up_fails() {
        let wrong = of("core/arena.rs", "use std::fmt;\nuse crate::pool::Pool;\n");
        assert_eq!(wrong, ["src/core/arena.rs:2: core uses pool, which is above it"]);
        assert_eq!(of("sys/mod.rs", "use crate::error::Error;\n").len(), 1);
        assert_eq!(of("report.rs", "pub(crate) use crate::device::Device;\n").len(), 1);
    }

    #[test]
    fn a_step_up_is_found_in_every_spelling() {
        assert_eq!(of("core/grow.rs", "use crate::{sys, pool::{Pool, slot}, capi};\n").len(), 2);
        assert_eq!(of("core/grow.rs", "use crate::{\n    sys::env,\n    device::Device,\n};\n").len(), 1);
        assert_eq!(of("core/grow.rs", "fn f() -> crate::pool::Pool {}\n").len(), 1);
        assert_eq!(of("log.rs", "use super::pool::Pool;\n").len(), 1);
        assert_eq!(of("core/mod.rs", "use super::pool::Pool;\n").len(), 1);
        assert_eq!(of("core/grow.rs", "use super::super::pool::Pool;\n").len(), 1);
        assert_eq!(of("core/a/b.rs", "use super::super::super::{sys, pool};\n").len(), 1);
    }

    #[test]
    fn the_root_itself_and_unknown_modules_fail() {
        assert_eq!(of("core/grow.rs", "use crate::Device;\n").len(), 1);
        assert_eq!(of("core/grow.rs", "use crate::*;\n").len(), 1);
        assert_eq!(of("novel.rs", "").len(), 1);
        assert_eq!(violations(&[]).len(), 1);
        assert_eq!(of("lib.rs", "").len(), 1);
    }

    #[test]
    fn what_is_no_import_of_the_root_passes() {
        assert_eq!(
            of("core/grow.rs", "//! See [`crate::pool`].\nuse super::units::UNIT; // crate::pool\n"),
            [""; 0]
        );
        assert_eq!(of("core/mod.rs", "mod tests {\n    use super::*;\n}\n"), [""; 0]);
        assert_eq!(of("core/grow.rs", "mod tests {\n    use super::super::units::UNIT;\n}\n"), [""; 0]);
        assert_eq!(of("core/grow.rs", "use my_crate::pool::Pool;\n"), [""; 0]);
    }
}
