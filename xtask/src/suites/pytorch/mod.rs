//! The suite `pytorch`: PyTorch's CUDA wheel trains on the simulated driver, and what it sees of memory makes sense; with
//! its own allocators, under the interposer, and with libbfc in their place.
//!
//! Kernels compute nothing there; allocation, streams, events and copies are as PyTorch does them. See
//! ffi-tests/pytorch.

mod graphs;
mod package;
mod steps;

use std::ffi::OsString;

use anyhow::{Result, bail};
use serde_json::Value;

use super::context::Context;
use crate::files;
use crate::pages::owned::Owned;
use crate::pytorch::{Allocator, Facts, Launcher, PyTorch, differences, of_libbfc};
use crate::tools;

/// The models of ffi-tests/pytorch/models.py, and fewer storages than each is known to make.
const MODELS: [(&str, u64); 3] = [("Perceptron", 300), ("Transformer", 1000), ("Convolution", 300)];

const ALLOCATORS: [Allocator; 3] = [Allocator::Caching, Allocator::Plain, Allocator::Async];

pub use steps::run as transformers;

/// Trains with each allocator, alone and with the interposer.
pub fn run(context: &mut Context) -> Result<()> {
    let Some(pytorch) = found(context, &[])? else { return Ok(()) };
    let pages = Owned::of_suite(&context.workspace, "pytorch")?;
    context.check("its libraries load, every symbol resolved", |workspace| pytorch.import(workspace));
    let alone = Launcher { name: "alone".to_owned(), ..Launcher::default() };
    let mut all = Vec::new();
    for allocator in ALLOCATORS {
        let Some(facts) = trained(context, &pytorch, &alone, allocator, &[]) else {
            return Ok(());
        };
        context.gate(&format!("{allocator:?}: what was seen makes sense"), &wrong(allocator, &facts));
        context.gate(&format!("{allocator:?}: the driver has it all back"), &left(allocator, &facts));
        all.push((allocator, facts));
    }
    for (allocator, facts) in &all[1..] {
        let name = format!("{:?} and {allocator:?}: the same tensors", all[0].0);
        context.gate(&name, &differences(&tensors(&all[0].1), &tensors(facts)));
    }
    faults(context, &pytorch, &alone, &all[0].1);
    pluggable(context, &pytorch, &alone, &all[0].1)?;
    mem_pool(context, &pytorch, &alone, &all[0].1)?;
    package::run(context, &pytorch, &all[0].1)?;
    context.all_ran(&pages);
    for (allocator, facts) in &all {
        interposed(context, &pytorch, *allocator, facts, &[])?;
    }
    // Where PyTorch allocates in the order of streams libbfc may do so instead of the driver.
    let (allocator, facts) = &all[2];
    interposed(context, &pytorch, *allocator, facts, &["--async"])?;
    graphs::run(context, &pytorch)
}

/// PyTorch and what it needs here; without something of that the suite is skipped.
fn found(context: &mut Context, more_tools: &[OsString]) -> Result<Option<PyTorch>> {
    let tools = [tools::c_compiler(), "readelf".into()];
    if let Some(missing) = tools.iter().chain(more_tools).find(|tool| !tools::works(tool)) {
        context.skip("all of it", &format!("there is no {}", missing.display()));
        return Ok(None);
    }
    let found = PyTorch::find(&context.workspace);
    context.or_skip("all of it", found)
}

/// libbfc in the place of PyTorch's own allocator: the same tensors, as much asked for at the same times, and nothing of
/// the device's memory is anybody else's.
fn pluggable(context: &mut Context, pytorch: &PyTorch, alone: &Launcher, native: &Facts) -> Result<()> {
    let kind = Allocator::Pluggable;
    let library = context.prefix()?.join("lib/libbfc.so");
    let [option, library] = of_libbfc(&library)?;
    let Some(facts) = trained(context, pytorch, alone, kind, &[option, library]) else { return Ok(()) };
    as_native(context, kind, native, &facts);
    // The account sees what is wrong.
    let mut mutated =
        |mutant: &str| trained(context, pytorch, alone, kind, &[option, library, "--mutate", mutant]);
    let (leak, pools) = (mutated("leak"), mutated("pools"));
    if let Some(leak) = leak {
        let found = [wrong(kind, &leak), left(kind, &leak), not_of_libbfc(&leak)];
        context.check("Pluggable: a leak is found", |_| match found.iter().all(|words| !words.is_empty()) {
            true => Ok(()),
            false => bail!("only this was: {found:?}"),
        });
    }
    if let Some(pools) = pools {
        context.check("Pluggable: a graph without a pool is found", |_| match not_kept(&pools).is_empty() {
            true => bail!("it was not"),
            false => Ok(()),
        });
    }
    Ok(())
}

/// A run with libbfc beside one with the native allocator.
fn as_native(context: &mut Context, kind: Allocator, native: &Facts, facts: &Facts) {
    let mut gate = |what: &str, wrong: &[String]| context.gate(&format!("{kind:?}: {what}"), wrong);
    gate("what was seen makes sense", &wrong(kind, facts));
    gate("the driver has it all back", &left(kind, facts));
    gate("the same tensors as Caching", &differences(&tensors(native), &tensors(facts)));
    gate("as often and as much asked for", &differences(&requested(native), &requested(facts)));
    gate("all of it is libbfc's", &not_of_libbfc(facts));
    gate("a graph keeps its memory", &not_kept(facts));
}

/// What each model asked for, in number, and the most at a time in bytes.
fn requested(facts: &Facts) -> Value {
    MODELS.iter().map(|(model, _)| facts.same["training"][model]["requested"].clone()).collect()
}

/// What libbfc's account and the device's do not agree about.
fn not_of_libbfc(facts: &Facts) -> Vec<String> {
    let mut wrong = Vec::new();
    for (when, is_used) in [("libbfc, while it is used", true), ("libbfc, in the end", false)] {
        let said = &facts.seen[when];
        if said["pool_bytes"] != said["device"] || (number(&said["pool_bytes"]) != 0) != is_used {
            wrong.push(format!("{when}: it holds {}, and {} are in use", said["pool_bytes"], said["device"]));
        }
        if !is_used && said["bytes_in_use"] != 0 {
            wrong.push(format!("{when}: {} are live", said["bytes_in_use"]));
        }
    }
    if !facts.seen["report"].as_str().is_some_and(|line| line.contains("device 0")) {
        wrong.push(format!("its report begins with {}", facts.seen["report"]));
    }
    wrong
}

/// What a captured graph's memory was given to besides.
fn not_kept(facts: &Facts) -> Vec<String> {
    let captured = &facts.same["captured"];
    let kept = captured["overlaps"] == 0 && number(&captured["pieces"]) > 1;
    // Else the test would not see it.
    let is_seen = captured["overlaps afterwards"] == true;
    if kept && is_seen { vec![] } else { vec![format!("{captured}")] }
}

/// The native allocator with a MemPool of libbfc's memory.
fn mem_pool(context: &mut Context, pytorch: &PyTorch, alone: &Launcher, native: &Facts) -> Result<()> {
    let library = context.prefix()?.join("lib/libbfc.so");
    let [_, library] = of_libbfc(&library)?;
    let arguments = ["--mem-pool", library];
    let Some(facts) = trained(context, pytorch, alone, Allocator::Caching, &arguments) else { return Ok(()) };
    let said = &facts.same["in a MemPool of libbfc"];
    let expected = serde_json::json!({
        "segments are ours": true,
        "trained in it": true,
        "of the tensor": true,
        "of a tensor outside": false,
        "out of memory": "OutOfMemoryError",
        "in use afterwards": 0,
        "held afterwards": 0,
        "training": native.same["training"]["Perceptron"]["storages"],
    });
    context.gate("a MemPool of libbfc: as it should be", &differences(&expected, said));
    let clean = [&facts.same["leaked"], &facts.seen["faults"]["count"], &facts.seen["live"]["allocations"]];
    let clean: Value = clean.into_iter().cloned().collect();
    context.gate("a MemPool of libbfc: nothing is left", &differences(&serde_json::json!([0, 0, 0]), &clean));
    Ok(())
}

/// The same run under `bfc run`, in which nothing that PyTorch can see is different; and what the interposer made of it.
fn interposed(
    context: &mut Context,
    pytorch: &PyTorch,
    allocator: Allocator,
    alone: &Facts,
    options: &[&str],
) -> Result<()> {
    let command = context.prefix()?.join("bin/bfc");
    let trace = context.workspace.target.join("pytorch/recorded.trace");
    let mut prefix = vec![command.clone().into_os_string(), "run".into()];
    prefix.extend(options.iter().map(Into::into));
    prefix.extend(["--trace".into(), trace.clone().into_os_string(), "--".into()]);
    let name = [&["under bfc run"], options].concat().join(" ");
    let under = Launcher { name, prefix, environment: Vec::new() };
    let Some(facts) = trained(context, pytorch, &under, allocator, &[]) else {
        return Ok(());
    };
    let what = format!("{allocator:?} {}", under.name);
    context.gate(&format!("{what}: what was seen makes sense"), &wrong(allocator, &facts));
    context.gate(&format!("{what}: as alone"), &differences(&alone.same, &facts.same));
    context.gate(&format!("{what}: calls of the driver"), &calls(allocator, options, alone, &facts));
    // Of the requests some fail, and are not in the trace: two, but four where PyTorch tries again.
    let requests = requests(alone) - if allocator == Allocator::Plain { 2 } else { 4 };
    context.check(&format!("{what}: the trace has all of it"), |workspace| {
        let text = files::read(&trace)?;
        let of = |sign: &str| text.lines().filter(|line| line.starts_with(sign)).count() as u64;
        if (of("+ "), of("- ")) != (requests, requests) {
            bail!("{} allocations and {} frees, and not {requests} of each", of("+ "), of("- "));
        }
        let mut replay = workspace.command(&command);
        replay.args(["replay", "--growth", "--quiet", "--limit=16GiB"]).arg(&trace);
        workspace.run_well(&format!("replay of {what}"), replay).map(drop)
    });
    Ok(())
}

/// How often the program asked for device memory, failures included.
fn requests(facts: &Facts) -> u64 {
    let of = |calls: &Value| number(&calls["cuMemAlloc"]) + number(&calls["cuMemAllocAsync"]);
    of(&facts.seen["calls"]) + of(&facts.seen["calls before"])
}

/// The driver is asked for regions only; by the native stream-ordered allocator as before, unless libbfc serves that.
fn calls(allocator: Allocator, options: &[&str], alone: &Facts, facts: &Facts) -> Vec<String> {
    let (before, now) = (requests(alone), requests(facts));
    let is_passed = allocator == Allocator::Async && options.is_empty();
    if is_passed {
        // What fails is asked for again, after a trim.
        return if now >= before { vec![] } else { vec![format!("{now} requests, alone {before}")] };
    }
    // PyTorch's own cache has few segments already.
    let most = if allocator == Allocator::Caching { before } else { before / 100 };
    if now <= most { vec![] } else { vec![format!("{now} requests to the driver, alone {before}")] }
}

/// A run, which is a test by itself.
fn trained(
    context: &mut Context,
    pytorch: &PyTorch,
    launcher: &Launcher,
    allocator: Allocator,
    arguments: &[&str],
) -> Option<Facts> {
    let mut facts = None;
    let name = [&["train", &launcher.name, &format!("{allocator:?}")], arguments].concat().join(" ");
    context.check(&name, |workspace| {
        facts = Some(pytorch.train(workspace, launcher, allocator, arguments)?);
        Ok(())
    });
    facts
}

/// Another run says the same in all that must not depend on the allocator, and one with a fault does not.
fn faults(context: &mut Context, pytorch: &PyTorch, launcher: &Launcher, first: &Facts) {
    let mut run = |arguments: &[&str]| trained(context, pytorch, launcher, Allocator::Caching, arguments);
    let (again, leak, size) = (run(&[]), run(&["--mutate", "leak"]), run(&["--mutate", "size"]));
    if let Some(again) = again {
        context.gate("a second run says the same", &differences(&first.same, &again.same));
    }
    if let Some(leak) = leak {
        let found = [wrong(Allocator::Caching, &leak), left(Allocator::Caching, &leak)];
        context.check("a leak is found", |_| match &found {
            [wrong, left] if wrong.iter().any(|words| words.starts_with("leaked")) && !left.is_empty() => {
                Ok(())
            }
            found => bail!("only this was: {found:?}"),
        });
    }
    if let Some(size) = size {
        let found = differences(&first.same, &size.same);
        context.check("a layer of another size is found", |_| {
            let is_it = |words: &String| words.starts_with("training.Perceptron.storages.in order");
            if found.iter().any(is_it) { Ok(()) } else { bail!("only this was: {found:?}") }
        });
    }
}

/// What does not make sense, whoever allocates.
fn wrong(allocator: Allocator, facts: &Facts) -> Vec<String> {
    let Facts { same, seen } = facts;
    let mut wrong = Vec::new();
    let mut expect = |name: &str, found: &Value, expected: Value| {
        if *found != expected {
            wrong.push(format!("{name}: {found}, and not {expected}"));
        }
    };
    expect("misuses of the driver", &seen["faults"]["words"], Value::Array(Vec::new()));
    expect("misuses of the driver, in number", &seen["faults"]["count"], 0.into());
    expect("leaked", &same["leaked"], 0.into());
    expect("copies arrive", &same["copies arrive"], true.into());
    expect("on streams, misaligned", &same["on streams"]["misaligned"], 0.into());
    for (model, _) in MODELS {
        let misaligned = &same["training"][model]["storages"]["misaligned"];
        expect(&format!("{model}, misaligned"), misaligned, 0.into());
    }
    // Without its cache PyTorch hands on what the runtime says.
    let error = if allocator == Allocator::Plain { "AcceleratorError" } else { "OutOfMemoryError" };
    for index in 0..2 {
        let told = &same["out of memory"]["told"][index];
        match allocator {
            // PyTorch does not look at what the function gives.
            Allocator::Pluggable => expect("out of memory", told, "address 0".into()),
            _ => expect("out of memory", &told["type"], error.into()),
        }
    }
    expect("served afterwards", &same["out of memory"]["served afterwards"], true.into());
    if allocator == Allocator::Caching {
        for name in ["allocated_bytes.all.current", "reserved_bytes.all.current", "segment.all.current"] {
            // What is 0 is left out.
            expect(name, &same["statistics"][name], Value::Null);
        }
        expect("num_ooms", &same["statistics"]["num_ooms"], 2.into());
        expect("segments' bytes that stay", &of_segments(same).into(), 0.into());
    }
    for (model, least) in MODELS {
        let count = number(&same["training"][model]["storages"]["count"]);
        if count < least {
            wrong.push(format!("{model} made only {count} storages"));
        }
    }
    wrong
}

/// Bytes of the segments that were taken from the driver less those that were given back.
fn of_segments(same: &Value) -> i64 {
    let bytes = |entry: &Value| {
        let size = entry[1].as_i64().unwrap_or_default();
        if entry[0] == "segment_alloc" { size } else { -size }
    };
    let segments = same["segments"].as_array().filter(|segments| !segments.is_empty());
    // None at all is as wrong as some that stay.
    segments.map_or(i64::MIN, |segments| segments.iter().map(bytes).sum())
}

/// What the driver tells of a program that calls it itself.
fn left(allocator: Allocator, facts: &Facts) -> Vec<String> {
    let seen = &facts.seen;
    let mut wrong = Vec::new();
    if number(&seen["used after"]) != number(&seen["used before"]) {
        wrong.push(format!("of the device {} bytes are in use at the end", seen["used after"]));
    }
    if seen["live"]["allocations"] != 0 {
        wrong.push(format!("{} allocations are left", seen["live"]["allocations"]));
    }
    let (allocate, free) = match allocator {
        Allocator::Async => ("cuMemAllocAsync", "cuMemFreeAsync"),
        Allocator::Caching | Allocator::Plain | Allocator::Pluggable | Allocator::Package => {
            ("cuMemAlloc", "cuMemFree")
        }
    };
    let (allocated, freed) = (number(&seen["calls"][allocate]), number(&seen["calls"][free]));
    // Two requests fail, and where PyTorch has a cache it gives that back and tries again; libbfc does not ask the driver
    // for more than its limit.
    let failed = match allocator {
        Allocator::Plain => 2,
        Allocator::Caching | Allocator::Async => 4,
        Allocator::Pluggable | Allocator::Package => 0,
    };
    if allocated != freed + failed {
        wrong.push(format!("{allocated} calls of {allocate} and {freed} of {free}"));
    }
    let made: u64 = MODELS.iter().map(|(model, _)| storages(facts, model)).sum();
    let is_cached = !matches!(allocator, Allocator::Plain | Allocator::Async);
    if (is_cached && allocated * 10 > made) || (!is_cached && allocated < made) {
        wrong.push(format!("{allocated} calls of {allocate} for {made} storages: is the cache on or off?"));
    }
    wrong
}

fn storages(facts: &Facts, model: &str) -> u64 {
    number(&facts.same["training"][model]["storages"]["count"])
}

/// What must be the same with every allocator of PyTorch's: which tensors there were, in which order, of what sizes.
fn tensors(facts: &Facts) -> Value {
    let mut same = facts.same.clone();
    for model in MODELS {
        same["training"][model.0]["statistics"] = Value::Null;
        same["training"][model.0]["requested"] = Value::Null;
    }
    for name in ["statistics", "segments", "captured", "out of memory"] {
        same[name] = Value::Null;
    }
    same
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}
