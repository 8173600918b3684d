//! `bfc plan`: places for the requests of a recorded program, computed in advance.
//!
//! ```text
//!   program      the requests, how long each lives, and which part repeats
//!   packing      placing items in an order      heuristics   the orders
//!   search       improving the best placement   text         the file
//! ```

mod heuristics;
mod packing;
mod program;
mod search;
mod text;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::new_file;
use crate::output::{self, Output, progress, table};
use crate::size::{counted, human};
use crate::trace;
use bfc_readers::trace::Trace;
use heuristics::{CLASSIC, Heuristic, by_contention};
use packing::{Packer, Packing};
use program::Program;

/// The search ends when the placement takes no more than the peak plus this share of it.
const GOAL: u64 = 10_000;

/// The placements that the search begins with.
const CANDIDATES: usize = 3;

/// Shown after the options of `bfc plan`.
pub const EXAMPLES: &str = "\
Examples:
  bfc plan train.trace -o train.plan                        plan a recorded program
  bfc replay train.trace --find-limit                       the limit it needs without the plan,
  bfc replay train.trace --find-limit --plan train.plan     and with it
  BFC_PLAN=train.plan ./train                               follow it in a program that uses libbfc";

/// Shown after the examples by `bfc plan --help`.
pub const SCHEMA: &str = "\
The JSON document of --json (sizes in bytes; fields may be added):
  schema       \"bfc-plan/1\"
  trace        name, requests, streams, peak_live_bytes
  plan         path, alignment, bytes, requests, prologue, repeated (requests of the part that
               is followed again and again; 0 if the trace does not end with a repetition),
               unplaced (requests without a place, because they live too long)
  peak_bytes   peak of live bytes, rounded to the alignment: no plan takes less
  ratio        plan.bytes / peak_bytes
  heuristics   the bytes that each takes: size, area, duration, start, contention (the best of
               its variants; absent if another one reached the peak)
  search       tried (placements), bytes (of the best one)";

#[derive(Args)]
pub struct Plan {
    /// The trace, gzipped or not; `-` is standard input
    trace: PathBuf,
    /// The file to write the plan to
    #[arg(long, short, value_name = "PLAN")]
    output: PathBuf,
    /// Alignment of places and sizes in bytes. 512 for programs that allocate through a framework's adapter, 256 for
    /// bfc_alloc and bfc_alloc_async
    #[arg(long, default_value = "256", value_parser = ["256", "512"])]
    alignment: String,
    /// Number of placements that the search tries; 0 uses the best heuristic's
    #[arg(long, value_name = "N", default_value_t = 50)]
    search: u32,
    /// Print one JSON document instead of a table (fields: bfc plan --help)
    #[arg(long)]
    json: bool,
    /// No progress bar, and no remarks on standard error
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Serialize)]
struct Planned {
    schema: &'static str,
    trace: TraceInfo,
    plan: PlanInfo,
    peak_bytes: u64,
    ratio: f64,
    heuristics: BTreeMap<&'static str, u64>,
    search: SearchInfo,
}

#[derive(Serialize)]
struct TraceInfo {
    name: String,
    requests: usize,
    streams: usize,
    peak_live_bytes: u64,
}

#[derive(Serialize)]
struct PlanInfo {
    path: String,
    alignment: u64,
    bytes: u64,
    requests: usize,
    prologue: usize,
    repeated: usize,
    unplaced: usize,
}

#[derive(Serialize)]
struct SearchInfo {
    tried: u32,
    bytes: u64,
}

/// Plans a trace and writes the plan.
pub fn plan(args: &Plan, output: &mut Output) -> Result<()> {
    let alignment = if args.alignment == "512" { 512 } else { 256 };
    let trace = trace::read(&args.trace, args.quiet)?;
    let program = Program::of(&trace, alignment)?;
    if trace.streams > 1 && !args.quiet {
        output::complain(format_args!(
            "note: {} uses {} streams; a plan is followed only while one stream uses the pool",
            trace.name, trace.streams
        ));
    }
    let bar = bar(args);
    output::show(&bar, &trace.name);
    let (best, heuristics, search) = best(&program, args.search, None, &bar)?;
    bar.finish_and_clear();
    write(&args.output, &text::text(&program, &best, alignment))?;
    let planned = Planned {
        schema: "bfc-plan/1",
        plan: PlanInfo {
            path: args.output.display().to_string(),
            alignment,
            bytes: best.bytes,
            requests: program.requests.len(),
            prologue: program.repeated_from,
            repeated: program.requests.len() - program.repeated_from,
            unplaced: program.unplaced,
        },
        trace: TraceInfo {
            name: trace.name,
            requests: trace.requests,
            streams: trace.streams,
            peak_live_bytes: trace.peak_live_bytes,
        },
        peak_bytes: program.peak,
        ratio: best.bytes as f64 / program.peak.max(1) as f64,
        heuristics,
        search,
    };
    if args.json {
        return output.write_json(&planned);
    }
    output.write(&planned.table())
}

/// A bar that also moves while no placement ends.
fn bar(args: &Plan) -> ProgressBar {
    let tries = (CLASSIC.len() + by_contention().count()) as u64 + u64::from(args.search);
    let bar = progress(args.quiet, Some(tries), "{msg} {wide_bar} {percent:>3}% {elapsed}, {eta} left");
    // A single placement of a large trace takes seconds. No measurement is running that a thread could disturb.
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

/// Writes a plan by the heuristics alone. Once there is one, none is tried after `until`.
pub fn write_quickly(trace: &Trace, alignment: u64, until: Instant, path: &Path) -> Result<()> {
    let program = Program::of(trace, alignment)?;
    let (best, ..) = best(&program, 0, Some(until), &ProgressBar::hidden())?;
    write(path, &text::text(&program, &best, alignment))
}

/// The best placement, what each heuristic takes, and what the search did.
fn best(
    program: &Program,
    tries: u32,
    until: Option<Instant>,
    bar: &ProgressBar,
) -> Result<(Packing, BTreeMap<&'static str, u64>, SearchInfo)> {
    let goal = program.peak.saturating_add(program.peak / GOAL);
    let mut packer = Packer::new(program);
    let mut found: Vec<Packing> = Vec::new();
    let mut heuristics = BTreeMap::new();
    let mut place = |heuristic: Heuristic, found: &mut Vec<Packing>| {
        if let Some(packing) = heuristic.place(&mut packer, program) {
            let least = heuristics.entry(heuristic.name()).or_insert(packing.bytes);
            *least = packing.bytes.min(*least);
            found.push(packing);
        }
        bar.inc(1);
    };
    let is_late = |found: &[Packing]| !found.is_empty() && until.is_some_and(|until| Instant::now() >= until);
    for heuristic in CLASSIC {
        if !is_late(&found) {
            place(heuristic, &mut found);
        }
    }
    for heuristic in by_contention() {
        if is_late(&found) || found.iter().any(|packing| packing.bytes <= goal) {
            break;
        }
        place(heuristic, &mut found);
    }
    // Stable: the first of equal ones.
    found.sort_by_key(|packing| packing.bytes);
    found.dedup_by(|one, other| one.offsets == other.offsets);
    found.truncate(CANDIDATES);
    let mut tried = 0;
    let best = search::improve(&mut packer, program, found, goal, tries as usize, |bytes| {
        tried += 1;
        bar.set_message(human(bytes));
        bar.inc(1);
    });
    let best = best.ok_or_else(|| anyhow::anyhow!("the sizes of the trace do not fit in 64 bits"))?;
    let search = SearchInfo { tried, bytes: best.bytes };
    Ok((best, heuristics, search))
}

impl Planned {
    fn table(&self) -> String {
        let Self { trace, plan, heuristics, search, .. } = self;
        let streams = trace.streams;
        let repeated = match plan.repeated {
            0 => "no repetition at the end of the trace".to_owned(),
            requests => format!("{} before a part of {requests} that is repeated", plan.prologue),
        };
        let ratio = |bytes: u64| bytes as f64 / self.peak_bytes.max(1) as f64;
        let mut rows = vec![
            ("trace", format!("{}, streams: {streams}", counted(trace.requests, "request"))),
            ("planned", format!("{}, {repeated}", counted(plan.requests, "request"))),
            ("peak live", format!("{}, rounded up to {}", human(self.peak_bytes), plan.alignment)),
        ];
        if plan.unplaced > 0 {
            rows.push(("unplaced", format!("{} that live too long", counted(plan.unplaced, "request"))));
        }
        rows.extend(
            heuristics.iter().map(|(name, bytes)| {
                (*name, format!("{}, {:.4} over peak live", human(*bytes), ratio(*bytes)))
            }),
        );
        rows.push((
            "search",
            format!("{} in {}", human(search.bytes), counted(search.tried as usize, "placement")),
        ));
        rows.push(("plan", format!("{}, {:.4} over peak live", human(plan.bytes), self.ratio)));
        rows.push(("written to", plan.path.clone()));
        table(&trace.name, &rows)
    }
}

/// Writes the file of a plan.
fn write(path: &Path, text: &str) -> Result<()> {
    new_file::write_shared(path, |out| Ok(out.write_all(text.as_bytes())?))
}

#[cfg(test)]
mod tests;
