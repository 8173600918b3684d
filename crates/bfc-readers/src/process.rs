//! Other processes, identified by what they record about themselves: the number, and when they started.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

/// Whether a process is still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It runs.
    Running,
    /// It has ended, or the number is another process's now.
    Ended,
    /// The system does not tell.
    Unknown,
}

/// Whether the process with this number, which started this many clock ticks after the machine, is still running.
pub fn liveness(process: u32, started: u64) -> Liveness {
    match fs::read(format!("/proc/{process}/stat")) {
        _ if started == 0 => Liveness::Unknown,
        Ok(stat) => of_stat(&String::from_utf8_lossy(&stat), started),
        Err(_) if is_there(process) => Liveness::Unknown,
        Err(_) => Liveness::Ended,
    }
}

/// The same, by /proc/PID/stat.
fn of_stat(stat: &str, started: u64) -> Liveness {
    // The second field is the program's name in parentheses, which may itself contain parentheses.
    let fields: Vec<_> = stat.rsplit_once(')').unwrap_or_default().1.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3).and_then(|field| field.parse::<u64>().ok());
    let has_ended = match fields.first() {
        // A process whose parent has not yet read its exit code still has its entry, but so does one in which only the
        // first thread has ended.
        Some(&"Z") => number(20).unwrap_or(0) <= 1,
        state => matches!(state, Some(&("X" | "x")) | None),
    };
    if !has_ended && number(22) == Some(started) { Liveness::Running } else { Liveness::Ended }
}

/// Whether there is a process with that number, which /proc may hide.
fn is_there(process: u32) -> bool {
    let Some(process) = i32::try_from(process).ok().filter(|&process| process > 0) else { return false };
    // SAFETY: no signal is sent.
    let is_permitted = unsafe { libc::kill(process, 0) } == 0;
    is_permitted || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// The inode of this process's namespace of process numbers.
pub fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |file| file.ino())
}

/// The identifier of this start of the machine.
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
        let liveness = |started| liveness(std::process::id(), started);
        assert_eq!(
            [started, started + 1, 0].map(liveness),
            [Liveness::Running, Liveness::Ended, Liveness::Unknown]
        );
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
        let started = started.parse().expect("a number");
        assert_eq!(liveness(child.id(), started), Liveness::Ended);
        child.wait().expect("it is a child");
        assert_eq!(liveness(child.id(), started), Liveness::Ended);
    }

    #[test]
    fn a_process_outlives_its_first_thread() {
        let stat =
            |threads: u32| format!("7 (a) b) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 4711 0 0");
        let of_threads = |threads| of_stat(&stat(threads), 4711);
        assert_eq!([0, 1, 2].map(of_threads), [Liveness::Ended, Liveness::Ended, Liveness::Running]);
        assert_eq!(of_stat(&stat(2), 4712), Liveness::Ended);
    }

    #[test]
    fn a_process_that_is_hidden_is_there() {
        assert!(is_there(std::process::id()) && is_there(1) && !is_there(0) && !is_there(u32::MAX));
    }
}
