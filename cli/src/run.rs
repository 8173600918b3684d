//! `bfc run`: a program with the interposer in front of the driver, its cudaMalloc served by libbfc.
//!
//! Without `--check` the command becomes the program (exec): terminal, signals, process id and exit code are the
//! program's own. With it the command stays beside the program and says at the end what the interposer saw.

mod check;
mod check_log;
mod check_report;
mod exec;
mod file;
mod files;
mod ignored;
mod preload;
mod program;
mod settings;
mod signals;
mod verdict;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::{output, size};
use file::Facts;
use program::Program;
use settings::Settings;

/// The command itself failed; `env`, `timeout` and `chroot` say so too. 1 and 2 are likely the program's own.
const FAILED: u8 = 125;

/// What the interposer was asked to, in the words of the command line.
#[derive(Args)]
pub struct Run {
    /// The program, found in PATH as a shell does, and its arguments
    #[arg(required = true, num_args = 1.., trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,

    /// When the program has ended, say on standard error whether its allocations came from the pool, and if none did,
    /// why; then the exit code is 3, whatever the program's was
    #[arg(long)]
    check: bool,
    /// The pool's limit on each device: bytes, or a number with KiB, MiB, GiB, TiB [default: all of the device's
    /// memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse_nonzero)]
    limit: Option<u64>,
    /// The pool's limit as a share of the device's memory. A BFC_MEMORY_LIMIT of the environment does not count then
    #[arg(
        long,
        value_name = "F",
        allow_hyphen_values = true,
        value_parser = size::parse_fraction,
        conflicts_with = "limit"
    )]
    fraction: Option<f64>,
    /// Where the device's memory comes from [default: $BFC_BACKEND, else cuda]
    #[arg(long, value_enum, ignore_case = true)]
    backend: Option<Backend>,
    /// How the pool grows [default: $BFC_GROWTH, else need]
    #[arg(long, value_enum, ignore_case = true)]
    growth: Option<Growth>,
    /// Give free memory back to the device once the program has neither allocated nor freed for so many seconds: 30, 0.5
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = size::parse_seconds)]
    trim_after: Option<f64>,
    /// What cudaFree does [default: wait]
    #[arg(long, value_enum, ignore_case = true)]
    free: Option<Free>,
    /// Serve cudaMallocAsync too
    #[arg(long = "async")]
    stream_ordered: bool,
    /// Serve pinned host memory too: cudaMallocHost, cudaHostAlloc
    #[arg(long)]
    pinned: bool,
    /// Share memory with other processes by cudaIpcGetMemHandle: leave requests of 1 MiB and more to the driver, and show
    /// regions as they are
    #[arg(long)]
    ipc: bool,
    /// Leave allocations below this size to the driver
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse_nonzero)]
    min: Option<u64>,
    /// Leave allocations above this size to the driver
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse_nonzero)]
    max: Option<u64>,
    /// Sum up what the pool did: at the end of each process that allocated, on standard error; with FILE as counters
    /// that each process keeps there, also if it is killed, and that bfc report FILE shows at any time. %p in FILE is the
    /// number of the process
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    report: Option<PathBuf>,
    /// Record what the program allocates, for bfc replay: as plain text, each line at once, so that it is whole also if the
    /// program is killed. A FILE that is there is removed. Where several processes allocate, the first has FILE and each of
    /// the others FILE.PID; %p in FILE is the number of the process
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// The interposer, or the folder it lies in; libbfc.so.N must lie beside it [default: $BFC_PRELOAD_LIBRARY, else
    /// libbfc_preload.so beside this command, in ../lib, ../lib64 or ../lib/x86_64-linux-gnu, or in Python's package
    /// bfc]
    #[arg(long, value_name = "PATH")]
    preload: Option<PathBuf>,
}

/// How it is called: the words of the program are one argument to clap.
pub const USAGE: &str = "bfc run [OPTIONS] [--] <PROGRAM> [ARGS]...";

/// Shown after the options of `bfc run`.
pub const EXAMPLES: &str = "\
Examples:
  bfc run -- ./train --epochs 3                         all of the device's memory, as without bfc
  bfc run --limit 8GiB --report -- ./train              a limit, and a summary at the end
  bfc run --backend cuda-vmm --fraction 0.5 -- ./train  half of it, without fragmentation
  bfc run --check -- ./train                            did its allocations come from the pool?
  bfc run --trace train.trace -- ./train                record them for bfc replay
  bfc run --report=train.counters -- ./train            counters for bfc report";

/// What `bfc run --help` ends with.
pub const EXIT_CODES: &str = "\
Exit code: the program's own. If it never ran: 127 where it was not found, 126 where it cannot
be executed, 125 where bfc itself failed, 2 for wrong usage. With --check also: 3 where nothing
came from the pool, 128 + N where signal N ended the program.";

/// Values of `--free`.
#[derive(Clone, Copy, ValueEnum)]
enum Free {
    /// It returns at once; the memory is used again after a synchronisation that comes later
    Wait,
    /// It synchronises, for programs that use cudaFree as a barrier
    Sync,
}

/// Values of `--backend`: those whose memory a device can use.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// Regions from cuMemAlloc
    Cuda,
    /// Granules that are mapped on demand and moved, so that memory does not fragment; without legacy IPC
    #[value(alias = "cuda_vmm")]
    CudaVmm,
}

/// Values of `--growth`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Growth {
    /// A region is as large as needed, with at most a sixteenth of the pool beyond it
    Need,
    /// Each region has twice the size of the one before
    #[value(name = "tensorflow")]
    TensorFlow,
    /// The first request takes all of the limit in one region
    Off,
}

/// Why the program was not run, with the exit code that says so.
#[derive(Debug)]
struct Refusal {
    code: u8,
    words: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Refusal {}

impl Run {
    /// What clap cannot see.
    pub fn check(&self) -> Result<(), &'static str> {
        match (self.min, self.max) {
            (Some(min), Some(max)) if min > max => {
                return Err("--min is above --max: nothing would be pooled");
            }
            _ => {}
        }
        if self.ipc && self.backend == Some(Backend::CudaVmm) {
            return Err(
                "--ipc needs --backend cuda: cudaIpcGetMemHandle has no handles for memory of cuda-vmm",
            );
        }
        if self.growth == Some(Growth::Off) && !ignored::is_limited(self) {
            return Err(
                "--growth off needs --limit or --fraction: otherwise the first request takes all of the device's memory",
            );
        }
        let extension = self.trace.as_deref().and_then(Path::extension);
        if extension.is_some_and(|extension| extension.eq_ignore_ascii_case("gz")) {
            return Err(
                "--trace writes plain text: name the file without .gz (bfc replay also reads it gzipped later)",
            );
        }
        Ok(())
    }
}

/// Runs the program. Returns only with `--check`, or if it cannot be run.
pub fn run(args: &Run) -> Result<ExitCode> {
    let program = Program::find(&args.program)?;
    let mut settings = Settings::of(args)?;
    settings.preload(&preload::find(args.preload.as_deref())?)?;
    // Last: whoever mistyped the program keeps the trace of yesterday.
    files::check_report(args)?;
    files::make_room_for_trace(args)?;
    for note in ignored::notes(args, &settings, &Facts::of(&program.file)) {
        output::complain(format_args!("note: {note}"));
    }
    if args.check { check::run(&program, settings) } else { Err(program.exec(&settings).into()) }
}

/// The exit code for an error of `run`.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    error.downcast_ref::<Refusal>().map_or(FAILED, |refusal| refusal.code).into()
}
