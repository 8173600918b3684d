//! Times libbfc beside other allocators: the same programs, in turns, with a check that nothing overlaps.

mod chart;
mod crates;
mod held;
mod measure;
mod native;
mod peer;
mod program;
mod serve;
mod smallest;
mod table;
mod wrapped;

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use measure::Effort;
use program::Name;

/// Times libbfc beside other allocators and writes peers.json, peers.md and charts.
///
/// `cargo xtask bench --only peers` calls it with everything that can be had.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    order: Option<Order>,
    /// Recorded programs (tests/traces); each is gzipped
    traces: Vec<PathBuf>,
    /// The folder for what is written
    #[arg(long, default_value = ".")]
    out: PathBuf,
    /// The library of a peer that is compiled: one for each file in native/
    #[arg(long = "native", value_name = "PEER=PATH", value_parser = pair)]
    natives: Vec<(String, String)>,
    /// Why a peer is not there
    #[arg(long = "missing", value_name = "PEER=WHY", value_parser = pair)]
    missing: Vec<(String, String)>,
    /// Only these peers and libbfc; may be repeated
    #[arg(long = "peer", value_name = "NAME")]
    peers: Vec<String>,
    /// Few rounds and programs: to see that it runs, not to compare
    #[arg(long)]
    quick: bool,
}

#[derive(Subcommand)]
enum Order {
    /// The process of one peer
    #[command(hide = true)]
    Serve {
        peer: String,
        program: String,
        #[arg(long)]
        native: Option<PathBuf>,
    },
    /// The process of one peer that takes its memory on demand
    #[command(hide = true)]
    Hold {
        program: String,
        #[arg(long)]
        native: PathBuf,
    },
}

fn pair(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').context("it is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.order {
        Some(Order::Serve { peer, program, native }) => {
            let served = native.as_deref().map_or(Ok(()), native::load);
            if let Err(why) = served.and_then(|()| serve::serve(&peer, &Name(program))) {
                // One line, without a backtrace: it becomes a cell of a table.
                eprintln!("{why:#}");
                std::process::exit(1);
            }
            Ok(())
        }
        Some(Order::Hold { program, native }) => {
            if let Err(why) = native::load(&native).and_then(|()| held::serve(&Name(program))) {
                eprintln!("{why:#}");
                std::process::exit(1);
            }
            Ok(())
        }
        None => compare(&arguments),
    }
}

fn compare(arguments: &Arguments) -> Result<()> {
    let peers = chosen(&arguments.peers)?;
    let effort = match arguments.quick {
        true => Effort { rounds: 3, milliseconds: 5 },
        false => Effort { rounds: 15, milliseconds: 40 },
    };
    let traces = arguments.traces.iter().map(|path| Name(path.to_string_lossy().into_owned()));
    let mut programs: Vec<Name> = traces.chain(program::RANDOM.map(|name| Name(name.to_owned()))).collect();
    if arguments.quick {
        programs.retain(|name| name.is_recorded() || name.random().is_some_and(|(_, live)| live <= 1000));
    }
    let natives: HashMap<&str, &str> =
        arguments.natives.iter().map(|(peer, path)| (peer.as_str(), path.as_str())).collect();
    let missing: HashMap<&str, &str> =
        arguments.missing.iter().map(|(peer, why)| (peer.as_str(), why.as_str())).collect();
    let own = std::env::current_exe()?;
    let bar = ProgressBar::new(programs.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} programs  {msg}")?);
    let (mut rows, mut held) = (Vec::new(), Vec::new());
    for program in &programs {
        let hold = |peer: &str| {
            if let Some(why) = missing.get(peer) {
                bail!("{why}");
            }
            let mut command = Command::new(&own);
            let path = natives.get(peer).context("it has to be compiled: give --native")?;
            command.args(["hold", &program.0, "--native", path]);
            Ok(command)
        };
        if program.is_recorded() && arguments.peers.is_empty() {
            bar.set_message(format!("{}, memory held", program.title()));
            held.extend(held::measure(program, hold));
        }
        let command = |peer: &str| {
            if let Some(why) = missing.get(peer) {
                bail!("{why}");
            }
            let mut command = Command::new(&own);
            command.args(["serve", peer, &program.0]);
            natives.get(peer).map(|path| command.args(["--native", path]));
            Ok(command)
        };
        let progress = |peer: &str| bar.set_message(format!("{}, {peer}", program.title()));
        rows.push(measure::measure(program, &peers, effort, command, progress));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let page = table::page(&rows, &held, &peers, effort);
    std::fs::create_dir_all(&arguments.out)?;
    std::fs::write(
        arguments.out.join("peers.json"),
        serde_json::to_string_pretty(&serde_json::json!({
            "effort": effort, "programs": rows, "held": held,
        }))?,
    )?;
    std::fs::write(arguments.out.join("peers.md"), &page)?;
    chart::write(&arguments.out, &rows, &held, &peers)?;
    print!("{page}");
    println!("\nThe same, all samples and charts are in {}", arguments.out.display());
    let overlaps = |why: &Option<String>| why.as_ref().is_some_and(|why| why.contains("overlap"));
    if rows.iter().flat_map(|row| &row.outcomes).any(|outcome| overlaps(&outcome.why_not)) {
        bail!("a peer returned memory that overlaps: see the table \"Not run\"");
    }
    let is_missing = |held: &&held::Held| {
        held::WAYS.iter().any(|way| way.name == held.way && missing.contains_key(way.peer))
    };
    if let Some(held) = held.iter().filter(|held| held.share.is_none()).find(|held| !is_missing(held)) {
        bail!("{} did not run {}: {:?}", held.way, held.program, held.why_not);
    }
    match broken(&rows, &missing) {
        Some(peer) if arguments.quick => {
            bail!("{peer} did not run a recorded program: see the table \"Not run\"")
        }
        _ => Ok(()),
    }
}

/// A peer that is there and did not run a recorded program. For mallocs these are too large.
fn broken<'a>(rows: &'a [measure::Row], missing: &HashMap<&str, &str>) -> Option<&'a str> {
    let mut outcomes = rows.iter().filter(|row| row.is_recorded).flat_map(|row| &row.outcomes);
    let is_broken = |outcome: &&measure::Outcome| {
        let why = outcome.why_not.as_deref();
        why.is_some_and(|why| !why.contains("real memory")) && !missing.contains_key(outcome.peer.as_str())
    };
    outcomes.find(is_broken).map(|outcome| outcome.peer.as_str())
}

/// The peers to time, libbfc first.
fn chosen(wanted: &[String]) -> Result<Vec<String>> {
    let all = || peer::ALL.iter().map(|about| about.name);
    if let Some(unknown) = wanted.iter().find(|name| !all().any(|known| known == name.as_str())) {
        bail!("there is no peer {unknown}; there are {}", all().collect::<Vec<_>>().join(", "));
    }
    let is_wanted = |name: &&str| match wanted.is_empty() {
        true => *name != "overlapping",
        false => *name == table::BASE || wanted.iter().any(|wanted| wanted == name),
    };
    Ok(all().filter(is_wanted).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_fails_is_told_from_one_that_is_not_there() {
        let found = |is_recorded: bool, why: &str, missing: &[(&str, &str)]| {
            let (peer, why_not) = ("rmm-pool".to_owned(), Some(why.to_owned()));
            let outcomes = vec![measure::Outcome { peer, samples: Vec::new(), why_not }];
            let rows = [measure::Row { program: "vit".to_owned(), is_recorded, outcomes }];
            broken(&rows, &missing.iter().copied().collect()).is_some()
        };
        assert!(found(true, "no memory", &[("tensorflow", "no network")]));
        assert!(!found(true, "no network", &[("rmm-pool", "no network")]));
        assert!(!found(false, "no memory", &[]) && !found(true, "it takes real memory", &[]));
    }
}
