//! `cargo xtask cliffs`: a search for allocator calls that take far more instructions than others of their kind.
//!
//! A fuzzer looks for new paths and cannot maximize a number, so this is a search of its own: programs that prepare a pool are
//! changed at random, basic blocks of libbfc are its score, and callgrind counts the instructions of what it finds.

mod known;
mod program;
mod runner;
mod search;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::cargo::Profile;
use crate::install;
use crate::workspace::Workspace;

use known::{Known, Row, SCALE, bound};
use program::Program;
use runner::Runner;
use search::{Find, Limits, Search};

/// The section's name, for `--only` and among the figures.
pub const SECTION: &str = "cliffs";

/// Numbers of chunks in the benchmark's table.
const SCALES: [u64; 3] = [1000, 10_000, 100_000];

/// What a row may take more than its figure says, in percent.
const TOLERANCE: u64 = 20;

/// Programs that --check tries: so few that each machine tries all of them, however busy it is, and comes to the same end.
const CHECKED: Limits = Limits { time: Duration::from_secs(600), programs: 400 };

/// Basic blocks of a call that callgrind counts in less than a minute.
const COUNTABLE: u64 = 500_000_000;

/// What a row is said to be about until a person has looked.
const NOT_EXPLAINED: &str = "found by the search, not explained yet";

/// What `cargo xtask cliffs` takes.
#[derive(Args)]
pub struct Cliffs {
    /// How long to search
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// Allocations of a program at most, and with them the chunks of its pool
    #[arg(long, value_name = "COUNT", default_value_t = SCALE)]
    scale: u64,
    /// Where the random changes begin: the same number tries the same programs
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Run this program only, as it stands in benches/cliffs/known.txt, and count its worst calls
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["check", "write"])]
    program: Option<String>,
    /// Instead of a long search: fail if a row of benches/cliffs/known.txt takes 20% more instructions than it says, or if a
    /// short search finds a kind of call over the bound that has no row
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Measure the rows of benches/cliffs/known.txt anew, and add a row for each kind of call that the search finds over the
    /// bound and 20% over its rows
    #[arg(long)]
    write: bool,
}

impl Cliffs {
    /// Builds, searches, and prints what was found.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        println!("Building libbfc (release)");
        let prefix = workspace.target.join("bench/prefix");
        install::install(workspace, &prefix, Profile::Release)?;
        if self.check {
            return check(workspace, &prefix);
        }
        let mut runner = Runner::build(workspace, &prefix)?;
        if let Some(program) = &self.program {
            return show(&mut runner, &Program::parse(program)?, self.scale);
        }
        if self.write && self.scale != SCALE {
            bail!("the figures of known.txt are those at {SCALE} chunks: leave --scale out");
        }
        let mut known = Known::read(workspace)?;
        if self.write {
            known.rows = anew(&mut runner, known.rows)?;
            known.write(workspace)?;
        }
        println!("Searching for {} s at {} chunks, from seed {}", self.seconds, self.scale, self.seed);
        let limits = Limits { time: Duration::from_secs(self.seconds), programs: u64::MAX };
        let found = over_the_bound(&mut runner, self.scale, self.seed, &limits, &known, Wanted::Worse)?;
        print!("{}", listed(&found, &known));
        if self.write {
            known.rows.extend(found);
            known.write(workspace)?;
            println!("benches/cliffs/known.txt has {} rows", known.rows.len());
        }
        Ok(())
    }
}

/// One program's calls over the bound, or its worst one.
fn show(runner: &mut Runner, program: &Program, scale: u64) -> Result<()> {
    let mut all = runner.worst(program, scale)?;
    all.sort_by_key(|worst| std::cmp::Reverse(worst.blocks));
    for worst in all {
        let instructions = runner.instructions(program, scale, worst.call)?;
        println!("{instructions:>12}  {} (call {}, {} basic blocks)", worst.kind, worst.call, worst.blocks);
    }
    Ok(())
}

/// What fails --check; for the suite `fuzz` too.
pub fn check(workspace: &Workspace, prefix: &Path) -> Result<()> {
    let mut runner = Runner::build(workspace, prefix)?;
    let known = Known::read(workspace)?;
    let mut wrong = Vec::new();
    for row in &known.rows {
        let figure = row.instructions;
        let Some((now, _)) = measured(&mut runner, row, SCALE)? else {
            wrong.push(format!("there is no {} in {} any more", row.kind, row.program));
            continue;
        };
        if now * 100 > figure * (100 + TOLERANCE) {
            wrong.push(format!("{now} instructions instead of {figure}: {} in {}", row.kind, row.program));
        }
    }
    println!("Measured the {} rows of benches/cliffs/known.txt", known.rows.len());
    let found = over_the_bound(&mut runner, SCALE, 1, &CHECKED, &known, Wanted::New)?;
    for row in found {
        wrong.push(format!("{} instructions: {} in {}", row.instructions, row.kind, row.program));
    }
    if !wrong.is_empty() {
        bail!("calls that take too long (benches/cliffs/known.txt):\n{}", wrong.join("\n"));
    }
    Ok(())
}

/// The exact cost of a row's call at a number of chunks, and which call it is; nothing if the program has none of its kind,
/// or one that takes minutes to count.
fn measured(runner: &mut Runner, row: &Row, scale: u64) -> Result<Option<(u64, u64)>> {
    let mut worst = runner.worst(&row.program, scale)?.into_iter();
    let worst = worst.find(|worst| worst.kind == row.kind && worst.blocks < COUNTABLE);
    let Some(worst) = worst else {
        return Ok(None);
    };
    Ok(Some((runner.instructions(&row.program, scale, worst.call)?, worst.call)))
}

/// Rows with the figures of this build. Where a request is no longer refused, say, the row has nothing to say any more.
fn anew(runner: &mut Runner, rows: Vec<Row>) -> Result<Vec<Row>> {
    let mut kept = Vec::new();
    for mut row in rows {
        match measured(runner, &row, SCALE)? {
            Some((instructions, _)) => {
                row.instructions = instructions;
                kept.push(row);
            }
            None => println!("Left out, for there is no {} in it any more: {}", row.kind, row.program),
        }
    }
    Ok(kept)
}

/// Which finds count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Of kinds that no row excepts from the bound.
    New,
    /// Of these, and worse ones of the others.
    Worse,
}

/// What a search finds over the bound and over what is known of its kind, the worst of each kind, in simple programs.
fn over_the_bound(
    runner: &mut Runner,
    scale: u64,
    seed: u64,
    limits: &Limits,
    known: &Known,
    wanted: Wanted,
) -> Result<Vec<Row>> {
    let seeds: Vec<Program> = known.rows.iter().map(|row| row.program.clone()).collect();
    let mut search = Search { runner, scale, found: BTreeMap::new() };
    search.run(&seeds, seed, limits)?;
    let mut rows = Vec::new();
    for (kind, find) in search.found.clone() {
        let most = bound(scale).max(known.most(&kind) / 100 * (100 + TOLERANCE));
        // A kind that is known beyond what the search tells apart has nothing new to show.
        let is_known = known.most(&kind) > bound(scale) && wanted == Wanted::New;
        if is_known || !find.may_exceed(most) || search.is_enough(known.most(&kind)) {
            continue;
        }
        let Find { program, call, .. } = search.simplified(&kind, &find)?;
        let instructions = search.runner.instructions(&program, scale, call)?;
        if instructions <= most {
            continue;
        }
        rows.push(Row { kind, instructions, program, why: NOT_EXPLAINED.to_owned() });
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.instructions));
    Ok(rows)
}

/// Finds as lines.
fn listed(rows: &[Row], known: &Known) -> String {
    let mut text = format!("Kinds of calls over the bound and over known.txt: {}\n", rows.len());
    for Row { kind, instructions, program, .. } in rows {
        let before = match known.most(kind) {
            most if most > bound(SCALE) => format!("{most} known"),
            _ => "new".to_owned(),
        };
        text += &format!("{instructions:>12}  {kind} ({before})\n              {program}\n");
    }
    text
}

/// For the benchmark: the worst row of each kind in known.txt at some numbers of chunks. Nothing without valgrind.
pub fn measure(workspace: &Workspace, prefix: &Path) -> Result<Vec<Value>> {
    if workspace.command("valgrind").arg("--version").output().is_err() {
        println!("There is no valgrind: the worst calls are not counted");
        return Ok(Vec::new());
    }
    let mut runner = Runner::build(workspace, prefix)?;
    let (known, mut rows) = (Known::read(workspace)?, Vec::new());
    for row in known.rows.iter().filter(|row| row.instructions == known.most(&row.kind)) {
        let mut at = Vec::new();
        for scale in SCALES {
            let Some((instructions, call)) = measured(&mut runner, row, scale)? else {
                continue;
            };
            let nanoseconds = runner.nanoseconds(&row.program, scale, call)?;
            at.push(json!({"chunks": scale, "instructions": instructions, "nanoseconds": nanoseconds}));
        }
        rows.push(json!({
            "section": SECTION, "name": row.kind, "program": row.program.to_string(), "why": row.why, "at": at,
        }));
    }
    Ok(rows)
}

/// The rows as a table, the worst first.
pub fn table(rows: &[Value]) -> String {
    let at = |row: &Value, scale: u64| {
        let all = row["at"].as_array().into_iter().flatten();
        all.clone().find(|at| at["chunks"] == scale).cloned().unwrap_or_default()
    };
    let cost = |row: &Value| at(row, SCALE)["instructions"].as_u64().unwrap_or_default();
    let mut worst: Vec<&Value> = rows.iter().collect();
    worst.sort_by_key(|row| std::cmp::Reverse(cost(row)));
    let mut text = String::from("\nThe worst call of each kind: instructions of libbfc, and microseconds\n");
    text += &format!("  {:<40}", "at chunks");
    for scale in SCALES {
        text += &format!("{scale:>13}{:>11}", "us");
    }
    for row in worst {
        text += &format!("\n  {:<40}", row["name"].as_str().unwrap_or("?"));
        for scale in SCALES {
            let at = at(row, scale);
            match (at["instructions"].as_u64(), at["nanoseconds"].as_f64()) {
                (Some(count), Some(time)) => text += &format!("{count:>13}{:>11.1}", time / 1000.0),
                // It takes too long to get that far.
                _ => text += &format!("{:>13}{:>11}", "-", "-"),
            }
        }
        text += &format!("  {}", row["why"].as_str().unwrap_or_default());
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_begins_with_the_worst_and_shows_what_was_not_counted() {
        let row = |name: &str, instructions: u64, why: &str| {
            let at = json!({"chunks": SCALE, "instructions": instructions, "nanoseconds": 1500});
            json!({"name": name, "why": why, "at": [at]})
        };
        let text = table(&[row("alloc", 20, "all"), row("free", 30, "more")]);
        let lines: Vec<&str> = text.trim().lines().skip(2).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].ends_with("-  more"), "{text}");
        assert!(lines[0].trim().starts_with("free ") && lines[0].contains("30        1.5  "), "{text}");
        assert!(lines[1].trim().starts_with("alloc ") && lines[1].ends_with("all"), "{text}");
    }
}
