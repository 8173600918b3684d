//! What the interposer costs and saves, on the simulated driver: the section `preload` of the benchmark.
//!
//! Times are those of two cores and a simulation; what counts is the difference to a call that does nothing, and how many
//! frees share a synchronisation.

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

/// Programs with a peak over this are judged.
const LARGE: u64 = 1 << 30;

/// The benchmark's program, and where it finds the interposer and the simulation.
struct Bench {
    program: PathBuf,
    interposer: PathBuf,
    simulation: PathBuf,
}

/// Costs a pair, driver calls of a pair, and frees for each synchronisation.
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
        command.arg("pairs");
        let found = self.ask(command)?;
        let number = |name: &str| found[name].as_f64().with_context(|| format!("no {name} in {found}"));
        let (pair, nothing) = (number("pair_ns")?, number("nothing_ns")?);
        Ok(json!({
            "section": SECTION, "name": format!("a pair, {}", with.unwrap_or("alone")),
            "pair": pair, "nothing": nothing, "current": number("current_ns")?, "libbfc": pair - nothing,
        }))
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
    for row in rows.iter().filter(|row| row["pair"].is_number()) {
        text += &format!(
            "  {:<32}{:>8.1}   a call that does nothing {:.1}\n",
            row["name"].as_str().unwrap_or("?"),
            number(&row["pair"]),
            number(&row["nothing"])
        );
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
}
