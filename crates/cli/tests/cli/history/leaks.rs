//! `bfc report --leaks`: what was allocated in a part of a history and not freed by its end.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{FIRST, SECOND, THIRD};
use crate::common::{bfc, file, json, recorded, run_to};
use bfc_readers::history::made::{Chunk, Made};

fn leaks(file: &Path, args: &[&str]) -> Value {
    json(bfc().args(["report", "--leaks"]).args(args).arg(file))
}

fn text(file: &Path, args: &[&str]) -> String {
    run_to(0, bfc().args(["report", "--leaks"]).args(args).arg(file)).0
}

fn amount(value: &Value) -> (u64, u64) {
    let number = |name: &str| value[name].as_u64().expect("a number");
    (number("bytes"), number("allocations"))
}

/// Allocates before the first mark, between the marks, and behind the last one, and keeps one of each.
fn training(name: &str) -> PathBuf {
    let mut made = Made::new("train");
    made.pool(1, 0, "bfc", &["weights", "cache"]);
    made.alloc(1, FIRST);
    made.mark("step");
    made.alloc(1, SECOND);
    made.alloc(1, THIRD);
    made.mark("step");
    made.free(1, THIRD);
    made.alloc(1, Chunk { address: 0x13_0000, bytes: 512, operation: 0 });
    made.mark("done");
    file(name, made.bytes())
}

#[test]
fn what_was_not_freed_is_listed_by_operation() {
    let file = training("leaks.history");
    let all = leaks(&file, &[]);
    assert_eq!((&all["schema"], amount(&all)), (&"bfc-leaks/1".into(), (4096 + 8192 + 512, 3)));
    assert_eq!(all["requested"], 4096 + 8192 + 512 - 18);
    let operations = all["pools"][0]["operations"].as_array().expect("a list");
    let names: Vec<_> = operations.iter().map(|operation| operation["operation"].as_str()).collect();
    assert_eq!(names, [Some("cache"), Some("weights"), None]);
    assert_eq!(operations[0]["sizes"], serde_json::json!([{ "bytes": 8192, "allocations": 1 }]));
    let since: Vec<_> = all["since"].as_array().expect("a list").iter().map(amount).collect();
    assert_eq!(since, [(4096, 1), (8192, 1), (512, 1), (0, 0)]);
    let text = text(&file, &[]);
    let operation = "8.00 KiB (8192)  1 allocation  cache: 1 of 8.00 KiB (8192), allocated after 0.005 s\n";
    assert!(text.contains(operation), "{text}");
    assert!(
        text.contains("0.000 s  4.00 KiB (4096) in 1 allocation, 3.99 KiB (4090) requested  (before"),
        "{text}"
    );
}

#[test]
fn a_part_of_the_history_is_between_two_moments() {
    let file = training("parts.history");
    let of = |args: &[&str]| amount(&leaks(&file, args));
    // What was allocated before a mark and not freed by the next.
    assert_eq!(of(&["--before", "step#1", "--to", "step#2"]), (4096, 1));
    assert_eq!(of(&["--from", "step#1", "--to", "step#2"]), (16384, 2));
    assert_eq!(of(&["--from", "step#1", "--before", "step#2", "--to", "done"]), (8192, 1));
    assert_eq!(of(&["--from", "step#2"]), (512, 1));
    assert_eq!(of(&["--from", "peak"]), (512, 1));
    assert_eq!(of(&["--to", "peak"]), (4096 + 16384, 3));
    assert_eq!(of(&["--to", "0.0045s"]), (4096, 1));
    assert_eq!(of(&["--from", "end"]), (0, 0));
    let text = text(&file, &["--from", "step#1", "--before", "step#2"]);
    let begin = "  allocated    after mark step#1 (0.004 s) and before mark step#2 (0.007 s)\n  not freed by end (0.010 s)\n";
    assert!(text.contains(begin), "{text}");
}

#[test]
fn a_moment_that_does_not_exist_is_refused() {
    let file = training("moments.history");
    let cases = [
        ("step", "2 marks have the name step: write step#1 to step#2"),
        ("step#3", "only 2 marks are of the name step"),
        ("epoch", "there is no mark epoch: the history has step, done"),
        ("11s", "there is no moment 11.000 s: the recording has 0.010 s"),
    ];
    for (moment, words) in cases {
        let (said, error) = run_to(1, bfc().args(["report", "--leaks", "--from", moment]).arg(&file));
        assert!(said.is_empty() && error.contains(words), "{error}");
    }
    let order = ["report", "--leaks", "--from", "done", "--to", "step#1"];
    let (_, error) = run_to(1, bfc().args(order).arg(&file));
    assert!(
        error.contains("--from is mark done (0.010 s), which is later than mark step#1 (0.004 s)"),
        "{error}"
    );
    let (_, error) = run_to(2, bfc().args(["report", "--from", "done"]).arg(&file));
    assert!(error.contains("--leaks"), "{error}");
    let (_, error) = run_to(2, bfc().args(["report", "--leaks", "--from=-1s"]).arg(&file));
    assert!(error.contains("before the recording began"), "{error}");
}

/// A pool gives its regions back before its end is recorded, and what lived in them was not freed.
#[test]
fn what_lived_at_the_destruction_of_a_pool_is_listed() {
    let mut made = Made::new("train");
    made.pool(1, 258, "first", &["weights", "cache"]);
    made.pool(2, 258, "second", &["weights"]);
    [FIRST, SECOND].into_iter().for_each(|chunk| made.alloc(1, chunk));
    made.free(1, FIRST);
    made.alloc(2, FIRST);
    made.destroy(1);
    let file = file("destroyed.history", made.bytes());
    let all = leaks(&file, &[]);
    assert_eq!(amount(&all), (8192 + 4096, 2));
    assert_eq!(amount(&all["pools"][0]), (8192, 1));
    assert!(all["pools"][0]["destroyed"].is_f64() && all["pools"][1]["destroyed"].is_null());
    assert!(text(&file, &[]).contains("device 258 (first), destroyed after 0.010 s\n"));
}

#[test]
fn memory_of_displaced_events_is_unknown() {
    let mut made = Made::new("train");
    made.pool(1, 0, "bfc", &[]);
    made.alloc(1, FIRST);
    let mut bytes = made.bytes();
    // The pool counts more than the events of the file.
    let event = layout_offset(2) + 6 * 8;
    bytes[event..event + 8].copy_from_slice(&10_000_u64.to_le_bytes());
    let file = crate::common::file("unknown.history", bytes);
    assert_eq!(leaks(&file, &[])["pools"][0]["unknown_bytes"], 10_000 - 4096);
    let text = text(&file, &[]);
    assert!(text.contains("  unknown      5.77 KiB (5904) were allocated by displaced events"), "{text}");
}

/// Where the event of an index is in the file.
fn layout_offset(index: usize) -> usize {
    use bfc_formats::history::layout::{Event, HEADER_BYTES, TEXT_BYTES};
    HEADER_BYTES + TEXT_BYTES + index * size_of::<Event>()
}

/// A replay frees everything that its trace frees, so what is listed is what the trace leaves.
#[test]
fn the_leaks_of_a_recorded_program_are_its_statistics() {
    let history = crate::common::file("leaks-of-replay.history", "");
    std::fs::remove_file(&history).expect("the file");
    let mut replay = bfc();
    replay.args(["replay", "-q"]).arg(recorded("mlp_tiny.trace.gz")).env("BFC_HISTORY_FILE", &history);
    let stats = &json(&mut replay)["traces"][0]["stats"];
    let all = leaks(&history, &[]);
    let first = &all["pools"][0];
    assert_eq!(first["bytes"], stats["bytes_in_use"]);
    assert_eq!(first["requested"], stats["bytes_requested"]);
    assert_eq!(
        first["allocations"].as_u64(),
        Some(
            stats["num_allocs"].as_u64().expect("a number") - stats["num_frees"].as_u64().expect("a number")
        )
    );
    std::fs::remove_file(history).expect("the file");
}
