//! What the interposer costs and saves, on the simulated driver: the section `preload` of the benchmark.
//!
//! Times are those of two cores and a simulation. What counts is how many times the plain pair of libbfc's own calls a pair
//! takes, and how many frees share a synchronisation. Both calls of a pair ask the driver which context is current, so the
//! simulated driver's time for that is part of a pair. The table names it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::install;
use crate::simcuda;
use crate::tools;
use crate::workspace::{Workspace, capture, without};

/// The section's name, for `--only` and among the figures.
pub const SECTION: &str = "preload";

/// Limits over a program's peak.
const ROOM: [f64; 4] = [1.2, 1.5, 2.0, 4.0];

/// What the plain pair is called in the table.
const PLAIN: &str = "bfc_alloc and bfc_free";

/// How often a pair asks the driver which context is current.
const CONTEXT_READS: f64 = 2.0;

/// Programs with a peak over this are judged.
const LARGE: u64 = 1 << 30;

/// The benchmark's program, and where it finds the interposer and the simulation.
struct Bench {
    program: PathBuf,
    interposer: PathBuf,
    simulation: PathBuf,
}

/// Times of a pair, driver calls of a pair, and frees for each synchronisation.
pub fn measure(workspace: &Workspace, prefix: &Path, traces: &[PathBuf]) -> Result<Vec<Value>> {
    let bench = Bench::build(workspace, prefix)?;
    let mut rows = vec![
        bench.pairs(workspace, None)?,
        bench.pairs(workspace, Some("with the interposer"))?,
        bench.steady(workspace)?,
    ];
    for trace in traces {
        for backend in ["cuda", "cuda_vmm"] {
            rows.push(bench.curve(workspace, trace, backend)?);
        }
    }
    Ok(rows)
}

impl Bench {
    fn build(workspace: &Workspace, prefix: &Path) -> Result<Self> {
        let simulation = simcuda::build(workspace)?;
        let program = workspace.target.join("bench/preload");
        let mut command = workspace.command(tools::c_compiler());
        command.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"]);
        command.arg("-I").arg(prefix.join("include"));
        command.arg(workspace.path("ffi-tests/preload/bench.c")).arg("-o").arg(&program).arg("-ldl");
        workspace.run_well("bench: compile ffi-tests/preload/bench.c", command)?;
        Ok(Self { program, interposer: prefix.join("lib").join(install::INTERPOSER), simulation })
    }

    /// The program, which sees none of the user's settings.
    fn command(&self, workspace: &Workspace, is_preloaded: bool) -> Command {
        let mut command = workspace.command(&self.program);
        without(&mut command, &["BFC_", "SIMCUDA_"]);
        command.env("LD_LIBRARY_PATH", &self.simulation).env("SIMCUDA_MEMORY", (1_u64 << 40).to_string());
        command.env_remove("LD_PRELOAD");
        if is_preloaded {
            command.env("LD_PRELOAD", &self.interposer);
        }
        command
    }

    fn ask(&self, mut command: Command) -> Result<Value> {
        let answer = capture(&mut command)?;
        serde_json::from_str(&answer).with_context(|| format!("the bench program said {answer}"))
    }

    fn pairs(&self, workspace: &Workspace, with: Option<&str>) -> Result<Value> {
        let mut command = self.command(workspace, with.is_some());
        // The pool of the plain pair is that of the second device.
        command.arg("pairs").env("SIMCUDA_DEVICES", "2");
        let found = self.ask(command)?;
        let number = |name: &str| found[name].as_f64().with_context(|| format!("no {name} in {found}"));
        let (pair, current) = (number("pair_ns")?, number("current_ns")?);
        let mut row = json!({
            "section": SECTION, "name": format!("a pair, {}", with.unwrap_or("alone")),
            "libbfc": pair, "nothing": number("nothing_ns")?, "current": current,
        });
        if with.is_some() {
            let plain = number("plain_ns")?;
            row["plain"] = plain.into();
            row["ratio"] = (pair / plain).into();
            row["ratio_without_driver"] = ((pair - CONTEXT_READS * current) / plain).into();
        }
        Ok(row)
    }

    fn steady(&self, workspace: &Workspace) -> Result<Value> {
        let mut command = self.command(workspace, true);
        command.arg("steady");
        let found = self.ask(command)?;
        let number = |name: &str| found[name].as_u64().with_context(|| format!("no {name} in {found}"));
        let other = number("calls")? - number("current")? - number("synchronize")?;
        Ok(json!({
            "section": SECTION, "name": "driver calls in the steady state", "pairs": number("pairs")?,
            "current": number("current")?, "synchronize": number("synchronize")?, "other": other,
        }))
    }

    /// How many frees share a synchronisation, and how many requests fail, with each limit.
    fn curve(&self, workspace: &Workspace, trace: &Path, backend: &str) -> Result<Value> {
        let mut command = self.command(workspace, false);
        command.arg("peak").arg(trace);
        let found = self.ask(command)?;
        let peak = found["peak"].as_u64().filter(|peak| *peak > 0).context("a trace has no peak")?;
        let mut limits = Vec::new();
        for room in ROOM {
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let limit = (peak as f64 * room) as u64;
            let mut command = self.command(workspace, true);
            command.arg("replay").arg(trace).env("BFC_MEMORY_LIMIT", limit.to_string());
            command.env("BFC_BACKEND", backend);
            let found = self.ask(command)?;
            let number = |name: &str| found[name].as_u64().with_context(|| format!("no {name} in {found}"));
            let (frees, synchronizations) = (number("frees")?, number("synchronizations")?);
            limits.push(json!({
                "room": room, "synchronizations": synchronizations, "failed": number("failed")?,
                "frees": frees as f64 / synchronizations.max(1) as f64,
            }));
        }
        let file = trace.file_stem().unwrap_or_default().to_string_lossy();
        Ok(json!({
            "section": SECTION, "name": format!("{file}, {backend}"), "peak": peak, "limits": limits,
        }))
    }
}

/// The fewest frees for a synchronisation with a limit of twice the peak, of the large programs on regions.
pub fn fewest_frees(rows: &[&Value]) -> Option<f64> {
    let of_regions = |row: &&&Value| row["name"].as_str().is_some_and(|name| name.ends_with(", cuda"));
    let large = rows.iter().filter(of_regions).filter(|row| row["peak"].as_u64() > Some(LARGE));
    let frees = large.filter_map(|row| {
        let limits = row["limits"].as_array()?;
        limits.iter().find(|limit| limit["room"] == 2.0)?["frees"].as_f64()
    });
    frees.reduce(f64::min)
}

/// The rows as tables.
pub fn table(rows: &[Value]) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
    let mut text = String::from("\nThe interposer on the simulated driver, nanoseconds\n");
    for row in rows.iter().filter(|row| row["libbfc"].is_number()) {
        text += &format!(
            "  {:<32}{:>8.1}   a call that does nothing {:.1}, one that reads the context {:.1}\n",
            row["name"].as_str().unwrap_or("?"),
            number(&row["libbfc"]),
            number(&row["nothing"]),
            number(&row["current"])
        );
        if row["plain"].is_number() {
            text += &format!(
                "  {:<32}{:>8.1}   with the interposer {:.2} times that, {:.2} without its two context reads\n",
                PLAIN,
                number(&row["plain"]),
                number(&row["ratio"]),
                number(&row["ratio_without_driver"])
            );
        }
    }
    for row in rows.iter().filter(|row| row["pairs"].is_number()) {
        text += &format!(
            "  driver calls of {} warm pairs: {} read the context, {} synchronise, {} others\n",
            row["pairs"], row["current"], row["synchronize"], row["other"]
        );
    }
    text +=
        "\nFrees for each synchronisation (requests that failed), with a limit of so many times the peak\n";
    text += &format!("  {:<28}{:>10}", "", "peak");
    ROOM.iter().for_each(|room| text += &format!("{:>14}", format!("{room}")));
    for row in rows {
        let Some(limits) = row["limits"].as_array() else { continue };
        text += &format!(
            "\n  {:<28}{:>6} MiB",
            row["name"].as_str().unwrap_or("?"),
            row["peak"].as_u64().unwrap_or(0) >> 20
        );
        for limit in limits {
            text += &format!("{:>14}", format!("{:.0} ({})", number(&limit["frees"]), limit["failed"]));
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(name: &str, peak: u64, frees: f64) -> Value {
        let limits =
            json!([{"room": 1.2, "frees": 1.0, "failed": 0}, {"room": 2.0, "frees": frees, "failed": 3}]);
        json!({"section": SECTION, "name": name, "peak": peak, "limits": limits})
    }

    #[test]
    fn large_programs_on_regions_are_judged_by_twice_the_peak() {
        let rows = [
            curve("small, cuda", 1 << 20, 2.0),
            curve("large, cuda", 2 << 30, 120.0),
            curve("larger, cuda", 3 << 30, 110.0),
            curve("larger, cuda_vmm", 3 << 30, 50.0),
        ];
        assert_eq!(fewest_frees(&rows.iter().collect::<Vec<_>>()), Some(110.0));
        assert_eq!(fewest_frees(&[&rows[0]]), None);
        assert!(table(&rows).contains("larger, cuda                  3072 MiB"), "{}", table(&rows));
        assert!(table(&rows).contains("110 (3)"));
    }

    #[test]
    fn the_plain_pair_is_in_the_table() {
        let alone = json!({"name": "a pair, alone", "libbfc": 6000.0, "nothing": 40.0, "current": 44.0});
        let mut with = alone.clone();
        (with["libbfc"], with["plain"]) = (220.0.into(), 27.5.into());
        (with["ratio"], with["ratio_without_driver"]) = (8.0.into(), 4.8.into());
        let text = table(&[alone, with]);
        assert!(text.contains("27.5   with the interposer 8.00 times that, 4.80 without"), "{text}");
        assert_eq!(text.matches(PLAIN).count(), 1, "{text}");
    }
}
