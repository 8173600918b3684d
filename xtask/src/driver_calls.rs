//! Driver calls of frees and requests in the order of streams: the section `driver_calls` of the benchmark.
//!
//! They are counted on the simulated driver and not timed, so the figures are exact and the same on each machine.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::simcuda;
use crate::tools;
use crate::workspace::{Workspace, capture, without};

/// The section's name, for `--only` and among the figures.
pub const SECTION: &str = "driver_calls";

/// Rows that targets are set for.
pub const ALONE: &str = "one stream alone, free";
pub const SEVERAL: &str = "four streams, free";
pub const RECORDED: &str = "two streams, a use recorded on the other, free";
pub const OF_THREAD: &str = "a thread's default stream alone, free";

/// The benchmark's program, built for an installed libbfc.
pub struct Program {
    path: PathBuf,
    libraries: String,
}

impl Program {
    pub fn build(workspace: &Workspace, prefix: &Path) -> Result<Self> {
        let simulation = simcuda::build_driver(workspace)?;
        let path = workspace.target.join("bench/streams");
        let library = prefix.join("lib");
        let mut command = workspace.command(tools::c_compiler());
        command.args(["-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
        command.arg("-I").arg(prefix.join("include"));
        command.arg(workspace.path("ffi-tests/streams/bench.c")).arg("-o").arg(&path);
        command.arg("-L").arg(&library).args(["-lbfc", "-ldl"]);
        workspace.run_well("bench: compile ffi-tests/streams/bench.c", command)?;
        let libraries = format!("{}:{}", library.display(), simulation.display());
        Ok(Self { path, libraries })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has a command see the libraries, and none of the user's settings.
    pub fn prepare(&self, command: &mut Command) {
        without(command, &["BFC_", "SIMCUDA_"]);
        command.env("LD_LIBRARY_PATH", &self.libraries).env_remove("LD_PRELOAD");
    }
}

/// Calls of each free, and of each request that finds nothing free.
pub fn measure(workspace: &Workspace, prefix: &Path) -> Result<Vec<Value>> {
    let program = Program::build(workspace, prefix)?;
    let mut command = workspace.command(program.path());
    program.prepare(&mut command);
    command.arg("calls");
    let answer = capture(&mut command)?;
    answer.lines().map(row).collect()
}

/// A line of the program as a row of the figures: means over the operations.
fn row(line: &str) -> Result<Value> {
    let found: Value =
        serde_json::from_str(line).with_context(|| format!("the bench program said {line}"))?;
    let number =
        |value: &Value, name: &str| value[name].as_f64().with_context(|| format!("no {name} in {found}"));
    let operations = number(&found, "operations")?;
    let text = |name: &str| found[name].as_str().with_context(|| format!("no {name} in {found}"));
    let of = found["of"].as_object().with_context(|| format!("no calls by name in {found}"))?;
    let means: Vec<(&String, f64)> =
        of.iter().map(|(name, calls)| (name, calls.as_f64().unwrap_or(f64::NAN) / operations)).collect();
    let by_name: serde_json::Map<String, Value> = means
        .into_iter()
        .filter(|(_, mean)| *mean != 0.0)
        .map(|(name, mean)| (name.clone(), json!(mean)))
        .collect();
    Ok(json!({
        "section": SECTION, "name": format!("{}, {}", text("name")?, text("each")?),
        "libbfc": number(&found, "calls")? / operations, "events": number(&found["of"], "cuEventRecord")? / operations,
        "of": by_name,
    }))
}

/// The rows as a table.
pub fn table(rows: &[Value]) -> String {
    let mut text = String::from("\nDriver calls on the simulated driver, each\n");
    for row in rows {
        let calls = row["libbfc"].as_f64().unwrap_or(f64::NAN);
        let name = row["name"].as_str().unwrap_or("?");
        let _ = write!(text, "  {name:<76}{calls:>7.2}");
        let of = row["of"].as_object().into_iter().flatten();
        let of: Vec<String> =
            of.map(|(name, mean)| format!("{name} {:.2}", mean.as_f64().unwrap_or(f64::NAN))).collect();
        text += &if of.is_empty() { "\n".to_owned() } else { format!("   {}\n", of.join(", ")) };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_means_over_the_operations() {
        let line = r#"{"name": "two streams", "each": "free", "operations": 4, "calls": 10,
            "of": {"cuEventRecord": 4, "cuCtxGetId": 6, "others": 0}}"#;
        let row = row(line).expect("a good line");
        assert_eq!(row["name"], "two streams, free");
        assert_eq!((row["libbfc"].as_f64(), row["events"].as_f64()), (Some(2.5), Some(1.0)));
        assert!(table(&[row]).ends_with("   2.50   cuCtxGetId 1.50, cuEventRecord 1.00\n"));
        assert!(super::row("{}").is_err());
        assert!(super::row("no JSON").is_err());
    }
}
