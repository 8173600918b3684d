//! What pages say of commands in passing, in the midst of words: `bfc replay --find-limit`, `cargo xtask test --suite gpu`.

use anyhow::Result;

use crate::api;
use crate::cargo::Profile;
use crate::pages;
use crate::suites::context::Context;

/// A subcommand of bfc, and its options.
type Known = (&'static str, Vec<String>);

/// The page that has a row for each option of `bfc run`.
const RUN_PAGE: &str = "docs/run.md";

/// Looks at all of them.
pub fn run(context: &mut Context) -> Result<()> {
    let command = context.built(Profile::Release)?.command.clone();
    let mut known: Vec<Known> = Vec::new();
    for subcommand in ["run", "report", "replay", "info"] {
        known.push((subcommand, api::options(&context.workspace, &command, subcommand)?));
    }
    let pages = pages::all(&context.workspace)?;
    let mut wrong = Vec::new();
    for (page, text) in &pages {
        for span in spans(text) {
            let words: Vec<&str> = span.split_whitespace().collect();
            let found = match words.as_slice() {
                ["cargo", "xtask", rest @ ..] => of_chores(rest, crate::refuses),
                ["bfc", rest @ ..] => of_bfc(rest, &known),
                _ => None,
            };
            wrong.extend(found.map(|why| format!("{page}: `{span}`: {why}")));
        }
    }
    context.gate("commands that pages name exist", &wrong);
    let text = pages.iter().find(|(page, _)| page == RUN_PAGE).map_or("", |(_, text)| text);
    context.gate("docs/run.md has every option of bfc run", &of_run(text, &known[0].1));
    Ok(())
}

/// The code spans of a page, also those that go over the end of a line.
fn spans(page: &str) -> Vec<String> {
    let (mut words, mut is_in_fence) = (String::new(), false);
    for line in page.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_in_fence ^= is_fence;
        if !is_in_fence && !is_fence && !line.starts_with("    ") {
            words += line.trim();
        }
        // A span does not go over the end of a paragraph; a sign that is left alone has its end there.
        words += if line.trim().is_empty() { "\n" } else { " " };
    }
    let in_paragraph =
        |text: &str| -> Vec<String> { text.split('`').skip(1).step_by(2).map(str::to_owned).collect() };
    words.lines().flat_map(in_paragraph).collect()
}

/// What is wrong with the words behind `cargo xtask`. A word in capitals stands for another, and dots for more.
fn of_chores(words: &[&str], refuses: impl Fn(&[&str]) -> Option<String>) -> Option<String> {
    let words: Vec<&str> = words.iter().copied().filter(|word| !word.contains("...")).collect();
    if words.is_empty() { None } else { refuses(&words) }
}

/// What is wrong with the words behind `bfc`: another subcommand, or an option that it has not.
fn of_bfc(words: &[&str], known: &[Known]) -> Option<String> {
    let (first, rest) = words.split_first()?;
    // `bfc = { path = "..." }` is a line of a Cargo.toml.
    if first.starts_with("--") || *first == "=" {
        return None;
    }
    let Some((_, options)) = known.iter().find(|(name, _)| name == first) else {
        return Some(format!("there is no {first}"));
    };
    let own = rest.iter().take_while(|word| **word != "--").filter(|word| word.starts_with("--"));
    let names = own.map(|word| word.split(['=', '[']).next().unwrap_or_default());
    let stranger = names.into_iter().find(|name| !options.iter().any(|option| option == name))?;
    Some(format!("it has no {stranger}"))
}

/// Options of `bfc run` that the page does not name, and options on it that there are not.
fn of_run(page: &str, options: &[String]) -> Vec<String> {
    let spans = spans(page);
    let first = |span: &String| span.split([' ', '=']).next().unwrap_or_default().to_owned();
    let named: Vec<String> = spans.iter().map(first).filter(|word| word.starts_with("--")).collect();
    let left = options.iter().filter(|option| !["--help", "--library"].contains(&option.as_str()));
    let left = left.filter(|option| !named.contains(option));
    let mut wrong: Vec<String> = left.map(|option| format!("it says nothing of {option}")).collect();
    let strangers = named.iter().filter(|name| !options.contains(name));
    wrong.extend(strangers.map(|name| format!("there is no {name}")));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<Known> {
        vec![("run", vec!["--limit".to_owned(), "--help".to_owned()])]
    }

    #[test]
    fn spans_are_found_over_the_ends_of_lines() {
        let page = "A `bfc\nrun` b `c`.\n```sh\n`no`\n```\n    `no`\n\nA lone ` sign.\n\nAnd `d`.\n";
        assert_eq!(spans(page), ["bfc run", "c", " sign. ", "d"]);
    }

    #[test]
    fn commands_that_there_are_not_are_found() {
        let told = |words: &[&str]| of_bfc(words, &known()).unwrap_or_default();
        assert_eq!(told(&["run", "--limit=3", "--", "x", "--other"]), "");
        assert_eq!(told(&["--help"]), "");
        assert_eq!(told(&["walk"]), "there is no walk");
        assert_eq!(told(&["run", "--speed", "3"]), "it has no --speed");
        let chores = |words: &[&str]| of_chores(words, crate::refuses);
        assert_eq!(chores(&["test", "--suite", "gpu"]), None);
        assert_eq!(chores(&["install", "--prefix", "DIR"]), None);
        assert_eq!(chores(&["test", "--suite", "NAME"]), None);
        assert!(chores(&["test", "--suite", "gpus"]).is_some());
        assert!(chores(&["tets"]).is_some());
        assert!(chores(&["bench", "--fast"]).is_some());
    }

    #[test]
    fn options_that_the_page_lacks_or_invents_are_found() {
        let options = &known()[0].1;
        assert!(of_run("`--limit SIZE`", options).is_empty());
        assert_eq!(of_run("`--speed`", options), ["it says nothing of --limit", "there is no --speed"]);
    }
}
