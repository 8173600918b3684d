//! Every row of golden.tsv: what TensorFlow's own allocator did with the recorded traces.

use std::fs;

use crate::common::{bfc, json, recorded};
use serde_json::Value;

/// The columns after trace, mode, limit and device capacity, as golden.tsv heads them.
const RESULTS: [&str; 8] = [
    "fnv1a64",
    "failed",
    "num_allocs",
    "bytes_in_use",
    "peak_bytes_in_use",
    "largest_alloc",
    "largest_free",
    "pool_bytes",
];

#[test]
fn every_row_is_reproduced() {
    let table = fs::read_to_string(recorded("golden.tsv")).expect("golden.tsv");
    let rows: Vec<Vec<&str>> =
        table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 35, "golden.tsv has 7 traces in 5 modes");
    let wrong: Vec<String> = rows.iter().flat_map(|row| differences(row)).collect();
    assert!(wrong.is_empty(), "{} columns differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// What differs in a row, in words.
fn differences(row: &[&str]) -> Vec<String> {
    let [trace, mode, limit, capacity, expected @ ..] = row else { panic!("a short row: {row:?}") };
    assert_eq!(expected.len(), RESULTS.len(), "{row:?}");
    let mut command = bfc();
    command.arg("replay").arg(recorded(&format!("{trace}.trace.gz")));
    command.args(["--limit", limit, "--device-capacity", capacity]);
    command.args(match *mode {
        "fixed" | "tight" => &[][..],
        "growth" => &["--growth"],
        "growth_gc" | "backpedal" => &["--growth", "--gc"],
        other => panic!("unknown mode {other}"),
    });
    let document = json(&mut command);
    let found = columns(&document["traces"][0]);
    let columns = RESULTS.iter().zip(expected).zip(&found);
    columns
        .filter(|((_, expected), found)| *expected != found)
        .map(|((name, expected), found)| {
            format!("{trace} {mode}: {name} is {found}, TensorFlow's is {expected}")
        })
        .collect()
}

/// The row that golden.tsv would have for this result.
fn columns(result: &Value) -> [String; 8] {
    let stats = &result["stats"];
    let number = |value: &Value| value.as_u64().map_or(value.to_string(), |value| value.to_string());
    [
        result["fnv1a64"].as_str().expect("one thread has a hash").to_owned(),
        number(&result["failed"]),
        number(&stats["num_allocs"]),
        number(&stats["bytes_in_use"]),
        number(&stats["peak_bytes_in_use"]),
        number(&stats["largest_alloc_size"]),
        largest_free(stats),
        number(&stats["pool_bytes"]),
    ]
}

/// TensorFlow never fills its largest_free_block_bytes, so golden.tsv has 0 throughout. libbfc does, and
/// is held to more: with everything freed it is a region's size, the whole pool where there is one
/// region. Then this is TensorFlow's 0.
fn largest_free(stats: &Value) -> String {
    let [largest, pool, regions] = ["largest_free_block_bytes", "pool_bytes", "num_regions"]
        .map(|name| stats[name].as_u64().expect("a number"));
    let plausible = if regions == 1 { largest == pool } else { largest > 0 && largest < pool };
    if plausible { "0".to_owned() } else { format!("{largest} of {pool} in {regions} regions") }
}
