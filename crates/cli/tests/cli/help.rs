//! The examples of `bfc --help`: each of them runs.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{SMALL, bfc, library, run_to};
use crate::run::{executable, folder, interposer};
use bfc_readers::history::made::{Chunk, Made};

/// The command lines of a help: those below "Examples:" that begin with a command or a variable.
fn examples(command: &[&str], help: &str) -> Vec<String> {
    let (text, _) = run_to(0, bfc().args(command).arg(help));
    let text = text.split("Examples:\n").nth(1).unwrap_or_else(|| panic!("{command:?} {help}: no examples"));
    let lines = text.split("\n\n").next().unwrap_or_default().lines();
    assert!(lines.clone().all(|line| line.len() <= 100), "{text}");
    let typed = lines.map(|line| line.trim().split("  ").next().unwrap_or_default().to_owned());
    typed.filter(|line| line.starts_with("bfc ") || line.starts_with("BFC_")).collect()
}

#[test]
fn each_command_has_examples_and_each_runs() {
    let Some(interposer) = interposer() else { return };
    let folder = folder("examples");
    executable(&folder.join("train"), "#!/bin/sh\nexit 0\n");
    let own = Path::new(env!("CARGO_BIN_EXE_bfc")).parent().expect("its folder");
    let path = format!("{}:{}", own.display(), env::var("PATH").expect("a path"));
    let history = history().bytes();
    fs::write(folder.join("train.trace"), SMALL).expect("writable");
    for map in ["before.map", "after.map"] {
        let mut replay = bfc();
        run_to(0, replay.arg("replay").arg(folder.join("train.trace")).arg("--map").arg(folder.join(map)));
    }
    for command in [&[][..], &["info"], &["run"], &["replay"], &["plan"], &["report"], &["diff"], &["top"]] {
        let lines = examples(command, "--help");
        assert!(lines.len() > 1, "{command:?}: {lines:?}");
        assert_eq!(lines, examples(command, "-h"), "{command:?}");
        for line in lines {
            // The interposer of these tests records nothing.
            fs::write(folder.join("train.trace"), SMALL).expect("writable");
            for name in ["train.history", "before.history", "after.history"] {
                fs::write(folder.join(name), &history).expect("writable");
            }
            // The port and the folder of the examples may be other programs', and one of them has no end.
            let line =
                line.replace("bfc top --openmetrics --listen 9465", "exec bfc top --openmetrics --listen 0");
            let line = line.replace("--interval 15 --output /var/lib/prometheus/node-exporter/", "--output ");
            let mut shell = Command::new("sh");
            shell.args(["-euc", &line]).current_dir(&folder).env("PATH", &path);
            shell.env("BFC_LIBRARY", library()).env("BFC_PRELOAD_LIBRARY", interposer);
            if line.contains("--listen") {
                runs_on(&mut shell);
                continue;
            }
            // Of it --check finds out that nothing was served.
            run_to(if line.contains("--check") { 3 } else { 0 }, &mut shell);
        }
    }
}

/// Starts a command that has no end of its own, and ends it once it has said something.
fn runs_on(command: &mut Command) {
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let mut said = String::new();
    BufReader::new(child.stderr.take().expect("a pipe")).read_line(&mut said).expect("readable");
    child.kill().expect("it is a child of this process");
    child.wait().expect("it has ended");
    assert!(said.contains("http://127.0.0.1:"), "{said}");
}

/// A history of twenty seconds with the marks that the examples name.
fn history() -> Made {
    let chunk = Chunk { address: 0x10_0000, bytes: 4096, operation: 0 };
    let mut made = Made::new("train");
    made.microseconds = 4_000_000;
    made.pool(1, 0, "bfc", &[]);
    made.mark("epoch 1");
    made.alloc(1, chunk);
    made.mark("epoch 2");
    made.free(1, chunk);
    made
}
