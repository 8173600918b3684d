//! Keeps the history of an earlier process under another name, to make room for a new one.
//!
//! Files that may belong to others are never renamed: neither a file that is no history of this version, nor one that
//! is being recorded, even by a process of another container or machine.

use crate::sys;
use crate::sys::c_string::joined;
use bfc_formats::history::layout::{self, Header, MAGIC, RECORDING, STOPPED};
use bfc_hostmem::HostMemoryExhausted;
use os::descriptors::{Descriptor, facts_of_link};
use os::files;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;

/// The suffix of the name of the earlier history.
pub(crate) const SUFFIX: &str = ".old";

/// Renames the history of a process that has ended to `PATH.old`, replacing an earlier one of that name. Returns
/// whether it has. Otherwise nothing has changed.
///
/// Processes that start at the same time do not take each other's new file for the earlier one: a file is renamed with
/// its lock held, and only while it still has the name.
pub(crate) fn rename_earlier(path: &CStr) -> Result<bool, HostMemoryExhausted> {
    let old = joined(&[path.to_bytes(), SUFFIX.as_bytes()])?;
    let Ok((file, before)) = files::open(path, libc::O_RDONLY) else { return Ok(false) };
    // The lock is opened with the descriptor.
    // SAFETY: no pointers are passed.
    let is_locked = unsafe { libc::flock(file.number(), libc::LOCK_EX | libc::LOCK_NB) } == 0;
    if !is_locked || !is_over(&file) {
        return Ok(false);
    }
    // The other name must be unused, or name such a history too.
    let flags = match files::open(&old, libc::O_RDONLY) {
        Ok((earlier, _)) if is_over(&earlier) => 0,
        Ok(_) => return Ok(false),
        Err(_) => libc::RENAME_NOREPLACE,
    };
    let has_name = |now: libc::stat| (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino);
    if !facts_of_link(None, path).is_ok_and(has_name) {
        return Ok(false);
    }
    // SAFETY: both paths are NUL-terminated.
    let renamed =
        unsafe { libc::renameat2(libc::AT_FDCWD, path.as_ptr(), libc::AT_FDCWD, old.as_ptr(), flags) };
    Ok(renamed == 0)
}

/// Returns whether a file is a history that is no longer recorded.
fn is_over(file: &Descriptor) -> bool {
    let mut buffer = [const { MaybeUninit::uninit() }; size_of::<Header>()];
    let Ok(bytes) = file.read(&mut buffer) else { return false };
    if bytes.len() != size_of::<Header>() || !bytes.starts_with(&MAGIC) {
        return false;
    }
    // SAFETY: the buffer has the bytes of a header, and any bytes are valid.
    let header = unsafe { bytes.as_ptr().cast::<Header>().read_unaligned() };
    match header.state.load(Relaxed) {
        STOPPED => true,
        // The number of a process is meaningful only in its namespace and since it was assigned.
        RECORDING => {
            header.whereabouts != 0
                && header.whereabouts == layout::whereabouts(&sys::boot(), sys::process_namespace())
                && sys::has_ended(header.process, header.started)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The header of a file as a process leaves it.
    fn header(state: u32, process: u32, started: u64, whereabouts: u64) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let mut put = |at: usize, number: &[u8]| bytes[at..at + number.len()].copy_from_slice(number);
        put(0, &MAGIC);
        put(std::mem::offset_of!(Header, state), &state.to_le_bytes());
        put(std::mem::offset_of!(Header, process), &process.to_le_bytes());
        put(std::mem::offset_of!(Header, started), &started.to_le_bytes());
        put(std::mem::offset_of!(Header, whereabouts), &whereabouts.to_le_bytes());
        bytes
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("libbfc-earlier-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        folder
    }

    fn aside(path: &Path) -> bool {
        rename_earlier(&CString::new(path.to_str().unwrap()).unwrap()).unwrap()
    }

    /// The number of a process that has ended.
    fn ended() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    #[test]
    fn what_is_recorded_or_no_history_stays() {
        let folder = folder("stays");
        let path = folder.join("history");
        let (own, here) = (std::process::id(), layout::whereabouts(&sys::boot(), sys::process_namespace()));
        assert_ne!(here, 0);
        let cases = [
            ("stopped", header(STOPPED, own, 0, 0), true),
            ("ended", header(RECORDING, ended(), 1, here), true),
            (
                "a later process has the number",
                header(RECORDING, own, sys::process_started() + 1, here),
                true,
            ),
            ("of this process", header(RECORDING, own, sys::process_started(), here), false),
            ("of another machine", header(RECORDING, ended(), 1, here ^ 1), false),
            ("of an unknown machine", header(RECORDING, ended(), 1, 0), false),
            ("in another state", header(3, ended(), 1, here), false),
            ("cut off", header(STOPPED, own, 0, 0)[..100].to_vec(), false),
            ("empty", Vec::new(), false),
            ("of another version", [b"libbfc history ?", &header(STOPPED, own, 0, 0)[16..]].concat(), false),
            ("text", b"notes".to_vec(), false),
        ];
        for (name, content, expected) in cases {
            fs::write(&path, &content).unwrap();
            assert_eq!(aside(&path), expected, "{name}");
            assert_eq!(path.exists(), !expected, "{name}");
            let kept = if expected { folder.join("history.old") } else { path.clone() };
            assert_eq!(fs::read(kept).unwrap(), content, "{name}");
        }
        assert!(!aside(&folder) && !aside(&folder.join("nothing")));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_other_name_is_taken_only_from_a_history() {
        let folder = folder("other");
        let (path, old) = (folder.join("history"), folder.join("history.old"));
        let stopped = header(STOPPED, 1, 0, 0);
        for (content, expected) in [(b"notes".to_vec(), false), (stopped.clone(), true)] {
            fs::write(&path, &stopped).unwrap();
            fs::write(&old, &content).unwrap();
            assert_eq!((aside(&path), path.exists()), (expected, !expected));
        }
        // A symbolic link is no history.
        std::os::unix::fs::symlink(&old, &path).unwrap();
        assert!(!aside(&path) && old.exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_that_another_process_sets_aside_stays() {
        let folder = folder("locked");
        let path = folder.join("history");
        fs::write(&path, header(STOPPED, 1, 0, 0)).unwrap();
        let other = fs::File::open(&path).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&other);
        // SAFETY: no pointers are passed.
        assert_eq!(unsafe { libc::flock(fd, libc::LOCK_EX) }, 0);
        assert!(!aside(&path) && path.exists());
        drop(other);
        assert!(aside(&path));
        fs::remove_dir_all(folder).unwrap();
    }
}
