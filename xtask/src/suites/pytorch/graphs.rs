//! What PyTorch's own tests of CUDA graphs do, alone and under `bfc run`, by ffi-tests/pytorch/graphs.py.

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::pytorch::{Allocator, Facts, Launcher, PyTorch, differences};
use crate::suites::context::Context;

/// The cases that leave the process as it was, so that one process runs them all.
const TOGETHER: [&str; 15] = [
    "simple",
    "default_stream",
    "no_nodes",
    "reset_recapture",
    "side_streams",
    "generators",
    "workspaces",
    "two_successive",
    "concurrent_replay",
    "three_successive",
    "after_the_graph",
    "recorded_stream",
    "recurrent",
    "graphed_callables",
    "other_thread",
];

/// Those in which a request fails during a capture: a capture that is broken by it spoils what comes later.
const FAILING: [&str; 2] = ["oom", "oom_full"];

/// Those that the simulation's graph memory is enough for where the driver's pools serve PyTorch.
const OF_POOLS: [&str; 8] = [
    "simple",
    "reset_recapture",
    "two_successive",
    "concurrent_replay",
    "three_successive",
    "after_the_graph",
    "graphed_callables",
    "other_thread",
];

/// So small that a test fills it in no time.
const DEVICE: u64 = 1 << 30;

/// With PyTorch's own allocator, and where it takes memory in the order of streams.
pub fn run(context: &mut Context, pytorch: &PyTorch) -> Result<()> {
    let bfc = context.prefix()?.join("bin/bfc");
    let alone = launcher("alone", &bfc, None);
    let under = launcher("under bfc run", &bfc, Some(&[]));
    let ordered = launcher("under bfc run --async", &bfc, Some(&["--async"]));
    compare(context, pytorch, Allocator::Caching, &TOGETHER, [&alone, &under, &ordered]);
    for case in FAILING {
        compare(context, pytorch, Allocator::Caching, &[case], [&alone, &under, &ordered]);
    }
    compare(context, pytorch, Allocator::Async, &OF_POOLS, [&alone, &under, &ordered]);
    Ok(())
}

fn launcher(name: &str, bfc: &Path, options: Option<&[&str]>) -> Launcher {
    let mut prefix: Vec<OsString> = Vec::new();
    if let Some(options) = options {
        prefix.extend([bfc.into(), "run".into()]);
        prefix.extend(options.iter().map(Into::into));
        prefix.push("--".into());
    }
    let environment = vec![("SIMCUDA_MEMORY".into(), DEVICE.to_string().into())];
    Launcher { name: name.to_owned(), prefix, environment }
}

/// The same cases with each launcher; what they tell is what the first one does.
fn compare(
    context: &mut Context,
    pytorch: &PyTorch,
    allocator: Allocator,
    cases: &[&str],
    [alone, under @ ..]: [&Launcher; 3],
) {
    let what = if let [case] = cases { *case } else { "graphs" };
    let mut ran = |launcher: &Launcher| {
        let mut facts = None;
        let name = format!("{what} {allocator:?} {}", launcher.name);
        context.check(&name, |workspace| {
            facts = Some(pytorch.graphs(workspace, launcher, allocator, cases)?);
            Ok(())
        });
        facts.map(|facts| (name, facts))
    };
    let Some((name, expected)) = ran(alone) else { return };
    let others: Vec<_> = under.iter().filter_map(|launcher| ran(launcher)).collect();
    context.gate(&format!("{name}: captures are valid, and data arrives"), &wrong(&expected, cases));
    for (name, facts) in others {
        for case in cases {
            let found = differences(&expected.same[case], &facts.same[case]);
            context.gate(&format!("{name}: {case} is as alone"), &found);
        }
        let faults = differences(&json!({"count": 0, "words": []}), &facts.seen["faults"]);
        context.gate(&format!("{name}: nothing of the driver is misused"), &faults);
    }
}

/// What goes wrong without the interposer too, so that a comparison would show nothing.
fn wrong(facts: &Facts, cases: &[&str]) -> Vec<String> {
    let mut wrong = differences(&json!({"count": 0, "words": []}), &facts.seen["faults"]);
    for case in cases {
        let told = &facts.same[case];
        let ended_early =
            told.as_str().is_some_and(|text| *case != "default_stream" || !text.contains("non-default"));
        if told.is_null() || ended_early {
            wrong.push(format!("{case}: {told}"));
        }
    }
    let copies = |case: &str, pointer: &str| match facts.same[case].pointer(pointer) {
        Some(Value::Bool(true)) | None => None,
        Some(other) => Some(format!("{case}: {pointer} is {other}")),
    };
    let arrived = [
        ("simple", "/1/0"),
        ("reset_recapture", "/0"),
        ("two_successive", "/apart/0/0"),
        ("concurrent_replay", "/apart/0/1"),
        ("three_successive", "/apart/1/1"),
        ("after_the_graph", "/3/0"),
        ("other_thread", "/0/2"),
        ("oom", "/1/2"),
        ("oom_full", "/1/2"),
    ];
    wrong.extend(arrived.into_iter().filter_map(|(case, pointer)| copies(case, pointer)));
    wrong
}
