//! `cargo xtask bench`: speed and host memory, beside TensorFlow's own allocator.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;
use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};

use crate::cargo::{self, Profile};
use crate::driver_calls;
use crate::files;
use crate::install;
use crate::interposer;
use crate::peers;
use crate::scripts;
use crate::targets;
use crate::tensorflow;
use crate::tools;
use crate::workspace::{Workspace, capture, without};

/// A section that is not the C++ program's: its name, what measures its rows, and what shows them.
struct Section {
    name: &'static str,
    measure: fn(&Workspace, &Path) -> Result<Vec<Value>>,
    table: fn(&[Value]) -> String,
}

/// Sections that are measured by scripts, which print their own tables.
const INSTRUCTIONS: &str = "instructions";
const CLIFFS: &str = "cliffs";

fn nothing(_: &[Value]) -> String {
    String::new()
}

const SECTIONS: [Section; 5] = [
    Section { name: "waste", measure: waste, table },
    Section { name: "preload", measure: interposer::measure, table },
    Section { name: "driver_calls", measure: driver_calls::measure, table },
    Section {
        name: INSTRUCTIONS,
        measure: |at, prefix| scripts::measure(at, prefix, INSTRUCTIONS),
        table: nothing,
    },
    Section { name: CLIFFS, measure: |at, prefix| scripts::measure(at, prefix, CLIFFS), table: nothing },
];

/// The sections that give no figures.
const PEERS: &str = "peers";
const LOCKS: &str = "locks";

/// What `cargo xtask bench` takes.
#[derive(Args)]
pub struct Bench {
    /// Measure only this; may be repeated: first_allocation, host_memory, traces, random_sizes,
    /// same_size, threads (both allocators: throughput and latencies), streams (against the plain calls), waste (the least limits of the
    /// traces on HOST_VMM), preload (the interposer, on the simulated driver), driver_calls (of frees and requests on
    /// streams, on the simulated driver), instructions (of a pair, by callgrind), cliffs (the worst call of each kind), peers
    /// (other allocators: table and charts in target/bench/peers), locks (kinds of locks)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Write the figures of both allocators to FILE [default: bench/figures.json in target/]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// End with an error if one of the targets in the closing table is missed. Times are noisy: on a
    /// machine that does other things meanwhile a target may be missed by chance. What cannot be measured,
    /// such as a ratio without TensorFlow, is not missed
    #[arg(long)]
    check: bool,
    /// Fewer sizes and rounds: to see that it runs, not to compare
    #[arg(long)]
    quick: bool,
}

impl Bench {
    /// Builds, measures, and prints tables.
    pub fn run(&self, workspace: &Workspace) -> Result<()> {
        let all = self.only.is_empty();
        let wanted = |section: &str| all || self.only.iter().any(|name| name == section);
        let no_figures = |name: &String| [PEERS, LOCKS].contains(&name.as_str());
        let has_figures = all || !self.only.iter().all(no_figures);
        // Before anything is measured for minutes.
        ensure!(
            has_figures || (self.json.is_none() && !self.check),
            "--json and --check are about the allocators' figures, and {PEERS} and {LOCKS} give none"
        );
        let is_other =
            |name: &String| no_figures(name) || SECTIONS.iter().any(|section| section.name == *name);
        let of_program: Vec<&String> = self.only.iter().filter(|name| !is_other(name)).collect();

        println!("Building libbfc (release)");
        let prefix = workspace.target.join("bench/prefix");
        install::install(workspace, &prefix, Profile::Release)?;
        let mut figures = json!({"results": []});
        if all || !of_program.is_empty() {
            figures = self.allocators(workspace, &prefix, &of_program)?;
        }
        for section in SECTIONS.iter().filter(|section| wanted(section.name)) {
            let rows = (section.measure)(workspace, &prefix)?;
            print!("\n{}", (section.table)(&rows));
            figures["results"].as_array_mut().context("the figures have no results")?.extend(rows);
            files::write(&self.file(workspace)?, serde_json::to_string_pretty(&figures)?)?;
        }
        if wanted(PEERS) {
            peers::measure(workspace, &prefix, self.quick)?;
        }
        if wanted(LOCKS) {
            println!("\nComparing locks");
            let locks = cargo::cargo(workspace, &["bench", "--package=libbfc", "--bench=locks"]);
            succeed(locks)?;
        }
        if !has_figures {
            return Ok(());
        }
        // At the very end, where it is seen.
        let targets = targets::judge(&figures);
        print!("\n{}", targets::table(&targets));
        let missed = targets.iter().filter(|target| target.met == Some(false)).count();
        ensure!(!self.check || missed == 0, "targets that were missed: {missed}");
        Ok(())
    }

    /// Builds and runs the C++ program; the figures it wrote.
    fn allocators(&self, workspace: &Workspace, prefix: &Path, sections: &[&String]) -> Result<Value> {
        let tensorflow = tensorflow::find(workspace);
        if let Err(error) = &tensorflow {
            println!("TensorFlow cannot be had, so libbfc is measured alone. Why: {error:#}\n");
        }
        println!("Building ffi-tests/tensorflow/bench");
        let program = tensorflow::compile(workspace, prefix, tensorflow.ok().as_deref())?;
        let mut command = tensorflow::command(workspace, &program);
        let file = self.file(workspace)?;
        // An older one must not be taken for what is measured now.
        files::remove(&file)?;
        command.arg("--json").arg(&file);
        if self.quick {
            command.arg("--quick");
        }
        for section in sections {
            command.args(["--only", section]);
        }
        command.args(traces(workspace)?);
        println!("Measuring; leave the machine alone meanwhile\n");
        succeed(command)?;
        println!("\nThe figures are in {}", file.display());
        let figures = files::read(&file)?;
        serde_json::from_str(&figures).with_context(|| format!("{} is no JSON", file.display()))
    }

    /// Where the figures are written.
    fn file(&self, workspace: &Workspace) -> Result<PathBuf> {
        match &self.json {
            Some(file) => Ok(std::path::absolute(file)?),
            None => Ok(workspace.target.join("bench/figures.json")),
        }
    }
}

/// Runs a command whose output is for the user, and fails if it does.
pub fn succeed(mut command: Command) -> Result<()> {
    let what = command.get_program().display().to_string();
    let status = command.status().with_context(|| format!("cannot start {what}"))?;
    ensure!(status.success(), "{what}: {status}; it says why above");
    Ok(())
}

/// Compiles a C program of the benchmark, named after its folder, against the libbfc installed in `prefix`.
pub fn compile(workspace: &Workspace, prefix: &Path, source: &str, more: &[&str]) -> Result<PathBuf> {
    let source = workspace.path(source);
    let name = source.parent().and_then(Path::file_name).context("the source lies in a folder")?;
    let program = workspace.target.join("bench").join(name);
    let mut command = workspace.command(tools::c_compiler());
    command.args(["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
    command.arg("-I").arg(prefix.join("include")).arg(&source).arg("-o").arg(&program);
    command.arg("-L").arg(prefix.join("lib")).args(more).arg("-ldl");
    workspace.run_well(&format!("bench: compile {}", source.display()), command)?;
    Ok(program)
}

/// Runs a program that prints a JSON object on each line.
pub fn answers(command: &mut Command) -> Result<Vec<Value>> {
    let said = capture(command)?;
    let answer =
        |line: &str| serde_json::from_str(line).with_context(|| format!("the bench program said {line}"));
    said.lines().map(answer).collect()
}

/// Least limits over the peak of live bytes of the recorded programs, by `bfc replay --find-limit` on HOST_VMM. No memory is
/// touched, so programs of 25 GiB are no problem.
fn waste(workspace: &Workspace, prefix: &Path) -> Result<Vec<Value>> {
    let mut command = workspace.command(prefix.join("bin/bfc"));
    command.args(["replay", "--find-limit", "--backend=host-vmm", "--json", "--quiet"]);
    command.args(files::below(&workspace.path("tests/traces"), "gz")?);
    let said = capture(without(&mut command, &["BFC_"]))?;
    let document: Value = serde_json::from_str(&said).context("bfc replay --json wrote no JSON")?;
    let traces = document["traces"].as_array().context("bfc replay --json names no traces")?;
    let row = |trace: &Value| {
        let path = trace["trace"]["name"].as_str().context("a trace has no name")?;
        let file = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        let name = file.trim_end_matches(".gz").trim_end_matches(".trace");
        Ok(json!({"section": "waste", "name": name, "libbfc": trace["ratio"]}))
    };
    traces.iter().map(row).collect()
}

/// The rows of a section, each with all its figures; libbfc's main one comes first.
fn table(rows: &[Value]) -> String {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let figure = |value: &Value| match value.as_f64() {
        Some(number) => format!("{}", (number * 1e4).round() / 1e4),
        None => String::new(),
    };
    let width = rows.iter().map(|row| text(row, "name").len()).max().unwrap_or(0);
    let mut table = rows.first().map(|row| text(row, "section") + "\n").unwrap_or_default();
    for row in rows {
        let others = row.as_object().into_iter().flatten();
        let others = others.filter(|(key, _)| !["section", "name", "libbfc"].contains(&key.as_str()));
        let others: Vec<String> = others.map(|(key, value)| format!("{key} {}", figure(value))).collect();
        let (name, main) = (text(row, "name"), figure(&row["libbfc"]));
        table += &format!("  {name:<width$}  {main:>10}  {}\n", others.join(", "));
    }
    table
}

/// The recorded traces, decompressed: the C++ program does without a library for that.
pub fn traces(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let mut unpacked = Vec::new();
    for packed in files::below(&workspace.path("tests/traces"), "gz")? {
        let name = packed.file_stem().unwrap_or_default();
        let path = workspace.target.join("bench/traces").join(name);
        unpack(&packed, &path).with_context(|| format!("cannot unpack {}", packed.display()))?;
        unpacked.push(path);
    }
    ensure!(!unpacked.is_empty(), "tests/traces holds no trace");
    Ok(unpacked)
}

fn unpack(packed: &Path, path: &Path) -> Result<()> {
    let mut from = MultiGzDecoder::new(File::open(packed)?);
    files::write(path, "")?;
    io::copy(&mut from, &mut File::create(path)?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    #[test]
    fn all_figures_of_a_row_are_in_the_table() {
        let row = json!({"section": "s", "name": "a pair", "libbfc": 2.5, "calls": 1.0 / 3.0});
        assert_eq!(table(&[row]), "s\n  a pair         2.5  calls 0.3333\n");
    }

    #[test]
    fn a_trace_is_unpacked_and_a_broken_one_is_an_error() {
        let folder = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        let (packed, path) = (folder.join("x.trace.gz"), folder.join("x.trace"));
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"+ 1 256 0\n- 1 0\n").expect("in memory");
        let bytes = encoder.finish().expect("in memory");
        files::write(&packed, &bytes).expect("writable");
        unpack(&packed, &path).expect("a good file");
        assert_eq!(files::read(&path).expect("text"), "+ 1 256 0\n- 1 0\n");
        files::write(&packed, &bytes[..bytes.len() - 6]).expect("writable");
        assert!(unpack(&packed, &path).is_err());
        files::remove_all(&folder).expect("removed");
    }
}
