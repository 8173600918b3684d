//! `bfc top`: the statistics that running processes publish (`BFC_PUBLISH=1`).

mod app;
mod document;
mod metrics;
mod rates;
mod screen;
mod serve;
mod terminal;
#[cfg(test)]
mod tests;
mod text;

use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail};
use bfc_readers::published::reader::{self, Reading, State};
use clap::Args;

use crate::new_file;
use crate::output::{Output, complain};
use crate::size;
use rates::Rates;

/// The arguments of `bfc top`.
#[derive(Args, Clone)]
pub struct Top {
    /// Print the statistics once, as text: the default if standard input or output is not a terminal
    #[arg(long, conflicts_with_all = ["json", "openmetrics"])]
    once: bool,
    /// Print one JSON document (fields: --help). With --interval one on a line for each reading, until the
    /// reader closes standard output
    #[arg(long, conflicts_with = "openmetrics")]
    json: bool,
    /// Print OpenMetrics text once: the metrics of bfc_metrics, with the labels pid and program
    #[arg(long)]
    openmetrics: bool,
    /// With --openmetrics: answer GET /metrics by HTTP, for Prometheus. A port alone listens on 127.0.0.1; 0 chooses a free
    /// one
    #[arg(long, value_name = "[ADDRESS:]PORT", conflicts_with_all = ["output", "interval"],
        value_parser = serve::parse_address)]
    listen: Option<String>,
    /// With --openmetrics: write to a file, which readers see as a whole, for the textfile collector of the node exporter.
    /// With --interval repeatedly
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Show only this process; may be repeated
    #[arg(long, value_name = "PID")]
    pid: Vec<u32>,
    /// Read this folder alone, not those in which processes publish by default
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// The time between two readings [default: 1, and 0.6 for the rates of --once and --json]
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true, value_parser = size::parse_seconds)]
    interval: Option<f64>,
}

/// Shown after the options of `bfc top`.
pub const EXAMPLES: &str = "\
Examples:
  BFC_PUBLISH=1 ./train                         a program that uses libbfc publishes its statistics
  bfc run --publish -- ./train                  so does any other
  bfc top --once                                all pools of all processes, once
  bfc top --json                                the same for programs
  bfc top --openmetrics                         the same for Prometheus
  bfc top --openmetrics --listen 9465           by HTTP, at http://127.0.0.1:9465/metrics
  bfc top --openmetrics --interval 15 --output /var/lib/prometheus/node-exporter/libbfc.prom";

/// What `bfc top --help` ends with.
pub use document::SCHEMA;

/// Long enough that a running process has written in between.
const SHORT: Duration = Duration::from_millis(600);

impl Top {
    /// Checks that clap cannot express.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.listen.is_some() && !self.openmetrics {
            return Err("--listen needs --openmetrics: it serves that text");
        }
        if self.output.is_some() && !self.openmetrics {
            return Err("--output needs --openmetrics: it is the file for that text");
        }
        if self.openmetrics && self.interval.is_some() && self.output.is_none() {
            return Err(
                "--openmetrics with --interval needs --output FILE: standard output gets the text only once",
            );
        }
        Ok(())
    }

    fn interval(&self, default: Duration) -> Duration {
        self.interval.map_or(default, |seconds| Duration::from_secs_f64(seconds.max(0.05)))
    }

    fn read(&self) -> Reading {
        let folders = self.folder.as_ref().map_or_else(reader::folders, |folder| vec![folder.clone()]);
        let mut reading = reader::read_all(&folders);
        if !self.pid.is_empty() {
            reading.processes.retain(|process| self.pid.contains(&process.id));
        }
        reading
    }

    /// Checks that the processes that were asked for are there.
    fn require(&self, reading: &Reading) -> Result<()> {
        let is_there = |pid: &&u32| reading.processes.iter().any(|process| process.id == **pid);
        if let Some(pid) = self.pid.iter().find(|pid| !is_there(pid)) {
            bail!(
                "process {pid} publishes no statistics: it must be started with BFC_PUBLISH=1 by the same user, \
                 and have created an allocator"
            );
        }
        Ok(())
    }

    fn warn_of(&self, reading: &Reading) {
        // It may appear later: the first process that publishes creates it, and a server may be started before.
        let missing = self.folder.iter().filter(|folder| self.listen.is_none() && !folder.exists());
        let missing = missing.map(|folder| (folder, "does not exist"));
        let unreadable = reading.unreadable.iter().map(|(file, why)| (file, why.as_str()));
        for (file, why) in missing.chain(unreadable) {
            let file = text::plain(&file.to_string_lossy(), 200);
            complain(format_args!("note: {file} {why}"));
        }
    }
}

/// Shows the statistics that processes publish.
pub fn top(args: &Top, output: &mut Output) -> Result<()> {
    let first = args.read();
    args.require(&first)?;
    if args.openmetrics {
        args.warn_of(&first);
        return openmetrics(args, &first, output);
    }
    if args.json && args.interval.is_some() {
        return follow(args, first, output);
    }
    if args.json || args.once || !stdin().is_terminal() || !stdout().is_terminal() {
        return once(args, first, output);
    }
    terminal::show(|| args.read(), first, args.interval(Duration::from_secs(1)))
}

fn openmetrics(args: &Top, first: &Reading, output: &mut Output) -> Result<()> {
    let text = |reading: &Reading| metrics::text(&Rates::default().take(reading));
    if let Some(address) = &args.listen {
        let own = args.clone();
        return serve::serve(address, move || text(&own.read()));
    }
    let Some(path) = &args.output else { return output.write(&text(first)) };
    loop {
        let now = text(&args.read());
        // Processes of other users may read it.
        new_file::write_shared(path, |out| Ok(out.write_all(now.as_bytes())?))?;
        if args.interval.is_none() {
            return Ok(());
        }
        sleep(args.interval(SHORT));
    }
}

fn once(args: &Top, first: Reading, output: &mut Output) -> Result<()> {
    let mut rates = Rates::default();
    let mut rows = rates.take(&first);
    let mut reading = first;
    if rows.iter().any(|row| row.process.state == State::Running) {
        sleep(args.interval(SHORT));
        reading = args.read();
        rows = rates.take(&reading);
    }
    if args.json {
        return output.write(&document::document(&reading, &rows)?);
    }
    output.write(&text::once(&reading, &rows))?;
    args.warn_of(&reading);
    Ok(())
}

fn follow(args: &Top, first: Reading, output: &mut Output) -> Result<()> {
    let mut rates = Rates::default();
    let mut reading = first;
    loop {
        let rows = rates.take(&reading);
        output.write(&document::document(&reading, &rows)?)?;
        if output.closed() {
            return Ok(());
        }
        sleep(args.interval(SHORT));
        reading = args.read();
    }
}
