//! `bfc report` with files that no interposer wrote. The real ones are in the suite `preload`.

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use crate::common::{SMALL, bfc, file, json, recorded, run_to};

const HEAD: &[u8] = b"libbfc counters 1, one record a process; read by: bfc report\n\0\0\0";

fn reported(code: i32, path: &str) -> (String, String) {
    run_to(code, bfc().args(["report", path]))
}

#[test]
fn what_is_no_report_is_refused() {
    let cases = [
        (
            "text",
            b"some notes\n".to_vec(),
            "is not a report; name the FILE of bfc run --report=FILE or --history FILE",
        ),
        ("zeros", vec![0; 8192], "is not a report; name the FILE of bfc run --report=FILE or --history FILE"),
        (
            "newer",
            b"libbfc counters 2, whatever".to_vec(),
            "is of another version of libbfc; use the bfc command",
        ),
    ];
    for (name, content, words) in cases {
        let path = file(&format!("{name}.report"), content).display().to_string();
        let (stdout, error) = reported(1, &path);
        assert!(stdout.is_empty() && error.starts_with(&format!("bfc: {path} {words}")), "{error}");
    }
    let (_, error) = reported(1, "/nonexistent/report");
    assert!(error.starts_with("bfc: cannot open /nonexistent/report: No such file"), "{error}");
    // The program may have made none, and an option of histories does not hide that.
    for option in ["--json", "--leaks", "--advice", "--output=x.svg"] {
        let (_, with_option) = run_to(1, bfc().args(["report", option, "/nonexistent/report"]));
        assert_eq!(with_option, error, "{option}");
    }
    let (_, error_of_both) = run_to(2, bfc().args(["report", "--leaks", "--advice", "/nonexistent/report"]));
    assert!(error_of_both.contains("cannot be used with"), "{error_of_both}");
    let why = "; a history is made when a program first allocates: bfc run --check shows why none was\n";
    assert!(error.ends_with(why), "{error}");
    assert!(reported(1, "/").1.starts_with("bfc: cannot read /: "));
}

#[test]
fn a_report_without_processes_says_so() {
    let path = file("empty.report", "").display().to_string();
    let said = "no process has used the pool yet; `bfc run --check` shows why\n";
    assert_eq!(reported(0, &path).0, said);
}

#[test]
fn what_is_before_a_damaged_record_is_shown() {
    let mut record = HEAD.to_vec();
    record.resize(8192, 0);
    for (whole, rest) in [(0, HEAD), (2, HEAD), (2, b"?".as_slice()), (1, &[0; 8192])] {
        let content = [&record.repeat(whole), rest].concat();
        let path = file("damaged.report", content).display().to_string();
        let (said, error) = reported(1, &path);
        assert_eq!(said.matches("process 0: ").count(), whole, "{said}");
        let wanted =
            format!("bfc: record {} of {path} is damaged, and later ones cannot be read; remove", whole + 1);
        assert!(error.starts_with(&wanted), "{error}");
    }
}

#[test]
fn a_record_of_another_machine_is_not_judged() {
    let mut record = vec![0; 8192];
    record[..HEAD.len()].copy_from_slice(HEAD);
    record[68..72].copy_from_slice(&std::process::id().to_ne_bytes());
    record[96..100].copy_from_slice(b"boot");
    record[136..143].copy_from_slice(b"./train");
    let path = file("elsewhere.report", record.repeat(2)).display().to_string();
    let (said, _) = reported(0, &path);
    let begin = format!("process {}: ./train\n  began        1970-01-01 00:00:00 UTC\n", std::process::id());
    assert!(said.starts_with(&begin) && said.matches("  state        unknown: ").count() == 2, "{said}");
}

#[test]
fn waste_that_another_backend_avoids_is_told() {
    const MIB: u64 = 1 << 20;
    const UNKNOWN: u8 = 0;
    const REGIONS: u8 = 1;
    const GRANULES: u8 = 2;
    const WAITING: u8 = 1;
    const SYNCHRONIZING: u8 = 2;
    // The place of the pool, what it consists of, what cudaFree does, the most bytes in use and held.
    let advice = |place: usize, memory: u8, frees: u8, in_use: u64, held: u64| {
        let mut record = vec![0; 8192];
        record[..HEAD.len()].copy_from_slice(HEAD);
        let counters = [1, 0, 1, 0, 0, 0, 0, in_use, in_use, in_use, held];
        for (field, number) in counters.into_iter().enumerate() {
            record[400 + 88 * place + 8 * field..][..8].copy_from_slice(&number.to_ne_bytes());
        }
        record[7132] = memory;
        record[7136] = frees;
        let (said, _) = reported(0, &file("waste.report", record).display().to_string());
        let lines: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("  advice       ")).collect();
        assert_eq!(said.matches("advice").count(), lines.len(), "{said}");
        lines.concat()
    };
    let advised =
        |place: usize, memory: u8, in_use: u64, held: u64| match &*advice(place, memory, 0, in_use, held) {
            "" => false,
            "--backend cuda-vmm holds less; it has no legacy IPC" => true,
            other => panic!("{other}"),
        };
    // Freed memory that waits is held in granules too.
    let of_both = advice(0, REGIONS, WAITING, 132 * MIB, 372 * MIB);
    assert!(of_both.contains("--free sync") && of_both.contains("--backend cuda-vmm"), "{of_both}");
    let of_granules = advice(0, GRANULES, WAITING, 132 * MIB, 370 * MIB);
    assert!(of_granules.contains("--free sync") && !of_granules.contains("--backend"), "{of_granules}");
    assert_eq!(advice(0, GRANULES, SYNCHRONIZING, 132 * MIB, 370 * MIB), "");
    assert!(!advice(0, REGIONS, SYNCHRONIZING, 132 * MIB, 154 * MIB).contains("--free"));
    assert_eq!(advice(64, REGIONS, WAITING, 132 * MIB, 372 * MIB), "", "it is pinned host memory");
    assert!(advised(0, REGIONS, 200 * MIB, 296 * MIB) && advised(3, REGIONS, 800 * MIB, 1000 * MIB));
    assert!(!advised(0, REGIONS, 901 * MIB, 1000 * MIB), "little is wasted");
    assert!(!advised(0, GRANULES, 200 * MIB, 296 * MIB), "it is that backend");
    assert!(!advised(0, UNKNOWN, 200 * MIB, 296 * MIB), "an older interposer, perhaps with that backend");
    assert!(!advised(0, REGIONS, 5000, 2 * MIB), "a granule is 2 MiB");
    assert!(!advised(64, REGIONS, 200 * MIB, 296 * MIB), "it is pinned host memory");
}

#[test]
fn a_message_is_written_at_once() {
    // Each datagram is what one call has written.
    let (reader, writer) = UnixDatagram::pair().expect("there are sockets");
    let mut command = bfc();
    command.args(["replay", "/nonexistent/trace"]).stderr(OwnedFd::from(writer));
    let status = command.status().expect("the command starts");
    assert_eq!(status.code(), Some(1));
    let mut buffer = [0; 4096];
    let length = reader.recv(&mut buffer).expect("it says something");
    let message = String::from_utf8_lossy(&buffer[..length]);
    assert!(message.starts_with("bfc: cannot open") && message.ends_with('\n'), "{message}");
}

/// A replay records itself into a history, and its summary agrees with the replay's statistics.
#[test]
fn a_history_is_summarized() {
    let history = file("replay.history", "");
    std::fs::remove_file(&history).expect("the file");
    let mut replay = bfc();
    replay
        .args(["replay", "--repeat", "1", "-q"])
        .arg(recorded("gpt2.trace.gz"))
        .env("BFC_HISTORY_FILE", &history);
    let replayed = json(&mut replay);
    let summary = json(bfc().arg("report").arg(&history));
    let stats = &replayed["traces"][0]["stats"];
    let pool = &summary["pools"][0];
    assert_eq!(summary["state"], "ended");
    assert_eq!(summary["incomplete"], 0);
    assert_eq!(pool["allocations"], stats["num_allocs"]);
    assert_eq!(pool["frees"], stats["num_frees"]);
    assert_eq!(pool["in_use"], stats["bytes_in_use"]);
    assert_eq!(pool["peak"]["in_use"], stats["peak_bytes_in_use"]);
    assert_eq!(pool["peak_held"]["bytes"], stats["peak_pool_bytes"]);
    let text = run_to(0, bfc().arg("report").arg(&history)).0;
    assert!(text.contains("the process has ended"), "{text}");
    assert!(text.contains("  at the peak, after "), "{text}");
    std::fs::remove_file(history).expect("the file");
}

#[test]
fn a_limit_that_no_device_has_is_none() {
    let folder = crate::run::folder("no-limit");
    let [trace, none, some, picture] =
        ["small.trace", "none.history", "some.history", "none.svg"].map(|name| folder.join(name));
    std::fs::write(&trace, SMALL).expect("writable");
    let replay = |limit: &str, history: &Path| {
        let mut replay = bfc();
        replay.args(["replay", "--growth", "--repeat", "1", "--limit", limit]).arg(&trace);
        run_to(0, replay.env("BFC_HISTORY_FILE", history).env("BFC_HISTORY", "1024")).0
    };
    let said = replay(&u64::MAX.to_string(), &none);
    replay("8MiB", &some);
    run_to(0, bfc().arg("report").arg(&none).arg("-o").arg(&picture));
    let drawn = std::fs::read_to_string(&picture).expect("written");
    let summary = run_to(0, bfc().arg("report").arg(&none)).0;
    let difference = run_to(0, bfc().arg("diff").args([&none, &some])).0;
    for (text, part) in [
        (said, "limit none"),
        (drawn, "Limit: none."),
        (summary, "\n  limit        none\n"),
        (difference, "\n  limit        none to 8.00 MiB (8388608)\n"),
    ] {
        assert!(text.contains(part) && !text.contains("EiB"), "no {part:?} in\n{text}");
    }
}

#[test]
fn a_history_is_written_to_a_file_of_its_owner() {
    let folder = crate::run::folder("history-output");
    let (trace, history, output) =
        (folder.join("small.trace"), folder.join("small.history"), folder.join("out.json"));
    std::fs::write(&trace, SMALL).expect("writable");
    run_to(0, bfc().arg("replay").arg(&trace).env("BFC_HISTORY_FILE", &history).env("BFC_HISTORY", "1024"));
    let printed = run_to(0, bfc().args(["report", "--json"]).arg(&history)).0;
    for before in [None, Some("an earlier one")] {
        before.into_iter().for_each(|text| std::fs::write(&output, text).expect("writable"));
        let said = run_to(0, bfc().arg("report").arg(&history).arg("-o").arg(&output));
        assert_eq!(said, (String::new(), String::new()));
        assert_eq!(std::fs::read_to_string(&output).expect("written"), printed);
        assert_eq!(output.metadata().expect("written").permissions().mode() & 0o777, 0o600);
    }

    // What cannot be written leaves the old file, and nothing half-written.
    let refused = |path: &Path| run_to(1, bfc().arg("report").arg(&history).arg("-o").arg(path)).1;
    let error = refused(&folder.join("out.doc"));
    assert!(error.contains("the extension chooses the format and must be one of .html, .json"), "{error}");
    let error = refused(&folder.join("missing/out.json"));
    assert!(error.starts_with("bfc: cannot write ") && error.contains("No such file"), "{error}");
    std::fs::rename(&history, folder.join("history.json")).expect("its folder");
    let same = folder.join("history.json");
    let error = run_to(1, bfc().arg("report").arg(&same).arg("-o").arg(&same)).1;
    assert!(error.contains("it is the history itself; name another file"), "{error}");
    let error = run_to(1, bfc().arg("report").arg(&trace).arg("-o").arg(&output)).1;
    assert!(error.contains("--output needs a history"), "{error}");
    assert_eq!(std::fs::read_to_string(&output).expect("written"), printed);
    assert_eq!(std::fs::read_dir(&folder).expect("a folder").count(), 3);
}

#[test]
fn a_history_that_is_cut_off_or_of_another_version_is_refused() {
    let cases = [
        (b"libbfc history 2".to_vec(), "is truncated: it has 16 of 4096 bytes; copy it again"),
        (b"libbfc history 3, later".to_vec(), "is a history of another version of libbfc"),
        ([b"libbfc history 2".to_vec(), vec![0; 8000]].concat(), "is damaged: the sizes in the header"),
    ];
    for (content, words) in cases {
        let path = file("cut.history", content).display().to_string();
        let (_, error) = reported(1, &path);
        assert!(error.starts_with(&format!("bfc: {path} {words}")), "{error}");
    }
    let path = file("no.history", "text").display().to_string();
    let (_, error) = run_to(1, bfc().args(["report", "--json", &path]));
    assert!(error.contains("--json needs a history"), "{error}");
}

#[test]
fn a_records_text_does_not_control_the_terminal() {
    let mut record = HEAD.to_vec();
    record.resize(8192, 0);
    let program = "\u{1b}]0;owned\u{7}\nprocess 9: other\u{9b}31m\u{202e}".as_bytes();
    record[136..136 + program.len()].copy_from_slice(program);
    let (said, _) = reported(0, &file("hostile.report", record).display().to_string());
    assert!(
        said.starts_with("process 0: \u{fffd}]0;owned\u{fffd}\u{fffd}process 9: other\u{fffd}31m\u{fffd}\n"),
        "{said}"
    );
}
