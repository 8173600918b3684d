//! The suite `keras`: libbfc in the place of TensorFlow's own BFC allocator, on the CPU and with nothing simulated. Keras
//! trains to the same numbers with both and with neither. See ffi-tests/keras.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::by_python;
use super::context::{Context, Count};
use crate::files;
use crate::pages::owned::Owned;
use crate::python::with_bfc;
use crate::pytorch::differences;
use crate::tensorflow::{self, TensorFlow};
use crate::tools;
use crate::workspace::Workspace;

/// Fewer requests than training takes.
const LEAST: u64 = 10_000;

/// The functions of checks.py.
const CHECKS: [&str; 7] = [
    "out_of_memory",
    "waiting",
    "random_sizes",
    "too_late",
    "others_in_front",
    "no_compiler",
    "until_the_end",
];

/// Whether TensorFlow uses oneDNN, and how many threads an operation may use. Without oneDNN its usual allocator counts
/// its requests.
const WAYS: [(&str, &str); 2] = [("0", "1"), ("1", "2")];

/// Finds what is wrong with a run of train.py, beside another.
type Gate = fn(&Value, &Value) -> Vec<String>;

/// What the runs of train.py have in common.
struct Trainer<'a> {
    tensorflow: &'a TensorFlow,
    prefix: &'a Path,
    probe: PathBuf,
}

/// The C++ programs, the training, the checks and the page.
pub fn run(context: &mut Context) -> Result<()> {
    let compiler = tools::cxx_compiler();
    if !tools::works(&compiler) {
        context.skip("all of it", &format!("there is no {}", compiler.display()));
        return Ok(());
    }
    let Some(tensorflow) = context.or_skip("all of it", TensorFlow::find(&context.workspace))? else {
        return Ok(());
    };
    let prefix = context.prefix()?;
    allocators(context, &tensorflow, &prefix)?;
    let probe = context.workspace.target.join("ffi/keras/probe.so");
    let mut is_built = false;
    context.check("compile probe", |workspace| {
        tensorflow.compile(workspace, &["probe.cc"], &probe, &["-shared".as_ref(), "-fPIC".as_ref()])?;
        is_built = true;
        Ok(())
    });
    if is_built {
        let trainer = Trainer { tensorflow: &tensorflow, prefix: &prefix, probe };
        WAYS.iter().for_each(|way| trainer.compare(context, *way));
    }
    let checks = CHECKS.map(|check| {
        let mut command = tensorflow.command(&context.workspace);
        command.arg(context.workspace.path("ffi-tests/keras/checks.py")).arg(check);
        with_bfc(&mut command, &context.workspace, &prefix);
        command.env("BFC_LOG", "warn");
        (format!("keras {check}"), command)
    });
    for (check, ended) in CHECKS.iter().zip(context.programs(checks.into())?) {
        context.gate(&format!("keras {check}: no complaint"), &by_python::complaints(&ended.text));
    }
    let pages = Owned::of_suite(&context.workspace, "keras")?;
    for page in &pages {
        let mut command = tensorflow.command(&context.workspace);
        with_bfc(&mut command, &context.workspace, &prefix);
        by_python::run(context, page, command)?;
    }
    context.all_ran(&pages);
    Ok(())
}

/// The program that has the header in it.
fn allocators(context: &mut Context, tensorflow: &TensorFlow, prefix: &Path) -> Result<()> {
    let program = context.workspace.target.join("ffi/keras/allocators");
    let mut is_built = false;
    context.check("compile allocators", |workspace| {
        let (include, library) = (prefix.join("include"), prefix.join("lib"));
        let option = |name: &str, folder: &Path| {
            let mut option = OsString::from(name);
            option.push(folder);
            option
        };
        let options = [
            option("-I", &include),
            option("-L", &library),
            "-l:libbfc.so".into(),
            option("-Wl,-rpath,", &library),
        ];
        let options: Vec<_> = options.iter().map(OsString::as_os_str).collect();
        tensorflow.compile(workspace, &["allocators.cc", "derived.cc"], &program, &options)?;
        is_built = true;
        Ok(())
    });
    if is_built {
        let command = context.plain(tensorflow::command(&context.workspace, &program));
        context.program("allocators", command, Count::One)?;
    }
    Ok(())
}

impl Trainer<'_> {
    /// Trains with each allocator, and with faults.
    fn compare(&self, context: &mut Context, (onednn, threads): (&str, &str)) {
        let name = format!("oneDNN {}, {threads} threads", if onednn == "1" { "on" } else { "off" });
        let mut run = |arguments: &[&str]| {
            let mut facts = None;
            context.check(&format!("train {}, {name}", arguments.join(" ")), |workspace| {
                facts = Some(self.train(workspace, onednn, threads, arguments)?);
                Ok(())
            });
            facts
        };
        let trained = (run(&["usual"]), run(&["bfc"]), run(&["libbfc"]));
        let (Some(usual), Some(bfc), Some(libbfc)) = trained else { return };
        let mutant = |mutant| if onednn == "0" { run(&["libbfc", "--mutate", mutant]) } else { None };
        let [seed, plain, leak] = ["seed", "plain", "leak"].map(mutant);
        let mut different = different_from(&bfc, &usual);
        different.extend(different_from(&libbfc, &bfc));
        context.gate(&format!("the same losses and weights, {name}"), &different);
        if onednn == "0" {
            context.gate("the usual allocator's requests are counted", &uncounted(&usual));
        }
        context.gate(&format!("all of it was libbfc's, {name}"), &not_ours(&libbfc, &bfc));
        let found: [(_, _, Gate); 3] =
            [("seed", seed, different_from), ("plain", plain, not_ours), ("leak", leak, not_ours)];
        for (fault, facts, wrong) in found {
            if let Some(facts) = facts {
                context.check(&format!("a fault is found: {fault}"), |_| match wrong(&facts, &bfc) {
                    found if found.is_empty() => bail!("it was not"),
                    _ => Ok(()),
                });
            }
        }
    }

    /// What train.py has seen.
    fn train(&self, workspace: &Workspace, onednn: &str, threads: &str, arguments: &[&str]) -> Result<Value> {
        let out = workspace.target.join("ffi/keras/facts.json");
        files::write(&out, "")?;
        let mut command: Command = self.tensorflow.command(workspace);
        command.arg(workspace.path("ffi-tests/keras/train.py")).arg("--out").arg(&out);
        command.arg("--probe").arg(&self.probe).args(["--threads", threads, "--allocator"]).args(arguments);
        with_bfc(&mut command, workspace, self.prefix);
        command.env("TF_ENABLE_ONEDNN_OPTS", onednn);
        workspace.run_well(&format!("keras train {onednn} {threads} {}", arguments.join(" ")), command)?;
        serde_json::from_str(&files::read(&out)?).with_context(|| format!("{} is no JSON", out.display()))
    }
}

/// Losses and weights that are not the same.
fn different_from(facts: &Value, own: &Value) -> Vec<String> {
    differences(&own["same"], &facts["same"])
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Else it would say nothing that it has none of libbfc's.
fn uncounted(usual: &Value) -> Vec<String> {
    let seen = &usual["seen"];
    if number(&seen["requests of others"]) > LEAST { vec![] } else { vec![format!("{seen}")] }
}

/// Memory of tensors that was not libbfc's, or that TensorFlow's own allocator would have had back.
fn not_ours(facts: &Value, own: &Value) -> Vec<String> {
    let seen = &facts["seen"];
    let ours = &seen["libbfc"];
    let expected = serde_json::json!({
        "allocator": "bfc_cpu_allocator_for_gpu (libbfc, device 256)",
        // TensorFlow's own functions have served none, and hold nothing.
        "allocators": [["bfc_cpu_allocator_for_gpu", 256, 0, 0]],
        "requests of others": 0,
        "as TensorFlow tells": true,
        "variables": { "count": 15, "of others": 0 },
        "results": { "count": 30, "of others": 0 },
        "report": "memory of allocator \"TensorFlow\" on device 256 (host backend)",
    });
    let found = serde_json::json!({
        "allocator": seen["allocator"],
        "allocators": ours["allocators"],
        "requests of others": seen["requests of others"],
        "as TensorFlow tells": ours["as TensorFlow tells"],
        "variables": ours["variables"],
        "results": ours["results"],
        "report": ours["report"],
    });
    let mut wrong = differences(&expected, &found);
    for (name, requests) in [("TensorFlow", &seen["requests"]), ("libbfc", &ours["allocations"])] {
        if number(requests) < LEAST {
            wrong.push(format!("by {name}'s account there were {requests} requests"));
        }
    }
    // TensorFlow keeps something for itself: constants of functions, states of generators.
    let (left, own_left) = (&seen["left"]["current"], &own["seen"]["left"]["current"]);
    if number(own_left) == 0 || number(left) > number(own_left) * 5 / 4 {
        wrong.push(format!("{left} bytes are left, and {own_left} with TensorFlow's own"));
    }
    wrong
}
