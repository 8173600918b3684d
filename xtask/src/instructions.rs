//! Instructions of an allocation and its free, counted by callgrind: the section `instructions` of the benchmark.
//!
//! Counts do not depend on what else the machine does, so two versions can be compared to the instruction, with the same
//! compiler. They are libbfc's own within the four calls, without the C library's and the simulated driver's.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::driver_calls::Program;
use crate::files;
use crate::workspace::{Workspace, without};

/// The section's name, for `--only` and among the figures.
pub const SECTION: &str = "instructions";

/// What is counted, and on which backend.
const WAYS: [(&str, &str); 6] = [
    ("plain", "fixed"),
    ("one_stream", "fixed"),
    ("two_streams", "fixed"),
    ("four_streams", "fixed"),
    ("two_streams", "cuda"),
    ("four_streams", "cuda"),
];

/// The calls in which instructions count.
const CALLS: [&str; 4] = ["bfc_alloc", "bfc_free", "bfc_alloc_async", "bfc_free_async"];

/// The first pairs warm the pool; the second so many count.
const PAIRS: u64 = 10_000;

/// The library's instructions by way and backend; nothing without valgrind.
pub fn measure(workspace: &Workspace, prefix: &Path) -> Result<Vec<Value>> {
    if workspace.command("valgrind").arg("--version").output().is_err() {
        println!("There is no valgrind: instructions are not counted");
        return Ok(Vec::new());
    }
    let program = Program::build(workspace, prefix)?;
    let count = |way: &str, backend: &str, pairs: u64| {
        let file = workspace.target.join("bench/callgrind.out");
        files::remove(&file)?;
        let mut command = workspace.command("valgrind");
        command.args(["-q", "--tool=callgrind"]).arg(format!("--callgrind-out-file={}", file.display()));
        command.args(CALLS.map(|call| format!("--toggle-collect={call}")));
        command.arg(program.path()).args(["pairs", way, backend, &pairs.to_string()]);
        program.prepare(&mut command);
        without(&mut command, &["VALGRIND_"]);
        // Each seed makes other searches long.
        command.env("BFC_HASH_SEED", "1");
        workspace.run_well(&format!("bench: callgrind {way} {backend} {pairs}"), command)?;
        own(&files::read(&file)?)
    };
    let row = |&(way, backend): &(&str, &str)| {
        let more = count(way, backend, 2 * PAIRS)?.checked_sub(count(way, backend, PAIRS)?);
        let instructions = more.context("more pairs took fewer instructions")?;
        Ok(json!({
            "section": SECTION, "name": format!("{way}, {backend}"), "pairs": PAIRS, "instructions": instructions,
            "libbfc": instructions as f64 / PAIRS as f64,
        }))
    };
    WAYS.iter().map(row).collect()
}

/// The instructions of libbfc itself in callgrind's output: those of its object, without the calls into others.
pub fn own(text: &str) -> Result<u64> {
    let mut libbfc: Option<&str> = None;
    let (mut is_own, mut is_of_call, mut sum) = (false, false, 0);
    for line in text.lines() {
        if let Some(object) = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob=")) {
            // Only where a name comes first is it spelled out.
            let (number, name) = object.split_once(' ').unwrap_or((object, ""));
            if name.contains("/libbfc.so") {
                libbfc = Some(number);
            }
            if line.starts_with("ob=") {
                is_own = libbfc == Some(number);
            }
        } else if line.starts_with("calls=") {
            // The next line is what that call took in all.
            is_of_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            if is_own && !is_of_call {
                let cost = line.split(' ').nth(1).and_then(|cost| cost.parse::<u64>().ok());
                sum += cost.with_context(|| format!("callgrind's line {line}"))?;
            }
            is_of_call = false;
        }
    }
    if sum == 0 {
        bail!("callgrind saw nothing of libbfc");
    }
    Ok(sum)
}

/// The rows as a table.
pub fn table(rows: &[Value]) -> String {
    let mut text = String::from("\nInstructions of libbfc in an allocation and its free, by callgrind\n");
    for row in rows {
        let (name, each) = (row["name"].as_str().unwrap_or("?"), row["libbfc"].as_f64().unwrap_or(f64::NAN));
        text += &format!("  {name:<24}{each:>10.4}   {} in {} pairs\n", row["instructions"], row["pairs"]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_other_objects_do_not_count() {
        let text = "version: 1\npositions: line\nevents: Ir\n\nob=(1) /a/libc.so.6\nfn=(1) malloc\n5 100\n\
                    cob=(2) /p/lib/libbfc.so.0.1.0\ncfn=(2) bfc_alloc\ncalls=1 7\n5 1000\n+1 10\n\n\
                    ob=(2)\nfn=(2)\n7 3\n* 4\ncob=(1)\ncfn=(1)\ncalls=1 5\n-2 500\n+3 1\n\ntotals: 1618\n";
        assert_eq!(own(text).expect("a good file"), 8);
        assert!(own("ob=(1) /a/libc.so.6\nfn=(1) malloc\n5 100\n").is_err());
    }
}
