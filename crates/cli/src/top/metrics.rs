//! `bfc top --openmetrics`: the metrics of `bfc_metrics` for all processes, with their numbers as a label.

use std::fmt;

use super::rates::Row;
use bfc_formats::openmetrics::{self, Labels, Source};
use bfc_formats::published::layout::STATISTICS;
use bfc_readers::published::reader::State;

impl Source for &Row {
    fn labels(&self, labels: &mut Labels<'_>) -> fmt::Result {
        labels.add("pid", &self.process.id)?;
        labels.add("program", &self.process.program)?;
        labels.add("device", &self.pool.device)?;
        labels.add("name", &self.pool.name)?;
        labels.add("backend", &self.pool.backend)
    }

    fn value(&self, statistic: &str) -> Option<u64> {
        STATISTICS.contains(&statistic).then(|| self.get(statistic))
    }
}

/// The text. Processes that have ended and pools that are disabled have no samples, because a sample describes the
/// present.
pub fn text(rows: &[Row]) -> String {
    let now = rows.iter().filter(|row| row.process.state != State::Ended);
    let (failed, live): (Vec<_>, Vec<_>) = now.partition(|row| row.pool.is_failed);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = openmetrics::write(&mut text, &live, Some(failed.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::super::rates::Rates;
    use super::super::rates::tests::{pool, process, reading};
    use super::*;

    #[test]
    fn samples_have_the_process_as_a_label_and_names_are_escaped() {
        let mut hostile = pool(1, 3, 2, 1024);
        hostile.name = "a\"b\\c\nd".into();
        let mut failed = pool(1, 9, 9, 1024);
        (failed.device, failed.is_failed) = (1, true);
        let all = reading(vec![
            process(7, State::Running, vec![pool(1, 2, 1, 1024), failed]),
            process(8, State::Stalled, vec![hostile]),
            process(9, State::Ended, vec![pool(1, 2, 1, 1024)]),
        ]);
        let text = text(&Rates::default().take(&all));
        let begin = "# TYPE bfc_allocations counter\n# HELP bfc_allocations Successful allocations.\n\
            bfc_allocations_total{pid=\"7\",program=\"train\",device=\"0\",name=\"bfc\",backend=\"host\"} 2\n\
            bfc_allocations_total{pid=\"8\",program=\"train\",device=\"0\",name=\"a\\\"b\\\\c\\nd\",backend=\"host\"} 3\n\
            # TYPE bfc_frees counter\n";
        assert!(text.starts_with(begin), "{text}");
        assert!(text.ends_with("\nbfc_poisoned_allocators 1\n# EOF\n"), "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(samples.count(), 2 * STATISTICS.len() + 1, "{text}");
    }
}
