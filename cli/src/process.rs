//! Other processes, by what the interposer notes of its own (preload/src/process.rs).

use std::fs;
use std::os::unix::fs::MetadataExt;

/// Whether the process with this number, which started so many clock ticks after the machine, still runs.
pub fn is_alive(process: u32, started: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The second field is the program's name, in parentheses, which may have any in it.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let mut fields = rest.split_ascii_whitespace();
    // One that has ended, and whose parent has not asked for its exit code, has its entry still.
    let has_ended = matches!(fields.next(), Some("Z" | "X" | "x") | None);
    !has_ended && fields.nth(18).and_then(|field| field.parse().ok()) == Some(started)
}

/// The inode of this process's namespace of process numbers.
pub fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino())
}

/// Which start of the machine this is.
pub fn boot() -> Vec<u8> {
    fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_known_by_its_start() {
        let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
        let fields = stat.rsplit_once(") ").expect("a name").1.split(' ');
        let started: u64 = fields.clone().nth(19).expect("the 22nd field").parse().expect("a number");
        assert!(is_alive(std::process::id(), started));
        assert!(!is_alive(std::process::id(), started + 1));
        assert!(namespace() != 0 && !boot().is_empty());
    }

    #[test]
    fn a_process_that_has_ended_is_not_alive_before_it_is_waited_for() {
        let mut child = Command::new("true").spawn().expect("it is there");
        let path = format!("/proc/{}/stat", child.id());
        let stat = loop {
            let stat = fs::read_to_string(&path).expect("it was not waited for");
            if stat.contains(") Z ") {
                break stat;
            }
            std::thread::yield_now();
        };
        let started = stat.rsplit_once(") ").expect("a name").1.split(' ').nth(19).expect("a field");
        assert!(!is_alive(child.id(), started.parse().expect("a number")));
        child.wait().expect("it is a child");
    }
}
