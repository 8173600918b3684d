//! Messages on standard error: each is a line of its own, even if other threads and processes write there.

use crate::common::*;
use std::process::{Command, Stdio};

/// The number of allocators that a thread creates and destroys. Each creation and destruction is a message.
const ROUNDS: usize = 150;
const THREADS: usize = 4;
const PROCESSES: usize = 3;

/// The child: threads that cause messages.
#[test]
fn write_messages() {
    if !child::is_child("write_messages") {
        return;
    }
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let device = 300 + thread as i32;
                for _ in 0..ROUNDS {
                    let options = bfc_options_t { backend: BFC_BACKEND_HOST, ..options() };
                    assert_eq!(create(device, Some(&options)), BFC_OK);
                    assert_eq!(bfc_destroy(device), BFC_OK);
                }
            });
        }
    });
}

/// Returns whether a line is exactly one of the messages.
fn is_whole(line: &str) -> bool {
    let Some((device, what)) =
        line.strip_prefix("libbfc info: device ").and_then(|rest| rest.split_once(": "))
    else {
        return false;
    };
    let limit = what.strip_prefix("created an allocator: host backend, limit ");
    let created =
        limit.and_then(|rest| rest.strip_suffix(" bytes")).is_some_and(|n| n.parse::<u64>().is_ok());
    device.parse::<u32>().is_ok()
        && (created || what == "destroyed the allocator; allocations that were live: 0")
}

#[test]
fn messages_of_threads_and_processes_do_not_mix() {
    let path = std::env::temp_dir().join(format!("bfc-log-lines-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("a new file");
    let children = [(); PROCESSES].map(|()| {
        let mut command = Command::new(std::env::current_exe().expect("the test binary"));
        command.args(["--exact", "log_lines::write_messages", "--test-threads=1"]);
        command.env("BFC_TEST_CHILD", "write_messages").env("BFC_LOG", "info");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file.try_clone().expect("a descriptor"));
        command.spawn().expect("the child starts")
    });
    for mut child in children {
        assert!(child.wait().expect("the child ends").success());
    }
    let text = std::fs::read_to_string(&path).expect("what was written");
    std::fs::remove_file(&path).expect("it is there");
    let broken: Vec<&str> = text.lines().filter(|line| !is_whole(line)).collect();
    assert!(broken.is_empty(), "{} broken lines, the first: {:?}", broken.len(), broken.first());
    assert_eq!(text.lines().count(), PROCESSES * THREADS * ROUNDS * 2);
}
