//! Progress: bars on a terminal and seldom lines elsewhere, always on standard error.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::common::{bfc, file, recorded};
use bfc_readers::history::made::{Chunk, Made};

/// Runs the command with a terminal as its standard error; what was written there.
fn on_a_terminal(command: &mut Command) -> String {
    let (mut own, mut its) = (0, 0);
    let none = std::ptr::null_mut();
    // SAFETY: the two descriptors are valid for writing, and the rest may be NULL.
    let code = unsafe { libc::openpty(&mut own, &mut its, none, std::ptr::null(), std::ptr::null()) };
    assert_eq!(code, 0, "a terminal: {}", std::io::Error::last_os_error());
    // SAFETY: openpty has opened it, and nothing else owns it.
    let its = unsafe { OwnedFd::from_raw_fd(its) };
    // SAFETY: as above.
    let mut own = unsafe { File::from_raw_fd(own) };
    let mut child =
        command.env("TERM", "xterm").stdout(Stdio::null()).stderr(its).spawn().expect("it starts");
    // The command still holds a copy of the terminal's end.
    command.stderr(Stdio::null());
    let reader = thread::spawn(move || {
        let mut text = Vec::new();
        // At the end of the terminal, reading fails instead of giving nothing.
        let _ = own.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    });
    assert!(child.wait().expect("it ends").success());
    reader.join().expect("no panic")
}

#[test]
fn commands_that_may_take_long_show_a_bar() {
    let trace = recorded("gpt2.trace.gz");
    let shown = on_a_terminal(bfc().arg("info"));
    assert!(shown.contains("trying cuda, device 0"), "{shown:?}");
    let shown = on_a_terminal(bfc().arg("replay").arg(&trace));
    assert!(shown.contains(&format!("reading {}", trace.display())), "{shown:?}");
    assert!(shown.contains("looking at peak use"), "{shown:?}");
    let shown = on_a_terminal(bfc().args(["replay", "--find-limit"]).arg(&trace));
    assert!(shown.contains("trying "), "{shown:?}");
    let plan = |options: &[&str]| {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("progress.plan");
        on_a_terminal(bfc().arg("plan").arg(&trace).arg("-o").arg(file).args(options))
    };
    let shown = plan(&[]);
    assert!(shown.contains(&format!("reading {}", trace.display())), "{shown:?}");
    let input = File::open(&trace).expect("a recorded trace");
    let shown = on_a_terminal(bfc().args(["replay", "-"]).stdin(input));
    assert!(shown.contains("reading standard input"), "{shown:?}");
    assert_eq!(on_a_terminal(bfc().args(["replay", "--quiet"]).arg(&trace)), "");
    assert_eq!(plan(&["--quiet"]), "");
}

#[test]
fn a_history_shows_a_bar() {
    let mut made = Made::new("train");
    made.alloc(1, Chunk { address: 0x10_0000, bytes: 4096, operation: 1 });
    let file = file("progress.history", made.bytes());
    let shown = on_a_terminal(bfc().arg("report").arg(&file));
    assert!(shown.contains(&format!("reading {}", file.display())), "{shown:?}");
    let page = file.with_extension("html");
    let shown = on_a_terminal(bfc().arg("report").arg(&file).arg("-o").arg(&page));
    assert!(shown.contains(&format!("writing {}", page.display())), "{shown:?}");
}

#[test]
fn without_a_terminal_a_line_is_shown_after_five_seconds() {
    let mut command = bfc();
    command.args(["replay", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut input = child.stdin.take().expect("it is a pipe");
    for id in 0..26 {
        writeln!(input, "+ {id} 1024 0").expect("it is read");
        thread::sleep(Duration::from_millis(250));
    }
    drop(input);
    let output = child.wait_with_output().expect("it ends");
    let shown = String::from_utf8_lossy(&output.stderr);
    let mut lines = shown.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with("reading standard input (")), "{shown:?}");
    assert_eq!((lines.next(), output.status.success()), (None, true), "{shown:?}");
}
