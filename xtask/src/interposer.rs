//! What the interposer costs and saves, on the simulated driver: the section `preload` of the benchmark.
//!
//! Times include those of a simulation. What counts is the time of a pair over that of libbfc's own calls, and how many
//! frees share a synchronisation. Both calls of a pair ask the driver for the current context, so the simulated driver's
//! time for that is part of a pair; `ratio_without_driver` is without it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::bench;
use crate::install;
use crate::simcuda;
use crate::workspace::{Workspace, without};

/// Limits over a program's peak.
const ROOM: [f64; 4] = [1.2, 1.5, 2.0, 4.0];

/// How often a pair asks the driver for the current context.
const CONTEXT_READS: f64 = 2.0;

/// The benchmark's program, and where it finds the interposer and the simulation.
struct Bench<'a> {
    workspace: &'a Workspace,
    program: PathBuf,
    interposer: PathBuf,
    simulation: PathBuf,
}

/// Times of a pair, driver calls of a pair, and frees for each synchronisation.
pub fn measure(workspace: &Workspace, prefix: &Path) -> Result<Vec<Value>> {
    let bench = Bench {
        workspace,
        program: bench::compile(workspace, prefix, "ffi-tests/preload/bench.c", &["-D_GNU_SOURCE"])?,
        interposer: prefix.join("lib").join(install::INTERPOSER),
        simulation: simcuda::build(workspace)?,
    };
    let mut rows = vec![bench.pairs(false)?, bench.pairs(true)?, bench.steady()?];
    for trace in bench::traces(workspace)? {
        for backend in ["cuda", "cuda_vmm"] {
            rows.push(bench.curve(&trace, backend)?);
        }
    }
    Ok(rows)
}

impl Bench<'_> {
    /// The program, without the user's settings.
    fn command(&self, is_preloaded: bool, mode: &str) -> Command {
        let mut command = self.workspace.command(&self.program);
        without(&mut command, &["BFC_", "SIMCUDA_"]);
        command.arg(mode).env("LD_LIBRARY_PATH", &self.simulation).env_remove("LD_PRELOAD");
        command.env("SIMCUDA_MEMORY", (1_u64 << 40).to_string());
        if is_preloaded {
            command.env("LD_PRELOAD", &self.interposer);
        }
        command
    }

    fn pairs(&self, is_preloaded: bool) -> Result<Value> {
        let mut command = self.command(is_preloaded, "pairs");
        // The pool of the plain pair is that of the second device.
        let found = answer(command.env("SIMCUDA_DEVICES", "2"))?;
        let (pair, current) = (number(&found, "pair_ns")?, number(&found, "current_ns")?);
        let name = if is_preloaded { "with the interposer" } else { "alone" };
        let mut row = json!({
            "section": "preload", "name": format!("a pair, {name}"),
            "libbfc": pair, "nothing": number(&found, "nothing_ns")?, "current": current,
        });
        if is_preloaded {
            let plain = number(&found, "plain_ns")?;
            row["plain"] = plain.into();
            row["ratio"] = (pair / plain).into();
            row["ratio_without_driver"] = ((pair - CONTEXT_READS * current) / plain).into();
        }
        Ok(row)
    }

    fn steady(&self) -> Result<Value> {
        let found = answer(&mut self.command(true, "steady"))?;
        let [calls, current, synchronize] =
            ["calls", "current", "synchronize"].map(|name| number(&found, name));
        let (current, synchronize) = (current?, synchronize?);
        Ok(json!({
            "section": "preload", "name": "driver calls in the steady state", "pairs": number(&found, "pairs")?,
            "current": current, "synchronize": synchronize, "other": calls? - current - synchronize,
        }))
    }

    /// How many frees share a synchronisation, and how many allocations fail, with each limit.
    fn curve(&self, trace: &Path, backend: &str) -> Result<Value> {
        let found = answer(self.command(false, "peak").arg(trace))?;
        let peak = found["peak"].as_u64().filter(|peak| *peak > 0).context("a trace has no peak")?;
        let file = trace.file_stem().unwrap_or_default().to_string_lossy();
        let mut row = json!({"section": "preload", "name": format!("{file}, {backend}"), "peak": peak});
        for room in ROOM {
            let mut command = self.command(true, "replay");
            command.arg(trace).env("BFC_MEMORY_LIMIT", format!("{:.0}", (peak as f64 * room).floor()));
            let found = answer(command.env("BFC_BACKEND", backend))?;
            let synchronizations = number(&found, "synchronizations")?.max(1.0);
            row[format!("frees at {room}")] = (number(&found, "frees")? / synchronizations).into();
            row[format!("failed at {room}")] = number(&found, "failed")?.into();
        }
        Ok(row)
    }
}

fn answer(command: &mut Command) -> Result<Value> {
    bench::answers(command)?.pop().context("the bench program printed nothing")
}

fn number(found: &Value, name: &str) -> Result<f64> {
    found[name].as_f64().with_context(|| format!("no {name} in {found}"))
}
