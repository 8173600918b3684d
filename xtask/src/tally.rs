//! Counts the results of test programs: of `cargo test` from its output, of pytest and CTest from JUnit's XML.

use anyhow::{Context, Result};
use roxmltree::{Document, Node};

/// The results of a suite, or of one program of it.
#[derive(Debug, Default, PartialEq)]
pub struct Tally {
    /// How many passed.
    pub passed: usize,
    /// What failed, by name.
    pub failed: Vec<String>,
    /// What did not run, and why.
    pub skipped: Vec<Skip>,
    /// The seconds that tests took. For `cargo test` those of its programs.
    pub seconds: Vec<(String, f64)>,
}

/// Something that did not run.
#[derive(Debug, PartialEq)]
pub struct Skip {
    /// What it is.
    pub name: String,
    /// The reason, and what would make it run.
    pub why: String,
}

impl Skip {
    /// A skip and its reason.
    pub fn new(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), why: why.into() }
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

    /// Counts the output of `cargo test`, and collects its lines that do not report success.
    pub fn of_cargo(text: &str) -> (Self, String) {
        let (mut tally, mut rest, mut program) = (Self::default(), String::new(), "");
        for line in text.lines() {
            if let Some(running) = line.trim_start().strip_prefix("Running ") {
                program = running.split(" (").next().unwrap_or(running);
                continue;
            }
            if let Some(counts) = line.strip_prefix("test result: ") {
                // With --nocapture some tests that pass have no line of their own.
                tally.passed += before(counts, " passed").unwrap_or(0);
                tally.seconds.extend(before(counts, "s").map(|seconds| (program.to_owned(), seconds)));
            }
            let test = line.strip_prefix("test ").and_then(|line| line.rsplit_once(" ... "));
            match test.map(|(name, result)| (name, result.split_once(", ").unwrap_or((result, "")))) {
                Some((name, ("FAILED", _))) => tally.failed.push(name.to_owned()),
                Some((name, ("ignored", ""))) => tally.skipped.push(Skip::new(name, "no reason given")),
                Some((name, ("ignored", why))) => tally.skipped.push(Skip::new(name, why)),
                Some((_, ("ok", _))) => continue,
                _ => {}
            }
            if !line.is_empty() && !line.starts_with("running ") && !line.starts_with("test result: ok") {
                rest = rest + line + "\n";
            }
        }
        (tally, rest)
    }

    /// Counts a report in JUnit's XML, and collects the output of failed tests.
    pub fn of_junit(report: &str) -> Result<(Self, String)> {
        let report = Document::parse(report).context("a report in JUnit's XML")?;
        let (mut tally, mut troubles) = (Self::default(), String::new());
        for test in report.descendants().filter(|node| node.has_tag_name("testcase")) {
            let attribute = |name: &str| test.attribute(name).unwrap_or_default();
            // CTest has the same in both.
            let name = match (attribute("classname"), attribute("name")) {
                (class, name) if class == name || class.is_empty() => name.to_owned(),
                (class, name) => format!("{class}::{name}"),
            };
            let part = |name: &str| test.children().find(|child| child.has_tag_name(name));
            let output = text(part("system-out"));
            tally.seconds.extend(attribute("time").parse().ok().map(|seconds| (name.clone(), seconds)));
            if let Some(failure) = part("failure").or(part("error")) {
                troubles = format!("{troubles}{name}:\n{}\n{output}\n", text(Some(failure)));
                tally.failed.push(name);
            } else if let Some(skipped) = part("skipped") {
                // CTest's message is a number, and the reason is the last line of the test's output.
                let message = skipped.attribute("message");
                let why = output.lines().next_back().or(message).unwrap_or("no reason given");
                tally.skipped.push(Skip::new(name, why));
            } else {
                tally.passed += 1;
            }
        }
        Ok((tally, troubles))
    }
}

fn text<'a>(node: Option<Node<'a, '_>>) -> &'a str {
    node.and_then(|node| node.text()).unwrap_or_default().trim()
}

/// The last number before a word.
fn before<T: std::str::FromStr>(text: &str, word: &str) -> Option<T> {
    text.rsplit_once(word)?.0.rsplit(' ').next()?.parse().ok()
}

/// Returns whether the test that ends with this line has passed, and its name. Only for the progress: the results come
/// from the report at the end.
pub fn ended(line: &str) -> Option<(bool, &str)> {
    // `[gw0] [ 25%] PASSED a.py::test` of pytest, ` 3/12 Test  #3: name ....   Passed    0.01 sec` of CTest, and
    // `test name ... ok` of cargo.
    if let Some((_, result)) = line.split_once("%] ").filter(|_| line.starts_with("[gw")) {
        let (result, name) = result.split_once(' ')?;
        let is_end = matches!(result, "PASSED" | "FAILED" | "ERROR" | "SKIPPED");
        return is_end.then_some((!matches!(result, "FAILED" | "ERROR"), name));
    }
    if let Some((_, test)) = line.split_once(" Test ").filter(|(_, test)| test.trim_start().starts_with('#'))
    {
        let name = test.split(' ').find(|word| !word.is_empty() && !word.starts_with('#'))?;
        return Some((!test.contains("***Failed") && !test.contains("***Exception"), name));
    }
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    Some((result != "FAILED", name))
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
child: the sum is wrong
test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out; finished in 12.50s
running 1 test
test loud ... it says something
ok
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.40s
";

    #[test]
    fn cargo_s_tests_are_counted_with_their_reasons() {
        let (tally, troubles) = Tally::of_cargo(CARGO);
        assert_eq!(tally.seconds[0], ("tests/fork.rs".to_owned(), 12.5));
        assert_eq!((tally.passed, &*tally.failed), (2, &["fork::child".to_owned()][..]));
        let slow = Skip::new("slow", "no reason given");
        assert_eq!(tally.skipped, [Skip::new("cuda::first - should panic", "no GPU on this machine"), slow]);
        assert!(troubles.starts_with("test fork::child ... FAILED\n") && !troubles.contains("rounds"));
        assert_eq!(
            Tally::of_cargo("error: no such crate"),
            (Tally::default(), "error: no such crate\n".to_owned())
        );
    }

    const JUNIT: &str = r#"<testsuite>
        <testcase name="fork" classname="fork" time="0.01"><system-out>checked</system-out></testcase>
        <testcase name="exit" classname="exit" time="0.5"><failure message=""/><system-out>1 is not 2</system-out></testcase>
        <testcase name="cpp" classname="cpp"><skipped message="CODE=77"/><system-out>no C++
        </system-out></testcase>
        <testcase name="test[x]" classname="a.test_b"><error message="m">no fixture</error></testcase>
        <testcase name="test[y]" classname="a.test_b"><skipped message="no GPU">a.py:7: no GPU</skipped></testcase>
    </testsuite>"#;

    #[test]
    fn tests_in_junit_s_xml_are_counted_with_their_reasons() {
        let (tally, troubles) = Tally::of_junit(JUNIT).expect("XML");
        assert_eq!((tally.passed, tally.failed.join(" ")), (1, "exit a.test_b::test[x]".to_owned()));
        assert_eq!(tally.skipped, [Skip::new("cpp", "no C++"), Skip::new("a.test_b::test[y]", "no GPU")]);
        assert_eq!(tally.seconds, [("fork".to_owned(), 0.01), ("exit".to_owned(), 0.5)]);
        assert_eq!(troubles, "exit:\n\n1 is not 2\na.test_b::test[x]:\nno fixture\n\n");
        assert!(Tally::of_junit("<testsuite>").is_err());
    }

    #[test]
    fn the_end_of_a_test_is_seen_while_others_run() {
        for (line, end) in [
            ("[gw0] [ 25%] PASSED a.py::test", Some((true, "a.py::test"))),
            ("[gw0] [ 25%] ERROR a.py::test", Some((false, "a.py::test"))),
            (" 3/12 Test  #3: fork ......   Passed    0.01 sec", Some((true, "fork"))),
            (" 4/12 Test #14: exit ......***Failed    0.02 sec", Some((false, "exit"))),
            ("test a::b ... ok", Some((true, "a::b"))),
            ("test a::b ... FAILED", Some((false, "a::b"))),
            ("[gw0] [ 50%] SUBPASSED[a] a.py::test", None),
            ("Compiling test 1", None),
        ] {
            assert_eq!(ended(line), end, "{line}");
        }
    }
}
