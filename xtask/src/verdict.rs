//! The table at the end of a test run, and its closing line.

use std::fmt::Write;

use crate::tally::Tally;

/// How many failures of a suite are named at the end. Further ones are in the output above.
const SHOWN: usize = 20;

/// How many of the slowest tests are named.
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

/// The whole summary: the table, what was skipped and why, what failed, and the closing line, alone on the last line.
pub fn account(verdicts: &[Verdict]) -> String {
    let mut text = format!(
        "{:<14}{:<9}{:>7}{:>7}{:>8}{:>9}\n",
        "suite", "result", "passed", "failed", "skipped", "seconds"
    );
    let mut total = [0; 3];
    let mut remarks = String::new();
    for Verdict { suite, tally, seconds } in verdicts {
        let counts = [tally.passed, tally.failed.len(), tally.skipped.len()];
        total = std::array::from_fn(|at| total[at] + counts[at]);
        let [passed, failed, skipped] = counts;
        let word = match (passed, failed) {
            (_, 1..) => "FAILED",
            (0, 0) => "skipped",
            _ => "passed",
        };
        let _ = writeln!(text, "{suite:<14}{word:<9}{passed:>7}{failed:>7}{skipped:>8}{seconds:>9.1}");
        for skip in &tally.skipped {
            let _ = writeln!(remarks, "skipped  {suite}: {}: {}", skip.name, skip.why);
        }
        for name in tally.failed.iter().take(SHOWN) {
            let _ = writeln!(remarks, "FAILED   {suite}: {name}");
        }
        if let Some(more @ 1..) = failed.checked_sub(SHOWN) {
            let _ = writeln!(remarks, "FAILED   {suite}: and {more} more, see above");
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
    }

    #[test]
    fn a_failure_is_named() {
        let text = account(&[verdict("rust", 12, &["fork"; 30], &[])]);
        assert!(text.contains("FAILED   rust: fork\n") && text.contains("rust: and 10 more, see above\n"));
        assert_eq!(text.lines().last(), Some("12 passed, 30 failed, 0 skipped"));
    }
}
