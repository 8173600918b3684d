//! Facts about this process and others: whether one has ended, and where its number is meaningful.

use super::file;
use os::descriptors::Descriptor;
use std::io::Write as _;
use std::path::Path;

/// Returns the id of this process.
pub(crate) fn process() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }
}

/// Returns when this process started, in clock ticks since the machine did, or 0 if that cannot be read.
pub(crate) fn process_started() -> u64 {
    started("/proc/self/stat").unwrap_or(0)
}

/// Returns the start of any process, given its file in /proc.
fn started(path: &str) -> Option<u64> {
    let stat = file::read(Path::new(path), 1 << 16).ok()?;
    // The second field is the program's name in parentheses, with any bytes in it. This is the 22nd.
    let behind = stat.iter().rposition(|&byte| byte == b')').map_or(0, |at| at + 1);
    let started = stat[behind..].split(|&byte| byte == b' ').nth(20);
    started.and_then(|field| std::str::from_utf8(field).ok()?.parse().ok())
}

/// Returns whether the process with this number has certainly ended. With the time of its start, as [`process_started`]
/// returns it, a later process with the same number is not mistaken for it.
pub(crate) fn has_ended(process: u32, process_started: u64) -> bool {
    let Some(number) = i32::try_from(process).ok().filter(|&number| number > 0) else { return false };
    // SAFETY: no signal is sent.
    let is_there = unsafe { libc::kill(number, 0) } == 0 || os::errno() != libc::ESRCH;
    let mut path = [0; 32];
    let mut rest = &mut path[..];
    if !is_there || process_started == 0 || write!(rest, "/proc/{number}/stat").is_err() {
        return !is_there;
    }
    let left = rest.len();
    let path = std::str::from_utf8(&path[..path.len() - left]).unwrap_or_default();
    started(path).is_some_and(|started| started != process_started)
}

/// Returns the id of this start of the machine. Empty if that cannot be read.
pub(crate) fn boot() -> Vec<u8> {
    file::read(Path::new("/proc/sys/kernel/random/boot_id"), 4096).unwrap_or_default()
}

/// Returns the inode of this process's namespace of process numbers, or 0 if that cannot be read.
pub(crate) fn process_namespace() -> u64 {
    let namespace = Descriptor::open(c"/proc/self/ns/pid", libc::O_PATH);
    namespace.and_then(|namespace| namespace.facts()).map_or(0, |facts| facts.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn this_process_has_not_ended_and_a_child_has() {
        let own = std::process::id();
        assert!(!has_ended(own, process_started()) && !has_ended(own, 0));
        assert!(has_ended(own, process_started() + 1), "a later process has the number");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(has_ended(child.id(), 1) && has_ended(child.id(), 0));
        assert!(!has_ended(0, 0) && !has_ended(u32::MAX, 0), "no number of a process");
    }

    #[test]
    fn the_namespace_is_that_of_the_link() {
        assert_eq!(process_namespace(), std::fs::metadata("/proc/self/ns/pid").unwrap().ino());
    }
}
