//! The arguments of `bfc run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::size;

/// The arguments of `bfc run`.
#[derive(Args)]
pub struct Run {
    /// The program, looked up in PATH like a shell does, and its arguments
    #[arg(required = true, num_args = 1.., trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,

    /// Verify interposition: when the program has ended, print to standard error whether its allocations came from the
    /// pool, and if none did, why. The exit code is then 3, whatever the program's was
    #[arg(long)]
    pub check: bool,
    /// The pool's limit on each device: bytes, or a number with K, M, G or T, powers of 1024: 8G, 8GB and 8GiB are the same
    /// [default: all of the device's memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse_nonzero)]
    pub limit: Option<u64>,
    /// The pool's limit as a fraction of the device's memory. Overrides BFC_MEMORY_LIMIT
    #[arg(
        long,
        value_name = "F",
        allow_hyphen_values = true,
        value_parser = size::parse_fraction,
        conflicts_with = "limit"
    )]
    pub fraction: Option<f64>,
    /// The source of device memory [default: $BFC_BACKEND, else cuda]
    #[arg(long, value_enum, ignore_case = true)]
    pub backend: Option<Backend>,
    /// How the pool grows [default: $BFC_GROWTH, else need]
    #[arg(long, value_enum, ignore_case = true)]
    pub growth: Option<Growth>,
    /// Release free memory to the device after this many seconds without an allocation or a free: 30, 0.5
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = size::parse_seconds)]
    pub trim_after: Option<f64>,
    /// The behavior of cudaFree [default: wait]
    #[arg(long, value_enum, ignore_case = true)]
    pub free: Option<Free>,
    /// Also serve cudaMallocAsync
    #[arg(long = "async")]
    pub stream_ordered: bool,
    /// Also serve pinned host memory (cudaMallocHost, cudaHostAlloc)
    #[arg(long)]
    pub pinned: bool,
    /// For programs that share memory by cudaIpcGetMemHandle: pass requests of 1 MiB and more to the driver, and report
    /// whole regions as address ranges
    #[arg(long)]
    pub ipc: bool,
    /// Pass allocations below this size to the driver
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse_nonzero)]
    pub min: Option<u64>,
    /// Pass allocations above this size to the driver
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = size::parse_nonzero)]
    pub max: Option<u64>,
    /// Summarize the pool's use on standard error, at the end of each process that allocated, with the reason why the
    /// last request was refused, if one was. With FILE: counters that each process keeps there, even if it is killed;
    /// bfc report FILE shows them at any time. %p in FILE is the process id
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub report: Option<PathBuf>,
    /// Record allocations for bfc replay: plain text, each line written at once, so the trace is complete even if the
    /// program is killed. An existing FILE is removed. If several processes allocate, the first writes FILE and the
    /// others FILE.PID; %p in FILE is the process id
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Record the history, the last events of the pool, for bfc report: who held what at the peak and when memory ran
    /// out, even if the program is killed. An existing FILE is removed. A further process writes FILE.PID
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
    /// Record in the history where allocations are made: the functions of native code, of Python, or of both [default:
    /// $BFC_HISTORY_STACKS, else none]
    #[arg(long, value_enum, ignore_case = true)]
    pub stacks: Option<Stacks>,
    /// When the program has ended, list on standard error what each process allocated from the pool and did not free,
    /// by operation. The list is made of a history: that of --history, or a temporary one of 1048576 events
    /// ($BFC_HISTORY)
    #[arg(long, conflicts_with = "check")]
    pub leaks: bool,
    /// Exit with N if the program ended with 0 and --leaks listed anything
    #[arg(
        long,
        value_name = "N",
        allow_hyphen_values = true,
        value_parser = clap::value_parser!(u8).range(1..)
    )]
    pub leaks_exit_code: Option<u8>,
    /// Publish the pool's statistics for bfc top
    #[arg(long)]
    pub publish: bool,
    /// The interposer, or its folder; libbfc.so.N must lie beside it [default: $BFC_PRELOAD_LIBRARY, else
    /// libbfc_preload.so beside this command, in ../lib, ../lib64 or ../lib/x86_64-linux-gnu, or in Python's package
    /// bfc]
    #[arg(long, value_name = "PATH")]
    pub preload: Option<PathBuf>,
}

/// The usage: the program and its arguments are one argument to clap.
pub const USAGE: &str = "bfc run [OPTIONS] [--] <PROGRAM> [ARGS]...";

/// Shown after the options of `bfc run`.
pub const EXAMPLES: &str = "\
Examples:
  bfc run -- ./train --epochs 3                         no limit, like without bfc
  bfc run --limit 8GiB --report -- ./train              a limit, and a summary at the end
  bfc run --backend cuda-vmm --fraction 0.5 -- ./train  half of it, without fragmentation
  bfc run --check -- ./train                            did its allocations come from the pool?
  bfc run --trace train.trace -- ./train                record allocations for bfc replay
  bfc run --history train.history -- ./train            record the last events for bfc report
  bfc run --leaks -- ./train                            what was not freed
  bfc run --report=train.counters -- ./train            counters for bfc report
  bfc run --publish -- ./train                          statistics for bfc top";

/// What `bfc run --help` ends with.
pub const EXIT_CODES: &str = "\
Exit codes:
  the program's own   if it ran
  2                   wrong usage
  125                 bfc itself failed
  126                 the program cannot be executed
  127                 the program was not found
With --check also:
  3                   no allocation came from the pool
  128 + N             signal N ended the program
With --leaks also:
  128 + N             signal N ended the program
  --leaks-exit-code   the program ended with 0, and something was not freed";

/// Values of `--free`.
#[derive(Clone, Copy, ValueEnum)]
pub enum Free {
    /// Returns at once; the memory is reused after a later synchronization
    Wait,
    /// Synchronizes, for programs that use cudaFree as a barrier
    Sync,
}

/// Values of `--backend`: those whose memory a device can use.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// Regions from cuMemAlloc
    Cuda,
    /// Granules that are mapped on demand and moved, so memory hardly fragments; no legacy IPC
    #[value(alias = "cuda_vmm")]
    CudaVmm,
}

/// Which backtraces the history has.
#[derive(Clone, Copy, ValueEnum)]
pub enum Stacks {
    Native,
    Python,
    Both,
}

/// Values of `--growth`.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Growth {
    /// A region is as large as needed, plus at most a sixteenth of the pool
    Need,
    /// Each region has twice the size of the previous one
    #[value(name = "tensorflow")]
    TensorFlow,
    /// The first request obtains the whole limit in one region
    Off,
}
