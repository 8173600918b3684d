//! What the interposer writes about a program: the trace, and the report at its end.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::behaviour::{compile, with};
use super::deaths::{events, reported};
use super::stage::Stage;
use crate::cargo::Profile;
use crate::files;
use crate::suites::context::Context;
use crate::workspace::Workspace;

/// The case `known` of ffi-tests/preload/behaviour/trace.c, without the verdict on the request that is refused: neither frees
/// that failed nor requests for nothing are there, nor memory of other kinds.
const KNOWN: &str = "+ 0 1000 0\n+ 1 5242881 0\n+ 2 3000 1\n+ 3 4000 2\n- 1 0\n! 18446744073709551615 0\n- 2 1\n+ 4 77 0\n\
    - 3 2\n- 0 0\n+ 5 2222 0\n";

/// The case `gone`: what ended with its context has ended where its address comes again.
const GONE: &str = "+ 0 1000 0\n+ 1 2000 0\n- 1 0\n- 0 0\n+ 2 1000 0\n+ 3 2000 0\n- 3 0\n- 2 0\n+ 4 1000 0\n+ 5 2000 0\n- 5 0\n";

/// The case `default_streams`: two threads' own ones, and the legacy one.
const DEFAULT_STREAMS: &str = "+ 0 1000 1\n- 0 1\n+ 1 1001 1\n- 1 1\n+ 2 1002 0\n- 2 0\n\
    + 3 2000 2\n- 3 2\n+ 4 2001 2\n- 4 2\n+ 5 2002 0\n- 5 0\n\
    + 6 3000 1\n- 6 1\n+ 7 3001 1\n- 7 1\n+ 8 3002 0\n- 8 0\n";

/// As in the case `threads`.
const THREADS: u64 = 4;
const EACH: u64 = 2000;

/// Runs the program, and looks at what was written.
pub fn run(context: &mut Context, stage: &Stage) -> Result<()> {
    let program = compile(context, stage, "trace")?;
    let bfc = context.built(Profile::Release)?.command.clone();
    let traces = [
        ("known", KNOWN, ["", "BFC_PRELOAD_ASYNC=1", "BFC_PRELOAD_MAX=1M", "BFC_PRELOAD_MIN=1M"].as_slice()),
        ("gone", GONE, &["", "BFC_PRELOAD_ASYNC=1"]),
        ("default_streams", DEFAULT_STREAMS, &["", "BFC_PRELOAD_ASYNC=1"]),
    ];
    for (case, wanted, settings) in traces {
        for settings in settings {
            let trace = traced(context, stage, &program, case, settings);
            context.check(format!("the trace `{case}` {settings}").trim_end(), |workspace| {
                let trace = trace?;
                let text = events(&trace)?;
                ensure!(text == wanted, "it is\n{text}\nand not\n{wanted}");
                replays(workspace, &bfc, &trace, stage)
            });
        }
    }
    let trace = traced(context, stage, &program, "threads", "");
    context.check("the trace of four threads", |workspace| {
        let trace = trace?;
        of_threads(&events(&trace)?)?;
        replays(workspace, &bfc, &trace, stage)
    });
    second_process(context, stage, &program)?;
    warnings(context, stage)?;
    report(context, stage, &program, &bfc)
}

/// Runs a case with a trace, which is a file of its own.
fn traced(context: &Context, stage: &Stage, program: &Path, case: &str, settings: &str) -> Result<PathBuf> {
    let trace = stage.file(&format!("{case}.trace"));
    files::remove(&trace)?;
    let mut command = with(context, stage, program, case, settings)?;
    command.env("BFC_PRELOAD_TRACE", &trace);
    context.workspace.run_well(&format!("preload: trace of {case} {settings}"), command)?;
    Ok(trace)
}

/// `bfc replay` plays it, without a failure.
fn replays(workspace: &Workspace, bfc: &Path, trace: &Path, stage: &Stage) -> Result<()> {
    let mut command = workspace.command(bfc);
    command.arg("replay").args(["--repeat", "1", "--library"]).arg(&stage.lib).arg(trace);
    let said = workspace.run_well("preload: bfc replay", command)?;
    let name = trace.file_stem().unwrap_or_default().to_string_lossy();
    ensure!(said.contains(&*name), "it says nothing of the trace:\n{said}");
    Ok(())
}

/// Each thread's requests are there, in the order of the thread, and all but the last of each was freed.
fn of_threads(trace: &str) -> Result<()> {
    let mut live: HashMap<u64, u64> = HashMap::new();
    let mut next = HashMap::new();
    let mut ids = 0;
    for line in trace.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| -> Result<u64> {
            words
                .get(at)
                .and_then(|word| word.parse().ok())
                .with_context(|| format!("no line of a trace: {line}"))
        };
        let id = number(1)?;
        match words[0] {
            "+" => {
                ensure!(id == ids, "{line}: the number should be {ids}");
                ids += 1;
                let (thread, bytes) = (number(2)? / 1000, number(2)? % 1000);
                let place = next.entry(thread).or_insert(0_u64);
                ensure!(bytes == 1 + *place % 500, "{line}: it is request {place} of thread {thread}");
                *place += 1;
                live.insert(id, number(2)?);
            }
            "-" => ensure!(live.remove(&id).is_some(), "{line}: it does not live"),
            _ => bail!("no line of a trace: {line}"),
        }
    }
    ensure!(next.len() as u64 == THREADS && next.values().all(|&count| count == EACH), "requests: {next:?}");
    ensure!(live.len() as u64 == THREADS, "alive at the end: {live:?}");
    Ok(())
}

/// The file of another process is left alone: the trace has the process's number in its name.
fn second_process(context: &mut Context, stage: &Stage, program: &Path) -> Result<()> {
    let trace = traced(context, stage, program, "known", "")?;
    let before = siblings(&trace)?;
    let mut command = with(context, stage, program, "threads", "")?;
    command.env("BFC_PRELOAD_TRACE", &trace);
    context.workspace.run_well("preload: a second trace", command)?;
    context.check("a trace that is there is another process's", |_| {
        ensure!(events(&trace)? == KNOWN, "it was written to");
        let new: Vec<_> = siblings(&trace)?.into_iter().filter(|path| !before.contains(path)).collect();
        let [new] = &new[..] else { bail!("the new ones are {new:?}") };
        of_threads(&events(new)?)?;
        files::remove(new)
    });
    Ok(())
}

/// Malformed settings are ignored, each with one warning if warnings are wanted.
fn warnings(context: &mut Context, stage: &Stage) -> Result<()> {
    let program = compile(context, stage, "limits")?;
    let malformed =
        "BFC_MEMORY_LIMIT=lots BFC_MEMORY_FRACTION=2 BFC_BACKEND=cuda_vmn BFC_PRELOAD_MAX=20000000T";
    for (log, each) in [("warn", 1), ("error", 0), ("off", 0)] {
        let settings = format!("{malformed} BFC_LOG={log}");
        let command = with(context, stage, &program, "limit_malformed", &settings)?;
        context.check(&format!("malformed settings with BFC_LOG={log}"), |workspace| {
            let said = workspace.run_well(&format!("preload: warnings, {log}"), command)?;
            for setting in malformed.split(' ') {
                let warning = format!("libbfc warning: {setting} is ignored: it must be ");
                let found = said.matches(&warning).count();
                ensure!(found == each, "{found} times and not {each} it says `{warning}`:\n{said}");
            }
            Ok(())
        });
    }
    Ok(())
}

/// Files whose names begin as that one's.
fn siblings(path: &Path) -> Result<Vec<PathBuf>> {
    let begin = path.display().to_string();
    let folder = path.parent().context("a file is in a folder")?;
    let all = files::entries(folder)?.into_iter();
    Ok(all.filter(|path| path.display().to_string().starts_with(&begin)).collect())
}

fn report(context: &mut Context, stage: &Stage, program: &Path, bfc: &Path) -> Result<()> {
    let report = stage.file("counted.report");
    files::remove(&report)?;
    let mut command = with(context, stage, program, "counted", "BFC_MEMORY_LIMIT=1000M")?;
    command.env("BFC_PRELOAD_REPORT", &report);
    let said = context.workspace.run_well("preload: report", command)?;
    context.check("the report's numbers are the driver's", |workspace| {
        let text = reported(workspace, bfc, &report)?;
        judge_report(&text, &said)
            .with_context(|| format!("the report is\n{text}\nand the driver saw {said}"))
    });
    Ok(())
}

/// The case `counted`: 512 requests, of which 4 are live at the end, and what the driver says of it.
fn judge_report(text: &str, driver: &str) -> Result<()> {
    let numbers: Vec<u64> = driver.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let &[obtained, returned, synchronizations] = &numbers[..] else { bail!("the program said {driver}") };
    ensure!(obtained > 0 && synchronizations > 0, "there is nothing to compare");
    let (calls, made) = (512 + 508, obtained + returned + synchronizations);
    let saved = calls - made;
    let percent = 100.0 * saved as f64 / f64::from(calls as u32);
    let wanted = [
        "\ndevice 0\n".to_owned(),
        "  served       512 allocations, 508 frees\n".to_owned(),
        format!(
            "  driver calls {saved} saved of {calls} ({percent:.1} %): {made} made, for {obtained} regions obtained, \
             {returned} returned, {synchronizations} synchronisations\n"
        ),
        "  peaks        800.0 MiB requested, 800.0 MiB in use, 1000.0 MiB held from the driver\n".to_owned(),
        "  waste        200.0 MiB (20.0 % of what was held) at the peak; 400.0 MiB live now\n".to_owned(),
    ];
    match wanted.iter().find(|line| !text.contains(*line)) {
        Some(line) => bail!("it has no {line}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_of_threads_is_judged() {
        let mut trace = String::new();
        let mut id = 0;
        for thread in 0..THREADS {
            for each in 0..EACH {
                trace += &format!("+ {id} {} 0\n", thread * 1000 + 1 + each % 500);
                if each > 0 {
                    trace += &format!("- {} 0\n", id - 1);
                }
                id += 1;
            }
        }
        assert!(of_threads(&trace).is_ok());
        assert!(of_threads(&trace.replacen("- 0 0\n", "", 1)).is_err());
        assert!(of_threads(&trace.replacen("- 0 0\n", "- 7999 0\n", 1)).is_err());
        assert!(of_threads(&trace.replacen("+ 5 6 0\n", "+ 5 7 0\n", 1)).is_err());
        assert!(of_threads("").is_err());
    }

    #[test]
    fn a_report_is_held_against_the_driver() {
        let report = "process 1: trace counted\ndevice 0\n  served       512 allocations, 508 frees\n  \
            driver calls 1013 saved of 1020 (99.3 %): 7 made, for 4 regions obtained, 1 returned, 2 synchronisations\n  \
            peaks        800.0 MiB requested, 800.0 MiB in use, 1000.0 MiB held from the driver\n  \
            waste        200.0 MiB (20.0 % of what was held) at the peak; 400.0 MiB live now\n";
        assert!(judge_report(report, "4 1 2\n").is_ok());
        assert!(judge_report(report, "4 2 2\n").is_err());
        assert!(judge_report(report, "").is_err());
        assert!(judge_report(&report.replace("512", "513"), "4 1 2\n").is_err());
    }
}
