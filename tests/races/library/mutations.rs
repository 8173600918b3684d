//! The library with a built-in defect of device ordering: the programs must detect each.
//!
//! The feature `mutations` of the package builds all of them; the variable LIBBFC_MUTATION names the one that is
//! active in a process. They are never shipped.

use crate::common::cargo;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The number of programs of the kind that should detect it. The first that does ends the run.
const PROGRAMS: &str = "2000";

/// A defect, with the program that detects it and its message.
struct Mutation {
    name: &'static str,
    test: &'static str,
    says: &'static [&'static str],
}

const MUTATIONS: [Mutation; 8] = [
    // An event is recorded when the memory is needed, after the work queued since the free.
    Mutation { name: "late-event", test: "library::posted_receives", says: &[" deadlocks, "] },
    // Events are recorded in the pool's own context only, and its synchronization is taken to cover all streams.
    Mutation {
        name: "own-context",
        test: "library::streams_of_other_contexts",
        says: &[" races, work on", "are pending: races"],
    },
    // A default stream is always that of the pool's own context.
    Mutation {
        name: "default-context",
        test: "library::default_streams_of_contexts",
        says: &[" races, work on", "are pending: races"],
    },
    // An event is recorded again while another thread queries it.
    Mutation {
        name: "shared-event",
        test: "cases::shared_events::an_event_that_is_needed_no_more_is_kept_while_it_is_queried",
        says: &["while the work on it is pending"],
    },
    // bfc_pool_begin does not notify threads that wait for the device.
    Mutation {
        name: "no-announcement",
        test: "library::threads_at_once_with_captures",
        says: &["capture is broken", "STREAM_CAPTURE_UNSUPPORTED", "901"],
    },
    // The capture that a request or a free on a captured stream reveals is forgotten.
    Mutation { name: "forgotten-capture", test: "library::captures_of_all_modes", says: &["was broken"] },
    // A stream is queried and recorded on although its memory is settled.
    Mutation {
        name: "dead-stream",
        test: "library::streams_that_are_not_forgotten",
        says: &["is one that was destroyed", "INVALID_HANDLE"],
    },
    Mutation {
        name: "dead-stream",
        test: "cases::destroyed::a_destroyed_stream_spoils_no_request",
        says: &["destroyed handle", "INVALID_HANDLE"],
    },
];

/// This test binary, built with the feature in a target folder of its own.
fn binary() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutations");
    // Always the debug build: the first program that detects the defect ends the run.
    let args = ["--features", "mutations", "--target-dir", target.to_str().expect("UTF-8")];
    cargo::test_binary("libbfc", "races", &args)
}

/// Runs a test of a mutated binary. Returns its output, if it fails.
fn run(mutation: &Mutation) -> Result<String, String> {
    let mut command = Command::new(binary());
    command.args(["--exact", mutation.test, "--nocapture", "--test-threads=1"]);
    command.env("LIBBFC_MUTATION", mutation.name).env("RACES_PROGRAMS", PROGRAMS);
    let output =
        command.env("SIMCUDA_LIBRARY", crate::common::simcuda::library()).output().expect("it starts");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("running 1 test"), "no test is named {}: {text}", mutation.test);
    if output.status.success() { Err("all its programs pass".to_owned()) } else { Ok(text) }
}

#[test]
#[ignore = "run by the suite races"]
fn every_mutation_is_seen() {
    if cfg!(feature = "mutations") {
        return;
    }
    let mut unseen = Vec::new();
    for mutation in &MUTATIONS {
        let Mutation { name, test, says, .. } = mutation;
        match run(mutation) {
            Ok(text) if says.iter().any(|says| text.contains(says)) => println!("{name}: seen by {test}"),
            Ok(text) => unseen.push(format!("{name}: {test} fails, but does not say {says:?}: {text}")),
            Err(why) => unseen.push(format!("{name}: {test}: {why}")),
        }
    }
    assert!(unseen.is_empty(), "{}", unseen.join("\n"));
}
