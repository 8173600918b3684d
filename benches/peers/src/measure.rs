//! Times peers on a program: rounds in which each has its turn, so that what else the machine does slows all alike.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;

use crate::program::Name;

/// How long and how often.
#[derive(Clone, Copy, Serialize)]
pub struct Effort {
    pub rounds: u32,
    /// A measurement is at least so many milliseconds long.
    pub milliseconds: u32,
}

/// What came of a peer on a program.
#[derive(Serialize)]
pub struct Outcome {
    pub peer: String,
    /// The nanoseconds of an operation, by rounds.
    pub samples: Vec<f64>,
    /// Why the peer did not run, or did not run to the end.
    pub why_not: Option<String>,
}

/// A program and what came of each peer.
#[derive(Serialize)]
pub struct Row {
    pub program: String,
    pub is_recorded: bool,
    pub outcomes: Vec<Outcome>,
}

impl Outcome {
    /// The median and half the range between the quartiles.
    pub fn median(&self) -> Option<(f64, f64)> {
        let at = |share: f64| quantile(&self.samples, share);
        Some((at(0.5)?, (at(0.75)? - at(0.25)?) / 2.0)).filter(|_| self.why_not.is_none())
    }
}

impl Row {
    pub fn outcome(&self, peer: &str) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.peer == peer)
    }

    /// The time of a peer over that of another: the median over the rounds.
    pub fn ratio(&self, peer: &str, to: &str) -> Option<f64> {
        let (peer, to) = (self.outcome(peer)?, self.outcome(to)?);
        peer.median().and(to.median())?;
        let ratios: Vec<f64> = peer.samples.iter().zip(&to.samples).map(|(peer, to)| peer / to).collect();
        quantile(&ratios, 0.5)
    }
}

/// A quantile, between two neighbours in proportion.
fn quantile(samples: &[f64], share: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = share * (sorted.len().checked_sub(1)?) as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// Times peers on a program. `command` starts a peer's process, or says why there is none.
pub fn measure(
    program: &Name,
    peers: &[String],
    effort: Effort,
    command: impl Fn(&str) -> Result<Command>,
    mut progress: impl FnMut(&str),
) -> Row {
    let mut runs: Vec<(Outcome, Option<Process>)> = Vec::new();
    for peer in peers {
        progress(peer);
        let started = command(peer).and_then(Process::start);
        let (process, why_not) = match started {
            Ok(process) => (Some(process), None),
            Err(why) => (None, Some(format!("{why:#}"))),
        };
        runs.push((Outcome { peer: peer.clone(), samples: Vec::new(), why_not }, process));
    }
    for round in 0..=effort.rounds {
        // After the last round comes a pass that is checked and not timed.
        let order =
            if round < effort.rounds { format!("time {}", effort.milliseconds) } else { "check".to_owned() };
        for (outcome, process) in &mut runs {
            let Some(running) = process else { continue };
            progress(&outcome.peer);
            match running.ask(&order) {
                Ok(answer) => outcome.samples.extend(answer.parse::<f64>().ok()),
                Err(why) => {
                    outcome.why_not = Some(format!("{why:#}"));
                    *process = None;
                }
            }
        }
    }
    let outcomes = runs.into_iter().map(|(outcome, _)| outcome).collect();
    Row { program: program.title(), is_recorded: program.is_recorded(), outcomes }
}

/// A peer's process.
struct Process {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start the peer's process")?;
        let orders = child.stdin.take().context("its input is a pipe")?;
        let answers = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let mut process = Self { child, orders, answers };
        match process.answer()?.as_str() {
            "ready" => Ok(process),
            other => bail!("instead of being ready: {other}"),
        }
    }

    fn ask(&mut self, order: &str) -> Result<String> {
        // A process that has ended says why when its answer is read.
        let _ = writeln!(self.orders, "{order}");
        self.answer()
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? != 0 {
            return Ok(line.trim_end().to_owned());
        }
        let status = self.child.wait()?;
        let complaints = self.child.stderr.take().map(BufReader::new);
        let said = complaints.into_iter().flat_map(|said| said.lines().map_while(Result::ok));
        let last = said.filter(|line| !line.trim().is_empty()).last();
        match last {
            Some(last) => bail!("{last}"),
            None => bail!("its process ended with {status}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It owns nothing that outlives it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&samples, 0.5), Some(2.5));
        assert_eq!(quantile(&samples, 0.0), Some(1.0));
        assert_eq!(quantile(&samples, 1.0), Some(4.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_process_that_ends_says_why() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo ready; read line; echo $line; read line; echo enough >&2; exit 1"]);
        let mut process = Process::start(command).unwrap();
        assert_eq!(process.ask("time 5").unwrap(), "time 5");
        assert_eq!(process.ask("check").unwrap_err().to_string(), "enough");
    }
}
