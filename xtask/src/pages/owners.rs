//! Whose a page is: the suite that runs the code on it.

use super::exceptions::Exception;
use super::{Page, blocks};

/// A page, and the suite that runs its code.
pub struct Owner {
    /// From the checkout's root.
    pub page: &'static str,
    /// A name of suites/mod.rs.
    pub suite: &'static str,
}

/// The suite that runs what needs nothing but the library, the bfc command and the simulated driver.
pub const BOOK: &str = "book";

/// Every page. One with the code of a framework is the framework's suite's: it calls
/// [`Owned::of_suite`](super::owned::Owned::of_suite) and runs all of it.
pub const OWNERS: &[Owner] = &[
    Owner { page: "README.md", suite: BOOK },
    Owner { page: "docs/algorithm.md", suite: BOOK },
    Owner { page: "docs/api.md", suite: BOOK },
    Owner { page: "docs/cupy.md", suite: "cupy" },
    Owner { page: "docs/environment.md", suite: BOOK },
    Owner { page: "docs/handlers.md", suite: "cuda-headers" },
    Owner { page: "docs/hooks.md", suite: BOOK },
    Owner { page: "docs/install.md", suite: BOOK },
    Owner { page: "docs/interposition-differences.md", suite: "preload" },
    Owner { page: "docs/interposition-matrix.md", suite: BOOK },
    Owner { page: "docs/interposition.md", suite: BOOK },
    Owner { page: "docs/introduction.md", suite: BOOK },
    Owner { page: "docs/memory-map.md", suite: BOOK },
    Owner { page: "docs/numba.md", suite: "cupy" },
    Owner { page: "docs/onnxruntime.md", suite: "onnxruntime" },
    Owner { page: "docs/python.md", suite: "python" },
    Owner { page: "docs/pytorch-cpu.md", suite: "pytorch-cpu" },
    Owner { page: "docs/pytorch.md", suite: "pytorch" },
    Owner { page: "docs/reports.md", suite: BOOK },
    Owner { page: "docs/rmm.md", suite: "rmm" },
    Owner { page: "docs/run.md", suite: BOOK },
    Owner { page: "docs/tensorrt.md", suite: "tensorrt" },
    Owner { page: "docs/tensorflow.md", suite: "keras" },
    Owner { page: "docs/trace-format.md", suite: BOOK },
];

/// What the suite `book` knows how to run, and the others by themselves.
const RUN_BY_BOOK: [&str; 7] = ["c", "cpp", "rust", "python", "cmake", "sh", "json"];

/// What is wrong with the tables: pages without an owner, owners without a page or a suite, suites that do not look at
/// their pages, code that its owner cannot run, and exceptions for code that is not there. `sources` are xtask's.
pub fn wrong(
    pages: &[Page],
    owners: &[Owner],
    exceptions: &[Exception],
    suites: &[&str],
    sources: &[Page],
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (page, text) in pages {
        let Some(owner) = owners.iter().find(|owner| owner.page == page) else {
            wrong.push(format!(
                "{page} has no owner: say in xtask/src/pages/owners.rs which suite runs its code"
            ));
            continue;
        };
        let of_book = blocks(text).into_iter().filter(|block| owner.suite == BOOK && block.is_code());
        let is_run = |language: &str| RUN_BY_BOOK.contains(&language);
        for block in of_book.filter(|block| !is_run(&block.language)) {
            if !exceptions.iter().any(|exception| exception.is_of(page, &block)) {
                let (line, language) = (block.line, &block.language);
                wrong.push(format!(
                    "{page}:{line}: the suite {BOOK} cannot run {language}: {}",
                    block.first_line()
                ));
            }
        }
    }
    for Owner { page, suite } in owners {
        if !pages.iter().any(|(known, _)| known == page) {
            wrong.push(format!("{page} has an owner and is not there"));
        }
        if owners.iter().filter(|other| other.page == *page).count() > 1 {
            wrong.push(format!("{page} has two owners"));
        }
        if !suites.contains(suite) {
            wrong.push(format!("{page}: there is no suite {suite}"));
        } else if !sources.iter().any(|(_, source)| takes_its_pages(source, suite)) {
            wrong.push(format!(
                "{page}: the suite {suite} does not call Owned::of_suite: nobody runs its code"
            ));
        }
    }
    for Exception { page, first_line, why } in exceptions {
        let text = pages.iter().find(|(known, _)| known == page).map_or("", |(_, text)| text);
        let there = blocks(text).iter().filter(|block| block.first_line() == *first_line).count();
        if there != 1 {
            wrong.push(format!("{page}: {there} blocks begin with the exception's `{first_line}`"));
        }
        if why.split(' ').count() < 3 {
            wrong.push(format!("{page}: the exception `{first_line}` says no reason"));
        }
    }
    wrong
}

/// Whether a source has `of_suite(..., "NAME")`.
fn takes_its_pages(source: &str, suite: &str) -> bool {
    let calls = source.split("of_suite(").skip(1);
    let mut arguments = calls.filter_map(|rest| rest.split_once(')'));
    arguments.any(|(arguments, _)| arguments.contains(&format!("\"{suite}\"")))
        || (suite == BOOK && source.contains("of_suite(&context.workspace, BOOK)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: [(&str, &str); 2] =
        [("a.md", "```c\nint x;\n```\n"), ("b.md", "```python\nimport b\n```\n")];
    const BOTH: [Owner; 2] = [Owner { page: "a.md", suite: BOOK }, Owner { page: "b.md", suite: "b" }];
    const SOURCE: &str = "Owned::of_suite(&context.workspace, BOOK)?; Owned::of_suite(workspace, \"b\")?;";

    fn told(pages: &[(&str, &str)], owners: &[Owner], exceptions: &[Exception], source: &str) -> Vec<String> {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let pages: Vec<Page> = pages.iter().map(own).collect();
        wrong(&pages, owners, exceptions, &[BOOK, "b"], &[("x.rs".to_owned(), source.to_owned())])
    }

    #[test]
    fn tables_that_are_whole_pass() {
        assert!(told(&PAGES, &BOTH, &[], SOURCE).is_empty());
        let exception = Exception { page: "a.md", first_line: "int x;", why: "it is no program" };
        assert!(told(&PAGES, &BOTH, &[exception], SOURCE).is_empty());
    }

    #[test]
    fn pages_without_an_owner_and_owners_without_a_page_are_found() {
        let found = told(&[PAGES[0], PAGES[1], ("new.md", "")], &BOTH, &[], SOURCE);
        assert!(found.len() == 1 && found[0].starts_with("new.md has no owner"), "{found:?}");
        assert_eq!(told(&PAGES[..1], &BOTH, &[], SOURCE), ["b.md has an owner and is not there"]);
        let [a, b] = BOTH;
        let twice = [a, Owner { ..b }, b];
        assert_eq!(told(&PAGES, &twice, &[], SOURCE), ["b.md has two owners"; 2]);
    }

    #[test]
    fn a_suite_that_is_not_there_or_does_not_look_is_found() {
        let [a, _] = BOTH;
        let found = told(&PAGES, &[a, Owner { page: "b.md", suite: "c" }], &[], SOURCE);
        assert_eq!(found, ["b.md: there is no suite c"]);
        let found = told(&PAGES, &BOTH, &[], "Owned::of_suite(&context.workspace, BOOK)");
        assert!(found.len() == 1 && found[0].contains("nobody runs its code"), "{found:?}");
    }

    #[test]
    fn code_that_nobody_can_run_is_found() {
        let pages = [("a.md", "```cuda\nx\n```\n"), PAGES[1]];
        assert_eq!(told(&pages, &BOTH, &[], SOURCE), ["a.md:2: the suite book cannot run cuda: x"]);
    }

    #[test]
    fn exceptions_that_are_stale_or_say_nothing_are_found() {
        let exception = |first_line, why| Exception { page: "a.md", first_line, why };
        let found = told(&PAGES, &BOTH, &[exception("int y;", "it was there once")], SOURCE);
        assert_eq!(found, ["a.md: 0 blocks begin with the exception's `int y;`"]);
        let found = told(&PAGES, &BOTH, &[exception("int x;", "because")], SOURCE);
        assert_eq!(found, ["a.md: the exception `int x;` says no reason"]);
    }
}
