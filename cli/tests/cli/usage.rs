//! Wrong usage, wrong input, which library is used, and what `bfc info` tells.

use std::fs;
use std::process::Stdio;

use crate::common::{SMALL, bfc, file, library, recorded, run_to};

#[test]
fn wrong_usage_is_2() {
    let trace = file("usage.trace", SMALL);
    for options in [
        &["--find-limit", "--threads", "2"][..],
        &["--find-limit", "--limit", "1MiB"],
        &["--precision", "1"],
        &["--device-capacity", "1GiB", "--backend", "host"],
        &["--limit", "0"],
        &["--limit", "many"],
        &["--threads", "0"],
        &["--repeat", "0"],
        &["--fragmentation-fraction", "2"],
        &["--async", "--backend", "cuda"],
        &["--no-such-option"],
        &["-", "-"],
    ] {
        let (stdout, error) = run_to(2, bfc().arg("replay").arg(&trace).args(options));
        assert_eq!(stdout, "", "{options:?}");
        assert!(error.starts_with("error: "), "{options:?}: {error}");
    }
    run_to(2, bfc().arg("replay"));
    run_to(2, &mut bfc());
}

#[test]
fn wrong_input_is_1_and_named() {
    let packed = fs::read(recorded("gpt2.trace.gz")).expect("the recorded trace");
    let cases = [
        (file("not.trace.gz", "+ 1 5 0\n"), "not.trace.gz:1: not gzip"),
        (file("cut.trace.gz", &packed[..packed.len() / 2]), "truncated gzip: the data ends after line "),
        (file("letter.trace", "+ 1 5 0\nx 1 0\n"), "letter.trace:2: unknown event letter \"x\""),
        (file("double.trace", "+ 1 5 0\n- 1 0\n- 1 0\n"), "double.trace:3: double free"),
        (file("empty.trace", ""), "empty.trace is empty"),
    ];
    for (path, words) in cases {
        // A sound trace before it must not have run and printed by then.
        let good = recorded("gpt2.trace.gz");
        let (stdout, error) = run_to(1, bfc().arg("replay").arg(good).arg(path));
        assert!(error.starts_with("bfc: ") && error.contains(words), "{error}");
        assert_eq!(stdout, "");
    }
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut command = bfc();
    command.arg("replay").arg(recorded("gpt2.trace.gz")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_library_that_is_named_is_the_one_that_is_used() {
    let (stdout, _) =
        run_to(0, bfc().arg("info").env("BFC_LIBRARY", "/nonexistent").arg("--library").arg(library()));
    assert!(stdout.contains("libbfc.so"), "{stdout}");
    let (_, error) = run_to(1, bfc().arg("info").env("BFC_LIBRARY", "/nonexistent/libbfc.so"));
    assert!(error.contains("/nonexistent/libbfc.so (from BFC_LIBRARY)"), "{error}");
    let (_, error) = run_to(1, bfc().args(["info", "--library", "/"]));
    assert!(error.contains("--library names the folder /, which holds no libbfc.so"), "{error}");
    let mut command = bfc();
    command.arg("info").env_remove("BFC_LIBRARY").env_remove("LD_LIBRARY_PATH");
    let output = command.output().expect("the command starts");
    if output.status.code() != Some(0) {
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("../lib64/libbfc.so") && error.contains("--library PATH"), "{error}");
    }
}

#[test]
fn info_names_the_backends_and_the_environment() {
    let (stdout, _) = run_to(0, bfc().arg("info").env("BFC_LOG", "off"));
    let row = |name: &str| {
        let line = stdout.lines().find(|line| line.trim_start().starts_with(&format!("{name}  ")));
        line.unwrap_or_else(|| panic!("no {name} in\n{stdout}")).trim().to_owned()
    };
    assert!(
        row("version").split_whitespace().nth(1).is_some_and(|version| version.matches('.').count() == 2)
    );
    assert!(row("host").ends_with("yes"), "{stdout}");
    assert!(row("custom").ends_with("yes"), "{stdout}");
    for cuda in ["cuda, device 0", "cuda-vmm, device 0"] {
        let answer = row(cuda);
        assert!(answer.ends_with("yes") || answer.contains("no: bfc_create: "), "{answer}");
    }
    assert!(row("BFC_LOG").ends_with("off"));
}

#[test]
fn a_variable_that_steers_the_library_is_remarked_on() {
    let trace = file("steered.trace", SMALL);
    let replay = |options: &[&str]| {
        let mut command = bfc();
        command.arg("replay").arg(&trace).args(options).env("BFC_FORCE_ALLOW_GROWTH", "1");
        run_to(0, &mut command).1
    };
    assert!(replay(&[]).contains("BFC_FORCE_ALLOW_GROWTH=1 is set"));
    assert_eq!(replay(&["--quiet"]), "");
}
