//! What `bfc replay` measures and finds.

use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, Stdio};

use flate2::read::GzDecoder;

use crate::common::{SMALL, bfc, file, json, recorded, row, run_to};

#[test]
fn a_table_tells_all_that_is_asked() {
    let (stdout, stderr) = run_to(0, bfc().arg("replay").arg(recorded("mlp_tiny.trace.gz")));
    for row in [
        "ops",
        "ns per op",
        "allocs",
        "failures",
        "peak in use",
        "peak requested",
        "peak live",
        "pool held",
        "overhead",
        "fragmentation",
        "occupancy",
    ] {
        assert!(stdout.lines().any(|line| line.trim_start().starts_with(row)), "no {row} in\n{stdout}");
    }
    // On host memory the addresses are others every time: nobody could compare them.
    assert_eq!(row(&stdout, "addresses"), None);
    // A bar is for terminals, and remarks are for what is remarkable.
    assert_eq!(stderr, "");
    let trace = file("addresses.trace", "+ 1 256 0\n- 1 0\n");
    let (stdout, _) = run_to(0, bfc().arg("replay").arg(trace).args(["--device-capacity", "1TiB"]));
    assert!(row(&stdout, "addresses").is_some_and(|hash| hash.ends_with("(fnv1a64)")), "{stdout}");
    assert!(row(&stdout, "pool").is_some_and(|pool| pool.contains("1.00 TiB (1099511627776)")), "{stdout}");
    assert!(
        row(&stdout, "trace").is_some_and(|words| words.starts_with("2 events (1 request),")),
        "{stdout}"
    );
}

#[test]
fn waste_is_of_pools_that_grow_and_nothing_is_told_of_failing_ones() {
    let trace = file("waste.trace", SMALL);
    let replay = |options: &[&str]| {
        let mut command = bfc();
        command.arg("replay").arg(&trace).args(options);
        let (table, _) = run_to(0, &mut command);
        (json(&mut command)["traces"][0].clone(), table)
    };
    let (fixed, table) = replay(&["--limit", "30MiB"]);
    assert!(fixed["waste"].is_null());
    assert_eq!(fixed["overhead"], 1.0);
    assert_eq!(row(&table, "waste"), None);
    assert_eq!(row(&table, "overhead"), Some("1.0000 peak in use over peak live"));

    let (growing, table) = replay(&["--limit", "30MiB", "--growth", "--initial-region", "6MiB"]);
    assert_eq!((&growing["waste"], &growing["overhead"]), (&2.0.into(), &1.0.into()));
    assert_eq!(row(&table, "waste"), Some("2.0000 peak pool over peak live"));
    assert_eq!(row(&table, "overhead"), None);

    let (failing, table) = replay(&["--limit", "2MiB", "--growth"]);
    assert!(
        failing["failed"].as_u64() > Some(0) && failing["waste"].is_null() && failing["overhead"].is_null()
    );
    assert_eq!((row(&table, "waste"), row(&table, "overhead")), (None, None));

    // The mean is of those that ran: this trace's, and not of one that needs more.
    let large = file("large.trace", "+ 1 9000000 0\n- 1 0\n");
    let (tables, _) = run_to(0, bfc().arg("replay").arg(&trace).arg(large).args(["--limit", "4MiB"]));
    assert!(tables.ends_with(", overhead 1.0000 of the 1 without failures\n"), "{tables}");
}

#[test]
fn the_occupancy_is_that_of_the_fullest_moment() {
    let trace = file("occupancy.trace", SMALL);
    let document = json(bfc().arg("replay").arg(trace).args(["--limit", "4MiB"]));
    let result = &document["traces"][0];
    assert_eq!(result["trace"]["peak_live_bytes"], 3 << 20);
    let peak = &result["peak"];
    assert_eq!(peak["event"], 5);
    assert_eq!(peak["mark"], "step 1");
    assert_eq!(peak["bytes_in_use"], 3 << 20);
    assert_eq!(peak["pool_bytes"], 4 << 20);
    assert_eq!(peak["largest_free_block_bytes"], 1 << 20);
    assert_eq!(peak["fragmentation"], 0.0);
    let occupancy = peak["occupancy"].as_str().expect("text").trim_end();
    assert_eq!(occupancy.matches('*').count(), 75, "{occupancy}");
    assert_eq!(occupancy.len(), 100, "{occupancy}");
}

#[test]
fn the_default_limit_is_a_fifth_above_what_lives() {
    let trace = file("default.trace", SMALL);
    let limit = |threads: &str| {
        json(bfc().arg("replay").arg(&trace).args(["--threads", threads]))["traces"][0]["limit"].clone()
    };
    assert_eq!(limit("1"), 3_774_976); // 1.2 x 3 MiB, up to a multiple of 256
    assert_eq!(limit("3"), 11_324_672);
}

#[test]
fn failed_requests_are_results_unless_asked_otherwise() {
    let trace = file("oom.trace", SMALL);
    let replay = || {
        let mut command = bfc();
        command.arg("replay").arg(&trace).args(["--limit", "2MiB"]);
        command
    };
    let document = json(&mut replay());
    let result = &document["traces"][0];
    // Two fit; of the two requests of step 1 one gets the place of the first, and the other none.
    assert_eq!(result["failed"], 1);
    assert_eq!(result["stats"]["num_allocs"], 3);
    assert_eq!(result["stats"]["num_failures"], 1);
    assert_eq!(result["stats"]["bytes_in_use"], 0);
    assert_eq!(result["ops"], 4 + 3);
    let shown = result["shown"].as_str().expect("text");
    assert!(
        shown.starts_with("at the first failed request") && shown.contains("event 5 (step 1)"),
        "{shown}"
    );
    run_to(0, &mut replay());
    run_to(1, replay().arg("--fail-on-oom"));

    let failure = &result["failure"];
    assert_eq!((&failure["event"], &failure["mark"]), (&5.into(), &"step 1".into()));
    assert_eq!(failure["bytes"], 1 << 20);
    let words = failure["words"].as_str().expect("text");
    assert!(words.contains("no memory for") && words.contains("exhaustion"), "{words}");
    // The report begins with the same.
    let (table, _) = run_to(0, replay().arg("--report"));
    let report = table.split_once("\nreport at the first failed request: ").expect("a report").1;
    let mut lines = report.lines();
    assert!(lines.next().is_some_and(|place| place.ends_with("oom.trace, event 5 (step 1)")), "{report}");
    assert_eq!(lines.next(), Some("the request: 1.00 MiB (1048576)"));
    assert_eq!(lines.next(), Some(words));
}

#[test]
fn what_stays_live_at_the_end_is_no_error() {
    let trace = file("left.trace", "+ 1 1000 0\n+ 2 1000 0\n- 1 0\n");
    let result =
        &json(bfc().arg("replay").arg(trace).args(["--limit", "1MiB", "--repeat", "2"]))["traces"][0];
    assert_eq!(result["stats"]["bytes_in_use"], 1024);
    assert_eq!(result["stats"]["num_frees"], 1);
}

#[test]
fn all_ways_in_give_the_same_trace() {
    let packed = recorded("gpt2.trace.gz");
    let mut text = Vec::new();
    let opened = File::open(&packed).expect("the recorded trace");
    GzDecoder::new(opened).read_to_end(&mut text).expect("gzip");
    let plain = file("gpt2.trace", &text);
    let hash = |document: &serde_json::Value| document["traces"][0]["fnv1a64"].clone();
    let options = ["--device-capacity", "64GiB", "--growth"];
    let by_name = json(bfc().arg("replay").arg(&packed).args(options));
    let unpacked = json(bfc().arg("replay").arg(&plain).args(options));
    assert!(hash(&by_name).as_str().is_some_and(|hash| hash.len() == 16));
    assert_eq!(hash(&by_name), hash(&unpacked));
    for path in [&packed, &plain] {
        let stdin = File::open(path).expect("opens");
        let piped = json(bfc().args(["replay", "-"]).args(options).stdin(Stdio::from(stdin)));
        assert_eq!(hash(&by_name), hash(&piped));
        assert_eq!(piped["traces"][0]["trace"]["name"], "standard input");
    }
}

#[test]
fn runs_on_the_simulated_device_repeat_exactly() {
    let trace = recorded("gpt2.trace.gz");
    let document = json(bfc().arg("replay").arg(trace).args(["--device-capacity", "64GiB", "--repeat", "3"]));
    let result = &document["traces"][0];
    assert_eq!(result["repeats_agree"], true);
    assert_eq!(result["ns_per_op"]["runs"].as_array().map(Vec::len), Some(3));
    assert!(result["ns_per_op"]["best"].as_f64() <= result["ns_per_op"]["median"].as_f64());
}

#[test]
fn a_warm_pool_counts_only_what_is_measured() {
    let trace = file("warm.trace", SMALL);
    let replay = |more: &[&str]| {
        let mut command = bfc();
        command.arg("replay").arg(&trace).args(["--device-capacity", "64MiB"]);
        json(command.args(more))["traces"][0].clone()
    };
    let (fresh, warm) = (replay(&[]), replay(&["--warm"]));
    assert_eq!(warm["warm"], true);
    // With one region that is whole again, the second time is the first time over.
    assert_eq!(fresh["fnv1a64"], warm["fnv1a64"]);
    for name in ["num_allocs", "num_frees", "bytes_in_use", "peak_bytes_in_use"] {
        assert_eq!(fresh["stats"][name], warm["stats"][name], "{name}");
    }
}

#[test]
fn one_stream_places_alike_with_and_without_stream_ordering() {
    let trace = recorded("gpt2.trace.gz");
    let replay = || {
        let mut command = bfc();
        command.arg("replay").arg(&trace).args(["--device-capacity", "64GiB"]);
        command
    };
    let hash = |document: serde_json::Value| document["traces"][0]["fnv1a64"].clone();
    assert_eq!(hash(json(&mut replay())), hash(json(replay().arg("--async"))));
}

#[test]
fn threads_share_one_pool_and_leave_it_empty() {
    let trace = recorded("mlp_tiny.trace.gz");
    let document = json(bfc().arg("replay").arg(trace).args(["--threads", "4", "--limit", "1GiB"]));
    let result = &document["traces"][0];
    assert_eq!(result["failed"], 0);
    assert_eq!(result["stats"]["num_allocs"], 4 * 36_984);
    assert_eq!(result["stats"]["num_frees"], 4 * 36_984);
    assert_eq!(result["stats"]["bytes_in_use"], 0);
    assert_eq!(result["ops"], 4 * 2 * 36_984);
    assert!(result["fnv1a64"].is_null());
    assert!(result["peak"]["bytes_in_use"].as_u64() >= Some(4 * 41_498_400));
}

#[test]
fn a_peak_of_another_run_says_so() {
    let trace = file("turns.trace", SMALL);
    let replay = |threads: &str| {
        let mut command = bfc();
        command.arg("replay").arg(&trace).args(["--threads", threads, "--report"]);
        command
    };
    let (table, _) = run_to(0, &mut replay("2"));
    // In turns both copies hold their 3 MiB at once; the measured threads need not.
    assert_eq!(row(&table, "in turns"), Some("peak in use 6.00 MiB (6291456), 0.00% fragmentation then"));
    let turns = "at peak use of the 2 copies played in turns by one thread";
    assert!(row(&table, "occupancy").is_some_and(|at| at.starts_with(turns)), "{table}");
    assert!(!row(&table, "fragmentation").expect("a row").contains("at peak use"), "{table}");
    assert!(table.contains(&format!("\nreport {turns}: ")), "{table}");
    assert_eq!(json(&mut replay("2"))["traces"][0]["peak_in_turns"], true);

    let (table, _) = run_to(0, &mut replay("1"));
    assert!(!table.contains("in turns"), "{table}");
    let result = &json(&mut replay("1"))["traces"][0];
    assert_eq!(result["peak_in_turns"], false);
    assert_eq!(result["peak"]["bytes_in_use"], result["stats"]["peak_bytes_in_use"]);
    assert!(result["failure"].is_null());
}

#[test]
fn a_map_and_a_report_are_of_the_moment_that_is_named() {
    let trace = file("map.trace", SMALL);
    let map = file("map.json", "");
    let mut command = bfc();
    command.arg("replay").arg(&trace).arg("--map").arg(&map).arg("--report");
    let (stdout, _) = run_to(0, &mut command);
    let map: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(map).expect("written")).expect("JSON");
    assert!(map.is_object());
    let report = stdout.split_once("\nreport at peak use: ").expect("a report").1;
    assert!(report.lines().count() > 1, "{report}");
    let (_, error) = run_to(2, bfc().arg("replay").arg(&trace).arg(&trace).args(["--map", "x"]));
    assert!(error.contains("--map takes one trace"), "{error}");
}

#[test]
fn a_least_limit_runs_and_the_one_below_it_does_not() {
    let trace = recorded("mlp_tiny.trace.gz");
    let search = ["--find-limit", "--device-capacity", "1GiB", "--precision", "0.001"];
    let document = json(bfc().arg("replay").arg(&trace).args(search));
    assert_eq!(document["schema"], "bfc-find-limit/1");
    let found = &document["traces"][0];
    let limit = found["limit"].as_u64().expect("a limit");
    assert_eq!(limit % 256, 0);
    let ratio = found["ratio"].as_f64().expect("a ratio");
    assert!((1.0..1.1).contains(&ratio), "{ratio}");
    let failures = |limit: u64| {
        let mut command = bfc();
        command.arg("replay").arg(&trace).args(["--limit", &limit.to_string()]);
        let document = json(command.args(["--device-capacity", "1GiB"]));
        document["traces"][0]["failed"].as_u64().expect("a count")
    };
    assert_eq!(failures(limit), 0);
    if let Some(fails_at) = found["fails_at"].as_u64() {
        assert!(fails_at < limit && limit - fails_at <= 512, "{fails_at} {limit}");
        assert_ne!(failures(fails_at), 0);
    }
}

#[test]
fn two_ends_need_a_lower_limit() {
    let trace = recorded("serve_mix.trace.gz");
    let ratio = |option: &str| {
        let document =
            json(bfc().arg("replay").arg(&trace).args(["--find-limit", "--precision", "0.001", option]));
        assert_eq!(document["traces"][0]["pool"]["two_ends"], option == "--two-ends");
        document["traces"][0]["ratio"].as_f64().expect("a ratio")
    };
    let (split, ends) = (ratio("--split-always"), ratio("--two-ends"));
    assert!(split > 1.07 && ends < 1.03, "{split} {ends}");
}

#[test]
fn a_device_that_is_too_small_has_no_least_limit() {
    let trace = file("small_device.trace", SMALL);
    let mut command = bfc();
    command.arg("replay").arg(trace).args(["--find-limit", "--growth", "--device-capacity", "2MiB"]);
    let (_, error) = run_to(1, &mut command);
    assert!(error.contains("no limit up to") && error.contains("capacity"), "{error}");
}

/// One MiB lives, and two more were refused.
const REFUSED: &str = "+ 0 1048576 0\n! 2097152 0 # out of memory\n- 0 0\n+ 1 1048576 0\n";

#[test]
fn a_refused_request_is_tried_again() {
    let trace = file("refused.trace", REFUSED);
    let replay = |options: &[&str]| json(bfc().arg("replay").arg(&trace).args(options))["traces"][0].clone();
    let failed = replay(&["--limit", "2MiB"]);
    assert_eq!((&failed["failed"], &failed["failure"]["event"]), (&1.into(), &2.into()));
    assert_eq!(failed["failure"]["bytes"], 2 << 20);
    assert_eq!((&failed["trace"]["requests"], &failed["trace"]["refused"]), (&3.into(), &1.into()));
    assert_eq!(failed["trace"]["peak_live_bytes"], 1 << 20);
    // What is granted is free again, and that is a call too.
    let granted = replay(&["--limit", "3MiB"]);
    assert_eq!((&granted["failed"], &granted["ops"]), (&0.into(), &5.into()));
    assert_eq!(granted["stats"]["bytes_in_use"], 1 << 20);
    assert_eq!(replay(&["--find-limit"])["limit"], 3 << 20);
    let (table, _) = run_to(0, bfc().arg("replay").arg(&trace));
    assert!(
        row(&table, "trace").is_some_and(|row| row.contains("3 requests, 1 refused when it was recorded")),
        "{table}"
    );
}

#[test]
fn input_without_an_end_is_refused_in_little_memory() {
    let script = "ulimit -v 4000000; yes '# x' | \"$0\" replay -";
    let command = bfc();
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).arg(command.get_program());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let (_, error) = run_to(1, &mut shell);
    assert!(
        error.starts_with("bfc: standard input:1048577: more than 1048576 lines without an event"),
        "{error}"
    );
}

#[test]
fn a_recording_that_stopped_early_is_replayed_with_a_note() {
    let trace = file("early.trace", "+ 0 5 0\n%incomplete No space left on device\n\0\0\0\0");
    let note = format!("bfc: note: the trace {} is incomplete: No space left on device\n", trace.display());
    assert_eq!(run_to(0, bfc().arg("replay").arg(&trace)).1, note);
    assert_eq!(run_to(0, bfc().arg("replay").arg(&trace).arg("--quiet")).1, "");
}

#[test]
fn the_reason_in_a_trace_does_not_control_the_terminal() {
    let trace = file("hostile.trace", "+ 0 5 0\n%incomplete \u{1b}[2Jand \u{9b}31m\u{202e}\n");
    let (_, error) = run_to(0, bfc().arg("replay").arg(&trace));
    assert!(error.ends_with("is incomplete: \u{fffd}[2Jand \u{fffd}31m\u{fffd}\n"), "{error}");
    // In JSON a name with such characters has them, escaped.
    let (document, _) =
        run_to(0, bfc().args(["replay", "-q", "--json"]).arg(file("\u{9b}31m.trace", "+ 0 5 0\n")));
    assert!(document.contains("\\u009b31m.trace") && !document.contains('\u{9b}'), "{document}");
}

/// `--as-run` is the pool of `bfc run`.
#[test]
fn the_pool_of_bfc_run_has_one_option() {
    let pool = |options: &[&str]| {
        json(bfc().args(["replay", "-q"]).args(options).arg(recorded("mlp_tiny.trace.gz")))["traces"][0]["pool"].clone()
    };
    let by_name = pool(&["--growth", "--growth-policy", "need", "--gc", "--split-always"]);
    assert_eq!(pool(&["--as-run"]), by_name);
    assert_ne!(pool(&[]), by_name);
    let (_, error) = run_to(2, bfc().args(["replay", "--as-run", "--gc"]).arg(recorded("mlp_tiny.trace.gz")));
    assert!(error.contains("cannot be used with"), "{error}");
}

/// What a program would have asked for after a refused request is not in its trace.
#[test]
fn a_limit_found_by_a_trace_with_refusals_comes_with_a_note() {
    let refused = file("refused.trace", "+ 0 1000 0\n! 5000 0\n- 0 0\n");
    let note = "was refused 1 request when it was recorded; the program may need more";
    let stderr = |options: &[&str]| run_to(0, bfc().arg("replay").args(options).arg(&refused)).1;
    assert!(stderr(&["--find-limit"]).contains(note));
    assert!(!stderr(&["--find-limit", "-q"]).contains(note));
    assert!(!stderr(&[]).contains(note));
}
