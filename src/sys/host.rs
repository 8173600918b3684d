//! How much memory this process may use.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The smaller of physical memory and the limit of the process's control group, in bytes.
pub(crate) fn memory_total() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // SAFETY: as above.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let physical = match (u64::try_from(pages), u64::try_from(page)) {
        (Ok(pages), Ok(page)) if pages > 0 => pages.saturating_mul(page),
        _ => u64::MAX,
    };
    let mut buffer = [0u8; 1024];
    let groups = read_file(c"/proc/self/cgroup", &mut buffer).unwrap_or_default();
    physical.min(cgroup_limit("/sys/fs/cgroup", groups))
}

/// How many mappings a process may have (`vm.max_map_count`).
pub(crate) fn most_mappings() -> u64 {
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let known = KNOWN.load(Relaxed);
    if known != 0 {
        return known;
    }
    // Where it cannot be read it is the kernel's default.
    let most = read_number(c"/proc/sys/vm/max_map_count").filter(|&most| most != 0).unwrap_or(65_530);
    KNOWN.store(most, Relaxed);
    most
}

/// The least limit of a control group and its ancestors; `u64::MAX` where there is none. `groups` is what
/// `/proc/self/cgroup` says.
fn cgroup_limit(root: &str, groups: &str) -> u64 {
    let limit_at = |path: &str, file: &str| {
        let mut name = [0u8; 1200];
        read_number(join(&mut name, &[root, path, file])?)
    };
    let mut limit = limit_at("", "/memory.max\0").or_else(|| limit_at("", "/memory/memory.limit_in_bytes\0"));
    // Version 2 has one line, `0::/path`; inside a container the path is usually just `/`.
    let path = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    let mut path = path.trim_end_matches('/');
    while !path.is_empty() {
        limit = limit.into_iter().chain(limit_at(path, "/memory.max\0")).min();
        path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    limit.unwrap_or(u64::MAX)
}

/// The parts one behind the other in `buffer`, as a C string.
fn join<'a>(buffer: &'a mut [u8], parts: &[&str]) -> Option<&'a CStr> {
    let mut end = 0;
    for part in parts {
        buffer.get_mut(end..end + part.len())?.copy_from_slice(part.as_bytes());
        end += part.len();
    }
    CStr::from_bytes_until_nul(buffer).ok()
}

/// The number in a file of the control group; `None` for `max`, for an absent file and for garbage.
fn read_number(path: &CStr) -> Option<u64> {
    let mut buffer = [0u8; 64];
    read_file(path, &mut buffer)?.trim().parse().ok()
}

/// The beginning of a file, without allocating: this also runs where host memory is short.
fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a str> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // By number, as the other calls: see `write_to_stderr`.
    // SAFETY: the path is NUL-terminated.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    if file < 0 {
        return None;
    }
    // SAFETY: the buffer has that many bytes to write to.
    let length = unsafe { libc::syscall(libc::SYS_read, file, buffer.as_mut_ptr(), buffer.len()) };
    // SAFETY: the descriptor was opened above and is closed once.
    unsafe { libc::syscall(libc::SYS_close, file) };
    std::str::from_utf8(buffer.get(..usize::try_from(length).ok()?)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let total = memory_total();
        assert!(total > 64 << 20 && total < 1 << 50, "{total}");
    }

    #[test]
    fn the_least_limit_of_the_control_groups_counts() {
        let root = std::env::temp_dir().join(format!("bfc-cgroup-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let limit = |groups: &str| cgroup_limit(root.to_str().unwrap(), groups);
        assert_eq!(limit("0::/a/b\n"), u64::MAX, "no file at all");
        write("memory/memory.limit_in_bytes", "9000\n");
        assert_eq!(limit("4:memory:/a\n"), 9000, "version 1");
        write("memory.max", "max\n");
        assert_eq!(limit("0::/\n"), 9000, "version 2 says nothing");
        write("a/memory.max", "5000\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(limit("1:cpu:/\n0::/a/b\n"), 5000, "an ancestor's");
        write("a/b/memory.max", "3000\n");
        assert_eq!(limit("0::/a/b/\n"), 3000, "the group's own");
        assert_eq!(limit("0::/a\n"), 5000);
        write("a/memory.max", "a lot\n");
        assert_eq!(limit("0::/a\n"), 9000, "garbage is none");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn paths_that_do_not_fit_are_left_out() {
        assert_eq!(join(&mut [0; 8], &["/a", "/b\0"]), Some(c"/a/b"));
        assert_eq!(join(&mut [0; 4], &["/a", "/b\0"]), None);
    }
}
