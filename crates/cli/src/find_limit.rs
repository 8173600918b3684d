//! The lowest limit in which a trace runs without a failed request.
//!
//! Success is not strictly monotone in the limit: with another limit regions are split elsewhere, and occasionally a
//! larger pool fails where a smaller one did not. So the search starts at the bottom instead of in the middle of a wide
//! interval. No limit below the trace's peak of live bytes, refused requests of the recorded program included, can
//! suffice. That limit is tried first, then limits above it in doubling steps, until one runs. The search then bisects
//! between the last limit that failed and the first that ran. The result has run, and is run once more to be sure. The
//! limit just below it, as near as the precision demands, has failed. A still smaller limit may run by chance.

use anyhow::{Result, bail};
use indicatif::ProgressBar;

use crate::output;
use crate::replay::{Job, Player};
use crate::size;
use bfc_readers::trace::{ALIGNMENT, Trace};

/// How many limits above one that was found must run too for it to be steady: the farthest is 6% above it.
const HIGHER: u32 = 5;

/// How often a limit is looked for above one that has failed.
const ROUNDS: usize = 16;

/// The limit at which the search upward gives up, as a multiple of the peak of live bytes.
const GIVE_UP: u64 = 64;

/// Events played between two checks whether a request has failed.
const STRIDE: usize = 1024;

/// What the search found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The lowest limit that ran, in bytes.
    pub limit: u64,
    /// The nearest smaller limit that is known to fail. None if the limit is the peak of live bytes itself.
    pub fails_at: Option<u64>,
    /// How many times the trace was played, completely or up to its first failed request.
    pub probes: u32,
    /// How many allocations followed the plan in the last run.
    pub planned: u64,
}

/// Searches upward from `least` bytes, to a relative `precision` of the peak of live bytes. 0 means a precision of 256
/// bytes.
pub fn find_limit(job: &Job<'_>, least: u64, precision: f64, bar: &ProgressBar) -> Result<Found> {
    let mut planned = 0;
    let found = search(job.trace.peak_wanted_bytes.max(least), precision, |limit| {
        output::show(bar, &format!("{}: trying {}", job.trace.name, size::human(limit)));
        bar.inc(1);
        let ran = runs(&Job { limit, ..*job })?;
        planned = ran.unwrap_or(0);
        Ok(ran.is_some())
    })?;
    // The last run is that of the limit found.
    Ok(Found { planned, ..found })
}

/// Searches upwards from `least` bytes for a limit that runs, and above which the trace runs too. Advice needs it: a limit that
/// runs by luck misleads.
pub fn find_steady_limit(job: &Job<'_>, least: u64, precision: f64) -> Result<u64> {
    let least = job.trace.peak_wanted_bytes.max(least);
    steady(least, precision, |limit| Ok(runs(&Job { limit, ..*job })?.is_some()))
}

fn steady(mut least: u64, precision: f64, mut runs: impl FnMut(u64) -> Result<bool>) -> Result<u64> {
    for _ in 0..ROUNDS {
        let limit = search(least, precision, &mut runs)?.limit;
        let mut failed = None;
        for doubled in (0..HIGHER).rev() {
            let higher = limit.saturating_add((limit / 256) << doubled);
            if !runs(higher)? {
                failed = Some(higher);
                break;
            }
        }
        match failed {
            None => return Ok(limit),
            Some(limit) => least = limit.saturating_add(1),
        }
    }
    bail!("each limit that runs has one shortly above it that fails")
}

/// Runs the job's trace up to its first failed request. Returns how many allocations followed the plan, if no request
/// failed.
fn runs(job: &Job<'_>) -> Result<Option<u64>> {
    let device = job.device()?;
    let mut player = Player::new(&device, job.trace);
    let end = job.trace.events.len();
    for start in (0..end).step_by(STRIDE) {
        player.play(start..end.min(start + STRIDE))?;
        if player.failed > 0 {
            return Ok(None);
        }
    }
    Ok(Some(device.stats()?.num_planned_allocs))
}

fn search(peak_live_bytes: u64, precision: f64, mut runs: impl FnMut(u64) -> Result<bool>) -> Result<Found> {
    // In units, rounded up. A limit of 0 would mean "all that is available", so the minimum is one unit.
    let largest = u64::MAX / ALIGNMENT;
    let least = peak_live_bytes.div_ceil(ALIGNMENT).clamp(1, largest);
    let ceiling = least.saturating_mul(GIVE_UP).min(largest);
    let mut probes = 0;
    let mut probe = |units: u64| {
        probes += 1;
        runs(units * ALIGNMENT)
    };

    let mut fails = None;
    let mut good = least;
    let mut step = (least / 256).max(1);
    while !probe(good)? {
        if good == ceiling {
            bail!(
                "no limit up to {} runs without a failed request (the peak of live bytes is {}); \
                 is --device-capacity too small?",
                size::human(ceiling * ALIGNMENT),
                size::human(peak_live_bytes)
            );
        }
        fails = Some(good);
        good = good.saturating_add(step).min(ceiling);
        step = step.saturating_mul(2);
    }

    let near_enough = ((least as f64 * precision) as u64).max(1);
    while let Some(bad) = fails.filter(|bad| good - bad > near_enough) {
        let middle = bad + (good - bad) / 2;
        if probe(middle)? {
            good = middle;
        } else {
            fails = Some(middle);
        }
    }

    let limit = good * ALIGNMENT;
    if !probe(good)? {
        bail!(
            "the trace ran once with a limit of {} and then failed with it: placement differs from run to run; --device-capacity makes \
             it the same each time",
            size::human(limit)
        );
    }
    Ok(Found { limit, fails_at: fails.map(|bad| bad * ALIGNMENT), probes, planned: 0 })
}

/// The ratio in which the notes on waste are expressed.
pub fn ratio(limit: u64, trace: &Trace) -> f64 {
    limit as f64 / trace.peak_live_bytes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches where exactly the limits for which `good` holds run. Records every probe.
    fn searched(peak: u64, precision: f64, good: impl Fn(u64) -> bool) -> (Found, Vec<u64>) {
        let mut tried = Vec::new();
        let found = search(peak, precision, |limit| {
            tried.push(limit);
            Ok(good(limit))
        });
        (found.expect("something runs"), tried)
    }

    #[test]
    fn the_peak_itself_is_the_least_there_is() {
        let (found, tried) = searched(10_240, 0.0, |_| true);
        assert_eq!(found, Found { limit: 10_240, fails_at: None, probes: 2, planned: 0 });
        assert_eq!(tried, [10_240, 10_240]);
    }

    #[test]
    fn without_a_precision_the_limit_is_found_to_the_unit() {
        for threshold in [100_000_256_u64, 101_000_192, 250_000_128, 6_000_000_128] {
            let (found, tried) = searched(100_000_000, 0.0, |limit| limit >= threshold);
            let expected = threshold.next_multiple_of(256);
            assert_eq!(found.limit, expected);
            assert_eq!(found.fails_at, Some(expected - 256));
            assert_eq!(found.probes as usize, tried.len());
            assert!(tried.iter().all(|limit| limit % 256 == 0));
        }
    }

    #[test]
    fn a_precision_ends_the_search_early() {
        let threshold = 131_000_000;
        let (exact, _) = searched(100_000_000, 0.0, |limit| limit >= threshold);
        let (near, _) = searched(100_000_000, 0.001, |limit| limit >= threshold);
        assert!(near.probes < exact.probes);
        assert!(near.limit >= threshold && near.limit - threshold <= 100_000);
        let fails_at = near.fails_at.expect("below");
        assert!(fails_at < threshold && near.limit - fails_at <= 100_000);
    }

    #[test]
    fn what_is_found_ran_even_where_running_is_not_monotone() {
        // Runs in a narrow band, fails above it, and runs again far above.
        let runs = |limit: u64| (102_000_000..102_400_000).contains(&limit) || limit >= 150_000_000;
        let (found, tried) = searched(100_000_000, 0.0001, runs);
        assert!(runs(found.limit));
        assert!(!runs(found.fails_at.expect("below")));
        assert_eq!(tried.last(), Some(&found.limit));
    }

    #[test]
    fn a_steady_limit_lies_above_those_that_fail() {
        // A recorded program in virtual memory: limits in MiB that fail among others that run.
        let runs = |limit: u64| !matches!(limit >> 20, ..292 | 300 | 301 | 304 | 305);
        let peak = 252 << 20;
        assert_eq!(searched(peak, 0.001, runs).0.limit >> 20, 292);
        assert_eq!(steady(peak, 0.001, |limit| Ok(runs(limit))).expect("something runs") >> 20, 306);
        assert!(steady(peak, 0.001, |limit| Ok(limit == peak)).is_err());
        assert_eq!(steady(peak, 0.001, |_| Ok(true)).expect("all run"), peak);
    }

    #[test]
    fn a_trace_of_nothing_still_has_a_limit() {
        assert_eq!(searched(0, 0.0, |_| true).0.limit, 256);
    }

    #[test]
    fn giving_up_and_flickering_are_errors() {
        let error = search(10_240, 0.0, |_| Ok(false)).expect_err("nothing runs").to_string();
        assert!(error.contains("no limit up to"), "{error}");
        assert!(search(u64::MAX, 0.0, |_| Ok(false)).is_err());
        let mut probes = 0;
        let error = search(10_240, 0.0, |_| {
            probes += 1;
            Ok(probes == 1)
        });
        assert!(error.expect_err("runs once").to_string().contains("differs from run to run"));
    }
}
