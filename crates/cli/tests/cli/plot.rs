//! `bfc replay --plot`: the picture has the figures of the replay.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::common::{bfc, file, json, recorded, run_to};
use crate::run::folder;

/// The points of the curve of a colour: of its longest line, for the legend has a short one. A curve of many points may be
/// narrow, where other allocators took more time.
fn curve(picture: &str, colour: &str) -> Vec<(i64, i64)> {
    let lines = picture.lines().filter(|line| line.starts_with("<polyline") && line.contains(colour));
    let points = lines.map(|line| {
        let list = line.split("points=\"").nth(1).and_then(|rest| rest.split('"').next()).expect("points");
        let numbers = list.split_whitespace().map(|point| {
            let (x, y) = point.split_once(',').expect("a point");
            (x.parse().expect("a number"), y.parse().expect("a number"))
        });
        numbers.collect::<Vec<(i64, i64)>>()
    });
    let width = |points: &Vec<(i64, i64)>| {
        let ends = points.iter().map(|point| point.0).max().zip(points.iter().map(|point| point.0).min());
        ends.map(|(most, least)| most - least)
    };
    points.max_by_key(|points| (points.len(), width(points))).unwrap_or_else(|| panic!("no {colour}"))
}

fn are_drawn(picture: &str, limit: &Value, [held, in_use, live]: [&Value; 3]) {
    let drawn_limit = curve(picture, "#D55E00")[0].1;
    let curves = ["#E69F00", "#0072B2", "#009E73"].map(|colour| curve(picture, colour));
    // Pixels count from above. At the end nothing is live, and the limit is where it is drawn.
    let zero = curves[2].iter().map(|point| point.1).max().expect("points");
    let pixel = limit.as_f64().expect("a number") / (zero - drawn_limit) as f64;
    for (points, peak) in curves.iter().zip([held, in_use, live]) {
        let highest = points.iter().map(|point| point.1).min().expect("points");
        let (drawn, peak) = ((zero - highest) as f64 * pixel, peak.as_f64().expect("a number"));
        assert!((drawn - peak).abs() <= 1.5 * pixel, "{drawn} is drawn, {peak} it is, a pixel is {pixel}");
        assert!(points.len() <= 1762 && points.is_sorted_by_key(|point| point.0), "{}", points.len());
    }
}

fn is_plotted(trace: &Path, options: &[&str]) -> String {
    let file = folder("plot").join("out.svg");
    let mut command = bfc();
    let result = json(command.args(["replay", "-q", "--plot"]).arg(&file).arg(trace).args(options));
    let result = &result["traces"][0];
    let picture = fs::read_to_string(&file).expect("written");
    assert_eq!(file.metadata().expect("written").permissions().mode() & 0o777, 0o600);
    let (stats, live) = (&result["stats"], &result["trace"]["peak_live_bytes"]);
    are_drawn(&picture, &result["limit"], [&stats["peak_pool_bytes"], &stats["peak_bytes_in_use"], live]);
    picture
}

#[test]
fn the_curves_have_the_peaks_of_the_replay() {
    let picture = is_plotted(&recorded("gpt2.trace.gz"), &["--as-run"]);
    for text in [
        "memory in GiB",
        "events (requests and frees)",
        "held, at most ",
        "in use, at most ",
        "live, at most ",
        "limit, ",
    ] {
        assert!(picture.contains(text), "no {text}");
    }
    assert!(picture.contains("gpt2.trace.gz</title>") && !picture.contains("a request failed"));
    is_plotted(&recorded("mlp_tiny.trace.gz"), &["--growth"]);
    is_plotted(&recorded("resnet50.trace.gz"), &["--backend", "host-vmm", "--growth"]);
}

#[test]
fn failures_are_marked_and_names_are_escaped() {
    let trace = folder("plot-names").join("<script>&\u{1b}\".trace");
    fs::write(&trace, "+ 0 600000 0\n+ 1 600000 0\n- 0 0\n- 1 0\n").expect("writable");
    let file = folder("plot-failed").join("out.svg");
    json(bfc().args(["replay", "-q", "--limit", "1MiB", "--plot"]).arg(&file).arg(&trace));
    let picture = fs::read_to_string(&file).expect("written");
    assert!(picture.contains("a request failed") && picture.contains("<polygon"), "{picture}");
    assert!(!picture.contains("<script") && !picture.contains('\u{1b}'), "{picture}");
    assert_eq!(picture.matches("&lt;script&gt;").count(), 2, "the title, for people and for programs");
}

#[test]
fn a_history_is_drawn() {
    let folder = folder("plot-history");
    let (history, picture) = (folder.join("run.history"), folder.join("out.svg"));
    let mut replay = bfc();
    replay.args(["replay", "-q", "--as-run"]).arg(recorded("gpt2.trace.gz"));
    let replayed = json(replay.env("BFC_HISTORY_FILE", &history).env("BFC_HISTORY", "65536"));
    run_to(0, bfc().arg("report").arg(&history).arg("-o").arg(&picture));
    let text = fs::read_to_string(&picture).expect("written");
    assert_eq!(picture.metadata().expect("written").permissions().mode() & 0o777, 0o600);
    let pool = &json(bfc().arg("report").arg(&history))["pools"][0];
    let requested = &replayed["traces"][0]["stats"]["peak_bytes_requested"];
    are_drawn(&text, &pool["limit"], [&pool["peak_held"]["bytes"], &pool["peak"]["in_use"], requested]);
    assert!(text.contains("milliseconds") && text.contains("requested, at most "), "{text}");
    // Without an event there is nothing to draw, and no file.
    let mut empty = fs::read(&history).expect("a file");
    empty[40..48].fill(0);
    let (empty, none) = (file("empty.history", empty), folder.join("none.svg"));
    let (_, error) = run_to(1, bfc().arg("report").arg(empty).arg("-o").arg(&none));
    assert!(error.contains("the history has no allocator to draw") && !none.exists(), "{error}");
}
