//! What the command prints: tables for people, one JSON document for programs.
//!
//! Names of programs, files, operations and so on come from elsewhere, and may contain characters that control a
//! terminal. Everything that is printed goes through the functions here, which replace such characters. Line ends stay:
//! if a name must not contain them, `names::shown` removes them.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind, IsTerminal, Write};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use os::terminal::Printable;
use serde::Serialize;

use crate::json;
use crate::library::Library;
use crate::names;

/// The JSON document, as `bfc replay --help` explains it.
pub const SCHEMA: &str = "\
The JSON document of --json (sizes in bytes, absent values null; fields may be added):
  schema         \"bfc-replay/1\", or \"bfc-find-limit/1\" with --find-limit
  library        path, version
  environment    the BFC_ variables that affect the replay
  traces[]       in the order given; each has
    trace          name, events, requests, refused (of the requests, those that the recorded
                   program was refused), marks, streams, slots (most live at once),
                   peak_live_bytes (each request rounded up to 256), peak_requested_bytes
    pool           backend, growth, growth_policy, gc, split_always, two_ends,
                   fragmentation_fraction, initial_region, device_capacity, stream_ordered,
                   plan: the settings in effect, including the environment
  and in a replay, where values that depend on the run are those of the first run
    limit, threads, warm
    ops            calls: requests, and frees of successful requests
    failed         requests that failed
    fnv1a64        of the addresses in request order, 16 hex digits; FNV-1a over 8
                   little-endian bytes each, basis 1469598103934665603, 0 for a failed
                   request; null with several threads. Comparable between runs only with
                   --device-capacity
    stats          bfc_stats after the last event, under the names of the C fields
    ns_per_op      best, median and runs[] of all runs
    ops_per_second of all threads in total, in the best run
    repeats_agree  whether every run had the same addresses; null with one run, or threads
    waste          peak pool bytes / peak live bytes of the trace; with several threads,
                   whose peaks need not coincide, / peak_bytes_requested. null without
                   growth (the pool is the whole limit), and if a request failed
    overhead       peak_bytes_in_use / the same divisor; null if a request failed
    fragmentation  after the last event: 1 - largest free block / free bytes
    peak           the moment of peak use: event, mark, bytes_in_use, pool_bytes,
                   largest_free_block_bytes, fragmentation, occupancy
    peak_in_turns  whether peak, failure and shown come from another run than stats: with
                   several threads, of one thread that alternates between the copies
    failure        the first request that failed: event, mark, bytes, words (of
                   bfc_last_error); null if none did
    shown          the moment of report and of --map's file, as text
    report         with --report, the library's report
  and with --find-limit
    limit          the lowest that ran
    ratio          limit / peak_live_bytes
    fails_at       the nearest lower limit that failed; null if limit is peak_live_bytes
    probes         number of replays
    num_planned_allocs  allocations at planned places, in the last replay";

#[derive(Serialize)]
struct Document<'a, T> {
    schema: &'static str,
    library: LibraryInfo<'a>,
    environment: BTreeMap<&'a str, &'a str>,
    traces: &'a [T],
}

#[derive(Serialize)]
struct LibraryInfo<'a> {
    path: &'a str,
    version: String,
}

/// Writes a JSON document and a line end.
pub fn write_json(mut out: impl Write, document: &impl Serialize) -> io::Result<()> {
    json::write(&mut out, document)?;
    out.write_all(b"\n")
}

/// Rows under a heading, with aligned values.
pub fn table(heading: &str, rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let rows = rows.iter().map(|(name, value)| format!("  {name:width$}  {value}\n"));
    format!("{heading}\n{}", rows.collect::<String>())
}

/// A bar on standard error, or a line from time to time if that is not a terminal. It has no thread, because a thread
/// that draws would take time from what is measured.
pub fn progress(is_quiet: bool, length: Option<u64>, template: &str) -> ProgressBar {
    let (target, template) = match (is_quiet, io::stderr().is_terminal()) {
        (true, _) => (ProgressDrawTarget::hidden(), template.to_owned()),
        (false, true) => (ProgressDrawTarget::stderr(), template.to_owned()),
        (false, false) => (progress_lines::target(), template.replace("{wide_bar} ", "")),
    };
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(length, target).with_style(style)
}

/// Writes a line to standard error, in one piece, because lines of several processes must not mix. Writes nothing if
/// standard error is closed.
pub fn complain(what: fmt::Arguments<'_>) {
    print_on_stderr(&format!("bfc: {what}\n"));
}

/// Writes text to standard error, in one piece. A reader that has gone is not an error.
pub fn print_on_stderr(text: &str) {
    let _ = io::stderr().write_all(Printable(text).to_string().as_bytes());
}

/// Shows what a bar is about.
pub fn show(bar: &ProgressBar, what: &str) {
    bar.set_message(names::shown(what));
}

/// Standard output, which its reader may close, as `head` does. The rest is then left out.
#[derive(Default)]
pub struct Output {
    closed: bool,
}

impl Output {
    /// Writes the text, at once.
    pub fn write(&mut self, text: &str) -> Result<()> {
        self.write_by(|stdout| write!(stdout, "{}", Printable(text)))
    }

    /// Writes a JSON document.
    pub fn write_json(&mut self, document: &impl Serialize) -> Result<()> {
        self.write_by(|stdout| write_json(stdout, document))
    }

    /// Writes the JSON document of a replay.
    pub fn write_document<T: Serialize>(
        &mut self,
        schema: &'static str,
        library: &Library,
        environment: BTreeMap<&str, &str>,
        traces: &[T],
    ) -> Result<()> {
        let path = library.path.to_string_lossy();
        let library = LibraryInfo { path: &path, version: library.version() };
        self.write_json(&Document { schema, library, environment, traces })
    }

    fn write_by(&mut self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        let mut stdout = io::BufWriter::new(io::stdout().lock());
        match write(&mut stdout).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            written => written.context("cannot write to standard output"),
        }
    }

    /// Whether the reader has gone.
    pub fn closed(&self) -> bool {
        self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_aligned() {
        let text = table("t", &[("a", "1".into()), ("long", "2".into())]);
        assert_eq!(text, "t\n  a     1\n  long  2\n");
    }
}
