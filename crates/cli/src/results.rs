//! The result of a replay or a search, as a table and as fields of the JSON document.

use bfc_sys::bfc_stats_t;
use serde::Serialize;

use crate::device::{GrowthPolicy, PoolConfig};
use crate::ffi;
use crate::find_limit::{Found, ratio};
use crate::inspect::{Failure, Inspection, Peak, in_turns};
use crate::output::table;
use crate::replay::{Job, Run};
use crate::size::{self, counted, human};
use bfc_readers::trace::Trace;

#[derive(Serialize)]
struct TraceInfo {
    name: String,
    events: usize,
    requests: usize,
    refused: usize,
    marks: usize,
    streams: usize,
    slots: usize,
    peak_live_bytes: u64,
    peak_requested_bytes: u64,
}

impl TraceInfo {
    fn of(trace: &Trace) -> Self {
        Self {
            name: trace.name.clone(),
            events: trace.events.len(),
            requests: trace.requests,
            refused: trace.refused,
            marks: trace.mark_count,
            streams: trace.streams,
            slots: trace.slots,
            peak_live_bytes: trace.peak_live_bytes,
            peak_requested_bytes: trace.peak_requested_bytes,
        }
    }
}

#[derive(Serialize)]
struct NsPerOp {
    best: f64,
    median: f64,
    runs: Vec<f64>,
}

/// The result for one trace.
pub trait Outcome: Serialize {
    /// The name of the JSON document's format.
    const SCHEMA: &'static str;

    /// The table for people.
    fn table(&self) -> String;

    /// The geometric means over several traces, as text.
    fn summary(results: &[Self]) -> String
    where
        Self: Sized;
}

/// The result of one trace's replay.
#[derive(Serialize)]
pub struct Replayed {
    trace: TraceInfo,
    pool: PoolConfig,
    limit: u64,
    threads: usize,
    warm: bool,
    ops: u64,
    failed: u64,
    /// Whether a request failed in any run. With threads, runs may differ.
    #[serde(skip)]
    pub any_failed: bool,
    fnv1a64: Option<String>,
    stats: bfc_stats_t,
    ns_per_op: NsPerOp,
    ops_per_second: f64,
    repeats_agree: Option<bool>,
    /// Meaningful only for a pool with growth: without it the pool always holds its limit.
    waste: Option<f64>,
    overhead: Option<f64>,
    fragmentation: f64,
    peak: Peak,
    peak_in_turns: bool,
    failure: Option<Failure>,
    shown: String,
    report: Option<String>,
}

impl Replayed {
    /// Combines the results of the runs, at least one, and of the inspection.
    pub fn new(job: &Job<'_>, runs: &[Run], inspection: Inspection, with_report: bool) -> Self {
        let first = &runs[0];
        let times: Vec<f64> = runs.iter().map(|run| run.ns_per_op).collect();
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let agree = runs.len() > 1 && job.threads == 1;
        // Copies in threads need not peak at the same time, so only the pool knows how much was live at once.
        let live = match job.threads {
            1 => job.trace.peak_live_bytes,
            _ => first.stats.peak_bytes_requested,
        };
        // A pool that did not serve every request does not show how much memory that takes.
        let over_live = |bytes: u64| {
            let measured = first.failed == 0 && live > 0 && bytes > 0;
            measured.then(|| bytes as f64 / live as f64)
        };
        Self {
            trace: TraceInfo::of(job.trace),
            pool: job.in_force.clone(),
            limit: job.limit,
            threads: job.threads,
            warm: job.warm,
            ops: first.ops,
            failed: first.failed,
            any_failed: runs.iter().any(|run| run.failed > 0),
            fnv1a64: first.fnv1a64.map(|hash| format!("{hash:016x}")),
            stats: first.stats,
            ns_per_op: NsPerOp { best: sorted[0], median: sorted[sorted.len() / 2], runs: times },
            ops_per_second: runs.iter().map(|run| run.ops_per_second).fold(0.0, f64::max),
            repeats_agree: agree.then(|| runs.iter().all(|run| run.fnv1a64 == first.fnv1a64)),
            waste: over_live(first.stats.peak_pool_bytes).filter(|_| job.in_force.growth),
            overhead: over_live(first.stats.peak_bytes_in_use),
            fragmentation: ffi::fragmentation(&first.stats),
            peak: inspection.peak,
            peak_in_turns: job.threads > 1,
            failure: inspection.failure,
            shown: inspection.shown,
            report: with_report.then_some(inspection.report),
        }
    }

    /// The ratio to the live bytes that is most meaningful for this pool.
    fn ratio(&self) -> Option<(&'static str, f64)> {
        match self.waste {
            Some(waste) => Some(("waste", waste)),
            None => self.overhead.map(|overhead| ("overhead", overhead)),
        }
    }

    /// The failed request that the report is about, and the report.
    fn report_text(&self) -> Option<String> {
        let report = self.report.as_ref()?;
        let failure = self.failure.as_ref().map_or(String::new(), |failure| {
            format!("the request: {}\n{}\n\n", human(failure.bytes), failure.words)
        });
        Some(format!("\nreport {}\n{failure}{}\n", self.shown, report.trim_end()))
    }

    fn time_row(&self) -> String {
        let times = &self.ns_per_op;
        let runs = match times.runs.len() {
            1 => String::new(),
            runs => format!(", best of {runs}; median {:.1}", times.median),
        };
        let threads = match self.threads {
            1 => String::new(),
            threads => {
                format!(" in each of {threads} threads; {:.2} M ops per second", self.ops_per_second / 1e6)
            }
        };
        let pools = if self.warm { "warm" } else { "fresh" };
        format!("{:.1} on a {pools} pool{runs}{threads}", times.best)
    }
}

impl Outcome for Replayed {
    const SCHEMA: &'static str = "bfc-replay/1";

    fn table(&self) -> String {
        let (trace, stats, peak) = (&self.trace, &self.stats, &self.peak);
        let mut rows = vec![
            ("trace", trace_row(trace)),
            ("pool", pool_row(&self.pool, Some(self.limit))),
            ("ops", self.ops.to_string()),
            ("ns per op", self.time_row()),
            ("allocs", stats.num_allocs.to_string()),
            ("failures", self.failed.to_string()),
        ];
        rows.extend(plan_row(&self.pool, stats.num_planned_allocs, stats.num_allocs));
        rows.extend([
            ("peak in use", human(stats.peak_bytes_in_use)),
            ("peak requested", human(stats.peak_bytes_requested)),
            ("peak live", format!("{} in the trace", human(trace.peak_live_bytes))),
            ("pool held", format!("{}, peak {}", human(stats.pool_bytes), human(stats.peak_pool_bytes))),
        ]);
        if let Some((name, ratio)) = self.ratio() {
            let what = if name == "waste" { "pool" } else { "in use" };
            let live = if self.threads == 1 { "live" } else { "requested" };
            rows.push((name, format!("{ratio:.4} peak {what} over peak {live}")));
        }
        let mut fragmentation = format!("{:.2}% at the end", self.fragmentation * 100.0);
        if !self.peak_in_turns {
            fragmentation += &format!(", {:.2}% at peak use", peak.fragmentation * 100.0);
        }
        rows.push(("fragmentation", fragmentation));
        // On any other memory the system chooses the addresses, so the hash differs from run to run.
        let comparable = self.fnv1a64.as_ref().filter(|_| self.pool.device_capacity.is_some());
        if let Some(hash) = comparable {
            let agree = match self.repeats_agree {
                Some(false) => ", other runs gave other addresses",
                _ => "",
            };
            rows.push(("addresses", format!("{hash} (fnv1a64){agree}")));
        }
        let mark = peak.mark.as_ref().map_or(String::new(), |mark| format!(" ({mark})"));
        let mut run = String::new();
        if self.peak_in_turns {
            run = in_turns(self.threads);
            let fragmentation = peak.fragmentation * 100.0;
            let in_use = human(peak.bytes_in_use);
            rows.push(("in turns", format!("peak in use {in_use}, {fragmentation:.2}% fragmentation then")));
        }
        rows.push(("occupancy", format!("at peak use{run}, event {}{mark}", peak.event)));
        let mut text = table(&trace.name, &rows);
        text += &format!("  {}\n", peak.occupancy.trim_end());
        text += &self.report_text().unwrap_or_default();
        text
    }

    fn summary(results: &[Self]) -> String {
        let time = geometric_mean(results, |result| result.ns_per_op.best);
        let ratios: Vec<_> = results.iter().filter_map(Self::ratio).collect();
        // The pool's options are the same for all traces, and so is the ratio's name.
        let Some((name, _)) = ratios.first() else { return format!("{time:.1} ns per op") };
        let ratio = geometric_mean(&ratios, |(_, ratio)| *ratio);
        let of = match ratios.len() {
            all if all == results.len() => String::new(),
            some => format!(" of the {some} without failures"),
        };
        format!("{time:.1} ns per op, {name} {ratio:.4}{of}")
    }
}

/// The result of one trace's search.
#[derive(Serialize)]
pub struct Searched {
    trace: TraceInfo,
    pool: PoolConfig,
    limit: u64,
    ratio: f64,
    fails_at: Option<u64>,
    probes: u32,
    num_planned_allocs: u64,
}

impl Searched {
    /// Combines the results of the search.
    pub fn new(job: &Job<'_>, found: Found) -> Self {
        Self {
            trace: TraceInfo::of(job.trace),
            pool: job.in_force.clone(),
            limit: found.limit,
            ratio: ratio(found.limit, job.trace),
            fails_at: found.fails_at,
            probes: found.probes,
            num_planned_allocs: found.planned,
        }
    }
}

impl Outcome for Searched {
    const SCHEMA: &'static str = "bfc-find-limit/1";

    fn table(&self) -> String {
        let fails =
            self.fails_at.map_or("nothing: a lower limit cannot hold the live bytes".to_owned(), |bytes| {
                format!("{}, the nearest lower limit tried", human(bytes))
            });
        let mut rows = vec![
            ("trace", trace_row(&self.trace)),
            ("pool", pool_row(&self.pool, None)),
            ("peak live", format!("{} in the trace", human(self.trace.peak_live_bytes))),
            ("lowest limit", human(self.limit)),
            ("ratio", format!("{:.4} over peak live", self.ratio)),
            ("fails at", fails),
            ("probes", self.probes.to_string()),
        ];
        rows.extend(plan_row(&self.pool, self.num_planned_allocs, self.trace.requests as u64));
        table(&self.trace.name, &rows)
    }

    fn summary(results: &[Self]) -> String {
        let ratio = geometric_mean(results, |result| result.ratio);
        format!("{ratio:.4} over peak live")
    }
}

/// Of at least one value.
fn geometric_mean<T>(results: &[T], value: impl Fn(&T) -> f64) -> f64 {
    let logarithms: f64 = results.iter().map(|result| value(result).ln()).sum();
    (logarithms / results.len() as f64).exp()
}

fn trace_row(trace: &TraceInfo) -> String {
    let refused = match trace.refused {
        0 => String::new(),
        refused => format!(", {refused} refused when it was recorded"),
    };
    format!(
        "{} ({}{refused}), marks: {}, streams: {}",
        counted(trace.events, "event"),
        counted(trace.requests, "request"),
        trace.marks,
        trace.streams
    )
}

/// How many allocations followed the plan, if there is one or the environment names one.
fn plan_row(pool: &PoolConfig, planned: u64, allocs: u64) -> Option<(&'static str, String)> {
    let path = match &pool.plan {
        Some(path) => path.display().to_string(),
        None if planned == 0 => return None,
        None => "the plan in BFC_PLAN".to_owned(),
    };
    Some(("planned", format!("{planned} of {allocs} allocations at the places of {path}")))
}

fn pool_row(pool: &PoolConfig, limit: Option<u64>) -> String {
    let mut words = vec![pool.backend.name().to_owned()];
    words.extend(limit.map(|limit| format!("limit {}", size::limit(limit))));
    words.extend(pool.device_capacity.map(|bytes| format!("capacity {}", human(bytes))));
    let growth = if pool.growth_policy == Some(GrowthPolicy::Need) { "growth by need" } else { "growth" };
    let flags = [
        (pool.growth, growth),
        (pool.gc, "garbage collection"),
        (pool.split_always && !pool.two_ends, "split always"),
        (pool.two_ends, "two ends"),
        (pool.stream_ordered, "stream-ordered"),
    ];
    words.extend(flags.iter().filter(|(on, _)| *on).map(|(_, word)| (*word).to_owned()));
    words.extend(pool.fragmentation_fraction.map(|share| format!("fragmentation fraction {share}")));
    words.extend(pool.initial_region.map(|bytes| format!("initial region {}", human(bytes))));
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometric_mean_is_that_of_ratios() {
        assert_eq!(geometric_mean(&[3.0], |value| *value), 3.0_f64.ln().exp());
        assert_eq!(geometric_mean(&[2.0, 8.0], |value| *value), 4.0);
    }
}
