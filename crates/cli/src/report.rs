//! `bfc report`: shows a file of counters or of a history.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::Args;

use crate::counters;
use crate::history::{self, LeaksArgs, Wanted};
use crate::library::Library;
use crate::output::Output;

/// The arguments of `bfc report`.
#[derive(Args)]
pub struct Report {
    /// The FILE of bfc run --report=FILE or --history FILE, or of BFC_PRELOAD_REPORT or BFC_HISTORY_FILE
    file: PathBuf,
    /// Print a history as one JSON document
    #[arg(long)]
    json: bool,
    /// Write a history to PATH instead of printing it. The extension chooses the format: .html, a page for a browser;
    /// .json, the document of --json; .svg, a picture; .pickle, a snapshot for PyTorch's memory viewer; .perfetto-trace, a
    /// trace for Perfetto
    #[arg(long, short, value_name = "PATH", conflicts_with = "json")]
    output: Option<PathBuf>,
    #[command(flatten)]
    leaks: LeaksArgs,
    /// Replay a history with other options, and show what would have helped: out of memory, memory held, the lowest limit
    #[arg(long, conflicts_with = "leaks")]
    advice: bool,
}

/// Shown after the options of `bfc report`.
pub const EXAMPLES: &str = "\
Examples:
  bfc run --report=train.counters -- ./train    keep counters
  bfc report train.counters                     show them, even while it runs
  bfc run --history train.history -- ./train    record the last events
  bfc report train.history                      who held what at the peak and at out of memory
  bfc report train.history -o report.html       the same as a page for a browser, over time
  bfc report --leaks train.history              what was not freed
  bfc report --leaks --from 'epoch 1' --to 'epoch 2' train.history
                                                what was allocated between two marks and not freed
  bfc report --advice train.history             which options would have helped";

/// What `bfc report --help` ends with.
pub const STATES: &str = "\
States of a process:
  running    alive: the counters are current
  ended      by exit, or by returning from main
  replaced   by another program (exec), which has a record of its own if it allocates
  killed     by a signal (kill, abort, a crash) or _exit, without its exit handlers
  unknown    ran on another machine, before the last restart, in another container, or hidden in /proc";

impl Report {
    /// Checks that clap cannot express.
    pub fn check(&self) -> Result<(), &'static str> {
        self.leaks.check()
    }
}

/// Prints the summary of each process in the file.
pub fn report(args: &Report, library: Option<&Path>, output: &mut Output) -> Result<()> {
    if history::is_one(&args.file) {
        if args.leaks.leaks {
            return history::report_leaks(&args.file, &args.leaks, args.json, output);
        }
        let library = args.advice.then(|| Library::find(library)).transpose()?;
        let wanted =
            Wanted { as_json: args.json, to_file: args.output.as_deref(), advice_by: library.as_ref() };
        return history::report(&args.file, &wanted, output);
    }
    let name = args.file.display();
    let file = File::open(&args.file).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!(
            "cannot open {name}: {error}; a history is made when a program first allocates: bfc run --check shows why \
             none was"
        ),
        _ => anyhow!("cannot open {name}: {error}"),
    })?;
    if args.advice {
        bail!("--advice needs a history, and {name} is not one");
    }
    if args.output.is_some() {
        bail!("--output needs a history, and {name} is not one");
    }
    for (is_set, option) in [(args.json, "--json"), (args.leaks.leaks, "--leaks")] {
        if is_set {
            bail!("{option} needs a history, and {name} is not one");
        }
    }
    let (summaries, end) = counters::summaries(file, &name)?;
    if summaries.is_empty() {
        end?;
        return output.write("no process has used the pool yet; `bfc run --check` shows why\n");
    }
    output.write(&summaries.join("\n"))?;
    end
}
