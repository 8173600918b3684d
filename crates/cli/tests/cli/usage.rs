//! Wrong usage, wrong input, which library is used, and what `bfc info` tells.

use std::fs;
use std::process::Stdio;

use crate::common::{SMALL, bfc, file, library, recorded, row, run_to};

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
        &["--plot", "x.png"],
        &["--plot", "x.svg", "--threads", "2"],
        &["--plot", "x.svg", "--find-limit"],
    ] {
        let (stdout, error) = run_to(2, bfc().arg("replay").arg(&trace).args(options));
        assert_eq!(stdout, "", "{options:?}");
        assert!(error.starts_with("error: "), "{options:?}: {error}");
    }
    run_to(2, bfc().arg("replay"));
    run_to(2, &mut bfc());
    for traces in [["-", "-"], ["--map=x", "-"]] {
        let (_, error) = run_to(2, bfc().arg("replay").arg(&trace).args(traces));
        assert!(error.contains("Usage: bfc replay [OPTIONS] <TRACE>..."), "{error}");
    }
}

#[test]
fn a_mistyped_command_or_option_gets_a_suggestion() {
    let commands = "tip: the commands are replay, plan, run, report, diff, top, info\n";
    for (words, tip) in [
        (&["repotr"][..], "tip: a similar subcommand exists: 'report'\n"),
        (&["rnu"], commands),
        (&["tpo"], commands),
        (&["run", "--limt", "1GiB", "true"], "tip: a similar argument exists: '--limit'\n"),
        (&["replay", "--find-limits", "t"], "tip: a similar argument exists: '--find-limit'\n"),
        (&["run", "--backend", "cuda-vm", "true"], "tip: a similar value exists: 'cuda-vmm'\n"),
        (&["run", "--limit", "--", "./app"], "tip: the value of '--limit <SIZE>' is missing before '--'\n"),
        (
            &["replay", "--repeat", "--json", "t"],
            "tip: the value of '--repeat <N>' is missing before '--json'\n",
        ),
    ] {
        let (_, error) = run_to(2, bfc().args(words));
        assert!(error.starts_with("error: ") && error.contains(tip), "{words:?}: {error}");
    }
}

#[test]
fn an_option_that_needs_another_says_so() {
    for (words, said) in [
        (
            &["run", "--stacks", "native", "true"][..],
            "--stacks needs --history FILE, which contains the backtraces",
        ),
        (&["run", "--leaks-exit-code", "3", "true"], "--leaks-exit-code needs --leaks"),
        (&["replay", "--growth-policy", "need", "t"], "--growth-policy needs --growth"),
        (&["report", "--from", "peak", "h"], "--from, --before and --to need --leaks"),
        (&["report", "--before", "peak", "h"], "--from, --before and --to need --leaks"),
        (&["report", "--to", "peak", "h"], "--from, --before and --to need --leaks"),
        (&["top", "--listen", "9465"], "--listen needs --openmetrics"),
        (&["top", "--output", "m"], "--output needs --openmetrics"),
        (&["top", "--openmetrics", "--interval", "1"], "--openmetrics with --interval needs --output FILE"),
    ] {
        let (_, error) = run_to(2, bfc().args(words));
        let usage = format!("Usage: bfc {} ", words[0]);
        assert!(error.starts_with(&format!("error: {said}")) && error.contains(&usage), "{words:?}: {error}");
    }
}

#[test]
fn a_folder_and_an_address_that_top_does_not_find_are_named() {
    for options in [&[][..], &["--openmetrics"]] {
        let (_, error) = run_to(0, bfc().args(["top", "--folder", "/nonexistent"]).args(options));
        assert_eq!(error, "bfc: note: /nonexistent does not exist\n", "{options:?}");
    }
    let listen = |code, address| run_to(code, bfc().args(["top", "--openmetrics", "--listen", address])).1;
    let error = listen(2, "99999");
    assert!(error.contains("99999 is no port: ports are 0 to 65535"), "{error}");
    // The documentation's: no machine has it.
    let error = listen(1, "192.0.2.1:9465");
    assert!(
        error.contains("cannot listen on 192.0.2.1:9465: ")
            && error.contains("; it is no address of this machine"),
        "{error}"
    );
}

#[test]
fn a_negative_number_gets_the_words_of_its_option() {
    for (option, words) in [
        (&["--limit", "-1"][..], "not a size"),
        (&["--limit", "-1GiB"], "not a size"),
        (&["--initial-region", "-1"], "not a size"),
        (&["--device-capacity", "-1"], "not a size"),
        (&["--fragmentation-fraction", "-0.5"], "above 0 and at most 1"),
        (&["--threads", "-1"], "not in 1..=1024"),
        (&["--repeat", "-1"], "not in 1..=65535"),
        (&["--find-limit", "--precision", "-1%"], "between 0 and 100"),
    ] {
        let (_, error) = run_to(2, bfc().args(["replay", "t"]).args(option));
        assert!(error.contains("invalid value '-") && error.contains(words), "{option:?}: {error}");
    }
}

#[test]
fn a_backend_that_is_not_there_fails_in_words() {
    let trace = file("version.trace", SMALL);
    // On a machine with devices too there are none here.
    let replay = |options: &[&str]| {
        run_to(1, bfc().env("CUDA_VISIBLE_DEVICES", "-1").arg("replay").arg(&trace).args(options)).1
    };
    let (help, _) = run_to(0, bfc().args(["replay", "--help"]));
    for (backend, spellings) in [("cuda", ["cuda", "CUDA"]), ("cuda-vmm", ["cuda-vmm", "cuda_vmm"])] {
        let listed = help.lines().find(|line| line.trim().starts_with(&format!("- {backend}:")));
        assert!(listed.is_some_and(|line| !line.ends_with("(not in this version)")), "{help}");
        for spelling in spellings {
            let error = replay(&["--backend", spelling]);
            let begin = format!("bfc: --backend {backend} cannot be used: ");
            assert!(error.starts_with(&begin) && error.contains("; use --backend host"), "{error}");
            assert!(!error.contains("BFC_BACKEND=") && !error.contains("BFC_BACKEND_CUSTOM"), "{error}");
        }
    }
    let (_, error) = run_to(2, bfc().arg("replay").arg(&trace).args(["--async", "--backend", "cuda"]));
    assert!(error.contains("--async cannot run on CUDA"), "{error}");
}

#[test]
fn help_tells_how_many_pools_there_are_and_where() {
    let (help, _) = run_to(0, bfc().args(["replay", "--help"]));
    assert!(help.contains("on ordinal 258") && help.contains("two more, not measured"), "{help}");
}

#[test]
fn a_trace_is_gzip_by_its_content_and_not_by_its_name() {
    run_to(0, bfc().arg("replay").arg(file("plain.trace.gz", SMALL)));
}

#[test]
fn wrong_input_is_1_and_named() {
    let packed = fs::read(recorded("gpt2.trace.gz")).expect("the recorded trace");
    let cases = [
        (file("not.trace.gz", "notes\n"), "not.trace.gz:1: unknown event letter \"notes\""),
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
    assert!(error.contains("--library names the folder /, which contains no libbfc.so"), "{error}");
    let mut command = bfc();
    command.arg("info").env_remove("BFC_LIBRARY").env_remove("LD_LIBRARY_PATH");
    let output = command.output().expect("the command starts");
    if output.status.code() != Some(0) {
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("../lib64/libbfc.so") && error.contains("--library PATH"), "{error}");
    }
}

#[test]
fn no_name_steers_the_terminal() {
    let (_, error) = run_to(1, bfc().args(["report", "/nonexistent/\u{1b}]0;title\u{7}\u{9b}2J"]));
    assert!(error.contains("cannot open /nonexistent/\u{fffd}]0;title\u{fffd}\u{fffd}2J"), "{error:?}");
    // An argument too many is shown by clap.
    let (_, error) = run_to(2, bfc().args(["report", "one", "\u{61c}two\u{202e}\u{9b}2J"]));
    assert!(error.contains("unexpected argument '\u{fffd}two\u{fffd}\u{fffd}2J'"), "{error:?}");
}

#[test]
fn advice_is_for_an_installed_command_too() {
    let (_, error) = run_to(1, bfc().args(["info", "--library", "/nonexistent"]));
    assert!(error.contains("install libbfc, or build it in its source tree"), "{error}");
}

#[test]
fn info_names_the_backends_and_the_environment() {
    let (stdout, _) = run_to(0, bfc().arg("info").env("BFC_LOG", "off"));
    let row = |name: &str| row(&stdout, name).unwrap_or_else(|| panic!("no {name} in\n{stdout}"));
    assert_eq!(row("version").matches('.').count(), 2);
    assert_eq!([row("host"), row("host-vmm"), row("custom")], ["yes"; 3]);
    for backend in ["auto, device 0", "cuda, device 0", "cuda-vmm, device 0"] {
        let answer = row(backend);
        // A reason, and no advice to programs: that would be the same long text four times.
        let brief = answer.starts_with("no: ") && answer.len() < 100;
        assert!(answer == "yes" || (brief && !answer.contains("BFC_BACKEND=")), "{answer}");
    }
    assert_eq!(row("BFC_LOG"), "off");
}
