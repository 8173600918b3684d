//! How much more than its live bytes a recorded program needs on memory that is remapped.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::files;
use crate::workspace::{Workspace, without};

/// The section's name, for `--only` and among the figures.
pub const SECTION: &str = "waste";

/// The least limit of each recorded program over its peak of live bytes, by `bfc replay --find-limit` on HOST_VMM,
/// as rows like those of the C++ program. No memory is touched, so that programs of 25 GiB can be asked about.
pub fn measure(workspace: &Workspace, prefix: &Path) -> Result<Vec<Value>> {
    let mut command = workspace.command(prefix.join("bin/bfc"));
    command.args(["replay", "--find-limit", "--backend=host-vmm", "--json", "--quiet"]);
    command.args(files::below(&workspace.path("tests/traces"), "gz")?);
    let output = without(&mut command, &["BFC_"]).output().context("cannot start the bfc command")?;
    if !output.status.success() {
        bail!("bfc replay --find-limit: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    rows(&serde_json::from_slice(&output.stdout).context("bfc replay --json wrote no JSON")?)
}

fn rows(document: &Value) -> Result<Vec<Value>> {
    let traces = document["traces"].as_array().context("bfc replay --json names no traces")?;
    let row = |trace: &Value| {
        let path = trace["trace"]["name"].as_str().context("a trace has no name")?;
        let file = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        let name = file.trim_end_matches(".gz").trim_end_matches(".trace");
        Ok(json!({"section": SECTION, "name": name, "libbfc": trace["ratio"]}))
    };
    traces.iter().map(row).collect()
}

/// The rows as a table.
pub fn table(rows: &[Value]) -> String {
    let mut text = String::from("Least limit over the peak of live bytes, on HOST_VMM\n");
    for row in rows {
        let (name, ratio) = (row["name"].as_str().unwrap_or("?"), row["libbfc"].as_f64().unwrap_or(f64::NAN));
        text += &format!("  {name:<16}{ratio:.4}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_a_row() {
        let document = json!({"traces": [{"trace": {"name": "/a/b.trace.gz"}, "ratio": 1.25, "limit": 5}]});
        let rows = rows(&document).expect("good JSON");
        assert_eq!(rows, [json!({"section": "waste", "name": "b", "libbfc": 1.25})]);
        assert!(table(&rows).contains("  b               1.2500\n"));
        assert!(super::rows(&json!({"traces": [{}]})).is_err());
        assert!(super::rows(&json!({})).is_err());
    }
}
