//! Fault manners: what must not go otherwise than without the interposer.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::deaths::reported;
use super::stage::{Link, Run, Stage, judge, saw};
use crate::cargo::Profile;
use crate::files;
use crate::simcuda;
use crate::suites::context::Context;

/// Programs without CUDA, without a driver, and at the edges of a process's life.
pub fn run(context: &mut Context, stage: &Stage) -> Result<()> {
    everyday(context, stage)?;
    no_driver(context, stage)?;
    forks(context, stage)?;
    ends(context, stage)?;
    early(context, stage)?;
    unloads(context, stage)?;
    own_malloc(context, stage)
}

/// What a case is expected to leave in the check file.
struct Lines<'a> {
    there: &'a [&'a str],
    absent: &'a [&'a str],
}

const SERVED: Lines<'_> = Lines { there: &["loaded", "served", "exit driver=mapped"], absent: &[] };
const IDLE: Lines<'_> =
    Lines { there: &["loaded", "exit driver=absent"], absent: &["looked-up", "called", "served"] };

/// A test: the program says the same and ends the same with the interposer and without.
fn alike(
    context: &mut Context,
    stage: &Stage,
    name: &str,
    program: &Path,
    arguments: impl Fn(&mut Command),
    lines: &Lines<'_>,
) -> Result<()> {
    let mut plain = stage.plain(context, program);
    arguments(&mut plain);
    let Run { mut command, check } = stage.run(context, program)?;
    arguments(&mut command);
    compare(context, name, plain, command, &check, lines);
    Ok(())
}

fn compare(
    context: &mut Context,
    name: &str,
    plain: Command,
    with: Command,
    check: &Path,
    lines: &Lines<'_>,
) {
    context.check(name, |workspace| {
        files::remove(check)?;
        let alone = workspace.run(&format!("preload: {name}, alone"), plain)?;
        let preloaded = workspace.run(&format!("preload: {name}"), with)?;
        let said = [&alone, &preloaded].map(|ended| format!("{}\n{}", ended.status, ended.text));
        if said[0] != said[1] {
            bail!("without the interposer:\n{}\nwith it:\n{}", said[0], said[1]);
        }
        judge(&saw(check)?, lines.there, lines.absent)
    });
}

/// Programs that have nothing to do with CUDA.
fn everyday(context: &mut Context, stage: &Stage) -> Result<()> {
    let script = "for word in a b c; do echo $word; done | sort -r; (exit 5); echo $?; ls /nowhere; exit 7";
    let python = "import ctypes, subprocess, sys, threading\n\
                  t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n\
                  print(subprocess.run(['echo', 'child'], capture_output=True).stdout, len(sys.version) > 0)\n\
                  sys.exit(3)";
    // A folder in which nobody writes meanwhile.
    let folder = stage.lib.to_string_lossy();
    let cases: [(&str, &[&str]); 4] = [
        ("ls", &["-la", &folder]),
        ("ls", &["/nowhere"]),
        ("bash", &["-c", script]),
        ("python3", &["-c", python]),
    ];
    for (tool, arguments) in cases {
        let Some(program) = files::program(tool) else {
            context.skip(tool, "it is not installed");
            continue;
        };
        let name = format!("{tool} {}, without CUDA", arguments[0]);
        let bare = |command: &mut Command| {
            command.env_remove("LD_LIBRARY_PATH").args(arguments);
        };
        alike(context, stage, &name, &program, bare, &IDLE)?;
    }
    Ok(())
}

/// A CUDA program where there is no driver: the runtime alone is on the path.
fn no_driver(context: &mut Context, stage: &Stage) -> Result<()> {
    let folder = stage.file("no-driver");
    std::fs::create_dir_all(&folder)?;
    for major in [11, 12, 13] {
        let runtime = simcuda::runtime(major);
        files::copy(&stage.simulation.join(&runtime), &folder.join(&runtime))?;
        let program = format!("no_driver{major}");
        let program = stage.compile(context, &program, "no_driver.c", Link::Runtime(major), &[])?;
        let without = |command: &mut Command| {
            command.env("LD_LIBRARY_PATH", &folder);
        };
        // RTLD_NEXT finds the name, and the call is answered.
        let lines = Lines { there: &["loaded", "exit driver=absent"], absent: &["looked-up", "served"] };
        alike(context, stage, &format!("{runtime} without a driver"), &program, without, &lines)?;
    }
    Ok(())
}

fn forks(context: &mut Context, stage: &Stage) -> Result<()> {
    let bfc = context.built(Profile::Release)?.command.clone();
    let program = stage.compile(context, "forks", "forks.c", Link::Runtime(12), &[])?;
    // How many of the processes allocate, each of which says so once: what a child inherits is not its own.
    let cases = [
        ("before_any_use", "a child that uses CUDA first", 2),
        ("after_use", "a child of a process that uses CUDA", 1),
        ("amid_threads", "a fork while other threads allocate", 1),
        ("replaced", "exec, system", 5),
    ];
    for (case, words, processes) in cases {
        let folder = stage.file("forks.d");
        files::remove_all(&folder)?;
        std::fs::create_dir_all(&folder)?;
        let (report, trace) = (folder.join("report"), folder.join("trace"));
        let arguments = |command: &mut Command| {
            command.arg(case).env("BFC_PRELOAD_REPORT", &report).env("BFC_PRELOAD_TRACE", &trace);
        };
        alike(context, stage, words, &program, arguments, &SERVED)?;
        context.check(&format!("{words}: what is reported and traced"), |workspace| {
            let report = reported(workspace, &bfc, &report)?;
            let reports = report.lines().filter(|line| line.starts_with("process ")).count();
            let mut firsts = 0;
            for entry in files::entries(&folder)?.iter().filter(|entry| !entry.ends_with("report")) {
                firsts += files::read(entry)?.lines().filter(|line| line.starts_with("+ 0 ")).count();
            }
            if (reports, firsts) != (processes, processes) {
                bail!("{processes} processes allocate, {reports} report and {firsts} trace:\n{report}");
            }
            Ok(())
        });
    }
    Ok(())
}

fn ends(context: &mut Context, stage: &Stage) -> Result<()> {
    let bfc = context.built(Profile::Release)?.command.clone();
    let program = stage.compile(context, "ends", "ends.c", Link::Runtime(12), &[])?;
    let (served, killed) = (&["served", "exit driver=mapped"][..], &["served"][..]);
    let cases = [
        ("amid_threads", "100", "exit while other threads allocate", served),
        ("exit_by_thread", "100", "exit() while other threads allocate", served),
        ("handlers", "3", "allocation in exit handlers and destructors", served),
        ("aborts", "3", "abort", killed),
        ("crashes", "3", "a crash", killed),
        ("is_killed", "20", "SIGKILL while other threads allocate", killed),
        ("leaves_at_once", "3", "_exit", killed),
        ("leaves_quickly", "3", "quick_exit", killed),
    ];
    for (case, rounds, words, there) in cases {
        // With all that there is to write at the end.
        let (report, trace) = (stage.file("ends.report"), stage.file("ends.trace"));
        let arguments = |command: &mut Command| {
            command.args([case, rounds]);
            command.env("BFC_PRELOAD_REPORT", &report).env("BFC_PRELOAD_TRACE", &trace);
        };
        alike(context, stage, words, &program, arguments, &Lines { there, absent: &[] })?;
        let state = if there == served { "ended" } else { "killed" };
        context.check(&format!("{words}: each process is reported as {state}"), |workspace| {
            let report = reported(workspace, &bfc, &report)?;
            let found = report.matches(&format!("  state        {state}: ")).count();
            // Some end before their threads allocate.
            if found == 0 || report.matches("  state ").count() != found {
                bail!("not all are {state}:\n{report}");
            }
            Ok(())
        });
        files::remove(&report)?;
        for entry in files::entries(&stage.file(""))? {
            if entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ends.trace")) {
                files::remove(&entry)?;
            }
        }
    }
    Ok(())
}

fn early(context: &mut Context, stage: &Stage) -> Result<()> {
    for (program, link) in [("early", Link::Runtime(12)), ("early_static", Link::Static)] {
        let name = format!("CUDA before main, and threads from the first line ({program})");
        let program = stage.compile(context, program, "early.c", link, &[])?;
        alike(context, stage, &name, &program, |_| {}, &SERVED)?;
    }
    let flags = ["-DBEFORE_EVERYBODY"];
    let program = stage.compile(context, "earliest", "early.c", Link::Runtime(12), &flags)?;
    let mut run = stage.run(context, &program)?;
    run.command.arg("preloaded");
    stage.expect(context, "CUDA before any constructor", run, &[], &[]);
    Ok(())
}

fn unloads(context: &mut Context, stage: &Stage) -> Result<()> {
    let program = stage.compile(context, "unloads", "unloads.c", Link::Nothing, &[])?;
    let runtime = stage.simulation.join(simcuda::runtime(12));
    let arguments = |command: &mut Command| {
        command.arg(&runtime);
    };
    alike(context, stage, "a runtime that is closed and opened again", &program, arguments, &SERVED)
}

/// A library that replaces malloc, before and behind.
fn own_malloc(context: &mut Context, stage: &Stage) -> Result<()> {
    let library =
        stage.compile(context, "libown_malloc.so", "own_malloc.c", Link::Library, &["-fno-builtin"])?;
    let program = stage.compile(context, "under_malloc", "runtime.c", Link::Runtime(12), &[])?;
    let front = stage.run_among(context, &program, &[&library], &[])?;
    stage.served(context, "a malloc that calls dlsym, before us", front);
    let back = stage.run_among(context, &program, &[], &[&library])?;
    stage.served(context, "a malloc that calls dlsym, behind us", back);
    Ok(())
}
