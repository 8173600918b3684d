//! Counting what test programs report.

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

    /// What `cargo test` printed.
    pub fn of_cargo(text: &str) -> Self {
        let mut tally = Self::default();
        let mut program = "";
        for line in text.lines() {
            if let Some(running) = line.trim_start().strip_prefix("Running ") {
                program = running.split(" (").next().unwrap_or(running);
            }
            if let Some(counts) = line.strip_prefix("test result: ") {
                tally.passed += number_before(counts, " passed").unwrap_or(0);
                let seconds = counts.rsplit(' ').next().and_then(|word| word.strip_suffix('s')?.parse().ok());
                tally.seconds.extend(seconds.map(|seconds| (program.to_owned(), seconds)));
                continue;
            }
            let Some((name, result)) = line.strip_prefix("test ").and_then(|line| line.rsplit_once(" ... "))
            else {
                continue;
            };
            match result.split_once(", ") {
                None if result == "FAILED" => tally.failed.push(name.to_owned()),
                None if result == "ignored" => tally.skipped.push(Skip::new(
                    name,
                    "marked #[ignore] without a reason: `cargo test -- --ignored` runs it",
                )),
                Some(("ignored", why)) => tally.skipped.push(Skip::new(name, why)),
                _ => {}
            }
        }
        tally
    }

    /// What `pytest -rfEs` printed: its short summary has the names and the reasons.
    pub fn of_pytest(text: &str) -> Self {
        let mut tally = Self::default();
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("FAILED ").or(line.strip_prefix("ERROR ")) {
                tally.failed.push(name.split(" - ").next().unwrap_or_default().to_owned());
            } else if let Some((count, rest)) = pytest_skip(line) {
                let (place, why) = rest.split_once(": ").unwrap_or((rest, "it did not say why"));
                tally.skipped.extend((0..count).map(|_| Skip::new(place, why)));
            } else if line.starts_with('=') && line.contains(" in ") {
                tally.passed = number_before(line, " passed").unwrap_or(0);
            } else if let Some((seconds, name)) = line.split_once("s call     ") {
                let seconds = seconds.trim().parse().ok();
                tally.seconds.extend(seconds.map(|seconds| (name.trim().to_owned(), seconds)));
            }
        }
        tally
    }

    /// What `ctest --verbose` printed.
    pub fn of_ctest(text: &str) -> Self {
        let mut tally = Self::default();
        for line in text.lines() {
            let Some((number, name, result)) = ctest_result(line) else {
                continue;
            };
            let seconds = number_before(result, " sec");
            tally.seconds.extend(seconds.map(|seconds| (name.to_owned(), seconds)));
            if result.starts_with("Passed") {
                tally.passed += 1;
            } else if result.starts_with("***Skipped") || result.contains("(Disabled)") {
                // The reason is the last thing that the test itself has said.
                let prefix = format!("{number}: ");
                let said = text.lines().filter_map(|line| line.strip_prefix(&prefix));
                let why =
                    said.map(str::trim).rfind(|said| !said.is_empty() && !said.starts_with("Test timeout"));
                tally.skipped.push(Skip::new(name, why.unwrap_or("it did not say why")));
            } else {
                tally.failed.push(name.to_owned());
            }
        }
        tally
    }
}

/// What `cargo test` printed, without what went well: the reasons of failures stand in the midst of it.
pub fn troubles_of_cargo(text: &str) -> String {
    let dull = |line: &&str| {
        let result = line.strip_prefix("test ").unwrap_or_default();
        line.is_empty()
            || line.trim_start().to_lowercase().starts_with("running ")
            || line.starts_with("test result: ok")
            || result.ends_with(" ... ok")
            || result.contains(" ... ignored")
    };
    let lines = text.lines().filter(|line| !dull(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// What the failed tests of a `ctest --verbose` printed; all if none has failed by name.
pub fn troubles_of_ctest(text: &str) -> String {
    let results = text.lines().filter_map(ctest_result);
    let failed = results.filter(|(_, _, result)| {
        let fine = ["Passed", "***Skipped", "***Not Run (Disabled)"];
        !fine.iter().any(|fine| result.starts_with(fine))
    });
    let mut lines = Vec::new();
    for (number, name, result) in failed {
        let prefix = format!("{number}: ");
        let said = text.lines().filter(|line| line.starts_with(&prefix));
        lines.push(format!("{name}: {result}"));
        lines.extend(said.map(str::to_owned));
    }
    if lines.is_empty() {
        return text.to_owned();
    }
    lines.join("\n")
}

/// What the failed tests of a pytest printed: from the failures on.
pub fn troubles_of_pytest(text: &str) -> String {
    let heads = ["= FAILURES =", "= ERRORS ="];
    let start = heads.iter().filter_map(|head| text.find(head)).min().unwrap_or(0);
    text[start..].to_owned()
}

/// `SKIPPED [2] cupy/test_cupy.py:12: there is no compiler`: how many, and the rest.
fn pytest_skip(line: &str) -> Option<(usize, &str)> {
    let (count, rest) = line.strip_prefix("SKIPPED [")?.split_once("] ")?;
    Some((count.parse().ok()?, rest))
}

/// ` 3/12 Test  #3: name ....   Passed    0.01 sec`: the test's number, its name and the rest.
fn ctest_result(line: &str) -> Option<(usize, &str, &str)> {
    let (progress, rest) = line.trim_start().split_once(" Test ")?;
    let (done, of) = progress.split_once('/')?;
    let _: (usize, usize) = (done.parse().ok()?, of.parse().ok()?);
    let (number, rest) = rest.trim_start().strip_prefix('#')?.split_once(": ")?;
    let (name, rest) = rest.split_once(' ')?;
    Some((number.parse().ok()?, name, rest.trim_start_matches(['.', ' '])))
}

/// What a line says of one test that has ended, whichever tool printed it: its name, and whether it passed.
pub fn outcome(line: &str) -> Option<(&str, bool)> {
    if let Some((name, result)) = line.strip_prefix("test ").and_then(|line| line.rsplit_once(" ... ")) {
        return Some((name, result.trim() == "ok"));
    }
    if let Some((_, name, result)) = ctest_result(line) {
        return Some((name, result.starts_with("Passed")));
    }
    // `a.py::test PASSED [ 25%]`, and with pytest-xdist `[gw0] [ 25%] PASSED a.py::test`.
    let mut words = line.split_whitespace();
    let is_well = words.find_map(|word| match word {
        "PASSED" => Some(true),
        "FAILED" | "ERROR" => Some(false),
        _ => None,
    })?;
    let name = line.split_whitespace().find(|word| word.contains("::"))?;
    Some((name, is_well))
}

/// The 12 of `ok. 12 passed; 0 failed`.
fn number_before<Number: std::str::FromStr>(text: &str, word: &str) -> Option<Number> {
    let (before, _) = text.split_once(word)?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.40s
";

    #[test]
    fn cargo_s_tests_are_counted_with_their_reasons() {
        let tally = Tally::of_cargo(CARGO);
        assert_eq!(tally.seconds[0], ("tests/fork.rs".to_owned(), 12.5));
        assert_eq!(tally.passed, 2);
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
        let tally = Tally::of_ctest(CTEST);
        assert_eq!(tally.passed, 1);
        assert_eq!(tally.failed, ["exit", "crash"]);
        assert_eq!(tally.seconds[0], ("basic".to_owned(), 0.01));
        let fork = Skip::new("fork", "skipped: fork is not for valgrind");
        assert_eq!(tally.skipped, [fork, Skip::new("off", "it did not say why")]);
    }

    #[test]
    fn troubles_are_what_is_left_without_what_went_well() {
        let troubles = troubles_of_cargo(CARGO);
        assert_eq!(troubles.lines().count(), 2, "{troubles}");
        assert!(troubles.starts_with("test fork::child ... FAILED\n"));
        assert_eq!(troubles_of_cargo("error: no such crate"), "error: no such crate");

        let text = CTEST.replace("3/5 Test", "3: the sum is wrong\n3/5 Test");
        let troubles = troubles_of_ctest(&text);
        assert!(troubles.starts_with("exit: ***Failed    0.02 sec\n3: the sum is wrong\n"));
        assert_eq!(troubles.lines().count(), 3, "{troubles}");
        assert_eq!(troubles_of_ctest("No tests"), "No tests");
    }

    const PYTEST: &str = "
test_a.py::test_one PASSED                                     [ 25%]
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
        let tally = Tally::of_pytest(PYTEST);
        assert_eq!((tally.passed, &*tally.failed), (11, &["test_a.py::test_two[x]".to_owned()][..]));
        assert_eq!(tally.seconds, [("test_a.py::test_one".to_owned(), 2.25)]);
        assert_eq!(tally.skipped, [0; 2].map(|_| Skip::new("test_a.py:7", "there is no compiler")));
        assert!(troubles_of_pytest(PYTEST).starts_with("= FAILURES =\nthe sum"));
    }

    #[test]
    fn each_tool_s_line_of_a_test_is_known() {
        let of = |line| outcome(line).map(|(name, is_well)| format!("{name} {is_well}"));
        assert_eq!(of("test core::rounds ... ok\n").as_deref(), Some("core::rounds true"));
        assert_eq!(of(" 3/12 Test #3: exit ......***Failed 0.1 sec").as_deref(), Some("exit false"));
        assert_eq!(of("a.py::test_one PASSED [ 9%]").as_deref(), Some("a.py::test_one true"));
        assert_eq!(of("[gw0] [ 9%] FAILED a.py::test_one ").as_deref(), Some("a.py::test_one false"));
        assert_eq!(of("1: checked 12 calls").as_deref(), None);
    }

    #[test]
    fn other_text_counts_nothing() {
        assert_eq!(Tally::of_cargo("error: could not compile"), Tally::default());
        assert_eq!(Tally::of_ctest("No tests were found!!!"), Tally::default());
        assert_eq!(Tally::of_pytest("=== no tests ran in 0.00s ==="), Tally::default());
    }
}
