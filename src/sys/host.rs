//! The memory that this process may use.

use super::mapping::PAGE;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Returns the smaller of physical memory and the limit of the process's control group, in bytes.
pub(crate) fn memory_total() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // SAFETY: as above.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let physical = match (u64::try_from(pages), u64::try_from(page)) {
        (Ok(pages), Ok(page)) if pages > 0 => pages.saturating_mul(page),
        _ => u64::MAX,
    };
    physical.min(cgroup_limit("/sys/fs/cgroup", read_groups))
}

/// Returns about how much memory this process may still take before the system or its control group has none left.
pub(crate) fn memory_available() -> u64 {
    let mut buffer = [0u8; 256];
    let text = read_file(c"/proc/meminfo", &mut buffer).unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB"));
    let available = kib.and_then(|kib| kib.trim().parse::<u64>().ok()).map_or(u64::MAX, |kib| kib << 10);
    let mut buffer = [0u8; 64];
    let text = read_file(c"/proc/self/statm", &mut buffer).unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    available.min(memory_total().saturating_sub(pages * PAGE as u64))
}

/// Returns how many mappings a process may have (`vm.max_map_count`).
pub(crate) fn most_mappings() -> u64 {
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let known = KNOWN.load(Relaxed);
    if known != 0 {
        return known;
    }
    // If it cannot be read, the kernel's default is used.
    let most = read_number(c"/proc/sys/vm/max_map_count").filter(|&most| most != 0).unwrap_or(65_530);
    KNOWN.store(most, Relaxed);
    most
}

/// Reads the control groups of this process.
fn read_groups(buffer: &mut [u8]) -> Option<&str> {
    read_file(c"/proc/self/cgroup", buffer)
}

/// Returns the smallest limit of a control group and its ancestors, or `u64::MAX` if there is none. `read_groups` reads
/// the contents of `/proc/self/cgroup`. Both versions of control groups may be in use, and then one of them has the
/// limits of memory.
fn cgroup_limit(root: &str, read_groups: impl Fn(&mut [u8]) -> Option<&str>) -> u64 {
    // Version 2 has one line, `0::/path`. Inside a container the path is usually just `/`.
    let second = least_limit([root, ""], b"/memory.max\0", &read_groups, |line| line.strip_prefix("0::"));
    // Version 1 has a line for each hierarchy, such as `4:memory:/path` or `7:cpu,memory:/path`.
    let first = least_limit([root, "/memory"], b"/memory.limit_in_bytes\0", &read_groups, |line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|name| name == "memory").then_some(path)
    });
    first.into_iter().chain(second).min().unwrap_or(u64::MAX)
}

/// Returns the smallest number in the files of a name, in a control group's folder and those above it. `path_in` finds the
/// group in its line. One buffer is for the lines and for all paths, because the calling thread's stack may be small.
#[inline(never)]
fn least_limit(
    root: [&str; 2],
    name: &[u8],
    read_groups: &impl Fn(&mut [u8]) -> Option<&str>,
    path_in: impl Fn(&str) -> Option<&str>,
) -> Option<u64> {
    let mut path = [0u8; 1200];
    let mut begin = 0;
    for part in root {
        path[begin..begin + part.len()].copy_from_slice(part.as_bytes());
        begin += part.len();
    }
    let groups = read_groups(&mut path[begin..]).unwrap_or_default();
    let group = groups.lines().find_map(path_in).unwrap_or_default().trim_end_matches('/');
    let mut length = group.len();
    let start = begin + if length == 0 { 0 } else { group.as_ptr().addr() - groups.as_ptr().addr() };
    path.copy_within(start..start + length, begin);

    let mut limit: Option<u64> = None;
    loop {
        limit = limit.into_iter().chain(number_at(&mut path, begin + length, name)).min();
        if length == 0 {
            return limit;
        }
        let is_slash = |at: &usize| path[begin + at] == b'/';
        length = (0..length).rev().find(is_slash).unwrap_or(0);
    }
}

/// Reads the number in a file whose path is the first `end` bytes of `path` followed by `name`.
fn number_at(path: &mut [u8], end: usize, name: &[u8]) -> Option<u64> {
    path.get_mut(end..end + name.len())?.copy_from_slice(name);
    read_number(CStr::from_bytes_until_nul(path).ok()?)
}

/// Reads the number in a file of the control group. Returns `None` for `max`, for a missing file and for invalid
/// contents.
fn read_number(path: &CStr) -> Option<u64> {
    let mut buffer = [0u8; 64];
    read_file(path, &mut buffer)?.trim().parse().ok()
}

/// Reads the beginning of a file without allocating, because this also runs when host memory is short.
pub(super) fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a str> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // System calls by number, for the reason given at `write_to_stderr`.
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
    fn some_of_it_is_available() {
        let (available, total) = (memory_available(), memory_total());
        assert!(available > 16 << 20 && available < total, "{available} of {total}");
    }

    #[test]
    fn the_least_limit_of_the_control_groups_counts() {
        let root = std::env::temp_dir().join(format!("bfc-cgroup-{}", std::process::id()));
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let limit = |groups: &str| {
            cgroup_limit(root.to_str().unwrap(), |buffer| {
                let length = groups.len().min(buffer.len());
                buffer[..length].copy_from_slice(&groups.as_bytes()[..length]);
                std::str::from_utf8(&buffer[..length]).ok()
            })
        };
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
        assert_eq!(limit(&format!("0::/{}\n", "a".repeat(2000))), 9000, "too long");
        // Version 1 has limits of groups too, beside version 2 or alone.
        write("memory/c/memory.limit_in_bytes", "7000\n");
        write("memory/c/d/memory.limit_in_bytes", "2000\n");
        let first = "12:pids:/c/d\n4:cpu,memory:/c/d\n0::/\n";
        assert_eq!(limit(first), 2000);
        assert_eq!(limit("4:memory:/c\n0::/a/b\n"), 3000, "version 2 has less");
        assert_eq!(limit("4:memory:/c/elsewhere\n"), 7000, "a group that cannot be seen");
        assert_eq!(limit("4:memory2:/c/d\n5:memory\n"), 9000, "another controller, and half a line");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn paths_that_do_not_fit_are_left_out() {
        let mut path = *b"/proc/self/limits";
        assert_eq!(number_at(&mut path, 5, b"/no number\0"), None);
        assert_eq!(number_at(&mut path, 5, b"/longer than it is\0"), None);
        let mut path = [b"/proc/sys".as_slice(), &[0; 30]].concat();
        assert!(number_at(&mut path, 9, b"/vm/max_map_count\0").is_some_and(|number| number > 0));
        assert_eq!(number_at(&mut path[..20], 9, b"/vm/max_map_count\0"), None);
    }
}
