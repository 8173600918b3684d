//! The statistics of allocators as OpenMetrics 1.0 text, and the table of the metrics.
//!
//! The library writes it for `bfc_metrics`, and `bfc top` for all processes. The samples of one metric must stand
//! together in this format, so the text is written from copies of all allocators' statistics.

use core::fmt::{self, Display, Write};
use os::terms::is_no_limit;

/// How the values of a metric change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only rises, or begins at 0 again. The sample's name has the suffix `_total`.
    Counter,
    /// It rises and falls.
    Gauge,
}

/// A metric of one allocator.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name of the family. Those of bytes end in `_bytes`, which is then the unit.
    pub name: &'static str,
    /// How its values change.
    pub kind: Kind,
    /// One sentence. It must not need escapes: no backslash, no quotation mark, no line break.
    pub help: &'static str,
    /// The field of `bfc_stats_t` that is its value.
    pub statistic: &'static str,
}

impl Metric {
    /// Returns the suffix of the sample names.
    pub fn suffix(&self) -> &'static str {
        if self.kind == Kind::Counter { "_total" } else { "" }
    }
}

const fn counter(name: &'static str, statistic: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Counter, help, statistic }
}

const fn gauge(name: &'static str, statistic: &'static str, help: &'static str) -> Metric {
    Metric { name, kind: Kind::Gauge, help, statistic }
}

/// The statistic that is infinite if there is no limit.
const LIMIT: &str = "bytes_limit";

/// All metrics, in the order of the fields of `bfc_stats_t`. docs/metrics.md shows them.
pub const METRICS: [Metric; 17] = [
    counter("bfc_allocations", "num_allocs", "Successful allocations."),
    counter("bfc_frees", "num_frees", "Successful frees."),
    counter("bfc_failed_requests", "num_failures", "Requests that could not be served."),
    gauge("bfc_in_use_bytes", "bytes_in_use", "Bytes of the chunks in use, including slack."),
    gauge("bfc_in_use_peak_bytes", "peak_bytes_in_use", "The highest bfc_in_use_bytes."),
    gauge("bfc_requested_bytes", "bytes_requested", "Requested bytes of the chunks in use."),
    gauge("bfc_requested_peak_bytes", "peak_bytes_requested", "The highest bfc_requested_bytes."),
    gauge("bfc_largest_allocation_bytes", "largest_alloc_size", "Size of the largest chunk handed out."),
    gauge("bfc_limit_bytes", LIMIT, "The most bytes that may be held from the backend."),
    gauge("bfc_held_bytes", "pool_bytes", "Bytes held from the backend."),
    gauge("bfc_held_peak_bytes", "peak_pool_bytes", "The highest bfc_held_bytes."),
    gauge(
        "bfc_largest_free_chunk_bytes",
        "largest_free_block_bytes",
        "Size of the largest free chunk available to a request.",
    ),
    gauge("bfc_regions", "num_regions", "Regions held from the backend."),
    gauge("bfc_chunks", "num_chunks", "Chunks, in use and free."),
    gauge("bfc_free_chunks", "num_free_chunks", "Free chunks."),
    gauge("bfc_metadata_bytes", "metadata_bytes", "Host memory of the allocator metadata."),
    counter("bfc_planned_allocations", "num_planned_allocs", "Allocations placed where the plan has them."),
];

/// One allocator, as the text describes it.
pub trait Source {
    /// Adds the labels that distinguish the allocator's samples from those of others.
    fn labels(&self, labels: &mut Labels<'_>) -> fmt::Result;

    /// Returns a statistic by its name in `bfc_stats_t`. An unknown one has no sample.
    fn value(&self, statistic: &str) -> Option<u64>;
}

/// The number of allocators that cannot be described, a gauge.
pub const POISONED: (&str, &str) = (
    "bfc_poisoned_allocators",
    "Allocators that an internal error has disabled. They have no other samples.",
);

/// Writes the text. `poisoned` is the value of [`POISONED`], if it is known.
pub fn write<S: Source>(out: &mut dyn Write, sources: &[S], poisoned: Option<usize>) -> fmt::Result {
    for metric in &METRICS {
        let Metric { name, kind, help, statistic } = metric;
        writeln!(out, "# TYPE {name} {}", if *kind == Kind::Counter { "counter" } else { "gauge" })?;
        if name.ends_with("_bytes") {
            writeln!(out, "# UNIT {name} bytes")?;
        }
        writeln!(out, "# HELP {name} {help}")?;
        for source in sources {
            let Some(value) = source.value(statistic) else { continue };
            write!(out, "{name}{}{{", metric.suffix())?;
            source.labels(&mut Labels { out: &mut *out, is_first: true })?;
            match *statistic == LIMIT && is_no_limit(value) {
                true => out.write_str("} +Inf\n")?,
                false => writeln!(out, "}} {value}")?,
            }
        }
    }
    if let Some(value) = poisoned {
        let (name, help) = POISONED;
        writeln!(out, "# TYPE {name} gauge\n# HELP {name} {help}\n{name} {value}")?;
    }
    out.write_str("# EOF\n")
}

/// Writes the labels of a sample.
pub struct Labels<'a> {
    out: &'a mut dyn Write,
    is_first: bool,
}

impl Labels<'_> {
    /// Adds a label. The value is escaped, whatever it contains.
    pub fn add(&mut self, name: &'static str, value: &dyn Display) -> fmt::Result {
        let comma = if self.is_first { "" } else { "," };
        self.is_first = false;
        write!(self.out, "{comma}{name}=\"")?;
        write!(EscapedValue(&mut *self.out), "{value}")?;
        self.out.write_char('"')
    }
}

/// Escapes what is written as a label value.
struct EscapedValue<'a>(&'a mut dyn Write);

impl Write for EscapedValue<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(['\\', '"', '\n']) {
            let (rest, escape) = match part.as_bytes().last() {
                Some(b'\\') => (&part[..part.len() - 1], "\\\\"),
                Some(b'"') => (&part[..part.len() - 1], "\\\""),
                Some(b'\n') => (&part[..part.len() - 1], "\\n"),
                _ => (part, ""),
            };
            self.0.write_str(rest)?;
            self.0.write_str(escape)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Example(&'static str, u64);

    impl Source for Example {
        fn labels(&self, labels: &mut Labels<'_>) -> fmt::Result {
            labels.add("device", &self.1)?;
            labels.add("name", &self.0)
        }

        fn value(&self, statistic: &str) -> Option<u64> {
            let at = METRICS.iter().position(|metric| metric.statistic == statistic)?;
            (statistic != "num_frees").then_some(self.1 + at as u64)
        }
    }

    fn text(sources: &[Example]) -> String {
        let mut text = String::new();
        write(&mut text, sources, None).unwrap();
        text
    }

    #[test]
    fn without_allocators_there_are_no_samples() {
        let text = text(&[]);
        assert!(text.lines().all(|line| line.starts_with("# ")), "{text}");
        assert_eq!(text.matches("# HELP ").count(), METRICS.len());
        assert!(text.ends_with("# EOF\n"), "{text}");
        let mut known = String::new();
        write::<Example>(&mut known, &[], Some(2)).unwrap();
        let samples: Vec<&str> = known.lines().filter(|line| !line.starts_with("# ")).collect();
        assert_eq!(samples, ["bfc_poisoned_allocators 2"], "{known}");
    }

    #[test]
    fn the_samples_of_a_metric_stand_together() {
        let text = text(&[Example("x", 3), Example("y", u64::MAX - METRICS.len() as u64)]);
        let start = "# TYPE bfc_allocations counter\n# HELP bfc_allocations Successful allocations.\n\
            bfc_allocations_total{device=\"3\",name=\"x\"} 3\n\
            bfc_allocations_total{device=\"18446744073709551598\",name=\"y\"} 18446744073709551598\n\
            # TYPE bfc_frees counter\n# HELP bfc_frees Successful frees.\n# TYPE bfc_failed_requests counter\n";
        assert!(text.starts_with(start), "{text}");
        let gauge = "# TYPE bfc_in_use_bytes gauge\n# UNIT bfc_in_use_bytes bytes\n\
            # HELP bfc_in_use_bytes Bytes of the chunks in use, including slack.\n\
            bfc_in_use_bytes{device=\"3\",name=\"x\"} 6\n";
        assert!(text.contains(gauge), "{text}");
    }

    #[test]
    fn label_values_are_escaped() {
        for (name, escaped) in [
            ("plain", "plain"),
            ("", ""),
            ("\"", "\\\""),
            ("a\\b\"c\nd", "a\\\\b\\\"c\\nd"),
            ("\n\n", "\\n\\n"),
            ("é\\", "é\\\\"),
        ] {
            let text = text(&[Example(name, 0)]);
            assert!(text.contains(&format!(",name=\"{escaped}\"}} 0\n")), "{text}");
        }
    }

    #[test]
    fn names_follow_the_conventions() {
        for Metric { name, help, statistic, kind } in METRICS {
            assert!(name.starts_with("bfc_") && !name.ends_with("_total"), "{name}");
            assert_eq!(name.ends_with("_bytes"), !statistic.starts_with("num_"), "{name}: {statistic}");
            assert!(kind == Kind::Gauge || statistic.starts_with("num_"), "{name}");
            assert!(!help.contains(['\\', '"', '\n']) && help.ends_with('.'), "{help}");
            assert_eq!(METRICS.iter().filter(|other| other.name == name).count(), 1, "{name}");
        }
    }
}
