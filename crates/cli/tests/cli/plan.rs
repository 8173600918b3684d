//! `bfc plan`, and replays that follow what it writes.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{SMALL, bfc, file, json, recorded, row, run_to};

/// Where a plan of this test is written.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Plans a trace. The JSON document.
fn planned(trace: &Path, plan: &Path, options: &[&str]) -> Value {
    json(bfc().arg("plan").arg(trace).arg("-o").arg(plan).args(options))
}

/// A program that best fit does not serve in what lives at once: the second of three is freed, and the next is larger.
const SPLITTING: &str = "+ 1 256 0\n+ 2 256 0\n+ 3 256 0\n- 2 0\n+ 4 512 0\n- 1 0\n- 3 0\n- 4 0\n";

#[test]
fn the_recorded_programs_run_in_what_lives_at_once() {
    for (name, repeated) in [("gpt2", 1430), ("vit", 2090)] {
        let trace = recorded(&format!("{name}.trace.gz"));
        let plan = place(&format!("{name}.plan"));
        let document = planned(&trace, &plan, &["--search", "2"]);
        assert_eq!(document["schema"], "bfc-plan/1");
        assert_eq!(
            (&document["plan"]["repeated"], &document["plan"]["unplaced"]),
            (&repeated.into(), &0.into())
        );
        let bytes = document["plan"]["bytes"].as_u64().expect("a number");
        let peak = document["trace"]["peak_live_bytes"].as_u64().expect("a number");
        assert!(bytes >= peak && bytes as f64 <= 1.003 * peak as f64, "{name}: {bytes} over {peak}");
        let heuristics = document["heuristics"].as_object().expect("an object");
        assert!(
            ["size", "area", "duration", "start"].iter().all(|heuristic| heuristics.contains_key(*heuristic))
        );
        assert!(heuristics.values().all(|found| found.as_u64() >= Some(bytes)));

        // Exactly so many bytes are enough, and every request gets its place.
        let limit = bytes.to_string();
        let replay = || {
            let mut replay = bfc();
            replay.arg("replay").arg(&trace).args(["--fail-on-oom", "--limit", &limit, "--plan"]).arg(&plan);
            replay
        };
        let document = json(&mut replay());
        let stats = &document["traces"][0]["stats"];
        assert_eq!(stats["num_planned_allocs"], stats["num_allocs"]);
        assert_eq!(document["traces"][0]["pool"]["plan"], plan.to_str().expect("UTF-8"));
        let (table, _) = run_to(0, &mut replay());
        let expected =
            format!("{0} of {0} allocations at the places of {1}", stats["num_allocs"], plan.display());
        assert_eq!(row(&table, "planned"), Some(&*expected));
        run_to(1, bfc().arg("replay").arg(&trace).args(["--fail-on-oom", "--limit", &limit]));
    }
}

#[test]
fn the_least_limit_with_a_plan_is_what_it_has() {
    let (trace, plan) = (file("splitting.trace", SPLITTING), place("splitting.plan"));
    let document = planned(&trace, &plan, &[]);
    assert_eq!(
        (&document["peak_bytes"], &document["plan"]["bytes"], &document["ratio"]),
        (&1024.into(), &1024.into(), &1.0.into())
    );
    let least = |options: &[&str]| {
        let found =
            json(bfc().arg("replay").arg(&trace).args(["--find-limit", "--precision", "0"]).args(options));
        (found["traces"][0]["limit"].as_u64(), found["traces"][0]["num_planned_allocs"].as_u64())
    };
    let plan = plan.to_str().expect("UTF-8");
    assert_eq!((least(&[]), least(&["--plan", plan])), ((Some(1280), Some(0)), (Some(1024), Some(4))));
    let (table, _) = run_to(0, bfc().arg("replay").arg(&trace).args(["--find-limit", "--plan", plan]));
    assert_eq!(row(&table, "planned"), Some(&*format!("4 of 4 allocations at the places of {plan}")));
}

#[test]
fn the_environment_names_a_plan_too_and_the_option_comes_first() {
    let (trace, plan) = (file("environment.trace", SMALL), place("environment.plan"));
    planned(&trace, &plan, &[]);
    let mut by_environment = bfc();
    by_environment.arg("replay").arg(&trace).env("BFC_PLAN", &plan);
    let (table, remarks) = run_to(0, &mut by_environment);
    assert_eq!(row(&table, "planned"), Some("4 of 4 allocations at the places of the plan in BFC_PLAN"));
    assert!(remarks.contains("BFC_PLAN="), "{remarks}");
    let mut both = bfc();
    both.arg("replay").arg(&trace).env("BFC_PLAN", "/no/such/plan").arg("--plan").arg(&plan);
    let (_, remarks) = run_to(0, &mut both);
    assert_eq!(remarks, "");
}

#[test]
fn a_plan_of_another_program_does_no_harm() {
    let plan = place("other.plan");
    planned(&file("other.trace", SPLITTING), &plan, &[]);
    let trace = file("foreign.trace", SMALL);
    let replay = |options: &[&str]| {
        let document =
            json(bfc().arg("replay").arg(&trace).args(["--limit", "3MiB", "--fail-on-oom"]).args(options));
        document["traces"][0]["stats"].clone()
    };
    let (without, with) = (replay(&[]), replay(&["--plan", plan.to_str().expect("UTF-8")]));
    assert_eq!(
        (&with["num_planned_allocs"], &with["peak_bytes_in_use"]),
        (&0.into(), &without["peak_bytes_in_use"])
    );
}

#[test]
fn plans_for_adapters_are_multiples_of_512() {
    let (trace, plan) = (file("adapters.trace", SPLITTING), place("adapters.plan"));
    let document = planned(&trace, &plan, &["--alignment", "512"]);
    assert_eq!((&document["plan"]["alignment"], &document["peak_bytes"]), (&512.into(), &1536.into()));
    let text = fs::read_to_string(&plan).expect("written");
    assert!(
        text.starts_with("bfc-plan 1\nalignment 512\nbytes 1536\nprologue 4\nrepeated 0\n512 "),
        "{text}"
    );
}

#[test]
fn what_cannot_be_planned_or_followed_is_an_error_with_a_message() {
    let plan = place("wrong.plan");
    let _ = fs::remove_file(&plan);
    let fails = |code: i32, arguments: &[&str]| run_to(code, bfc().args(arguments)).1;
    let trace = file("wrong.trace", SMALL);
    let (trace, wrong) = (trace.to_str().expect("UTF-8"), plan.to_str().expect("UTF-8"));
    let empty = file("empty.trace", "+ 1 0 0\n- 1 0\n");
    let error = fails(1, &["plan", empty.to_str().expect("UTF-8"), "-o", wrong]);
    assert!(error.contains("has no request of more than 0 bytes"), "{error}");
    let huge = file("huge.trace", "+ 1 18446744073709551615 0\n");
    let (_, error) = run_to(1, bfc().arg("plan").arg(&huge).arg("-o").arg(place("huge.plan")));
    assert!(error.contains("has a request of 18446744073709551615 bytes, which no"), "{error}");
    assert!(!plan.exists());
    let error = fails(1, &["plan", trace, "-o", "/no/such/folder/plan"]);
    assert!(error.starts_with("bfc: cannot write /no/such/folder/plan: "), "{error}");
    let error = fails(1, &["plan", "/no/such/trace", "-o", wrong]);
    assert!(error.contains("cannot open /no/such/trace"), "{error}");
    let error = fails(1, &["replay", trace, "--plan", wrong]);
    assert!(error.contains("there is no such file"), "{error}");
    let error = fails(1, &["replay", trace, "--plan", trace]);
    assert!(error.contains("not a plan of bfc plan"), "{error}");
    fails(2, &["plan", trace]);
    fails(2, &["plan", trace, "-o", wrong, "--alignment", "128"]);
    let error = fails(2, &["replay", trace, trace, "--plan", wrong]);
    assert!(error.contains("--plan takes one trace"), "{error}");
}

#[test]
fn a_plan_replaces_an_older_one_as_a_whole() {
    let plan = place("again.plan");
    let trace = file("again.trace", SMALL);
    let text = || {
        planned(&trace, &plan, &["--quiet"]);
        fs::read(&plan).expect("written")
    };
    assert_eq!(text(), text(), "the same trace gives the same plan");
    let beside = fs::read_dir(plan.parent().expect("a folder")).expect("readable");
    let left = beside.filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with(".tmp"))
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn a_trace_of_several_streams_gets_a_remark() {
    let trace = file("streams.trace", "+ 1 256 0\n+ 2 256 5\n- 1 0\n- 2 5\n");
    let mut plan = bfc();
    plan.arg("plan").arg(&trace).arg("-o").arg(place("streams.plan"));
    let (_, remarks) = run_to(0, &mut plan);
    assert!(
        remarks.contains("uses 2 streams; a plan is followed only while one stream uses the pool"),
        "{remarks}"
    );
    let (_, remarks) = run_to(0, plan.arg("--quiet"));
    assert_eq!(remarks, "");
}
