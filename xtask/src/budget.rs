//! `cargo xtask budget`: the instructions of an allocation and of a free on recorded programs, held against
//! benches/instructions.tsv.
//!
//! They are counted by callgrind with all that the call calls, and are means over a program played on a simulated
//! device, whose addresses are always the same. So they depend on the code and its compiler only.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::cargo::Profile;
use crate::files;
use crate::install;
use crate::tools::Unavailable;
use crate::workspace::{Workspace, capture, without};

const FILE: &str = "benches/instructions.tsv";
const HEAD: &str = "\
# Instructions of a call with all that it calls, by callgrind: means over recorded programs. `cargo xtask test --suite
# valgrind` fails on 3% more, with this compiler. `cargo xtask budget --write` measures anew. A higher figure needs a
# reason in the commit.
";
const TRACES: [&str; 3] = ["gpt2", "serve_mix", "bert_var"];
const CALLS: [&str; 2] = ["bfc_alloc", "bfc_free"];
/// How much more a call may take, in percent.
const TOLERANCE: f64 = 3.0;

/// What `cargo xtask budget` takes.
#[derive(Args)]
pub struct Budget {
    /// Write the figures to benches/instructions.tsv
    #[arg(long)]
    write: bool,
}

impl Budget {
    /// Measures and compares, or writes.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let prefix = workspace.target.join("bench/prefix");
        install::install(workspace, &prefix, Profile::Release)?;
        if !self.write {
            return check(workspace, &prefix);
        }
        let rows = measure(workspace, &prefix)?;
        let lines = rows.iter().map(|row| format!("{}\t{}\t{:.1}\n", row.trace, row.call, row.mean));
        let text = format!("{HEAD}{}\n{}", compiler(workspace)?, lines.collect::<String>());
        print!("{text}");
        files::write(&workspace.path(FILE), &text)
    }
}

/// Fails if a call takes more than its budget.
pub fn check(workspace: &Workspace, prefix: &Path) -> Result<()> {
    let text = files::read(&workspace.path(FILE))?;
    let (compiled_by, rows) = parsed(&text)?;
    let compiler = compiler(workspace)?;
    if compiler != compiled_by {
        let why = format!("{FILE} is by {compiled_by}, and this is {compiler}: cargo xtask budget --write");
        return Err(Unavailable(why).into());
    }
    let over = over(&rows, &measure(workspace, prefix)?);
    if over.is_empty() { Ok(()) } else { bail!("calls over their budget ({FILE}):\n{}", over.join("\n")) }
}

#[derive(Clone, Debug, PartialEq)]
struct Row {
    trace: String,
    call: String,
    mean: f64,
}

fn parsed(text: &str) -> Result<(&str, Vec<Row>)> {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let compiler = lines.next().with_context(|| format!("{FILE} is empty"))?;
    let row = |line: &str| match *line.split('\t').collect::<Vec<_>>() {
        [trace, call, mean] => {
            Ok(Row { trace: trace.to_owned(), call: call.to_owned(), mean: mean.parse()? })
        }
        _ => bail!("{FILE} has the line {line:?}"),
    };
    Ok((compiler, lines.map(row).collect::<Result<_>>()?))
}

/// The rows that are over the budget, or have none, as lines.
fn over(budget: &[Row], measured: &[Row]) -> Vec<String> {
    let line = |row: &Row| {
        let Row { trace, call, mean } = row;
        match budget.iter().find(|of| (&of.trace, &of.call) == (trace, call)) {
            None => Some(format!("{trace}, {call}: {mean:.1}, and no budget")),
            Some(of) if *mean > of.mean * (1.0 + TOLERANCE / 100.0) => {
                Some(format!("{trace}, {call}: {mean:.1} instead of {:.1}", of.mean))
            }
            Some(_) => None,
        }
    };
    measured.iter().filter_map(line).collect()
}

fn measure(workspace: &Workspace, prefix: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for trace in TRACES {
        for call in CALLS {
            let file = workspace.target.join(format!("budget.{trace}.{call}"));
            files::remove(&file)?;
            let mut command = workspace.command("valgrind");
            command.args(["-q", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", file.display()));
            command.arg(format!("--toggle-collect={call}")).arg(prefix.join("bin/bfc"));
            command
                .args(["replay", "--repeat", "1", "--device-capacity", "80GiB"])
                .arg(trace_of(workspace, trace));
            without(&mut command, &["BFC_", "VALGRIND_"]);
            // Each seed makes other searches long.
            command.env("BFC_HASH_SEED", "1");
            workspace.run_well(&format!("budget {trace} {call}"), command)?;
            let mean = mean(&files::read(&file)?, call)?;
            rows.push(Row { trace: trace.to_owned(), call: call.to_owned(), mean });
        }
    }
    Ok(rows)
}

fn trace_of(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.path("tests/traces").join(format!("{name}.trace.gz"))
}

/// The instructions of a call in callgrind's output.
fn mean(text: &str, call: &str) -> Result<f64> {
    // Only where a name comes first is it spelled out.
    let mut numbers = Vec::new();
    let (mut is_of_call, mut calls, mut sum) = (false, 0u64, None);
    for line in text.lines() {
        if let Some(function) = line.strip_prefix("fn=").or_else(|| line.strip_prefix("cfn=")) {
            let (number, name) = function.split_once(' ').unwrap_or((function, ""));
            if name == call {
                numbers.push(number.to_owned());
            }
            is_of_call = line.starts_with('c') && numbers.iter().any(|known| known == number);
        } else if let Some(count) = line.strip_prefix("calls=")
            && is_of_call
        {
            calls += count.split(' ').next().unwrap_or_default().parse::<u64>()?;
        } else if let Some(total) = line.strip_prefix("summary: ").or_else(|| line.strip_prefix("totals: ")) {
            sum = Some(total.trim().parse::<u64>()?);
        }
    }
    match sum {
        Some(sum) if calls != 0 => Ok(sum as f64 / calls as f64),
        _ => bail!("callgrind saw no call of {call}"),
    }
}

/// The compiler, as it names itself.
fn compiler(workspace: &Workspace) -> Result<String> {
    let said = capture(workspace.command("rustc").arg("--version"))?;
    Ok(said.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(trace: &str, mean: f64) -> Row {
        Row { trace: trace.to_owned(), call: "bfc_free".to_owned(), mean }
    }

    #[test]
    fn more_than_the_budget_and_calls_without_one_are_named() {
        let budget = [row("a", 100.0), row("b", 100.0)];
        assert!(over(&budget, &[row("a", 103.0), row("b", 50.0)]).is_empty());
        let lines = over(&budget, &[row("a", 103.1), row("c", 1.0)]);
        assert_eq!(lines, ["a, bfc_free: 103.1 instead of 100.0", "c, bfc_free: 1.0, and no budget"]);
    }

    #[test]
    fn the_file_is_read() {
        let (compiler, rows) = parsed("# words\nrustc 1.95.0\na\tbfc_free\t12.5\n").expect("a good file");
        assert_eq!((compiler, rows), ("rustc 1.95.0", vec![row("a", 12.5)]));
        assert!(parsed("# words\n").is_err() && parsed("rustc\na 12\n").is_err());
    }

    #[test]
    fn a_mean_is_that_of_all_calls() {
        let text = "fn=(1) main\n5 1\ncfn=(2) bfc_alloc\ncalls=3 7\n5 90\ncfn=(3) other\ncalls=9 7\n5 90\n\
                    cfn=(2)\ncalls=2 7\n5 10\nfn=(2)\n7 100\nsummary: 100\n";
        assert!((mean(text, "bfc_alloc").expect("calls") - 20.0).abs() < 1e-9);
        assert!(mean(text, "bfc_free").is_err());
    }
}
