//! The `bfc` command: replays recorded allocation traces through libbfc.so, as any client would use it, and runs
//! programs with the interposer.
//!
//! Exit status: 0 success, 1 an error, 2 wrong usage. Requests that fail in a replay are its result and not an error,
//! unless `--fail-on-oom` makes them one. `bfc run` has the program's exit status, see there.

mod counters;
mod device;
mod environment;
mod ffi;
mod find_limit;
mod generate;
mod history;
mod info;
mod inspect;
mod json;
mod library;
mod names;
mod new_file;
mod output;
mod plan;
mod plot;
mod replay;
mod report;
mod results;
mod run;
mod simulated_device;
mod size;
mod temporary;
mod top;
mod trace;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::device::{Backend, GrowthPolicy, PoolConfig};
use crate::environment::Resolved;
use crate::history::diff::{self, Diff};
use crate::info::Info;
use crate::library::Library;
use crate::output::{Output, progress};
use crate::plan::Plan;
use crate::replay::Job;
use crate::report::Report;
use crate::results::{Outcome, Replayed, Searched};
use crate::run::Run;
use crate::top::Top;
use bfc_readers::trace::{ALIGNMENT, Trace};

/// What `bfc --help` ends with.
const EXAMPLES: &str = "\
Examples:
  bfc info                                          which backends work here
  bfc run --check -- ./train                        run a program with libbfc's cudaMalloc
  bfc run --trace train.trace -- ./train            record its allocations
  bfc replay train.trace                            replay it: time, failures, overhead
  bfc replay --find-limit train.trace               the lowest limit in which it runs
  bfc plan train.trace -o train.plan                places that need less memory

The help of each command has examples: bfc run --help";

/// Shown after the options of `bfc replay`.
const REPLAY_EXAMPLES: &str = "\
Examples:
  bfc replay train.trace                            time and memory, on host memory
  bfc replay --find-limit train.trace               the lowest limit in which it runs
  bfc replay --as-run train.trace                   with the pool of bfc run
  bfc replay --as-run --find-limit train.trace      the lowest --limit for bfc run
  bfc replay --report --limit 3MB train.trace       why a request fails with that limit
  bfc replay --device-capacity 1GB train.trace      the same addresses in every run
  bfc replay --json train.trace                     machine-readable output";

/// Runs programs with libbfc behind cudaMalloc, shows their memory while they run and afterwards, and replays recorded
/// allocations with other options.
#[derive(Parser)]
#[command(name = "bfc", version, max_term_width = 110, after_help = EXAMPLES)]
struct Cli {
    /// The library, or its folder [default: $BFC_LIBRARY, else beside this command, in ../lib, ../lib64 or
    /// ../lib/x86_64-linux-gnu, in Python's package bfc, else from the loader's search path]
    #[arg(long, global = true, value_name = "PATH")]
    library: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replay traces through the library: time, failures, overhead; or find the lowest limit in which they run
    ///
    /// Every replay of a trace creates its own pool, named after the trace. The pools are created one after another on
    /// ordinal 258 (0 for CUDA): one for each run of --repeat, and two more, not measured, to find and inspect the
    /// moment of peak use. With --find-limit there is one for each limit that is tried.
    #[command(after_help = REPLAY_EXAMPLES, after_long_help = format!("{REPLAY_EXAMPLES}\n\n{}", output::SCHEMA))]
    Replay(Box<Replay>),
    /// Compute a plan: places for the requests of a trace
    ///
    /// Training repeats the same requests in every step. With a place for each, the pool is hardly larger than the peak
    /// of live bytes. An allocator follows the plan (BFC_PLAN, bfc replay --plan) while the program does what was
    /// recorded, and serves every other request by best fit.
    #[command(after_help = plan::EXAMPLES, after_long_help = format!("{}\n\n{}", plan::EXAMPLES, plan::SCHEMA))]
    Plan(Plan),
    /// Run an unmodified program with libbfc behind cudaMalloc
    ///
    /// The command loads libbfc_preload.so before the driver (LD_PRELOAD), sets BFC_ variables from its options, and
    /// becomes the program. Variables without an option keep their values.
    #[command(override_usage = run::USAGE, after_help = run::EXAMPLES, after_long_help = format!("{}\n\n{}", run::EXAMPLES, run::EXIT_CODES))]
    Run(Box<Run>),
    /// Show a history, or the counters of each process of bfc run --report=FILE, including killed processes
    ///
    /// Processes may still be running. Their counters are current.
    #[command(after_help = report::EXAMPLES, after_long_help = format!("{}\n\n{}\n\n{}", report::EXAMPLES, history::MOMENTS, report::STATES))]
    Report(Report),
    /// Show what changed between two moments: of one history, of two, or two memory maps
    ///
    /// Compares the totals of each pool, and how much is live by operation and size. Pools are matched by device and
    /// name. What is equal is left out.
    #[command(after_help = diff::EXAMPLES, after_long_help = format!("{}\n\n{}", diff::EXAMPLES, history::MOMENTS))]
    Diff(Diff),
    /// Watch the pools of running processes that publish their statistics (BFC_PUBLISH=1, bfc run --publish)
    ///
    /// Shows a table of the pools, with details of the selected one. The keys are shown at the bottom.
    #[command(after_help = top::EXAMPLES, after_long_help = format!("{}\n\n{}", top::EXAMPLES, top::SCHEMA))]
    Top(Top),
    /// Show the library in use, the backends that work here, and the BFC_ variables that are set
    #[command(after_help = info::EXAMPLES, after_long_help = format!("{}\n\n{}", info::EXAMPLES, info::SCHEMA))]
    Info(Info),
    /// Write man pages and shell completions below a share/ folder, as an installation does
    #[command(hide = true)]
    Generate {
        /// The folder that gets man/, bash-completion/, zsh/ and fish/
        share: PathBuf,
    },
}

#[derive(Args)]
struct Replay {
    /// Traces, gzipped or not; `-` is standard input
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// The pool's limit: bytes, or a number with K, M, G or T [default: 1.2 times the trace's peak of live bytes,
    /// with each request rounded up to 256, times the threads; whole granules with host-vmm]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse_nonzero)]
    limit: Option<u64>,
    /// Obtain regions on demand instead of one region of the whole limit
    #[arg(long)]
    growth: bool,
    /// The sizes of regions with --growth [default: $BFC_GROWTH, else tensorflow]
    #[arg(long, value_enum, ignore_case = true, value_name = "POLICY")]
    growth_policy: Option<GrowthPolicy>,
    /// Release wholly free regions before a request fails
    #[arg(long)]
    gc: bool,
    /// Split off any remainder of 256 bytes or more
    #[arg(long)]
    split_always: bool,
    /// The pool of bfc run: the same as --growth --growth-policy need --gc --split-always
    #[arg(long, conflicts_with_all = ["growth", "growth_policy", "gc", "split_always"])]
    as_run: bool,
    /// Place sizes that are usually freed soon at the upper end of free memory
    #[arg(long)]
    two_ends: bool,
    /// Split off remainders of at least this fraction of the limit, instead of 128 MiB
    #[arg(long, value_name = "F", allow_hyphen_values = true, value_parser = size::parse_fraction)]
    fragmentation_fraction: Option<f64>,
    /// The size of the first region with --growth
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse_nonzero)]
    initial_region: Option<u64>,
    /// The source of memory
    #[arg(long, value_enum, ignore_case = true, default_value_t = Backend::Host)]
    backend: Backend,
    /// Replay on a simulated device of this capacity: addresses without memory, the same in every run
    #[arg(
        long,
        value_name = "SIZE",
        allow_hyphen_values = true,
        value_parser = size::parse_nonzero,
        conflicts_with = "backend"
    )]
    device_capacity: Option<u64>,
    /// Replay through bfc_alloc_async and bfc_free_async on the trace's streams, which are never synchronized. Without
    /// it: bfc_alloc and bfc_free, streams ignored
    #[arg(long = "async")]
    stream_ordered: bool,

    /// Follow a plan that bfc plan computed for the trace; one trace only
    #[arg(long, value_name = "PLAN")]
    plan: Option<PathBuf>,

    /// Replay the trace in this many threads at once on one pool, each with its own allocations. Such a run is not
    /// repeatable, so the occupancy, --map and --report are of another run: one thread that alternates between the
    /// copies after each event
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_hyphen_values = true,
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    threads: u16,
    /// Replay every trace this often, each time on a new pool. The reported time is that of the best run, without the
    /// pauses in which the progress bar moves
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_hyphen_values = true,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    repeat: u16,
    /// Replay the trace once on each pool before measuring. This shows the cost of a program's later steps: a fresh
    /// pool pays for the first touch of its regions and tables. Addresses may differ, because the regions of a pool
    /// with --growth already exist
    #[arg(long)]
    warm: bool,
    /// Exit with 1 if a request failed
    #[arg(long)]
    fail_on_oom: bool,

    /// Find the lowest limit in which the trace runs without a failed request
    #[arg(
        long,
        conflicts_with_all = ["limit", "threads", "repeat", "warm", "map", "plot", "report", "fail_on_oom"],
        long_help = "Find the lowest limit in which the trace runs without a failed request. The search raises the limit from \
            the trace's peak of live bytes in doubling steps until the trace runs, and bisects between that limit and \
            the last that failed. The trace ran twice with the printed limit, and failed with a limit just below it. \
            A lower limit may work by chance, because success is not strictly monotone in the limit"
    )]
    find_limit: bool,
    /// The precision of --find-limit, in percent of the peak of live bytes; 0: to 256 bytes
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "0.01",
        allow_hyphen_values = true,
        value_parser = size::parse_percent,
        requires = "find_limit"
    )]
    precision: f64,

    /// Print one JSON document instead of tables (fields: bfc replay --help)
    #[arg(long)]
    json: bool,
    /// Write the pool's memory map (JSON) to FILE: at the first failed request, or at peak use if none failed; one
    /// trace only
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Write a picture to FILE.svg: live, in use, held and the limit after each event; one trace, in one thread
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Print the library's report of the same moment, and why the request failed
    #[arg(long)]
    report: bool,
    /// No progress bar, and no remarks on standard error
    #[arg(long, short)]
    quiet: bool,
}

impl Replay {
    fn pool(&self) -> PoolConfig {
        PoolConfig {
            interposed: None,
            backend: if self.device_capacity.is_some() { Backend::Simulated } else { self.backend },
            growth: self.growth || self.as_run,
            growth_policy: if self.as_run { Some(GrowthPolicy::Need) } else { self.growth_policy },
            gc: self.gc || self.as_run,
            split_always: self.split_always || self.as_run,
            two_ends: self.two_ends,
            fragmentation_fraction: self.fragmentation_fraction,
            initial_region: self.initial_region,
            device_capacity: self.device_capacity,
            stream_ordered: self.stream_ordered,
            plan: self.plan.clone(),
            regions: Vec::new(),
        }
    }

    /// Checks that clap cannot express.
    fn check(&self) -> Result<(), &'static str> {
        if self.growth_policy.is_some() && !self.growth {
            return Err("--growth-policy needs --growth: without it one region takes the whole limit");
        }
        if self.map.is_some() && self.traces.len() > 1 {
            return Err("--map takes one trace: a map shows one moment of one trace");
        }
        if self.plot.is_some() && (self.traces.len() > 1 || self.threads > 1) {
            return Err("--plot takes one trace and one thread: a picture shows one replay");
        }
        if self.plot.as_ref().is_some_and(|file| file.extension().is_none_or(|extension| extension != "svg"))
        {
            return Err("--plot writes SVG: name a file that ends with .svg");
        }
        if self.plan.is_some() && self.traces.len() > 1 {
            return Err("--plan takes one trace: a plan is made for one trace");
        }
        if self.traces.iter().filter(|path| path.as_os_str() == "-").count() > 1 {
            return Err("- stands for standard input, which can be read only once");
        }
        if self.stream_ordered && matches!(self.backend, Backend::Cuda | Backend::CudaVmm) {
            return Err(
                "--async cannot run on CUDA: the streams of a trace are not streams of the driver; use --backend host",
            );
        }
        Ok(())
    }

    /// The limit for a trace. A fifth above the peak of live bytes leaves an allocator some room, and still reveals one
    /// that needs much more.
    fn limit_for(&self, trace: &Trace) -> u64 {
        let live = u128::from(trace.peak_live_bytes) * u128::from(self.threads);
        // A virtual range has no memory below one granule.
        let unit =
            if matches!(self.backend, Backend::HostVmm | Backend::CudaVmm) { 2 << 20 } else { ALIGNMENT };
        let default = (live * 6 / 5).next_multiple_of(u128::from(unit)).max(u128::from(unit));
        self.limit.unwrap_or(u64::try_from(default).unwrap_or(u64::MAX))
    }
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| end_as_clap(error));
    match run(&cli) {
        Ok(code) => code,
        Err(error) => {
            output::complain(format_args!("{error:#}"));
            match cli.command {
                Command::Run(_) => run::code_of(&error),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn run(cli: &Cli) -> Result<ExitCode> {
    let library = || Library::find(cli.library.as_deref());
    let mut output = Output::default();
    match &cli.command {
        Command::Plan(args) => plan::plan(args, &mut output).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => {
            args.check().unwrap_or_else(|what| wrong_usage("report", what));
            report::report(args, cli.library.as_deref(), &mut output).map(|()| ExitCode::SUCCESS)
        }
        Command::Diff(args) => diff::diff(args, &mut output).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => {
            args.check().unwrap_or_else(|what| wrong_usage("top", what));
            top::top(args, &mut output).map(|()| ExitCode::SUCCESS)
        }
        Command::Info(args) => info::info(args, &library()?, &mut output).map(|()| ExitCode::SUCCESS),
        Command::Generate { share } => generate::generate(Cli::command(), share).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => {
            let checked = match cli.library {
                Some(_) => Err(
                    "--library does not apply to run: the interposer loads the library beside it; name both with --preload",
                ),
                None => args.check(),
            };
            checked.unwrap_or_else(|what| wrong_usage("run", what));
            run::run(args)
        }
        Command::Replay(args) => {
            args.check().unwrap_or_else(|what| wrong_usage("replay", what));
            // All of them before the first run, so that wrong input is not found after minutes of work.
            let traces = args.traces.iter().map(|path| trace::read(path, args.quiet));
            let traces = traces.collect::<Result<Vec<_>>>()?;
            let library = library()?;
            let resolved = Resolved::of_replay(&library, &args.pool())?;
            if !args.quiet {
                for (name, value) in resolved.steering() {
                    output::complain(format_args!("note: {name}={value} is set and changes the result"));
                }
            }
            for trace in traces.iter().filter(|_| !args.quiet) {
                if let Some(why) = &trace.incomplete {
                    output::complain(format_args!("note: the trace {} is incomplete: {why}", trace.name));
                }
            }
            let input = Input { args, library: &library, resolved: &resolved, traces: &traces };
            if args.find_limit {
                input.each(&mut output, find_one)?;
                return Ok(ExitCode::SUCCESS);
            }
            let results = input.each(&mut output, replay_one)?;
            let failed = results.iter().any(|result| result.any_failed);
            Ok(if failed && args.fail_on_oom { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
    }
}

/// Ends the command as clap does, with the usage of the subcommand instead of that of `bfc`.
fn wrong_usage(subcommand: &str, what: &str) -> ! {
    let mut command = Cli::command();
    // Only a built command knows the names of its subcommands.
    command.build();
    let subcommand = command.find_subcommand_mut(subcommand).expect("it is declared above");
    end_as_clap(subcommand.error(ErrorKind::ArgumentConflict, what))
}

/// Ends the command with clap's message, which may repeat an argument, for example a file name. The help and the
/// version contain no such text.
fn end_as_clap(mut error: clap::Error) -> ! {
    if !error.use_stderr() {
        error.exit();
    }
    if let Some(tip) = tip(&error) {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    output::print_on_stderr(&error.render().to_string());
    std::process::exit(error.exit_code())
}

/// Advice that clap does not give: the commands, if none is similar, and that a value is missing. If a value may begin
/// with a hyphen, clap takes the next option for it.
fn tip(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand if error.get(ContextKind::SuggestedSubcommand).is_none() => {
            let command = Cli::command();
            let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
            let names: Vec<_> = shown.map(|command| command.get_name()).collect();
            Some(format!("the commands are {}", names.join(", ")))
        }
        ErrorKind::ValueValidation => {
            let value = text(ContextKind::InvalidValue).filter(|value| value.starts_with("--"))?;
            Some(format!("the value of '{}' is missing before '{value}'", text(ContextKind::InvalidArg)?))
        }
        _ => None,
    }
}

/// What a replay is made of.
struct Input<'a> {
    args: &'a Replay,
    library: &'a Library,
    resolved: &'a Resolved,
    traces: &'a [Trace],
}

impl Input<'_> {
    /// Computes a result for every trace and prints it: tables one by one, or one document at the end.
    fn each<T: Outcome>(
        &self,
        output: &mut Output,
        one: fn(&Replay, &Job<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let Self { args, library, resolved, traces } = *self;
        let config = args.pool();
        let in_force = resolved.in_force(&config);
        let mut results = Vec::new();
        for trace in traces {
            let job = Job {
                library,
                trace,
                config: &config,
                in_force: &in_force,
                limit: args.limit_for(trace),
                threads: usize::from(args.threads),
                warm: args.warm,
            };
            let result = one(args, &job)?;
            if !args.json {
                let gap = if results.is_empty() { "" } else { "\n" };
                output.write(&format!("{gap}{}", result.table()))?;
            }
            results.push(result);
            if output.closed() {
                break;
            }
        }
        if args.json {
            let steering = resolved.steering();
            output.write_document(T::SCHEMA, library, steering, &results)?;
        } else if results.len() > 1 {
            let count = results.len();
            let summary = T::summary(&results);
            output.write(&format!("\ngeometric mean of {count} traces: {summary}\n"))?;
        }
        Ok(results)
    }
}

fn replay_one(args: &Replay, job: &Job<'_>) -> Result<Replayed> {
    let events = job.trace.events.len() as u64 * u64::from(args.threads) * u64::from(args.repeat);
    let bar = progress(args.quiet, Some(events), "{msg} {wide_bar} {percent:>3}% {eta}");
    output::show(&bar, &job.trace.name);
    let runs = (0..args.repeat).map(|_| replay::run(job, &bar)).collect::<Result<Vec<_>>>();
    bar.finish_and_clear();
    let runs = runs?;
    let events = 2 * job.trace.events.len() as u64;
    let bar = progress(args.quiet, Some(events), "{msg} {wide_bar} {percent:>3}% {eta}");
    output::show(&bar, &format!("{}: looking at peak use", job.trace.name));
    let inspection = inspect::inspect(job, &bar);
    bar.finish_and_clear();
    let inspection = inspection?;
    if let Some(file) = &args.map {
        fs::write(file, &inspection.memory_map)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    if let Some(file) = &args.plot {
        let bar = progress(args.quiet, Some(events / 2), "{msg} {wide_bar} {percent:>3}% {eta}");
        output::show(&bar, &format!("{}: drawing", job.trace.name));
        let written = plot::write(job, file, &bar);
        bar.finish_and_clear();
        written?;
    }
    Ok(Replayed::new(job, &runs, inspection, args.report))
}

/// The job's limit is ignored, because it is what the search is for.
fn find_one(args: &Replay, job: &Job<'_>) -> Result<Searched> {
    if job.trace.refused != 0 && !args.quiet {
        output::complain(format_args!(
            "note: {} was refused {} when it was recorded; the program may need more than it asked for until then",
            job.trace.name,
            size::counted(job.trace.refused, "request")
        ));
    }
    let bar = progress(args.quiet, None, "{msg} ({pos})");
    let found = find_limit::find_limit(job, 0, args.precision, &bar);
    bar.finish_and_clear();
    let found = found.with_context(|| job.trace.name.clone())?;
    Ok(Searched::new(job, found))
}
