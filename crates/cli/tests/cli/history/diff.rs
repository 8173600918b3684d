//! `bfc diff`: what changed between two moments.

use std::path::Path;

use serde_json::{Value, json as value};

use super::{FIRST, SECOND, THIRD};
use crate::common::{SMALL, bfc, file, json, recorded, run_to};
use bfc_readers::history::made::Made;

fn diff(a: &str, b: &str) -> Value {
    json(bfc().args(["diff", a, b]))
}

fn text(a: &str, b: &str) -> String {
    run_to(0, bfc().args(["diff", a, b])).0
}

fn at(file: &Path, moment: &str) -> String {
    format!("{}@{moment}", file.display())
}

fn training(name: &str) -> std::path::PathBuf {
    let mut made = Made::new("train");
    made.pool(1, 0, "bfc", &["weights", "cache"]);
    made.alloc(1, FIRST);
    made.mark("loaded");
    made.alloc(1, SECOND);
    made.alloc(1, THIRD);
    made.free(1, FIRST);
    made.out_of_memory(1, 1 << 20);
    made.mark("with @ in it");
    made.free(1, THIRD);
    file(name, made.bytes())
}

#[test]
fn two_moments_of_a_history_are_compared() {
    let file = training("diff.history");
    let found = diff(&at(&file, "loaded"), &at(&file, "with @ in it"));
    assert_eq!((&found["schema"], &found["a"]["moment"]), (&"bfc-diff/1".into(), &"mark loaded".into()));
    let pool = &found["pools"][0];
    assert_eq!(pool["in"], "both");
    for (name, a, b) in [
        ("held", 1 << 20, 1 << 20),
        ("in_use", 4096, 16384),
        ("requested", 4090, 16384 - 12),
        ("peak_in_use", 4096, 4096 + 16384),
        ("allocations", 1, 3),
        ("frees", 0, 1),
        ("failures", 0, 1),
    ] {
        assert_eq!(pool["totals"][name], value!({ "a": a, "b": b }), "{name}");
    }
    let expected = value!([
        {
            "operation": "cache", "bytes": { "a": 0, "b": 16384 }, "allocations": { "a": 0, "b": 2 },
            "sizes": [{ "bytes": 8192, "allocations": { "a": 0, "b": 2 } }]
        },
        {
            "operation": "weights", "bytes": { "a": 4096, "b": 0 }, "allocations": { "a": 1, "b": 0 },
            "sizes": [{ "bytes": 4096, "allocations": { "a": 1, "b": 0 } }]
        }
    ]);
    assert_eq!(pool["operations"], expected);
    let text = text(&at(&file, "loaded"), &at(&file, "with @ in it"));
    for line in [
        "  in use       4.00 KiB (4096) to 16.00 KiB (16384): +12.00 KiB (12288)\n",
        "  allocations  1 to 3: +2\n",
        "    +16.00 KiB (16384)  cache: 0 B in 0 to 16.00 KiB (16384) in 2\n        +2 of 8.00 KiB (8192)\n",
        "    -4.00 KiB (4096)  weights: 4.00 KiB (4096) in 1 to 0 B in 0\n        -1 of 4.00 KiB (4096)\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    assert!(!text.contains("limit"), "what is equal is left out: {text}");
}

#[test]
fn a_moment_and_itself_are_equal() {
    let file = training("same.history");
    let text = text(&file.display().to_string(), &at(&file, "end"));
    assert!(text.contains("  the same is live, by operation and size\n"), "{text}");
    assert_eq!(diff(&at(&file, "peak"), &at(&file, "peak"))["pools"][0]["operations"], value!([]));
}

#[test]
fn pools_of_two_runs_are_matched_by_device_and_name() {
    let mut first = Made::new("train");
    first.pool(1, 0, "bfc", &["weights"]);
    first.pool(2, 1, "bfc", &[]);
    first.alloc(1, FIRST);
    let mut second = Made::new("train");
    second.pool(1, 2, "bfc", &[]);
    second.pool(2, 0, "bfc", &["weights"]);
    second.alloc(2, FIRST);
    let (first, second) = (file("first.history", first.bytes()), file("second.history", second.bytes()));
    let found = diff(&first.display().to_string(), &second.display().to_string());
    let pools: Vec<_> = found["pools"].as_array().expect("a list").iter().collect();
    let described: Vec<_> = pools.iter().map(|pool| (pool["device"].as_i64(), pool["in"].as_str())).collect();
    assert_eq!(described, [(Some(0), Some("both")), (Some(1), Some("a")), (Some(2), Some("b"))]);
    assert_eq!(pools[0]["operations"], value!([]));
    let text = text(&first.display().to_string(), &second.display().to_string());
    assert!(text.contains("device 1 (bfc), only in a\n"), "{text}");
}

/// A memory map and the history of the same replay agree.
#[test]
fn a_memory_map_is_compared_with_a_history() {
    let history = file("map.history", "");
    std::fs::remove_file(&history).expect("the file");
    let map = file("peak.map", "");
    let mut replay = bfc();
    replay.args(["replay", "-q", "--map"]).arg(&map).arg(recorded("mlp_tiny.trace.gz"));
    let replayed = json(replay.env("BFC_HISTORY_FILE", &history));
    let stats = &replayed["traces"][0]["stats"];
    let small = file("small.trace", SMALL);
    let other = file("small.map", "");
    run_to(0, bfc().args(["replay", "-q", "--map"]).arg(&other).arg(small));
    let found = diff(&map.display().to_string(), &map.display().to_string());
    let totals = &found["pools"][0]["totals"];
    assert_eq!(totals["peak_in_use"]["a"], stats["peak_bytes_in_use"]);
    assert_eq!(found["pools"][0]["operations"], value!([]));
    let found = diff(&map.display().to_string(), &other.display().to_string());
    assert_eq!(found["pools"][0]["totals"]["requested"]["b"], 3 << 20);
    // The replay has three pools of that name: of the run, and of the search for the peak.
    let found = diff(&at(&history, "begin"), &at(&history, "end"));
    let first = &found["pools"][0]["totals"];
    for (name, field) in [
        ("allocations", "num_allocs"),
        ("frees", "num_frees"),
        ("failures", "num_failures"),
        ("peak_in_use", "peak_bytes_in_use"),
        ("peak_held", "peak_pool_bytes"),
    ] {
        assert_eq!(first[name]["b"], stats[field], "{name}");
    }
    std::fs::remove_file(history).expect("the file");
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let history = training("refused.history");
    let map = file("refused.map", r#"{"schema": 2, "device": 0, "name": "", "stats": {}, "regions": []}"#);
    let other = file("refused.json", r#"{"schema": "bfc-replay/1"}"#);
    let notes = file("refused.txt", "notes");
    let whole = |path: &Path| path.display().to_string();
    for (a, words) in [
        ("/nonexistent/a@end".to_owned(), "cannot open /nonexistent/a@end"),
        (at(&history, "nothing"), "there is no mark nothing: the history has loaded, with @ in it"),
        (at(&history, ""), "a moment has no name"),
        (whole(&other), "is neither a history nor a memory map"),
        (whole(&map), "is neither a history nor a memory map"),
        (at(&map, "end"), "is a memory map, which describes one moment: leave @end out"),
        (whole(&notes), "is neither a history nor a memory map"),
        ("/".to_owned(), "cannot read /"),
    ] {
        for arguments in [[&*a, &*whole(&history)], [&*whole(&history), &*a]] {
            let (said, error) = run_to(1, bfc().arg("diff").args(arguments));
            assert!(said.is_empty() && error.contains(words), "{error}");
        }
    }
}
