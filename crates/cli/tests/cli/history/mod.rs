//! `bfc report` of histories whose events a test has chosen.

mod diff;
mod leaks;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::common::{bfc, file, json, run_to};
use bfc_readers::history::made::{Chunk, Made};

const FIRST: Chunk = Chunk { address: 0x10_0000, bytes: 4096, operation: 1 };
const SECOND: Chunk = Chunk { address: 0x11_0000, bytes: 8192, operation: 2 };
const THIRD: Chunk = Chunk { address: 0x12_0000, bytes: 8192, operation: 2 };

#[test]
fn the_peak_and_each_out_of_memory_have_their_step_and_mark() {
    let mut made = Made::new("train");
    made.pool(1, 0, "bfc", &["weights", "activations"]);
    made.alloc(1, FIRST);
    made.out_of_memory(1, 1 << 20);
    made.mark("epoch \u{1b}[31m1");
    made.step(1, 7);
    made.alloc(1, SECOND);
    made.step(1, 8);
    made.free(1, FIRST);
    made.mark("later");
    made.out_of_memory(1, 1 << 20);
    let file = file("phases.history", made.bytes());
    let text = run_to(0, bfc().arg("report").arg(&file)).0;
    assert!(text.contains("  out of memory after 0.004 s, step 0: 1.00 MiB"), "{text}");
    assert!(
        text.contains("  at the peak, after 0.007 s, step 7, after the mark epoch \u{fffd}[31m1:"),
        "{text}"
    );
    assert!(text.contains("  out of memory after 0.011 s, step 8, after the mark later: "), "{text}");
    let pool = &json(bfc().arg("report").arg(&file))["pools"][0];
    assert_eq!((&pool["peak"]["step"], &pool["peak"]["mark"]), (&7.into(), &"epoch \u{1b}[31m1".into()));
    let failures = pool["failures"].as_array().expect("a list");
    assert!(failures[0]["step"] == 0 && failures[0]["mark"].is_null());
    assert!(failures[1]["step"] == 8 && failures[1]["mark"] == "later");
}

/// Without the begin of the recording it is not known whether the step was ever another than 0.
#[test]
fn a_step_that_is_not_known_is_not_shown() {
    let mut made = Made::new("train");
    made.alloc(1, FIRST);
    made.out_of_memory(1, 1 << 20);
    let file = file("no-step.history", made.bytes());
    assert!(json(bfc().arg("report").arg(&file))["pools"][0]["peak"]["step"].is_null());
    let text = run_to(0, bfc().arg("report").arg(&file)).0;
    assert!(text.contains("  out of memory after 0.002 s: "), "{text}");
}

/// PyTorch's backward pass runs in a thread without Python frames.
#[test]
fn what_has_no_backtrace_beside_others_is_listed() {
    let mut made = Made::new("train");
    made.pool(1, 0, "bfc", &[]);
    let (first, second) = (Chunk { operation: 0, ..FIRST }, Chunk { operation: 0, ..SECOND });
    made.alloc(1, first);
    made.out_of_memory(1, 1 << 20);
    let without = run_to(0, bfc().arg("report").arg(file("plain.history", made.bytes()))).0;
    assert!(!without.contains("backtrace") && !without.contains("requested by"), "{without}");
    made.stack = made.backtrace(&[], &[(1, 7)]);
    made.alloc(1, second);
    made.out_of_memory(1, 1 << 20);
    let file = file("beside.history", made.bytes());
    let text = run_to(0, bfc().arg("report").arg(&file)).0;
    let listed = "      by forward (train.py:7)\n      by (no backtrace)\n";
    let amounts =
        |line: &str| line.split_once(" by ").map_or(String::new(), |(_, by)| format!("      by {by}\n"));
    let shown: String =
        text.lines().filter(|line| line.contains(" in 1 allocation by ")).map(amounts).collect();
    // At the peak, at the second failure, at the end.
    assert_eq!(shown, listed.repeat(3), "{text}");
    assert!(text.contains("    requested by (no backtrace); for PyTorch's backward pass call "), "{text}");
    let leaks = run_to(0, bfc().args(["report", "--leaks"]).arg(&file)).0;
    assert!(leaks.contains(" in 1 allocation by (no backtrace)\n"), "{leaks}");
}

/// Names come from programs: neither a terminal nor the direction of the text follows them.
#[test]
fn names_in_every_text_are_harmless() {
    let hostile = "a\u{1b}[2Jb\u{202e}c\u{200b}";
    let mut made = Made::new(hostile);
    made.pool(1, 0, hostile, &[hostile, hostile]);
    made.mark(hostile);
    made.alloc(1, FIRST);
    made.out_of_memory(1, 1 << 20);
    made.alloc(1, SECOND);
    let file = file("hostile.history", made.bytes());
    for arguments in [&["report"][..], &["report", "--leaks"], &["report", "--advice"]] {
        let text = run_to(0, bfc().args(arguments).arg(&file)).0;
        assert!(text.contains("a\u{fffd}[2Jb\u{fffd}c\u{fffd}"), "{arguments:?}: {text}");
        let harmful = |character: char| "\u{1b}\u{202e}\u{200b}".contains(character);
        assert!(!text.contains(harmful), "{arguments:?}: {text:?}");
    }
    // In JSON they are written by their numbers.
    for arguments in [&["report", "--json"][..], &["report", "--leaks", "--json"]] {
        let text = run_to(0, bfc().args(arguments).arg(&file)).0;
        assert!(text.contains("a\\u001b[2Jb\\u202ec\\u200b"), "{arguments:?}: {text}");
        assert!(!text.contains(['\u{202e}', '\u{200b}']), "{arguments:?}: {text:?}");
    }
    let begin = format!("{}@begin", file.display());
    let text = run_to(0, bfc().arg("diff").arg(begin).arg(&file)).0;
    assert!(text.contains("a\u{fffd}[2Jb\u{fffd}c\u{fffd}") && !text.contains('\u{202e}'), "{text:?}");
}

/// Paths are bytes.
#[test]
fn a_file_s_name_need_not_be_utf_8() {
    let folder = crate::run::folder("history-\u{e9}");
    let path = |name: &[u8]| folder.join(OsStr::from_bytes(name));
    let mut made = Made::new("train");
    made.pool(1, 0, "bfc", &[]);
    std::fs::write(path(b"\xe9.history"), made.bytes()).expect("writable");
    let file = path(b"\xe9.history");
    run_to(0, bfc().arg("report").arg(&file).arg("-o").arg(path(b"\xe9.json")));
    assert!(path(b"\xe9.json").exists());
    run_to(0, bfc().arg("diff").arg(path(b"\xe9.history@begin")).arg(&file));
    let (_, error) = run_to(1, bfc().arg("report").arg(path(b"\xff.history")));
    assert!(error.contains("\u{fffd}.history"), "{error}");
}

/// A head of a backtrace that no library writes ends the list of them; the chunks have no frames then.
#[test]
fn a_damaged_backtrace_is_not_shown() {
    let mut made = Made::new("train");
    made.pool(1, 0, "bfc", &["weights"]);
    made.stack = made.backtrace(&[0x1010, 0x2010], &[(1, 7)]);
    made.alloc(1, FIRST);
    let frames = |name: &str, bytes: Vec<u8>| {
        let file = crate::common::file(name, bytes);
        let found = json(bfc().arg("report").arg(&file))["pools"][0]["holders"][0]["stacks"].clone();
        found.as_array().expect("a list").iter().map(|stack| stack["frames"].clone()).collect::<Vec<_>>()
    };
    let whole = frames("backtraces.history", made.bytes());
    let named: Vec<_> = whole[0].as_array().expect("a list").iter().map(|frame| &frame["function"]).collect();
    assert_eq!(named, ["libapp.so+0x1010", "0x2010", "forward"]);
    let head = bfc_formats::history::layout::HEADER_BYTES + bfc_formats::history::layout::TEXT_BYTES;
    for native in [0, 65, u16::MAX] {
        let mut bytes = made.bytes();
        let python = if native == 0 { 0 } else { u16::MAX };
        let damaged = bfc_formats::history::layout::StackHead { native, python, is_cut: false };
        bytes[head..head + 8].copy_from_slice(&damaged.word().to_le_bytes());
        let found = frames("no-backtraces.history", bytes);
        assert!(
            found.iter().all(|frames| frames.as_array().is_some_and(Vec::is_empty)),
            "{native}: {found:?}"
        );
    }
}
