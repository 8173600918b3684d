//! The table at the end of a test run, and its closing line.

use std::fmt::Write;

use crate::tally::Tally;

/// Failures of a suite that are named at the end; who has more looks further up.
const SHOWN: usize = 20;

/// Tests that are named for the time that they took.
const SLOWEST: usize = 10;

/// One suite's result.
pub struct Verdict {
    /// The suite's name.
    pub suite: &'static str,
    /// What it counted.
    pub tally: Tally,
    /// How long it took.
    pub seconds: f64,
}

impl Verdict {
    fn word(&self) -> &'static str {
        let Tally { passed, failed, skipped, .. } = &self.tally;
        match (passed, failed.len(), skipped.len()) {
            (0, 0, 0) => "EMPTY",
            (_, 1.., _) => "FAILED",
            (0, 0, _) => "skipped",
            _ => "passed",
        }
    }
}

/// Whether everything is in order: nothing failed, and no suite was without a single test.
pub fn all_well(verdicts: &[Verdict]) -> bool {
    let bad = |verdict: &Verdict| matches!(verdict.word(), "FAILED" | "EMPTY");
    !verdicts.is_empty() && !verdicts.iter().any(bad)
}

/// The whole account: the table, what was skipped and why, what failed, and the closing line, alone on
/// the last line.
pub fn account(verdicts: &[Verdict]) -> String {
    let mut text = format!(
        "{:<14}{:<9}{:>7}{:>7}{:>8}{:>9}\n",
        "suite", "result", "passed", "failed", "skipped", "seconds"
    );
    let mut total = [0; 3];
    let mut remarks = String::new();
    for verdict in verdicts {
        let Tally { passed, failed, skipped, .. } = &verdict.tally;
        // An empty suite has let nothing through and has tested nothing: that is a failure too.
        let failures = failed.len() + usize::from(verdict.word() == "EMPTY");
        let counts = [*passed, failures, skipped.len()];
        for (sum, count) in total.iter_mut().zip(counts) {
            *sum += count;
        }
        let [passed, failures, skips] = counts;
        let (suite, word, seconds) = (verdict.suite, verdict.word(), verdict.seconds);
        let _ = writeln!(text, "{suite:<14}{word:<9}{passed:>7}{failures:>7}{skips:>8}{seconds:>9.1}");
        for skip in skipped {
            let _ = writeln!(remarks, "skipped  {suite}: {}: {}", skip.name, skip.why);
        }
        for name in failed.iter().take(SHOWN) {
            let _ = writeln!(remarks, "FAILED   {suite}: {name}");
        }
        if let Some(more @ 1..) = failed.len().checked_sub(SHOWN) {
            let _ = writeln!(remarks, "FAILED   {suite}: and {more} more, see above");
        }
        if word == "EMPTY" {
            let _ = writeln!(remarks, "FAILED   {suite}: it ran no test");
        }
    }
    text += &slowest(verdicts);
    if !remarks.is_empty() {
        let _ = write!(text, "\n{remarks}");
    }
    let [passed, failed, skipped] = total;
    let _ = writeln!(text, "\n{passed} passed, {failed} failed, {skipped} skipped");
    text
}

/// The tests that took longest, of those over a second.
fn slowest(verdicts: &[Verdict]) -> String {
    let mut all: Vec<(f64, &str, &str)> = Vec::new();
    for Verdict { suite, tally, .. } in verdicts {
        let slow = tally.seconds.iter().filter(|(_, seconds)| *seconds >= 1.0);
        all.extend(slow.map(|(name, seconds)| (*seconds, *suite, name.as_str())));
    }
    all.sort_by(|one, other| other.0.total_cmp(&one.0));
    let rows =
        all.iter().take(SLOWEST).map(|(seconds, suite, name)| format!("{seconds:>9.1}  {suite}: {name}\n"));
    let rows: String = rows.collect();
    if rows.is_empty() { rows } else { format!("\nthe slowest, in seconds\n{rows}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Skip;

    fn verdict(suite: &'static str, passed: usize, failed: &[&str], skipped: &[&str]) -> Verdict {
        let tally = Tally {
            passed,
            failed: failed.iter().map(|name| (*name).to_owned()).collect(),
            skipped: skipped.iter().map(|name| Skip::new(*name, "no GPU")).collect(),
            seconds: (0..20).map(|number| (format!("test{number}"), f64::from(number))).collect(),
        };
        Verdict { suite, tally, seconds: 1.25 }
    }

    #[test]
    fn the_account_names_what_was_skipped_and_what_was_slow() {
        let verdicts = [verdict("rust", 12, &[], &["cuda"]), verdict("fuzz", 0, &[], &["fuzz"])];
        let text = account(&verdicts);
        assert_eq!(text.lines().last(), Some("12 passed, 0 failed, 2 skipped"));
        assert!(text.contains("skipped  rust: cuda: no GPU\n"), "{text}");
        assert!(text.contains("in seconds\n     19.0  rust: test19\n") && !text.contains("test14\n"));
        assert!(text.lines().any(|line| line.starts_with("fuzz          skipped")), "{text}");
        assert!(all_well(&verdicts));
    }

    #[test]
    fn a_failure_and_an_empty_suite_are_named_and_not_well() {
        let verdicts = [verdict("rust", 12, &["fork"; 30], &[]), verdict("docs", 0, &[], &[])];
        let text = account(&verdicts);
        assert!(text.contains("FAILED   rust: fork\n") && text.contains("rust: and 10 more, see above\n"));
        assert!(text.contains("FAILED   docs: it ran no test\n"), "{text}");
        assert_eq!(text.lines().last(), Some("12 passed, 31 failed, 0 skipped"));
        let [failed, empty] = verdicts;
        assert!(!all_well(&[failed]) && !all_well(&[empty]) && !all_well(&[]));
    }
}
