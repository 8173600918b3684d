//! The metrics of all allocators of a process.

use bfc_core::stats::Stats;
use bfc_formats::openmetrics::{self, Labels, Source};
use std::fmt;

/// The statistics of one allocator at one moment, and its labels.
pub(crate) struct Sample {
    pub(crate) device: i32,
    pub(crate) name: String,
    pub(crate) backend: &'static str,
    pub(crate) stats: Stats,
}

impl Source for Sample {
    fn labels(&self, labels: &mut Labels<'_>) -> fmt::Result {
        labels.add("device", &self.device)?;
        labels.add("name", &self.name)?;
        labels.add("backend", &self.backend)
    }

    fn value(&self, statistic: &str) -> Option<u64> {
        self.stats.fields().into_iter().find_map(|(name, value)| (name == statistic).then_some(value))
    }
}

/// Writes the metrics of allocators, and how many others are poisoned.
pub(crate) fn write(out: &mut dyn fmt::Write, samples: &[Sample], poisoned: usize) -> fmt::Result {
    openmetrics::write(out, samples, Some(poisoned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bfc_formats::openmetrics::METRICS;

    #[test]
    fn each_statistic_has_a_metric() {
        let names = Stats::default().fields().map(|(name, _)| name);
        assert_eq!(METRICS.map(|metric| metric.statistic), names);
    }
}
