//! The suite `peers`: the benchmark beside other allocators, for a moment. It is there to see that each of them runs and that
//! none returns memory that overlaps, not to compare.

use anyhow::Result;
use serde_json::Value;

use super::context::{Context, Count};
use crate::files;
use crate::peers;
use crate::tools;

pub fn run(context: &mut Context) -> Result<()> {
    if let Some(why) = tools::missing_compiler() {
        context.skip("all of it", &why);
        return Ok(());
    }
    let clippy = peers::cargo(&context.workspace, &["clippy", "--release", "--all-targets", "--quiet"]);
    let mut clippy = context.plain(clippy);
    clippy.args(["--", "-D", "warnings"]);
    context.program("clippy, benches/peers", clippy, Count::One)?;
    let tests = peers::cargo(&context.workspace, &["test", "--release", "--quiet"]);
    let tests = context.plain(tests);
    context.program("cargo test, benches/peers", tests, Count::Cargo)?;

    let prefix = context.prefix()?;
    let command = peers::command(&context.workspace, &prefix, true)?;
    if !context.program("each peer, and that nothing overlaps", command, Count::One)?.success {
        return Ok(());
    }
    let figures = files::read(&peers::folder(&context.workspace).join("peers.json"))?;
    let (failed, unavailable) = not_run(&serde_json::from_str(&figures)?);
    for why in unavailable {
        context.skip("a peer", &why);
    }
    context.gate("all that can be had ran the recorded programs", &failed);
    Ok(())
}

/// What did not run a recorded program although it should, and what could not be fetched. The mallocs should not.
fn not_run(figures: &Value) -> (Vec<String>, Vec<String>) {
    let rows = figures["programs"].as_array().into_iter().flatten();
    let outcomes =
        rows.filter(|row| row["is_recorded"] == true).flat_map(|row| row["outcomes"].as_array()).flatten();
    let failures =
        outcomes.filter_map(|outcome| Some((outcome["peer"].as_str()?, outcome["why_not"].as_str()?)));
    let failures = failures.filter(|(_, why)| !why.contains("real memory"));
    let mut lines: Vec<String> = failures.map(|(peer, why)| format!("{peer}: {why}")).collect();
    lines.dedup();
    lines.into_iter().partition(|line| !line.contains("is PyPI reachable?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_peer_that_fails_is_told_from_one_that_is_not_there() {
        let row = |recorded: bool, why: &str| json!({"is_recorded": recorded, "outcomes": [{"peer": "rmm-pool", "why_not": why}, {"peer": "rlsf", "why_not": null}]});
        let figures = |why: &str| json!({"programs": [row(true, why), row(false, "something else")]});
        assert_eq!(not_run(&figures("no memory")), (vec!["rmm-pool: no memory".to_owned()], vec![]));
        assert_eq!(not_run(&figures("failed (is PyPI reachable?)")).1.len(), 1);
        assert_eq!(not_run(&figures("it takes real memory")), (vec![], vec![]));
    }
}
