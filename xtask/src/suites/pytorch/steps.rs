//! The suite `transformers`: whole training steps of GPT-2, BERT and ViT, inference on streams, captured graphs and
//! running out of memory, with PyTorch's own allocator and with libbfc in its place by `bfc.torch.use()`.
//!
//! What was asked for must be the same by the books of both, to the byte.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{found, number};
use crate::pytorch::{Facts, PyTorch, differences};
use crate::suites::context::Context;
use crate::tools;

/// The models of ffi-tests/pytorch/transformer_models.py with their parameters: those of GPT-2, BERT base and ViT base.
const MODELS: [(&str, u64); 3] = [("GPT-2", 124_439_808), ("BERT", 109_514_298), ("ViT", 85_800_194)];

/// In which libbfc may run out of memory.
const LIMIT: &str = "1073741824";

/// libbfc with regions, and with granules of one range.
const BACKENDS: [(&str, &str); 2] = [("libbfc", "cuda"), ("libbfc, cuda_vmm", "cuda_vmm")];

/// Each run is a process.
pub fn run(context: &mut Context) -> Result<()> {
    let Some(pytorch) = found(context, &[tools::cxx_compiler()])? else { return Ok(()) };
    let prefix = context.prefix()?;
    let with = With { pytorch, prefix: &prefix };
    let Some(native) = with.ran(context, "native", &[], &["training", "serving", "mem_pool"]) else {
        return Ok(());
    };
    context.gate("native: what was seen makes sense", &wrong("native", &native));
    context.gate("native: the segments of a MemPool are libbfc's", &mem_pool(&native));
    let mut peaks = vec![("native", native.seen.clone())];
    for (name, backend) in BACKENDS {
        let arguments = ["training", "serving", "recorded", "graphs", "--libbfc"];
        let Some(facts) = with.ran(context, name, &[("BFC_BACKEND", backend)], &arguments) else { continue };
        context.gate(&format!("{name}: what was seen makes sense"), &wrong(name, &facts));
        for scenario in ["training", "serving"] {
            let found = differences(&native.same[scenario], &facts.same[scenario]);
            context.gate(&format!("{name}: {scenario} is as with PyTorch's own, to the byte"), &found);
        }
        context.gate(&format!("{name}: bfc.torch tells what libbfc counts"), &untold(&facts));
        context.gate(&format!("{name}: other streams get nothing too early"), &early(&facts));
        context.gate(&format!("{name}: graphs keep their memory"), &graphs(&facts));
        peaks.push((name, facts.seen));
    }
    exhausted(context, &with);
    mutated(context, &with, &native);
    say_peaks(&peaks);
    Ok(())
}

struct With<'a> {
    pytorch: PyTorch,
    prefix: &'a Path,
}

impl With<'_> {
    /// A run, which is a test by itself.
    fn ran(
        &self,
        context: &mut Context,
        name: &str,
        environment: &[(&str, &str)],
        arguments: &[&str],
    ) -> Option<Facts> {
        let mut facts = None;
        context.check(&format!("{name}: {}", arguments.join(" ")), |workspace| {
            facts = Some(self.pytorch.steps(workspace, self.prefix, environment, arguments)?);
            Ok(())
        });
        facts
    }
}

/// What does not make sense, whoever allocates.
fn wrong(name: &str, facts: &Facts) -> Vec<String> {
    let mut wrong = differences(&json!({"count": 0, "words": []}), &facts.seen["faults"]);
    if facts.seen["in use at the end"] != 0 {
        wrong.push(format!(
            "{name}: {} bytes of the device are in use at the end",
            facts.seen["in use at the end"]
        ));
    }
    for (model, parameters) in MODELS {
        let told = &facts.same["training"][model];
        if told["parameters"] != parameters {
            wrong.push(format!("{model} has {} parameters", told["parameters"]));
        }
        // Weights, gradients and both moments are there at once.
        let least = 16 * parameters;
        if number(&told["requested"]["peak requested"]) < least || told["requested"]["live"] != 0 {
            wrong.push(format!("{model} has asked for {}", told["requested"]));
        }
        if number(&told["storages"]["count"]) < 5000 || told["storages"]["misaligned"] != 0 {
            wrong.push(format!("{model}: {}", told["storages"]));
        }
    }
    let serving = &facts.same["serving"]["requested"];
    if number(&serving["allocations"]) < 5000 || serving["live"] != 0 {
        wrong.push(format!("serving: {serving}"));
    }
    wrong
}

/// What of a MemPool of libbfc's memory is not as it should be.
fn mem_pool(native: &Facts) -> Vec<String> {
    let said = &native.seen["mem_pool"];
    let mut expected = json!({"out of memory": "OutOfMemoryError", "held at the end": 0});
    expected["segments"] =
        json!({"of the pool": said["segments"]["of libbfc"], "of libbfc": said["segments"]["of libbfc"]});
    let mut wrong = differences(&expected, said);
    if number(&said["segments"]["of libbfc"]) == 0 {
        wrong.push("libbfc gave it nothing".to_owned());
    }
    let trained =
        [&native.same["training"]["GPT-2"]["storages"], &native.same["mem_pool"]["GPT-2"]["storages"]];
    wrong.extend(differences(trained[0], trained[1]));
    wrong
}

/// What bfc.torch tells otherwise than libbfc, and what of the device's memory is not libbfc's.
fn untold(facts: &Facts) -> Vec<String> {
    let mut wrong = Vec::new();
    for (model, _) in MODELS {
        let seen = &facts.seen["training"][model];
        wrong.extend(differences(&facts.same["training"][model]["requested"], &seen["raw"]));
        if seen["pool"]["held"] != seen["pool"]["of the device"] || number(&seen["pool"]["held"]) == 0 {
            wrong.push(format!("{model}: {}", seen["pool"]));
        }
    }
    wrong
}

fn early(facts: &Facts) -> Vec<String> {
    differences(&json!({"mismatches": 0}), &facts.seen["recorded"])
}

fn graphs(facts: &Facts) -> Vec<String> {
    let seen = &facts.seen["graphs"];
    // Else the test would not see it.
    let is_seen = number(&seen["places"]) > 20 && number(&seen["taken afterwards"]) > 0;
    let is_kept = seen["taken while they live"] == 0 && facts.same["graphs"]["results are apart"] == true;
    if is_kept && is_seen { vec![] } else { vec![seen.to_string()] }
}

/// Out of memory at a small limit PyTorch's exception is raised with our report, and the program goes on.
fn exhausted(context: &mut Context, with: &With<'_>) {
    let arguments = ["out_of_memory", "--libbfc", "--limit", LIMIT];
    let Some(facts) = with.ran(context, "libbfc, at a limit", &[], &arguments) else { return };
    context.check("libbfc, at a limit: torch.OutOfMemoryError with our report, and it goes on", |_| {
        let seen = &facts.seen["out_of_memory"];
        let told = seen["told"].as_array().map(Vec::as_slice).unwrap_or_default();
        for error in told {
            let words = error["words"].as_str().unwrap_or_default();
            let parts = ["CUDA out of memory. ", "no memory for ", "device 0 ", "largest free chunk"];
            if error["type"] != "OutOfMemoryError" || !parts.iter().all(|part| words.contains(part)) {
                bail!("{error}");
            }
        }
        let done = seen["done"].as_array().map_or(0, Vec::len);
        if told.is_empty() || done < 5 || number(&seen["failures"]) != told.len() as u64 {
            bail!("{} failures, by the books {}, and {done} steps", told.len(), seen["failures"]);
        }
        let names = &seen["random sizes"];
        let out_of_memory = number(&names["OutOfMemoryError: no memory for"]);
        let broken = number(&names["RuntimeError: CUDA_ERROR_UNKNOWN"]);
        if out_of_memory == 0 || broken == 0 || names.as_object().map(serde_json::Map::len) != Some(2) {
            bail!("of a thousand requests: {names}");
        }
        Ok(())
    });
    let clean = json!([0, 0]);
    let left: Value =
        [&facts.seen["in use at the end"], &facts.seen["faults"]["count"]].into_iter().cloned().collect();
    context.gate("libbfc, at a limit: nothing is left", &differences(&clean, &left));
}

/// A byte more that stays, and a stream that libbfc is not told of, are found.
fn mutated(context: &mut Context, with: &With<'_>, native: &Facts) {
    let arguments = ["serving", "recorded", "--libbfc", "--mutate"];
    let Some(facts) = with.ran(context, "libbfc, with faults", &[], &arguments) else { return };
    context.check("libbfc, with faults: they are found", |_| {
        let requested = differences(&native.same["serving"], &facts.same["serving"]);
        let is_found = requested.iter().any(|line| line.starts_with("requested.peak requested"));
        if !is_found || early(&facts).is_empty() || facts.seen["in use at the end"] == 0 {
            bail!("{requested:?}, {:?}, {} in use", early(&facts), facts.seen["in use at the end"]);
        }
        Ok(())
    });
}

/// What was asked for at most, and what was held of the device for it.
fn say_peaks(peaks: &[(&str, Value)]) {
    let mut rows = MODELS.map(|(model, _)| ("training", Some(model))).to_vec();
    rows.push(("serving", None));
    for (scenario, model) in rows {
        let of = |seen: &Value| match model {
            Some(model) => seen[scenario][model]["peaks"].clone(),
            None => seen[scenario]["peaks"].clone(),
        };
        let mebibytes = |value: &Value| number(value) >> 20;
        let held =
            peaks.iter().map(|(name, seen)| format!("{name} {} MiB", mebibytes(&of(seen)["reserved"])));
        let held: Vec<String> = held.collect();
        let requested = peaks.first().map(|(_, seen)| mebibytes(&of(seen)["requested"]));
        println!(
            "   {}: at most {} MiB requested; held: {}",
            model.unwrap_or(scenario),
            requested.unwrap_or_default(),
            held.join("; ")
        );
    }
}
