//! What the options set in the program's environment, and what they leave alone.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::{compiled, folder, interposer, run};
use crate::common::{bfc, run_to};

type Variables<'a> = &'a [(&'a str, &'a str)];

/// What the program finds in its environment, as far as it is about this.
fn environment(command: &mut Command, name: &str) -> BTreeMap<String, String> {
    let file = folder(name).join("environment");
    run_to(0, command.env("FAKE_ENVIRONMENT", &file));
    let text = fs::read_to_string(file).expect("the interposer was loaded and wrote it");
    let variables = text.lines().filter_map(|line| line.split_once('='));
    let ours = variables.filter(|(name, _)| name.starts_with("BFC_") || *name == "LD_PRELOAD");
    ours.filter(|(name, _)| *name != "BFC_LIBRARY").map(|(a, b)| (a.to_owned(), b.to_owned())).collect()
}

fn map(variables: Variables<'_>) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn every_option_has_its_variable() {
    let Some(interposer) = interposer() else { return };
    let library = interposer.join("libbfc_preload.so").display().to_string();
    let here = folder("options");
    let inside = |name: &str| here.join(name).display().to_string();
    let (report, trace, history) = (inside("a report"), inside("a.trace"), inside("a.history"));
    let cases: [(&[&str], Variables<'_>); 18] = [
        (&[], &[]),
        (&["--limit", "1.5GiB"], &[("BFC_MEMORY_LIMIT", "1610612736")]),
        (&["--fraction", "0.25"], &[("BFC_MEMORY_FRACTION", "0.25")]),
        (&["--backend", "cuda"], &[("BFC_BACKEND", "cuda")]),
        (&["--backend=CUDA_VMM"], &[("BFC_BACKEND", "cuda_vmm")]),
        (&["--growth", "need"], &[("BFC_GROWTH", "need")]),
        (&["--growth", "TensorFlow"], &[("BFC_GROWTH", "tensorflow")]),
        (
            &["--growth", "off", "--fraction", "0.5"],
            &[("BFC_FORCE_ALLOW_GROWTH", "0"), ("BFC_MEMORY_FRACTION", "0.5")],
        ),
        (&["--free", "wait"], &[("BFC_PRELOAD_FREE", "wait")]),
        (&["--free=SYNC"], &[("BFC_PRELOAD_FREE", "sync")]),
        (&["--async", "--pinned"], &[("BFC_PRELOAD_ASYNC", "1"), ("BFC_PRELOAD_PINNED", "1")]),
        (&["--ipc"], &[("BFC_PRELOAD_IPC", "1")]),
        (&["--publish"], &[("BFC_PUBLISH", "1")]),
        (&["--min", "4k", "--max", "1g"], &[("BFC_PRELOAD_MIN", "4096"), ("BFC_PRELOAD_MAX", "1073741824")]),
        (&["--report"], &[("BFC_PRELOAD_REPORT", "-")]),
        (&["--report=a report"], &[("BFC_PRELOAD_REPORT", &report)]),
        (&["--trace", "a.trace"], &[("BFC_PRELOAD_TRACE", &trace)]),
        (&["--history", "a.history"], &[("BFC_HISTORY_FILE", &history)]),
    ];
    for (options, expected) in cases {
        let mut command = run(options).expect("there is a compiler");
        // A relative path is of the folder that bfc is called in, wherever the program goes.
        let mut found = environment(command.current_dir(&here).args(["--", "sh", "-c", "cd /"]), "every");
        // The program's process, which is another each time.
        let program = found.remove("BFC_PRELOAD_PROGRAM").map(|number| number.parse::<u32>().is_ok());
        let is_named = options == ["--report"] || options.contains(&"--history");
        assert_eq!(program, is_named.then_some(true), "{options:?}");
        let mut expected = map(expected);
        expected.insert("LD_PRELOAD".to_owned(), library.clone());
        assert_eq!(found, expected, "{options:?}");
    }
}

#[test]
fn what_no_option_says_stays() {
    let Some(interposer) = interposer() else { return };
    let library = interposer.join("libbfc_preload.so").display().to_string();
    let set = [
        ("BFC_MEMORY_LIMIT", "8GiB"),
        ("BFC_PRELOAD_ASYNC", "on"),
        ("BFC_PRELOAD_FREE", "sync"),
        ("BFC_LOG", "warn"),
    ];
    let mut expected = map(&set);
    expected.insert("LD_PRELOAD".to_owned(), format!("{library}:libm.so.6"));
    let mut command = run(&["true"]).expect("there is a compiler");
    assert_eq!(environment(command.envs(set).env("LD_PRELOAD", "libm.so.6"), "stays"), expected);

    // What an option says comes first; and a limit would come before a fraction.
    let mut command = run(&["--free", "wait", "--fraction", "0.5", "true"]).expect("there is a compiler");
    let found = environment(command.envs(set), "first");
    expected.insert("LD_PRELOAD".to_owned(), library);
    expected.insert("BFC_PRELOAD_FREE".to_owned(), "wait".to_owned());
    expected.insert("BFC_MEMORY_FRACTION".to_owned(), "0.5".to_owned());
    expected.remove("BFC_MEMORY_LIMIT");
    assert_eq!(found, expected);
}

#[test]
fn a_trace_is_written_anew_and_not_lost_for_nothing() {
    let folder = folder("traces");
    let trace = folder.join("old.trace");
    fs::write(&trace, "# old\n+ 0 5 0\n").expect("writable");
    let path = trace.display().to_string();
    let Some(mut command) = run(&["--trace", &path, "no-such-program"]) else { return };
    run_to(127, &mut command);
    assert!(trace.exists(), "a mistyped program took the trace");
    // The interposer takes a file that is there for another process's.
    let shown = format!("test ! -e '{path}'");
    run_to(0, &mut run(&["--trace", &path, "sh", "-c", &shown]).expect("there was a compiler before"));
    assert!(!trace.exists());

    let inside = folder.join("none/of.trace").display().to_string();
    for (path, words) in
        [(&*folder.display().to_string(), "not a regular file"), (&inside, "no file can be created there")]
    {
        let mut command = run(&["--trace", path, "true"]).expect("there was a compiler before");
        let (_, error) = run_to(125, &mut command);
        assert!(error.contains(path) && error.contains(words), "{error}");
    }
}

#[test]
fn a_file_that_is_no_trace_is_not_removed() {
    let file = folder("no_traces").join("named");
    let path = file.display().to_string();
    let cases: [(&[u8], bool); 10] = [
        (b"import torch\n", false),
        (b"#!/usr/bin/env python3\nimport torch\n", false),
        (b"# Trains it.\nimport torch\n", false),
        (b"%PDF-1.7\n", false),
        (b"\n", false),
        (b"", true),
        (b"\0\0\0", true),
        (b"# step 1\n+ 0 5 0\n", true),
        (b"! 5 0\n", true),
        (b"%bfc-trace 1 process=0 started=0\n", true),
    ];
    for (content, is_removed) in cases {
        fs::write(&file, content).expect("writable");
        let Some(mut command) = run(&["--trace", &path, "true"]) else { return };
        let (_, error) = run_to(if is_removed { 0 } else { 125 }, &mut command);
        let refusal =
            format!("bfc: --trace {path}: the file exists and is not a trace; remove it, or name another");
        assert_eq!(file.exists(), !is_removed, "{error}");
        assert_eq!(error.starts_with(&refusal), !is_removed, "{error}");
    }
}

#[test]
fn the_trace_of_a_process_that_runs_is_left_to_it() {
    let folder = folder("live");
    let path = folder.join("t.trace").display().to_string();
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
    let started: u64 = stat
        .rsplit_once(") ")
        .expect("a name")
        .1
        .split(' ')
        .nth(19)
        .expect("a field")
        .parse()
        .expect("a number");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("Linux");
    let namespace = fs::metadata("/proc/self/ns/pid").expect("Linux").ino();
    let head = |started: u64, boot: &str, namespace: u64| {
        let (process, boot) = (std::process::id(), boot.trim());
        format!(
            "%bfc-trace 1 process={process} started={started} boot={boot} namespace={namespace}\n+ 0 5 0\n"
        )
    };
    // This test's, and that of a process that had its number before; of other machines and containers nothing is known but
    // that a normal end cuts off the zeros.
    let cases = [
        (head(started, &boot, namespace), Some("which runs")),
        (head(started + 1, &boot, namespace) + "\0", None),
        (head(started, "other", namespace) + "\0", Some("which may still be running")),
        (head(started, &boot, namespace + 1) + "\0", Some("which may still be running")),
        (head(started, &boot, namespace + 1), None),
    ];
    for (content, runs) in cases {
        fs::write(&path, content).expect("writable");
        let Some(mut command) = run(&["--trace", &path, "true"]) else { return };
        let (_, error) = run_to(0, &mut command);
        let note = format!("bfc: note: {path} is the trace of process {}, ", std::process::id());
        assert_eq!(fs::exists(&path).expect("a folder"), runs.is_some(), "{error}");
        let has_note = error.starts_with(&format!("{note}{}", runs.unwrap_or_default()));
        assert_eq!(has_note, runs.is_some(), "{error}");
    }
}

#[test]
fn a_report_that_cannot_be_kept_is_told_before_the_program_runs() {
    let folder = folder("reports");
    let notes = folder.join("notes").display().to_string();
    fs::write(&notes, "some notes\n").expect("writable");
    let cut = folder.join("cut").display().to_string();
    fs::write(&cut, b"libbfc counters 1, one record a process; read by: bfc report\n\0\0\0")
        .expect("writable");
    for (path, words) in [
        ("/nonexistent/f", "cannot be written; name another file: No such file or directory"),
        (&folder.display().to_string(), "not a regular file; name another"),
        (&notes, "the file exists and is not a report; remove it, or name another"),
        (&cut, "a record in the file is truncated; remove it, or name another"),
    ] {
        let option = format!("--report={path}");
        let Some(mut command) = run(&[&option, "echo", "ran"]) else { return };
        let (stdout, error) = run_to(125, &mut command);
        assert!(stdout.is_empty() && error.starts_with(&format!("bfc: {option}: {words}")), "{error}");
    }
    assert_eq!(fs::read_to_string(&notes).expect("it is there"), "some notes\n");
    // It is there from the beginning, for bfc report; with the process in its name it is the program's to make.
    let new = |name: &str| {
        let option = format!("--report={}", folder.join(name).display());
        run_to(0, &mut run(&[&option, "true"]).expect("there was a compiler before"));
    };
    new("new");
    run_to(0, bfc().arg("report").arg(folder.join("new")));
    new("new.%p");
    let names: Vec<_> =
        fs::read_dir(&folder).expect("it is there").map(|file| file.expect("a name").file_name()).collect();
    assert_eq!(names.len(), 3, "{names:?}");
}

#[test]
fn a_history_that_cannot_be_kept_is_told_before_the_program_runs() {
    let folder = folder("histories");
    let [inside, new] = ["none/h", "new.history"].map(|name| folder.join(name).display().to_string());
    let Some(mut command) = run(&["--history", &inside, "echo", "ran"]) else { return };
    let (stdout, error) = run_to(125, &mut command);
    let words = "no file can be created there; name another: No such file or directory";
    assert!(stdout.is_empty() && error.starts_with(&format!("bfc: --history {inside}: {words}")), "{error}");
    // The library makes the file, when the program allocates for the first time.
    run_to(0, &mut run(&["--history", &new, "true"]).expect("there was a compiler before"));
    assert!(fs::read_dir(&folder).expect("it is there").next().is_none());
    // A variable may be meant for another program too, so it does not keep this one from running.
    for (path, notes) in [(&inside, 1), (&new, 0)] {
        let mut command = run(&["true"]).expect("there was a compiler before");
        let (_, error) = run_to(0, command.env("BFC_HISTORY_FILE", path));
        let note = format!(
            "bfc: note: BFC_HISTORY_FILE={path} has no effect: no file can be created there: No such"
        );
        assert_eq!((error.lines().count(), error.starts_with(&note)), (notes, notes == 1), "{error}");
    }
    assert!(fs::read_dir(&folder).expect("it is there").next().is_none());
}

/// A program without allocations makes no history, and the earlier one stays. The library cannot rename one of another
/// version.
#[test]
fn a_program_without_a_history_leaves_the_earlier_one() {
    let folder = folder("history-stays");
    let file = folder.join("train.history");
    let name = file.display().to_string();
    for (version, left) in [("2", "train.history"), ("1", "train.history.old")] {
        let earlier = format!("libbfc history {version}{}", "\0".repeat(4096));
        std::fs::write(&file, &earlier).expect("writable");
        let Some(mut command) = run(&["--history", &name, "true"]) else { return };
        run_to(0, &mut command);
        let kept = std::fs::read_to_string(folder.join(left)).expect("it is kept");
        assert_eq!(kept, earlier, "version {version}");
    }
    assert!(!file.exists());
}

#[test]
fn a_backend_without_memory_of_a_device_is_refused() {
    for backend in ["host", "host-vmm", "custom", "auto"] {
        let Some(mut command) = run(&["--backend", backend, "true"]) else { return };
        let (_, error) = run_to(2, &mut command);
        assert!(error.contains("[possible values: cuda, cuda-vmm]"), "{error}");
    }
    let Some(mut command) = run(&["--growth", "double", "true"]) else { return };
    let (_, error) = run_to(2, &mut command);
    assert!(error.contains("[possible values: need, tensorflow, off]"), "{error}");
}

#[test]
fn an_option_for_growth_comes_before_the_environment() {
    let Some(mut command) = run(&["--growth", "need", "true"]) else { return };
    let command = command.env("BFC_FORCE_ALLOW_GROWTH", "0").env("BFC_GROWTH", "tensorflow");
    let found = environment(command, "growth");
    assert_eq!(found.get("BFC_GROWTH").map(String::as_str), Some("need"));
    assert_eq!(found.get("BFC_FORCE_ALLOW_GROWTH"), None);
    // A limit of the environment is one.
    let mut command = run(&["--growth", "off", "true"]).expect("there is a compiler");
    let found = environment(command.env("BFC_MEMORY_LIMIT", "8GiB"), "growth");
    assert_eq!(found.get("BFC_FORCE_ALLOW_GROWTH").map(String::as_str), Some("0"));
}

#[test]
fn a_variable_that_does_nothing_is_told() {
    let notes = |options: &[&str], set: Variables<'_>| {
        let mut command = run(&[options, &["true"]].concat())?;
        Some(run_to(0, command.envs(set.iter().copied())).1)
    };
    for (options, set, words) in [
        (
            &[][..],
            &[("BFC_ALLOW_GROWTH", "0")][..],
            "BFC_ALLOW_GROWTH=0 has no effect under bfc run: pools grow; use --growth off",
        ),
        (&[], &[("BFC_SPLIT_ALWAYS", "no")], "BFC_SPLIT_ALWAYS=no has no effect under bfc run"),
        (&[], &[("BFC_TIMESTAMPS", "off")], "BFC_TIMESTAMPS=off has no effect under bfc run"),
        (&["--async"], &[("BFC_TIMESTAMPS", "1")], "BFC_TIMESTAMPS=1 has no effect under bfc run"),
        (&[], &[("BFC_TWO_ENDS", "1")], "BFC_TWO_ENDS=1 has no effect under bfc run"),
        (&[], &[("BFC_BACKEND", "Host-VMM")], "use --backend cuda or cuda-vmm"),
        (&[], &[("BFC_FRAGMENTATION_FRACTION", "0.5")], "every remainder is split off"),
        (
            &[],
            &[("BFC_MEMORY_LIMT", "8GiB")],
            "BFC_MEMORY_LIMT=8GiB has no effect: no variable of libbfc has this name; check its spelling\n",
        ),
        (
            &["--limit", "1GiB"],
            &[("BFC_PRELOAD_MIN", "lots")],
            "BFC_PRELOAD_MIN=lots has no effect: it must be a size like 8GiB\n",
        ),
        (
            &[],
            &[("BFC_ALLOW_GROWTH", "perhaps")],
            "BFC_ALLOW_GROWTH=perhaps has no effect: it must be 1 or 0",
        ),
        (&[], &[("BFC_LOG", "loud")], "BFC_LOG=loud is taken for warn: it must be error, "),
        (&[], &[("BFC_DEBUG", "guard,more")], "BFC_DEBUG=guard,more is ignored in part: it must be guard\n"),
        (&[], &[("BFC_PLAN", "x.plan")], "BFC_PLAN=x.plan has no effect under bfc run without --async"),
        (
            &[],
            &[("BFC_MEMORY_LIMIT", "1GiB"), ("BFC_MEMORY_FRACTION", "0.5")],
            "BFC_MEMORY_FRACTION=0.5 has no effect: BFC_MEMORY_LIMIT comes first",
        ),
    ] {
        let Some(error) = notes(options, set) else { return };
        assert!(error.starts_with("bfc: note: ") && error.contains(words), "{set:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    for (options, set) in [
        (&[][..], &[("BFC_ALLOW_GROWTH", "1"), ("BFC_TIMESTAMPS", "1"), ("BFC_BACKEND", "cuda_vmm")][..]),
        (&[], &[("BFC_TWO_ENDS", "0"), ("BFC_MEMORY_FRACTION", "0.5"), ("BFC_RETRY_TIMEOUT_MS", "0")]),
        (&["--async"], &[("BFC_PLAN", "x.plan"), ("BFC_TIMESTAMPS", "0")]),
        (&["--limit", "1GiB"], &[("BFC_MEMORY_FRACTION", "0.5")]),
        (&["--limit", "1GiB"], &[("BFC_MEMORY_LIMIT", "lots")]),
        (&["--backend", "cuda"], &[("BFC_BACKEND", "host")]),
    ] {
        assert_eq!(notes(options, set).expect("there is a compiler"), "", "{set:?}");
    }
}

#[test]
fn a_long_value_is_cut_off() {
    let Some(mut command) = run(&["true"]) else { return };
    let (_, error) = run_to(0, command.env("BFC_NAME", "ä".repeat(101)));
    let shown = format!("bfc: note: BFC_NAME={}... has no effect: ", "ä".repeat(100));
    assert!(error.starts_with(&shown), "{error}");
}

/// What the library would say is not worth a program that does not run.
#[test]
fn a_library_that_does_not_open_is_no_obstacle() {
    let Some(interposer) = interposer() else { return };
    let folder = folder("no-library");
    fs::copy(interposer.join("libbfc_preload.so"), folder.join("libbfc_preload.so")).expect("writable");
    fs::write(folder.join("libbfc.so.0"), "").expect("writable");
    let mut command = bfc();
    command.arg("run").arg("--preload").arg(&folder).arg("true").env("BFC_MEMORY_LIMT", "8GiB");
    assert_eq!(run_to(0, &mut command).1, "");
}

#[test]
fn a_program_that_the_interposer_does_not_reach_is_told_before_it_runs() {
    let program = folder("unreached").join("static");
    if interposer().is_none() || !compiled(&program, "int main(void) { return 0; }", &["-static"]) {
        eprintln!("skipped: no compiler for static programs");
        return;
    }
    let name = program.display().to_string();
    let mut command = run(&["--limit", "1GiB", &name]).expect("there is a compiler");
    let (_, error) = run_to(0, &mut command);
    let note = format!("bfc: note: libbfc and the options have no effect: {name} is statically linked: ");
    assert!(error.starts_with(&note), "{error}");
    // With --check it is told once.
    let mut command = run(&["--check", &name]).expect("there is a compiler");
    let (_, error) = run_to(3, &mut command);
    assert_eq!(error.matches("statically linked").count(), 1, "{error}");
}

#[test]
fn wrong_usage_is_2() {
    for options in [
        &["--limit", "1GiB", "--fraction", "0.5", "true"][..],
        &["--limit", "0", "true"],
        &["--limit", "-1", "true"],
        &["--fraction", "2", "true"],
        &["--free", "never", "true"],
        &["--growth", "off", "true"],
        &["--backend", "cuda-vmm", "--ipc", "true"],
        &["--min", "2k", "--max", "1k", "true"],
        &["--trace", "t.gz", "true"],
        &["--trace=t.GZ", "true"],
        &["--library", "/", "true"],
        &["--no-such-option", "true"],
        &["--check"],
        &[],
    ] {
        let Some(mut command) = run(options) else { return };
        let (_, error) = run_to(2, &mut command);
        let named = error.contains("Usage: bfc run [OPTIONS] [--] <PROGRAM> [ARGS]...");
        assert!(error.starts_with("error: ") && (named || error.contains("--help")), "{options:?}: {error}");
    }
}
