//! The suite `pytorch-cpu`: PyTorch trains on the CPU with libbfc's memory, to the same numbers as with its own. Nothing is
//! simulated but the libraries of NVIDIA's that the wheel cannot be imported without. See ffi-tests/pytorch-cpu.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::by_python;
use super::context::{Context, Count};
use crate::files;
use crate::pages::owned::Owned;
use crate::python::with_bfc;
use crate::pytorch::{PyTorch, differences};
use crate::tools;
use crate::workspace::Workspace;

/// The models of train.py, and fewer pieces of memory than training each takes.
const MODELS: [(&str, u64); 2] = [("language_model", 3000), ("Convolution", 500)];

/// How many threads an operation may use, and how many processes make batches.
const WAYS: [(&str, &str); 2] = [("1", "0"), ("3", "2")];

/// The functions of checks.py.
const CHECKS: [&str; 7] =
    ["out_of_memory", "random_sizes", "threads", "fork", "until_the_end", "profiler", "before_and_after"];

/// Finds what is wrong with a run of train.py, beside another.
type Gate = fn(&Value, &Value) -> Vec<String>;

/// Trains with and without, and runs the checks.
pub fn run(context: &mut Context) -> Result<()> {
    for (tool, works) in [
        (tools::c_compiler(), tools::works(&tools::c_compiler())),
        (tools::cxx_compiler(), tools::works(&tools::cxx_compiler())),
        ("readelf".into(), tools::works("readelf".as_ref())),
    ] {
        if !works {
            context.skip("all of it", &format!("there is no {}", tool.display()));
            return Ok(());
        }
    }
    let Some(pytorch) = context.or_skip("all of it", PyTorch::find(&context.workspace))? else {
        return Ok(());
    };
    let prefix = context.prefix()?;
    let pages = Owned::of_suite(&context.workspace, "pytorch-cpu")?;
    compiled(context, &pytorch, &prefix, "allocator.cc".as_ref(), "allocator")?;
    for (threads, workers) in WAYS {
        let way = ["--threads", threads, "--workers", workers];
        let name = format!("{threads} threads, {workers} workers");
        let (mut own, mut ours) = (None, None);
        context.check(&format!("train with PyTorch's own memory, {name}"), |workspace| {
            own = Some(train(&pytorch, workspace, &prefix, &way)?);
            Ok(())
        });
        context.check(&format!("train with libbfc's, {name}"), |workspace| {
            ours = Some(train(&pytorch, workspace, &prefix, &[&way[..], &["--libbfc"]].concat())?);
            Ok(())
        });
        let (Some(own), Some(ours)) = (own, ours) else { continue };
        context.gate(&format!("the same losses and weights, {name}"), &different(&own, &ours));
        context.gate(&format!("all of it was libbfc's, {name}"), &not_ours(&ours));
        if workers == "0" {
            faults(context, &pytorch, &prefix, &own);
        }
    }
    let checks = CHECKS.map(|check| {
        let mut command = pytorch.command(&context.workspace);
        command.arg(context.workspace.path("ffi-tests/pytorch-cpu/checks.py")).arg(check);
        with_bfc(&mut command, &context.workspace, &prefix);
        command.env("BFC_LOG", "warn");
        (format!("pytorch-cpu {check}"), command)
    });
    for (check, ended) in CHECKS.iter().zip(context.programs(checks.into())?) {
        context.gate(&format!("pytorch-cpu {check}: no complaint"), &by_python::complaints(&ended.text));
    }
    for page in &pages {
        let mut command = pytorch.command(&context.workspace);
        with_bfc(&mut command, &context.workspace, &prefix);
        by_python::run(context, page, command)?;
        let source = page.file("cpp-1")?;
        if compiled(context, &pytorch, &prefix, &source, "the C++ of the page")? {
            page.ran("cpp-1")?;
        }
    }
    context.all_ran(&pages);
    Ok(())
}

/// Compiles a program and runs it; whether it ended well.
fn compiled(
    context: &mut Context,
    pytorch: &PyTorch,
    prefix: &Path,
    source: &Path,
    name: &str,
) -> Result<bool> {
    let program = context.workspace.target.join("pytorch").join(source.file_stem().unwrap_or_default());
    let mut is_built = false;
    context.check(&format!("compile {name}"), |workspace| {
        pytorch.compile(workspace, source, prefix, &program)?;
        is_built = true;
        Ok(())
    });
    if !is_built {
        return Ok(false);
    }
    let command = context.plain(context.workspace.command(&program));
    Ok(context.program(name, command, Count::One)?.success)
}

/// Faults that are put in have to be found.
fn faults(context: &mut Context, pytorch: &PyTorch, prefix: &Path, own: &Value) {
    let found: [(&str, Gate); 3] = [
        ("seed", different),
        ("native", |_, mutant| not_ours(mutant)),
        ("leak", |_, mutant| not_ours(mutant)),
    ];
    for (mutant, wrong) in found {
        context.check(&format!("a fault is found: {mutant}"), |workspace| {
            let facts = train(pytorch, workspace, prefix, &["--libbfc", "--mutate", mutant])?;
            if wrong(own, &facts).is_empty() { bail!("it was not") } else { Ok(()) }
        });
    }
}

/// What train.py has seen.
fn train(pytorch: &PyTorch, workspace: &Workspace, prefix: &Path, arguments: &[&str]) -> Result<Value> {
    let out = workspace.target.join("pytorch/cpu.json");
    files::write(&out, "")?;
    let mut command = pytorch.command(workspace);
    command.arg(workspace.path("ffi-tests/pytorch-cpu/train.py")).arg("--out").arg(&out).args(arguments);
    with_bfc(&mut command, workspace, prefix);
    workspace.run_well(&format!("pytorch-cpu train {}", arguments.join(" ")), command)?;
    serde_json::from_str(&files::read(&out)?).with_context(|| format!("{} is no JSON", out.display()))
}

/// Losses and weights that are not the same, or are none.
fn different(own: &Value, ours: &Value) -> Vec<String> {
    let mut wrong = differences(&own["same"], &ours["same"]);
    for (model, _) in MODELS {
        if own["same"][model]["losses"].as_array().is_none_or(|losses| losses.len() < 10) {
            wrong.push(format!("{model} was hardly trained"));
        }
    }
    wrong
}

/// Memory of CPU tensors that was not libbfc's, or that it does not have back.
fn not_ours(facts: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    for (model, least) in MODELS {
        let seen = &facts["seen"][model];
        let by_owner = &seen["storages"]["by owner"];
        let only = by_owner.as_object().is_some_and(|owners| owners.keys().eq(["256"]));
        if !only || by_owner["256"].as_u64() < Some(least) {
            wrong.push(format!("{model}: the owners of its memory: {by_owner}"));
        }
        let workers = &seen["made in the workers by"];
        let live = &seen["live"];
        let is_well = seen["storages"]["misaligned"] == 0
            && *workers == serde_json::json!([256])
            && live["of others"] == 0
            && live["tensors"].as_u64() > Some(10);
        if !is_well {
            wrong.push(format!("{model}: {seen}"));
        }
    }
    let end = &facts["seen"]["in the end"];
    let is_back = end["bytes_in_use"] == 0
        && end["left"] == 0
        && end["num_failures"] == 0
        && end["num_allocs"] == end["num_frees"];
    if !is_back || end["num_allocs"].as_u64() < Some(5000) {
        wrong.push(format!("in the end: {end}"));
    }
    wrong
}
