//! `bfc report --advice`: what is said would have helped is what helps.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{SMALL, bfc, json, recorded, run_to};
use crate::run::folder;

/// Replays a trace with these options and records that. The first pool of the history is the measured one.
fn record(folder: &Path, trace: &Path, options: &[&str], events: &str) -> PathBuf {
    let history = folder.join("run.history");
    let _ = std::fs::remove_file(&history);
    let mut replay = bfc();
    replay.args(["replay", "-q"]).arg(trace).args(options);
    run_to(0, replay.env("BFC_HISTORY_FILE", &history).env("BFC_HISTORY", events));
    history
}

/// The advice on the first pool, and its summary.
fn advised(history: &Path) -> (Value, Value) {
    let document = json(bfc().args(["report", "--advice"]).arg(history));
    (document["advice"]["pools"][0].clone(), document["pools"][0].clone())
}

fn change<'a>(advice: &'a Value, name: &str) -> &'a Value {
    let changes = advice["changes"].as_array().expect("a list");
    let found =
        changes.iter().find(|tried| tried["change"].as_str().is_some_and(|text| text.starts_with(name)));
    found.unwrap_or_else(|| panic!("no {name} in {advice}"))
}

/// The statistics of a replay.
fn replayed(trace: &Path, options: &[&str]) -> Value {
    let document = json(bfc().args(["replay", "-q"]).arg(trace).args(options));
    document["traces"][0].clone()
}

fn repeats(trace: &str, options: &[&str]) {
    let folder = folder(&format!("advice-{trace}"));
    let path = recorded(&format!("{trace}.trace.gz"));
    let history = record(&folder, &path, options, "1048576");
    let (advice, summary) = advised(&history);
    let stats = &replayed(&path, options)["stats"];
    let recorded = &advice["recorded"];
    assert_eq!(advice["is_reproduced"], true, "{trace} {options:?}: {recorded} {}", advice["replayed"]);
    assert_eq!(advice["replayed"], *recorded);
    for (here, there) in [
        ("allocations", "num_allocs"),
        ("frees", "num_frees"),
        ("failed", "num_failures"),
        ("peak_in_use", "peak_bytes_in_use"),
        ("peak_held", "peak_pool_bytes"),
    ] {
        assert_eq!(recorded[here], stats[there], "{trace} {options:?}: {here}");
    }
    assert_eq!(summary["peak"]["in_use"], recorded["peak_in_use"]);
    assert_eq!(summary["peak_held"]["bytes"], recorded["peak_held"]);
    let baseline = &advice["changes"][0];
    assert_eq!(baseline["peak_held"], recorded["peak_held"]);
    let errors: Vec<_> = advice["changes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|tried| !tried["error"].is_null())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    std::fs::remove_dir_all(folder).expect("its folder");
}

#[test]
fn the_options_of_a_run_repeat_its_figures() {
    repeats("gpt2", &["--growth"]);
    repeats("vit", &["--as-run"]);
    repeats("resnet50", &["--backend", "host-vmm", "--growth"]);
    repeats("bert_var", &["--two-ends"]);
}

#[test]
fn the_options_of_other_runs_repeat_theirs() {
    repeats("llama1b_decode", &["--growth", "--growth-policy", "need", "--initial-region", "64MiB"]);
    repeats("serve_mix", &["--fragmentation-fraction", "0.02"]);
    // A limit that does not suffice.
    repeats("mlp_tiny", &["--growth", "--gc", "--limit", "20MiB"]);
}

/// Every second of eight chunks is freed, and then there are three large requests for what is free in pieces.
const FRAGMENTED: &str = "+ 0 4194304 0\n+ 1 4194304 0\n+ 2 4194304 0\n+ 3 4194304 0\n\
                          + 4 4194304 0\n+ 5 4194304 0\n+ 6 4194304 0\n+ 7 4194304 0\n\
                          - 0 0\n- 2 0\n- 4 0\n- 6 0\n+ 8 12582912 0\n- 8 0\n+ 9 4194304 0\n";

#[test]
fn what_avoids_the_out_of_memory_avoids_it() {
    let folder = folder("advice-fragmented");
    let trace = folder.join("fragmented.trace");
    std::fs::write(&trace, FRAGMENTED).expect("writable");
    let options = ["--limit", "32MiB"];
    let history = record(&folder, &trace, &options, "1024");
    let (advice, summary) = advised(&history);
    assert_eq!(summary["failures"][0]["cause"], "fragmentation");
    assert_eq!((&advice["recorded"]["failed"], &advice["is_reproduced"]), (&1.into(), &true.into()));
    assert_eq!(replayed(&trace, &options)["failed"], 1);
    let failed =
        |tried: &Value| (tried["failed"].as_u64(), tried["out_of_memory"].as_str().map(str::to_owned));
    let remains = (Some(1), Some("remains".to_owned()));
    let none_fails = (Some(0), Some("none-in-replay".to_owned()));
    assert_eq!(failed(&advice["changes"][0]), remains);

    // Each of the others by running it.
    let vmm = change(&advice, "virtual memory");
    assert_eq!(failed(vmm), none_fails);
    // The pool is on host memory, where no driver maps anything.
    assert_eq!(vmm["set"]["variable"], "BFC_BACKEND=host_vmm");
    assert_eq!(vmm["set"]["option"], "backend = BFC_BACKEND_HOST_VMM");
    let run = replayed(&trace, &["--limit", "32MiB", "--backend", "host-vmm"]);
    assert_eq!((&run["failed"], &run["stats"]["peak_pool_bytes"]), (&0.into(), &vmm["peak_held"]));
    assert_eq!(failed(change(&advice, "two ends")), remains);
    assert_eq!(replayed(&trace, &["--limit", "32MiB", "--two-ends"])["failed"], 1);
    let plan = change(&advice, "a plan");
    let file = folder.join("fragmented.plan");
    // The trace of the history has the refused request as one that is freed at once.
    let refused = FRAGMENTED.replace("+ 8 12582912 0\n- 8 0\n", "! 12582912 0\n");
    std::fs::write(&trace, &refused).expect("writable");
    run_to(0, bfc().arg("plan").arg(&trace).args(["-q", "--search", "0", "-o"]).arg(&file));
    let run = replayed(&trace, &["--limit", "32MiB", "--plan", file.to_str().expect("UTF-8")]);
    assert_eq!(
        (plan["failed"].as_u64(), &plan["planned"]),
        (run["failed"].as_u64(), &run["stats"]["num_planned_allocs"])
    );

    let limit = change(&advice, "a limit of");
    assert_eq!(failed(limit), none_fails);
    let enough = limit["peak_held"].as_u64().expect("a number");
    assert_eq!(advice["changes"][0]["lowest_limit"], enough);
    assert_eq!(limit["set"]["variable"], format!("BFC_MEMORY_LIMIT={enough}"));
    assert_eq!(replayed(&trace, &["--limit", &enough.to_string()])["failed"], 0);
    // To 0.1% of what is wanted.
    assert_eq!(replayed(&trace, &["--limit", &(enough - 32_768).to_string()])["failed"], 1);

    // What is said to people.
    let plain = run_to(0, bfc().arg("report").arg(&history)).0;
    assert!(plain.ends_with("bfc report --advice FILE shows what would have helped\n"), "{plain}");
    let (text, progress) = run_to(0, bfc().args(["report", "--advice"]).arg(&history));
    let row = text.lines().find(|line| line.starts_with("  virtual memory")).expect("a row");
    assert!(row.contains("  none in the replay  ") && row.ends_with("  BFC_BACKEND=host_vmm"), "{row}");
    let row = text.lines().find(|line| line.starts_with("  as recorded ")).expect("a row");
    assert!(row.contains("  1 failed  "), "{row}");
    assert!(!text.contains("--advice") && progress.is_empty(), "{text}{progress}");
}

#[test]
fn the_environment_changes_no_replay() {
    let folder = folder("advice-environment");
    let trace = folder.join("small.trace");
    std::fs::write(&trace, SMALL).expect("writable");
    let history = record(&folder, &trace, &["--limit", "2560KiB"], "1024");
    let without_times = |mut document: Value| {
        let pools = document["advice"]["pools"].as_array_mut().expect("a list");
        for tried in pools.iter_mut().flat_map(|pool| pool["changes"].as_array_mut().expect("a list")) {
            (tried["seconds"], tried["ns_per_op"]) = (0.into(), 0.into());
        }
        document["advice"]["pools"].clone()
    };
    let plain = without_times(json(bfc().args(["report", "--advice"]).arg(&history)));
    let other = folder.join("other.history");
    let mut command = bfc();
    command.args(["report", "--advice"]).arg(&history).env("BFC_HISTORY_FILE", &other);
    command.env("BFC_FORCE_ALLOW_GROWTH", "1").env("BFC_FRAGMENTATION_FRACTION", "0.5");
    assert_eq!(without_times(json(&mut command)), plain);
    assert!(!other.exists(), "replays are recorded");
    // No request failed in the run, so there is nothing to avoid.
    let roomy = record(&folder, &trace, &["--limit", "16MiB"], "1024");
    let (advice, _) = advised(&roomy);
    let outcomes = advice["changes"].as_array().expect("a list").iter().map(|tried| &tried["out_of_memory"]);
    assert!(outcomes.clone().count() > 4 && outcomes.clone().all(|outcome| outcome == "none"), "{advice}");
    assert!(!run_to(0, bfc().arg("report").arg(&roomy)).0.contains("--advice"));
}

/// Frees on another stream are not reusable at once, which a replay does not repeat.
#[test]
fn a_replay_that_differs_says_so() {
    let folder = folder("advice-streams");
    let trace = folder.join("streams.trace");
    std::fs::write(&trace, "+ 0 4194304 0\n- 0 0\n+ 1 4194304 7\n- 1 7\n").expect("writable");
    let options = ["--limit", "4MiB", "--async", "--device-capacity", "1GiB"];
    let (advice, summary) = advised(&record(&folder, &trace, &options, "1024"));
    assert_eq!((&summary["failed"], &advice["recorded"]["failed"]), (&1.into(), &1.into()));
    assert_eq!((&advice["replayed"]["failed"], &advice["is_reproduced"]), (&0.into(), &false.into()));
    let outcomes = advice["changes"].as_array().expect("a list").iter().map(|tried| &tried["out_of_memory"]);
    assert!(outcomes.clone().all(|outcome| outcome == "unknown"), "{advice}");
    let notes = advice["notes"].to_string();
    assert!(notes.contains("failed 0 requests, the run 4.00 MiB (4194304) and 1"), "{notes}");
}

#[test]
fn displaced_events_are_said_and_what_was_live_then_counts() {
    let folder = folder("advice-displaced");
    let trace = folder.join("long.trace");
    // Two allocations, one of which is freed, far before the last 1024 events.
    let mut text = "+ 0 4194304 0\n+ 1 2097152 0\n".to_owned();
    for id in 2..1000 {
        text += &format!("+ {id} 65536 0\n- {id} 0\n");
    }
    text += "- 1 0\n+ 1000 4194304 0\n+ 1001 1048576 0\n";
    std::fs::write(&trace, &text).expect("writable");
    // The last replay has the events that stay.
    let history = record(&folder, &trace, &["--limit", "32MiB"], "1024");
    let (advice, _) = advised(&history);
    assert_eq!((&advice["is_reproduced"], &advice["limit"]), (&Value::Null, &(32 << 20).into()));
    assert_eq!(advice["live"], (4 + 4 + 1) << 20, "what no event made is live too");
    let notes = advice["notes"].to_string();
    assert!(notes.contains(" from before the first replayed event"), "{notes}");
    assert!(notes.contains("4.00 MiB (4194304) were allocated by displaced events"), "{notes}");
    assert!(notes.contains("cannot be compared with the run"), "{notes}");
}

#[test]
fn what_is_no_history_has_no_advice() {
    let folder = folder("advice-refused");
    let path = folder.join("text");
    std::fs::write(&path, "some text").expect("writable");
    let (_, error) = run_to(1, bfc().args(["report", "--advice"]).arg(&path));
    assert!(error.contains("--advice needs a history"), "{error}");
}
