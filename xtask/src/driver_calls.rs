//! Driver calls of stream-ordered frees and allocations: the section `driver_calls` of the benchmark.
//!
//! They are counted on the simulated driver and not timed, so the figures are exact and the same on each machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::bench;
use crate::simcuda;
use crate::workspace::{Workspace, without};

/// The benchmark's program, built for an installed libbfc.
pub struct Program {
    path: PathBuf,
    libraries: String,
}

impl Program {
    pub fn build(workspace: &Workspace, prefix: &Path) -> Result<Self> {
        let simulation = simcuda::build_driver(workspace)?;
        let path = bench::compile(workspace, prefix, "ffi-tests/streams/bench.c", &["-lbfc"])?;
        let libraries = format!("{}:{}", prefix.join("lib").display(), simulation.display());
        Ok(Self { path, libraries })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the libraries' folders, and removes the user's settings.
    pub fn prepare(&self, command: &mut Command) {
        without(command, &["BFC_", "SIMCUDA_"]);
        command.env("LD_LIBRARY_PATH", &self.libraries).env_remove("LD_PRELOAD");
    }
}

/// Driver calls of each free, and of each allocation that finds nothing free.
pub fn measure(workspace: &Workspace, prefix: &Path) -> Result<Vec<Value>> {
    let program = Program::build(workspace, prefix)?;
    let mut command = workspace.command(program.path());
    program.prepare(&mut command);
    bench::answers(command.arg("calls"))?.iter().map(row).collect()
}

/// What the program counted as means over the operations.
fn row(found: &Value) -> Result<Value> {
    let operations = found["operations"].as_f64().context("no operations")?;
    let mean = |calls: &Value| Some(calls.as_f64()? / operations);
    let text = |name: &str| found[name].as_str().with_context(|| format!("no {name} in {found}"));
    let of = &found["of"];
    let mut row = json!({
        "section": "driver_calls",
        "name": format!("{}, {}", text("name")?, text("each")?),
        "libbfc": mean(&found["calls"]).context("no calls")?,
        "events": mean(&of["cuEventRecord"]).context("no cuEventRecord")?,
    });
    for (name, calls) in of.as_object().context("no calls by name")? {
        if calls != 0 {
            row[name] = json!(mean(calls));
        }
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_means_over_the_operations() {
        let row = row(&json!({"name": "two streams", "each": "free", "operations": 4, "calls": 10,
            "of": {"cuEventRecord": 4, "cuCtxGetId": 6, "others": 0}}))
        .expect("a good answer");
        assert_eq!(row["name"], "two streams, free");
        assert_eq!((row["libbfc"].as_f64(), row["events"].as_f64()), (Some(2.5), Some(1.0)));
        assert_eq!((row["cuCtxGetId"].as_f64(), row.get("others")), (Some(1.5), None));
        assert!(super::row(&json!({})).is_err());
    }
}
