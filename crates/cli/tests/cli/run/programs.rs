//! The program that is run: found as a shell finds it, and its own master.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use super::{compiled, executable, folder, interposer, run, unwrapped};
use crate::common::{bfc, run_to};

#[test]
fn the_program_is_all_that_is_left() {
    let Some(mut command) = run(&["--", "sh", "-c", "echo $$ $0; cat; exit 7"]) else { return };
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the command starts");
    let pid = child.id();
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{pid} sh\n"));
    let mut command = run(&["--", "sh", "-c", "kill -TERM $$"]).expect("there was a compiler before");
    assert_eq!(command.status().expect("the command starts").signal(), Some(15));
}

#[test]
fn a_closed_pipe_ends_the_program_as_usual() {
    // A Rust program has SIGPIPE (13) ignored, which would be inherited.
    for (options, code) in [(&["--"][..], 0), (&["--check", "--"], 3)] {
        let Some(mut command) = run(options) else { return };
        let (status, _) = run_to(code, command.args(["grep", "^Sig[BI]", "/proc/self/status"]));
        let masks: Vec<u64> = status
            .lines()
            .map(|line| {
                u64::from_str_radix(line.split_whitespace().last().expect("a mask"), 16).expect("hex")
            })
            .collect();
        let [blocked, ignored] = masks[..] else { panic!("{status}") };
        assert_eq!((blocked, ignored & (1 << 12)), (0, 0), "{status}");
    }
}

#[test]
fn options_of_the_program_are_its_own() {
    for words in
        [&["--free", "sync", "echo", "--free", "--", "-x"][..], &["--", "echo", "--free", "--", "-x"]]
    {
        let Some(mut command) = run(words) else { return };
        assert_eq!(run_to(0, &mut command).0, "--free -- -x\n");
    }
}

#[test]
fn what_cannot_be_run_is_told_as_a_shell_tells_it() {
    let folder = folder("programs");
    let place = |name: &str| folder.join(name).display().to_string();
    fs::write(place("plain"), "#!/bin/sh\n").expect("writable");
    executable(Path::new(&place("orphan")), "#!/nonexistent/interpreter\n");
    executable(Path::new(&place("empty.elf")), "\u{7f}ELF");
    let foreign = compiled(
        Path::new(&place("foreign")),
        "int main(void) { return 0; }",
        &["-Wl,--dynamic-linker=/nonexistent/ld-musl-x86_64.so.1"],
    );
    let mut cases = vec![
        ("no-such-program".to_owned(), 127, "was not found in PATH".to_owned()),
        ("/no/such/program".to_owned(), 127, "there is no /no/such/program".to_owned()),
        (place("plain"), 126, "may not be executed: chmod +x".to_owned()),
        (place(""), 126, "is a folder".to_owned()),
        (place("orphan"), 127, "needs /nonexistent/interpreter, which does not exist".to_owned()),
        (place("empty.elf"), 126, "cannot be executed: ".to_owned()),
    ];
    if foreign {
        cases.push((place("foreign"), 127, "needs /nonexistent/ld-musl-x86_64.so.1, which".to_owned()));
    }
    for (program, code, words) in cases {
        for options in [&["--"][..], &["--check", "--"]] {
            let Some(mut command) = run(options) else { return };
            let (_, error) = run_to(code, command.arg(&program));
            assert!(error.starts_with("bfc: ") && error.contains(&words), "{error}");
        }
    }
}

#[test]
fn a_file_in_this_folder_is_not_a_program_in_path() {
    let folder = folder("here");
    executable(&folder.join("tool"), "#!/bin/sh\necho ran\n");
    let Some(mut command) = run(&["tool"]) else { return };
    let (_, error) = run_to(127, command.current_dir(&folder));
    assert!(error.contains("for the file in this folder write ./ before it"), "{error}");
    for path in ["", "/nonexistent:", "."] {
        let mut command = run(&["tool"]).expect("there was a compiler before");
        assert_eq!(run_to(0, command.current_dir(&folder).env("PATH", path)).0, "ran\n", "{path:?}");
    }
    let mut command = run(&["./tool"]).expect("there was a compiler before");
    assert_eq!(run_to(0, command.current_dir(&folder)).0, "ran\n");
}

#[test]
fn a_script_without_an_interpreter_is_the_shells() {
    let folder = folder("scripts");
    let script = folder.join("script");
    executable(&script, "echo $0 $1\nexit 4\n");
    let expected = format!("{} word\n", script.display());
    for (options, code) in [(&["--"][..], 4), (&["--check", "--"], 3)] {
        let Some(mut command) = run(options) else { return };
        assert_eq!(run_to(code, command.arg(&script).arg("word")).0, expected);
    }
}

#[test]
fn without_an_interposer_nothing_runs() {
    let Some(interposer) = interposer() else { return };
    let refused = |code: i32, preload: &str| {
        let mut command = bfc();
        let (stdout, error) = run_to(code, command.args(["run", "--preload", preload, "--", "echo", "ran"]));
        assert_eq!(stdout, "");
        unwrapped(&error)
    };
    assert!(refused(125, "/nonexistent").contains("there is no /nonexistent (from --preload)"));
    assert!(refused(125, "/").contains("names the folder /, which contains no libbfc_preload.so"));
    // The library is missing; then the name of the folder is none for LD_PRELOAD.
    let alone = folder("alone with a space");
    let library = alone.join("libbfc_preload.so");
    fs::copy(interposer.join("libbfc_preload.so"), &library).expect("both are there");
    let path = alone.display().to_string();
    let error = refused(125, &path);
    assert!(
        error.contains("needs libbfc.so.0 beside it") && error.contains("cargo xtask install"),
        "{error}"
    );
    fs::write(alone.join("libbfc.so.0"), "").expect("writable");
    let error = refused(125, &path);
    assert!(error.contains("no way to write a path with a space"), "{error}");
    // What it advises helps.
    let link = super::folder("plain").join("link");
    std::os::unix::fs::symlink(&alone, &link).expect("a new name");
    let mut command = bfc();
    command
        .args(["run", "--check", "--preload"])
        .arg(&link)
        .args(["--", "true"])
        .env("FAKE_SEES", "served 1");
    run_to(0, &mut command);
}

#[test]
fn the_variable_names_the_interposer_and_the_option_comes_first() {
    let Some(interposer) = interposer() else { return };
    let served = |command: &mut std::process::Command| {
        run_to(0, command.args(["--check", "true"]).env("FAKE_SEES", "served 1"));
    };
    for path in [interposer.to_owned(), interposer.join("libbfc_preload.so")] {
        served(bfc().arg("run").env("BFC_PRELOAD_LIBRARY", path));
    }
    served(run(&[]).expect("there was a compiler").env("BFC_PRELOAD_LIBRARY", "/nonexistent"));
    let (_, error) = run_to(125, bfc().args(["run", "true"]).env("BFC_PRELOAD_LIBRARY", "/nonexistent"));
    assert!(error.contains("(from BFC_PRELOAD_LIBRARY)"), "{error}");
}

#[test]
fn a_value_that_was_taken_for_the_program_is_told() {
    let folder = folder("values");
    fs::write(folder.join("p.counters"), "").expect("writable");
    let advice = "if it is the file of --report, write --report=";
    for (words, said) in [
        (
            &["--limit", "1", "GiB", "--", "true"][..],
            "GiB was not found in PATH; write the size without a space: 1GiB\n",
        ),
        (
            &["--max", "1.5", "mb", "true"],
            "mb was not found in PATH; write the size without a space: 1.5mb\n",
        ),
        (
            &["--report", "p.counters", "--", "true"],
            &format!(
                "p.counters was not found in PATH; for the file in this folder write ./ before it; {advice}p.counters\n"
            ),
        ),
        (&["--report", "none/p", "true"], &format!("there is no none/p; {advice}none/p\n")),
        // Neither is one of these.
        (&["--limit", "1", "2", "true"], "2 was not found in PATH\n"),
        (&["--report", "--", "none/p", "true"], "there is no none/p\n"),
        (&["--publish", "GiB", "true"], "GiB was not found in PATH\n"),
    ] {
        let Some(mut command) = run(words) else { return };
        let (_, error) = run_to(127, command.current_dir(&folder));
        assert_eq!(error, format!("bfc: {said}"), "{words:?}");
    }
    let Some(mut command) = run(&["--limit", "200", "true"]) else { return };
    let (_, error) = run_to(2, &mut command);
    assert_eq!(error, "bfc: --limit is only 200 bytes: write a unit, such as 200MiB\n");
}
