//! `bfc run --leaks`, with programs that record nothing and copy a history of this test's to where it is asked for.

use std::fs;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{folder, run};
use crate::common::{file, run_to};
use bfc_readers::history::made::{Chunk, Made};

const CHUNK: Chunk = Chunk { address: 0x10_0000, bytes: 4096, operation: 1 };
/// What a process of libbfc does: the first writes the file, others beside it.
const RECORD: &str = "cp \"$FIRST\" \"$BFC_HISTORY_FILE\"; cp \"$SECOND\" \"$BFC_HISTORY_FILE.17\"";

/// A history of a program that frees everything or not, and that began in the future.
fn made(program: &str, frees: bool) -> Made {
    let mut made = Made::new(program);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    made.began = (now + Duration::from_secs(3600)).as_nanos() as u64;
    made.pool(1, 0, "bfc", &["weights"]);
    made.alloc(1, CHUNK);
    if frees {
        made.free(1, CHUNK);
    }
    made
}

/// `bfc run --leaks` with two processes, of which the second frees everything or not.
fn leaks(name: &str, frees: bool, options: &[&str], script: &str) -> Option<Command> {
    let folder = folder(name);
    let mut command = run(&[&["--leaks"], options, &["--", "sh", "-c", script]].concat())?;
    command.env("TMPDIR", &folder).current_dir(&folder);
    command.env("FIRST", file(&format!("{name}-first.history"), made("first", true).bytes()));
    command.env("SECOND", file(&format!("{name}-second.history"), made("second", frees).bytes()));
    Some(command)
}

fn is_empty(name: &str) -> bool {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("run").join(name);
    fs::read_dir(path).expect("a folder").next().is_none()
}

#[test]
fn what_each_process_left_is_listed() {
    let script = format!("{RECORD}; echo out");
    let Some(mut command) = leaks("leaks-listed", false, &[], &script) else { return };
    let (out, error) = run_to(0, &mut command);
    assert_eq!(out, "out\n");
    let (first, second) = error.split_once("leaks of process 4711: second\n").expect(&error);
    assert!(first.starts_with("leaks of process 4711: first\n"), "{first}");
    assert!(first.contains("  live         0 B in 0 allocations\n"), "{first}");
    assert!(second.contains("    4.00 KiB (4096)  1 allocation  weights: 1 of 4.00 KiB (4096)"), "{second}");
    assert!(is_empty("leaks-listed"), "the histories are gone");
}

#[test]
fn leaks_have_an_exit_code_of_their_own_if_one_is_wanted() {
    let fails = format!("{RECORD}; exit 5");
    let killed = format!("{RECORD}; kill -KILL $$");
    for (frees, options, script, code) in [
        (false, &["--leaks-exit-code", "9"][..], RECORD, 9),
        (true, &["--leaks-exit-code", "9"], RECORD, 0),
        (false, &[], RECORD, 0),
        (false, &["--leaks-exit-code", "9"], &fails, 5),
        (false, &["--leaks-exit-code", "9"], &killed, 137),
    ] {
        let Some(mut command) = leaks("leaks-code", frees, options, script) else { return };
        run_to(code, &mut command);
    }
}

#[test]
fn a_history_with_a_name_stays_and_earlier_ones_are_not_listed() {
    let script = "cp \"$SECOND\" \"$BFC_HISTORY_FILE\"; echo $BFC_HISTORY";
    let Some(mut command) = leaks("leaks-named", false, &["--history", "a.history"], script) else { return };
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("run/leaks-named");
    let mut old = made("old", false);
    old.began = 1;
    fs::write(folder.join("a.history.16"), old.bytes()).expect("writable");
    fs::write(folder.join("a.history.txt"), old.bytes()).expect("writable");
    let (out, error) = run_to(0, command.env("BFC_HISTORY", "2000"));
    assert_eq!(out, "2000\n");
    assert!(error.starts_with("leaks of process 4711: second\n"), "{error}");
    assert!(!error.contains("old"), "{error}");
    assert!(folder.join("a.history").exists());
}

#[test]
fn a_program_without_a_pool_is_told() {
    for events in ["", "0", "many"] {
        let Some(mut command) = leaks("leaks-none", false, &[], "echo $BFC_HISTORY") else { return };
        let (out, error) = run_to(0, command.env("BFC_HISTORY", events));
        assert_eq!(out, "1048576\n");
        assert!(error.contains("bfc: leaks: no history was recorded: no process used a pool"), "{error}");
    }
}

#[test]
fn a_history_that_is_damaged_does_not_hide_the_others() {
    let script = format!("{RECORD}; head -c 5000 \"$SECOND\" > \"$BFC_HISTORY_FILE\"");
    let Some(mut command) = leaks("leaks-damaged", false, &["--leaks-exit-code", "9"], &script) else {
        return;
    };
    let (_, error) = run_to(9, &mut command);
    assert!(
        error.contains("is truncated: it has 5000 of") && error.contains("process 4711: second"),
        "{error}"
    );
}

#[test]
fn options_of_leaks_exclude_others() {
    for words in [
        &["--leaks", "--check", "true"][..],
        &["--leaks-exit-code", "9", "true"],
        &["--leaks", "--leaks-exit-code", "0", "true"],
    ] {
        let Some(mut command) = run(words) else { return };
        run_to(2, &mut command);
    }
}
