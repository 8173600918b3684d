//! Counting what test programs report.

use std::collections::BTreeMap;

/// How the tests in a program's output are counted.
#[derive(Clone, Copy)]
pub enum Count {
    /// The program is one test.
    One,
    /// As cargo test prints them.
    Cargo,
    /// As ctest --verbose prints them.
    Ctest,
    /// As pytest -v -rfEs prints them with workers.
    Pytest,
}

/// What ran in a suite, or in one program of it.
#[derive(Debug, Default, PartialEq)]
pub struct Tally {
    /// How many passed.
    pub passed: usize,
    /// What failed, by name.
    pub failed: Vec<String>,
    /// What did not run, and why.
    pub skipped: Vec<Skip>,
    /// Seconds that tests took, of those that say so; of `cargo test` those of its programs.
    pub seconds: Vec<(String, f64)>,
    /// What a test of ctest said last, by its number; of cargo, by an empty text, the program that runs.
    said: BTreeMap<String, String>,
    /// Tests of cargo's present program that have passed by their lines. With --nocapture some have none.
    lines: usize,
}

/// Something that did not run.
#[derive(Debug, PartialEq)]
pub struct Skip {
    /// What it is.
    pub name: String,
    /// Why, and what would make it run.
    pub why: String,
}

impl Skip {
    /// A skip and its reason.
    pub fn new(name: impl Into<String>, why: impl Into<String>) -> Self {
        let (name, why) = (name.into(), why.into());
        Self { name, why }
    }
}

impl Tally {
    /// Adds another's counts.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.seconds.extend(other.seconds);
    }

    /// Counts what a line says; the name of the test that has ended with it.
    pub fn line<'a>(&mut self, count: Count, line: &'a str) -> Option<&'a str> {
        match count {
            Count::One => None,
            Count::Cargo => self.cargo(line),
            Count::Ctest => self.ctest(line),
            Count::Pytest => self.pytest(line),
        }
    }

    fn cargo<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        if let Some(running) = line.trim_start().strip_prefix("Running ") {
            let program = running.split(" (").next().unwrap_or(running);
            self.said.insert(String::new(), program.to_owned());
        }
        if let Some(counts) = line.strip_prefix("test result: ") {
            let passed = counts.split_once(" passed").and_then(|(before, _)| before.rsplit(' ').next());
            self.passed += passed.and_then(|passed| passed.parse().ok()).unwrap_or(0);
            self.passed -= std::mem::take(&mut self.lines);
            let seconds = line.rsplit(' ').next().and_then(|word| word.strip_suffix('s')?.parse().ok());
            let program = self.said.get("").cloned().unwrap_or_default();
            self.seconds.extend(seconds.map(|seconds| (program, seconds)));
            return None;
        }
        let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        match result.split_once(", ").unwrap_or((result, "marked #[ignore] without a reason")) {
            ("ok", _) => {
                self.passed += 1;
                self.lines += 1;
            }
            ("FAILED", _) => self.failed.push(name.to_owned()),
            ("ignored", why) => self.skipped.push(Skip::new(name, why)),
            _ => return None,
        }
        Some(name)
    }

    fn ctest<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        let Some((number, name, result)) = ctest_result(line) else {
            // The reason of a skip is the last thing that the test itself has said.
            if let Some((number, said)) = line.split_once(": ").filter(|(_, said)| !said.trim().is_empty()) {
                self.said.insert(number.to_owned(), said.trim().to_owned());
            }
            return None;
        };
        let seconds = result.strip_suffix(" sec").and_then(|rest| rest.rsplit(' ').next()?.parse().ok());
        self.seconds.extend(seconds.map(|seconds| (name.to_owned(), seconds)));
        if result.starts_with("Passed") {
            self.passed += 1;
        } else if is_skipped(result) {
            let why = self.said.remove(number).filter(|said| !said.starts_with("Test timeout"));
            self.skipped.push(Skip::new(name, why.as_deref().unwrap_or("it did not say why")));
        } else {
            self.failed.push(name.to_owned());
        }
        Some(name)
    }

    fn pytest<'a>(&mut self, line: &'a str) -> Option<&'a str> {
        // What a worker says: `[gw0] [ 25%] PASSED a.py::test`.
        if let Some((_, result)) = line.split_once("%] ").filter(|(worker, _)| worker.starts_with("[gw")) {
            let (result, name) = result.split_once(' ')?;
            match result {
                "PASSED" => self.passed += 1,
                "FAILED" | "ERROR" => self.fail(name.trim()),
                _ => return None,
            }
            return Some(name);
        }
        // The summary, which has what failed outside of tests too, and why tests were skipped.
        if let Some(name) = line.strip_prefix("FAILED ").or(line.strip_prefix("ERROR ")) {
            self.fail(name.split(" - ").next().unwrap_or_default());
        } else if let Some((count, rest)) = line.strip_prefix("SKIPPED [").and_then(|it| it.split_once("] "))
        {
            let (place, why) = rest.split_once(": ").unwrap_or((rest, "it did not say why"));
            self.skipped.extend((0..count.parse().unwrap_or(1)).map(|_| Skip::new(place, why)));
        } else if let Some((seconds, name)) = line.split_once("s call     ") {
            let seconds = seconds.trim().parse().ok();
            self.seconds.extend(seconds.map(|seconds| (name.trim().to_owned(), seconds)));
        }
        None
    }

    fn fail(&mut self, name: &str) {
        if !self.failed.iter().any(|known| known == name) {
            self.failed.push(name.to_owned());
        }
    }
}

/// What a program printed, without what went well: the reasons of failures stand in the midst of it.
pub fn troubles(count: Count, text: &str) -> String {
    let lines: Vec<&str> = match count {
        Count::One => text.lines().collect(),
        Count::Cargo => text.lines().filter(|line| !is_dull(line)).collect(),
        Count::Ctest => {
            let results = text.lines().filter_map(ctest_result);
            let failed = results.filter(|(.., result)| !result.starts_with("Passed") && !is_skipped(result));
            let failed: Vec<&str> = failed.map(|(number, ..)| number).collect();
            let is_of = |line: &&str| {
                let number = ctest_result(line).map(|result| result.0).or(Some(line.split_once(": ")?.0));
                failed.contains(&number?).then_some(())
            };
            text.lines().filter(|line| failed.is_empty() || is_of(line).is_some()).collect()
        }
        Count::Pytest => {
            let heads = ["= FAILURES =", "= ERRORS ="];
            let start = heads.iter().filter_map(|head| text.find(head)).min().unwrap_or(0);
            text[start..].lines().collect()
        }
    };
    lines.join("\n")
}

/// A line of cargo's of what went well.
fn is_dull(line: &str) -> bool {
    let result = line.strip_prefix("test ").unwrap_or_default();
    line.is_empty()
        || line.trim_start().to_lowercase().starts_with("running ")
        || line.starts_with("test result: ok")
        || result.ends_with(" ... ok")
        || result.contains(" ... ignored")
}

/// ` 3/12 Test  #3: name ....   Passed    0.01 sec`: the test's number, its name and the rest.
fn ctest_result(line: &str) -> Option<(&str, &str, &str)> {
    let (progress, rest) = line.trim_start().split_once(" Test ")?;
    let (done, of) = progress.split_once('/')?;
    let _: (usize, usize) = (done.parse().ok()?, of.parse().ok()?);
    let (number, rest) = rest.trim_start().strip_prefix('#')?.split_once(": ")?;
    let (name, rest) = rest.split_once(' ')?;
    Some((number, name, rest.trim_start_matches(['.', ' '])))
}

fn is_skipped(ctest_result: &str) -> bool {
    ctest_result.starts_with("***Skipped") || ctest_result.contains("(Disabled)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(count: Count, text: &str) -> Tally {
        let mut tally = Tally::default();
        for line in text.lines() {
            tally.line(count, line);
        }
        tally
    }

    const CARGO: &str = "
     Running tests/fork.rs (target/debug/deps/fork-1)
running 4 tests
test core::units::tests::rounds ... ok
test fork::child ... FAILED
test cuda::first - should panic ... ignored, no GPU on this machine
test slow ... ignored
test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 12.50s
running 1 test
test src/lib.rs - (line 8) ... ok
test loud ... it says something
ok
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.40s
";

    #[test]
    fn cargo_s_tests_are_counted_with_their_reasons() {
        let tally = tally(Count::Cargo, CARGO);
        assert_eq!(tally.seconds[0], ("tests/fork.rs".to_owned(), 12.5));
        assert_eq!(tally.passed, 3);
        assert_eq!(tally.failed, ["fork::child"]);
        assert_eq!(tally.skipped[0].why, "no GPU on this machine");
        assert!(tally.skipped[1].name == "slow" && tally.skipped[1].why.contains("#[ignore]"));
        assert_eq!(tally.skipped.len(), 2);
    }

    const CTEST: &str = "
test 1
    Start 1: basic
1: Test timeout computed to be: 60
1: checked 12 calls
1/5 Test #1: basic ............................   Passed    0.01 sec
2: skipped: fork is not for valgrind
2/5 Test #2: fork .............................***Skipped   0.00 sec
3/5 Test #3: exit .............................***Failed    0.02 sec
4/5 Test #4: crash ............................***Exception: SegFault  0.02 sec
5/5 Test #5: off ..............................***Not Run (Disabled)   0.00 sec

25% tests passed, 2 tests failed out of 4
";

    #[test]
    fn ctest_s_tests_are_counted_with_their_reasons() {
        let tally = tally(Count::Ctest, CTEST);
        assert_eq!(tally.passed, 1);
        assert_eq!(tally.failed, ["exit", "crash"]);
        assert_eq!(tally.seconds[0], ("basic".to_owned(), 0.01));
        let fork = Skip::new("fork", "skipped: fork is not for valgrind");
        assert_eq!(tally.skipped, [fork, Skip::new("off", "it did not say why")]);
    }

    #[test]
    fn troubles_are_what_is_left_without_what_went_well() {
        let text = troubles(Count::Cargo, CARGO);
        assert!(text.starts_with("test fork::child ... FAILED\n") && !text.contains("rounds"), "{text}");
        assert_eq!(troubles(Count::Cargo, "error: no such crate"), "error: no such crate");

        let text = CTEST.replace("3/5 Test", "3: the sum is wrong\n3/5 Test");
        let text = troubles(Count::Ctest, &text);
        assert!(text.starts_with("3: the sum is wrong\n3/5 Test #3: exit"), "{text}");
        assert_eq!(text.lines().count(), 3, "{text}");
        assert_eq!(troubles(Count::Ctest, "No tests"), "No tests");
    }

    const PYTEST: &str = "
[gw0] [ 25%] PASSED test_a.py::test_one
[gw1] [ 50%] SKIPPED test_a.py::test_three
[gw1] [ 75%] FAILED test_a.py::test_two[x]
= FAILURES =
the sum is wrong
= slowest durations =
2.25s call     test_a.py::test_one
= short test summary info =
SKIPPED [2] test_a.py:7: there is no compiler
FAILED test_a.py::test_two[x] - AssertionError: 1 == 2
=== 1 failed, 11 passed, 2 skipped in 0.04s ===
";

    #[test]
    fn pytest_s_tests_are_counted_with_their_reasons() {
        let tally = tally(Count::Pytest, PYTEST);
        assert_eq!((tally.passed, &*tally.failed), (1, &["test_a.py::test_two[x]".to_owned()][..]));
        assert_eq!(tally.seconds, [("test_a.py::test_one".to_owned(), 2.25)]);
        assert_eq!(tally.skipped, [0; 2].map(|_| Skip::new("test_a.py:7", "there is no compiler")));
        assert!(troubles(Count::Pytest, PYTEST).starts_with("= FAILURES =\nthe sum"));
    }

    #[test]
    fn other_text_counts_nothing() {
        assert_eq!(tally(Count::Cargo, "error: could not compile"), Tally::default());
        assert_eq!(tally(Count::Ctest, "No tests were found!!!"), Tally::default());
        assert_eq!(tally(Count::Pytest, "=== no tests ran in 0.00s ==="), Tally::default());
    }
}
