//! What would have helped: the recorded requests of each pool, replayed with other options.
//!
//! ```text
//!   program   the requests of a pool, and the limits of what is known
//!   changes   the options to try, and how they are set
//!   notes     what the replays do not show                     text   the result for people
//! ```
//!
//! A replay needs no device: it uses the simulated one of `bfc replay`. It first repeats the run with its own options.
//! If the figures differ from those of the recording, the notes say so, because the other replays are inaccurate by as
//! much.

mod changes;
mod notes;
mod program;
mod text;

use std::env;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::device::Frees;
use crate::find_limit::find_steady_limit;
use crate::library::Library;
use crate::output;
use crate::plan;
use crate::replay::{self, Job, Run};
use crate::temporary::Folder;
use bfc_readers::history::reader::History;
use changes::{Change, Setting};
use program::{Figures, Program};

/// Only the last events of a longer history are replayed.
const MOST_EVENTS: usize = 1 << 20;

/// How long better plans are looked for.
const PLANNING: Duration = Duration::from_secs(1);

/// The precision of lowest limits, as a share of the bytes wanted.
const PRECISION: f64 = 0.001;

/// Virtual memory cannot have a lower limit.
const GRANULE: u64 = 2 << 20;

/// What would have helped.
#[derive(Serialize)]
pub struct Advice {
    /// The events that were replayed. Earlier ones are left out, except for the memory that was live then.
    events: usize,
    left_out: usize,
    seconds: f64,
    pools: Vec<PoolAdvice>,
}

/// What would have helped a pool.
#[derive(Serialize)]
struct PoolAdvice {
    device: Option<i32>,
    name: String,
    limit: u64,
    requests: usize,
    /// The most bytes that were live, each request rounded up as the pool did.
    live: u64,
    /// The same with each request that failed in the run, as if it had been served and freed at once.
    wanted: u64,
    recorded: Figures,
    /// From the replay with the same options.
    replayed: Option<Figures>,
    /// Whether these are equal. None if the recording lacks events.
    is_reproduced: Option<bool>,
    /// What the replays do not show.
    notes: Vec<String>,
    /// The first has the options of the run. The others are sorted by the lowest limit.
    changes: Vec<Tried>,
}

/// What a change did.
#[derive(Serialize)]
struct Tried {
    change: String,
    set: Setting,
    out_of_memory: OutOfMemory,
    /// Requests that failed at the limit of the run.
    failed: Option<u64>,
    peak_in_use: Option<u64>,
    peak_held: Option<u64>,
    /// The most bytes held / wanted. None if a request failed.
    overhead: Option<f64>,
    /// The lowest limit that was found in which no request fails, nor shortly above it, to 0.1%. It is above the limit of the
    /// run if a request failed there.
    lowest_limit: Option<u64>,
    /// Allocations at places of the plan.
    planned: u64,
    /// Of a call, in the replay.
    ns_per_op: Option<f64>,
    /// What the replays took.
    seconds: f64,
    /// Why the change could not be tried.
    error: Option<String>,
}

/// The effect on the requests that failed in the run.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum OutOfMemory {
    /// No request fails, and none failed in the run.
    None,
    /// No request fails in the replay any more. A new run may differ from the replay.
    NoneInReplay,
    /// Requests fail.
    Remains,
    /// The replay with the options of the run does not fail where the run did, so other replays prove nothing.
    Unknown,
}

/// Replays the pools of a history. Removes the `BFC_` variables of this process, which would change the replays. No
/// other thread may run in it meanwhile.
pub fn advise(history: &History, library: &Library, bar: &ProgressBar) -> Result<Advice> {
    forget_environment();
    let began = Instant::now();
    let left_out = history.events.len().saturating_sub(MOST_EVENTS);
    let programs = program::of(history, left_out);
    bar.set_length(programs.iter().map(|program| changes::others(program, Some(0)).len() as u64 + 1).sum());
    let folder = Folder::new("bfc-advice-XXXXXX")?;
    let mut pools = Vec::new();
    for mut program in programs {
        pools.push(advise_pool(&mut program, library, &folder, bar)?);
    }
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    Ok(Advice { events: history.events.len() - left_out, left_out, seconds, pools })
}

fn advise_pool(
    program: &mut Program,
    library: &Library,
    folder: &Folder,
    bar: &ProgressBar,
) -> Result<PoolAdvice> {
    let name = program.trace.name.clone();
    let attempt = |program: &Program, change: &Change| {
        output::show(bar, &format!("{name}: {}", change.name));
        try_change(program, change, library, folder)
    };
    let (mut baseline, mut run) = attempt(program, &changes::baseline(program));
    if program.frees == Some(Frees::Wait) && run.as_ref().map(figures) != Some(program.recorded) {
        // The history does not say whether cudaFree synchronized, but the figures do.
        program.frees = Some(Frees::AtOnce);
        let (other, other_run) = attempt(program, &changes::baseline(program));
        if other_run.as_ref().map(figures) == Some(program.recorded) {
            (baseline, run) = (other, other_run);
        } else {
            program.frees = Some(Frees::Wait);
        }
    }
    let program = &*program;
    bar.inc(1);
    let fails_too = run.as_ref().is_some_and(|run| run.failed != 0);
    let outcome = |failed: Option<u64>| match failed {
        _ if program.recorded.failed != 0 && !fails_too => OutOfMemory::Unknown,
        Some(0) if fails_too => OutOfMemory::NoneInReplay,
        Some(0) => OutOfMemory::None,
        Some(_) => OutOfMemory::Remains,
        None => OutOfMemory::Unknown,
    };
    baseline.out_of_memory = outcome(baseline.failed);
    let mut others: Vec<Tried> = changes::others(program, baseline.lowest_limit.filter(|_| fails_too))
        .iter()
        .map(|change| {
            bar.inc(1);
            let tried = attempt(program, change).0;
            Tried { out_of_memory: outcome(tried.failed), ..tried }
        })
        .collect();
    others.sort_by_key(|tried| tried.lowest_limit.unwrap_or(u64::MAX));
    let replayed = run.as_ref().map(figures);
    let is_reproduced = program.is_complete.then(|| replayed == Some(program.recorded));
    Ok(PoolAdvice {
        device: program.device,
        name,
        limit: program.limit,
        requests: program.trace.requests,
        live: program.trace.peak_live_bytes,
        wanted: program.trace.peak_wanted_bytes,
        recorded: program.recorded,
        replayed,
        is_reproduced,
        notes: notes::of(program, replayed),
        changes: std::iter::once(baseline).chain(others).collect(),
    })
}

/// Replays with a change. The run is none if it cannot be tried.
fn try_change(
    program: &Program,
    change: &Change,
    library: &Library,
    folder: &Folder,
) -> (Tried, Option<Run>) {
    let began = Instant::now();
    let replayed = replay(program, change, library, folder);
    let mut tried = Tried {
        change: change.name.clone(),
        set: change.set.clone(),
        out_of_memory: OutOfMemory::Unknown,
        failed: None,
        peak_in_use: None,
        peak_held: None,
        overhead: None,
        lowest_limit: None,
        planned: 0,
        ns_per_op: None,
        seconds: 0.0,
        error: None,
    };
    let run = match replayed {
        Ok((run, lowest_limit)) => {
            let held = run.stats.peak_pool_bytes;
            let wanted = program.trace.peak_wanted_bytes;
            tried.failed = Some(run.failed);
            tried.peak_in_use = Some(run.stats.peak_bytes_in_use);
            tried.peak_held = Some(held);
            tried.overhead = (run.failed == 0 && wanted != 0).then(|| held as f64 / wanted as f64);
            tried.lowest_limit = lowest_limit;
            tried.planned = run.stats.num_planned_allocs;
            tried.ns_per_op = Some(run.ns_per_op);
            Some(run)
        }
        Err(why) => {
            tried.error = Some(format!("{why:#}"));
            None
        }
    };
    tried.seconds = began.elapsed().as_secs_f64();
    (tried, run)
}

/// The run at the limit of the change, and the lowest limit.
fn replay(
    program: &Program,
    change: &Change,
    library: &Library,
    folder: &Folder,
) -> Result<(Run, Option<u64>)> {
    let mut config = change.config.clone();
    if change.is_planned {
        let path = folder.path().join("plan");
        plan::write_quickly(&program.trace, program.alignment, Instant::now() + PLANNING, &path)?;
        config.plan = Some(path);
    }
    let bar = ProgressBar::hidden();
    let trace = &program.trace;
    let job = Job {
        library,
        trace,
        config: &config,
        in_force: &config,
        limit: change.limit,
        threads: 1,
        warm: false,
    };
    let run = replay::run(&job, &bar)?;
    if change.limit != program.limit && run.failed == 0 {
        // It is the lowest one of the recorded options.
        return Ok((run, Some(change.limit)));
    }
    // Other limits result in other regions.
    let mut free = config.clone();
    free.regions.clear();
    let least = if free.device_capacity.is_none() { GRANULE } else { 0 };
    // A lower limit that runs by luck is no way out of the failure at this one.
    let failed_at = if run.failed == 0 { 0 } else { change.limit.saturating_add(1) };
    let found = find_steady_limit(&Job { config: &free, ..job }, least.max(failed_at), PRECISION);
    Ok((run, found.ok()))
}

fn figures(run: &Run) -> Figures {
    Figures {
        allocations: run.stats.num_allocs,
        frees: run.stats.num_frees,
        failed: run.failed,
        peak_in_use: run.stats.peak_bytes_in_use,
        peak_held: run.stats.peak_pool_bytes,
    }
}

/// Removes the variables that would change a replay. The log stays.
fn forget_environment() {
    let names = env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.to_string_lossy().starts_with("BFC_") && *name != "BFC_LOG") {
        // SAFETY: the command has one thread here: progress bars have none of their own.
        unsafe { env::remove_var(name) };
    }
}
