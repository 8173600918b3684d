//! `bfc run`: runs a program with the interposer, so that libbfc serves its cudaMalloc.
//!
//! Without `--check` and `--leaks` the command becomes the program (exec): terminal, signals, process id and exit code are the
//! program's own. With one of them the command waits for the program and reports at the end what was observed.

mod args;
mod check;
mod check_log;
mod check_report;
mod child;
mod exec;
mod file;
mod files;
mod ignored;
mod leaks;
mod preload;
mod program;
mod settings;
mod signals;
mod verdict;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::output;
use args::{Backend, Growth};
use file::Facts;
use program::{Program, Refusal};
use settings::Settings;

pub use args::{EXAMPLES, EXIT_CODES, Run, USAGE};

/// The command itself failed, as with `env`, `timeout` and `chroot`. 1 and 2 are likely the program's own.
const FAILED: u8 = 125;
const WRONG_USAGE: u8 = 2;

/// A smaller limit lacks its unit: no region is that small.
const LEAST_LIMIT: u64 = 64 << 10;

impl Run {
    /// Checks that clap cannot express.
    pub fn check(&self) -> Result<(), &'static str> {
        match (self.min, self.max) {
            (Some(min), Some(max)) if min > max => {
                return Err("--min is above --max: nothing would be pooled");
            }
            _ => {}
        }
        if self.stacks.is_some() && self.history.is_none() {
            return Err("--stacks needs --history FILE, which contains the backtraces");
        }
        if self.leaks_exit_code.is_some() && !self.leaks {
            return Err("--leaks-exit-code needs --leaks: otherwise the exit code is the program's");
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

/// Runs the program. Returns only with `--check` or `--leaks`, or if it cannot be run.
pub fn run(args: &Run) -> Result<ExitCode> {
    let program = Program::find(&args.program)?;
    // After the search: a unit that was written after a space was taken for the program.
    if let Some(bytes) = args.limit.filter(|bytes| *bytes < LEAST_LIMIT) {
        let words = format!("--limit is only {bytes} bytes: write a unit, such as {bytes}MiB");
        return Err(Refusal { code: WRONG_USAGE, words }.into());
    }
    let mut settings = Settings::of(args)?;
    let interposer = preload::find(args.preload.as_deref())?;
    settings.preload(&interposer)?;
    // Last, so that a mistyped program does not cost the trace of an earlier run.
    files::check_report(args)?;
    files::make_room_for_trace(args)?;
    files::make_room_for_history(args)?;
    let folder = interposer.parent().unwrap_or(Path::new("/"));
    for note in ignored::notes(args, &settings, &Facts::of(&program.file), folder) {
        output::complain(format_args!("note: {note}"));
    }
    if args.check {
        return check::run(&program, settings);
    }
    if args.leaks {
        return leaks::run(&program, settings, args);
    }
    Err(program.exec(&settings).into())
}

/// The exit code for an error of `run`.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    error.downcast_ref::<Refusal>().map_or(FAILED, |refusal| refusal.code).into()
}
