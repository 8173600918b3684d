//! The memory that this process may use.

use os::descriptors::Descriptor;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The folder of control groups.
const GROUPS: &str = "/sys/fs/cgroup";

/// Returns the smaller of physical memory and the limit of the process's control group, in bytes.
pub(crate) fn memory_total() -> u64 {
    physical_memory().min(cgroup_limit(GROUPS, read_groups).unwrap_or(u64::MAX))
}

/// Like [`memory_total`], if the control group's limit can be read: a process may be short of descriptors, or may have
/// left the folder of control groups.
pub(crate) fn memory_total_now() -> Option<u64> {
    cgroup_limit(GROUPS, read_groups).map(|limit| limit.min(physical_memory()))
}

fn physical_memory() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // SAFETY: as above.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    match (u64::try_from(pages), u64::try_from(page)) {
        (Ok(pages), Ok(page)) if pages > 0 => pages.saturating_mul(page),
        _ => u64::MAX,
    }
}

/// Returns how much memory this process may still take before the system or its control group has none left, in bytes.
/// The group's page cache counts as taken. Returns 0 if it is not known.
pub(crate) fn memory_available() -> u64 {
    let mut buffer = [0u8; 256];
    let text = read_file(c"/proc/meminfo", &mut buffer).unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB"));
    let available = kib.and_then(|kib| kib.trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10);
    available.min(cgroup_left(GROUPS, read_groups).unwrap_or(u64::MAX))
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

/// Returns the smallest limit of a control group and its ancestors, or `None` if no limit could be read. `read_groups` reads
/// the contents of `/proc/self/cgroup`.
fn cgroup_limit(root: &str, read_groups: impl Fn(&mut [u8]) -> Option<&str>) -> Option<u64> {
    least_in_groups(root, read_groups, |path, end, names| number_at(path, end, names.limit))
}

/// Returns the smallest amount of memory that a control group and its ancestors have left below their limits, or `None`
/// if no limit could be read.
fn cgroup_left(root: &str, read_groups: impl Fn(&mut [u8]) -> Option<&str>) -> Option<u64> {
    least_in_groups(root, read_groups, |path, end, names| {
        let limit = number_at(path, end, names.limit)?;
        Some(limit.saturating_sub(number_at(path, end, names.usage).unwrap_or(0)))
    })
}

/// The files of a control group, each name preceded by a slash and followed by a zero byte.
struct Names {
    limit: &'static [u8],
    usage: &'static [u8],
}

const FIRST: Names = Names { limit: b"/memory.limit_in_bytes\0", usage: b"/memory.usage_in_bytes\0" };
const SECOND: Names = Names { limit: b"/memory.max\0", usage: b"/memory.current\0" };

/// Returns the smallest number that `value` reads in the folders of this process's control groups. Both versions of
/// control groups may be in use, and one of them then holds the memory limits.
fn least_in_groups(
    root: &str,
    read_groups: impl Fn(&mut [u8]) -> Option<&str>,
    value: impl Fn(&mut [u8], usize, &Names) -> Option<u64>,
) -> Option<u64> {
    // Version 2 has one line, `0::/path`. Inside a container the path is usually just `/`.
    let in_second = |path: &mut [u8], end| value(path, end, &SECOND);
    let second = least_on_the_way([root, ""], &read_groups, |line| line.strip_prefix("0::"), in_second);
    // Version 1 has one line per hierarchy, such as `4:memory:/path` or `7:cpu,memory:/path`.
    let in_first = |path: &mut [u8], end| value(path, end, &FIRST);
    let first = least_on_the_way([root, "/memory"], &read_groups, memory_group, in_first);
    first.into_iter().chain(second).min()
}

/// Returns the memory control group that a line of version 1 names.
fn memory_group(line: &str) -> Option<&str> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    controllers.split(',').any(|name| name == "memory").then_some(path)
}

/// Returns the smallest number that `value` reads in a control group's folder and those above it. `path_in` finds the
/// group in its line. One buffer is for the lines and for all paths, because the calling thread's stack may be small.
#[inline(never)]
fn least_on_the_way(
    root: [&str; 2],
    read_groups: &impl Fn(&mut [u8]) -> Option<&str>,
    path_in: impl Fn(&str) -> Option<&str>,
    value: impl Fn(&mut [u8], usize) -> Option<u64>,
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

    let mut least: Option<u64> = None;
    loop {
        least = least.into_iter().chain(value(&mut path, begin + length)).min();
        if length == 0 {
            return least;
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

/// Reads the number in a file. `max`, which is no limit, is the largest. Returns `None` for a missing file and for invalid
/// contents.
fn read_number(path: &CStr) -> Option<u64> {
    let mut buffer = [0u8; 64];
    match read_file(path, &mut buffer)?.trim() {
        "max" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// Reads the beginning of a file without allocating, because this also runs when host memory is short.
pub(super) fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a str> {
    let length = Descriptor::open(path, libc::O_RDONLY).and_then(|file| file.read_at(buffer, 0)).ok()?;
    std::str::from_utf8(buffer.get(..length)?).ok()
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

    /// Puts text into the buffer for the file.
    fn in_buffer<'a>(text: &str, buffer: &'a mut [u8]) -> Option<&'a str> {
        let length = text.len().min(buffer.len());
        buffer[..length].copy_from_slice(&text.as_bytes()[..length]);
        std::str::from_utf8(&buffer[..length]).ok()
    }

    #[test]
    fn the_least_limit_of_the_control_groups_counts() {
        let root = std::env::temp_dir().join(format!("bfc-cgroup-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let write = |file: &str, text: &str| {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let root_name = root.to_str().unwrap();
        let limit = |groups: &str| cgroup_limit(root_name, |buffer| in_buffer(groups, buffer));
        let left = |groups: &str| cgroup_left(root_name, |buffer| in_buffer(groups, buffer));
        assert_eq!(limit("0::/a/b\n"), None, "no file at all");
        write("memory/memory.limit_in_bytes", "9000\n");
        assert_eq!(limit("4:memory:/a\n"), Some(9000), "version 1");
        write("memory.max", "max\n");
        assert_eq!(limit("0::/\n"), Some(9000), "version 2 says nothing");
        write("a/memory.max", "5000\n");
        write("a/b/memory.max", "max\n");
        assert_eq!(limit("1:cpu:/\n0::/a/b\n"), Some(5000), "an ancestor's");
        write("a/b/memory.max", "3000\n");
        assert_eq!(limit("0::/a/b/\n"), Some(3000), "the group's own");
        assert_eq!(limit("0::/a\n"), Some(5000));
        write("a/memory.max", "a lot\n");
        assert_eq!(limit("0::/a\n"), Some(9000), "garbage is none");
        assert_eq!(limit(&format!("0::/{}\n", "a".repeat(2000))), Some(9000), "too long");
        // Version 1 has limits of groups too, with version 2 or alone.
        write("memory/c/memory.limit_in_bytes", "7000\n");
        write("memory/c/d/memory.limit_in_bytes", "2000\n");
        let first = "12:pids:/c/d\n4:cpu,memory:/c/d\n0::/\n";
        assert_eq!(limit(first), Some(2000));
        assert_eq!(limit("4:memory:/c\n0::/a/b\n"), Some(3000), "version 2 has less");
        assert_eq!(limit("4:memory:/c/elsewhere\n"), Some(7000), "a group that cannot be seen");
        assert_eq!(limit("4:memory2:/c/d\n5:memory\n"), Some(9000), "another controller, and half a line");
        // The ancestor may have less left than the group.
        write("a/memory.max", "5000\n");
        write("a/memory.current", "4500\n");
        write("a/b/memory.current", "1000\n");
        assert_eq!((left("0::/a/b\n"), left("0::/\n")), (Some(500), Some(9000)));
        write("a/memory.max", "max\n");
        assert_eq!(left("0::/a/b\n"), Some(2000));
        write("memory/c/d/memory.usage_in_bytes", "2500\n");
        assert_eq!(left("4:memory:/c/d\n"), Some(0), "more than the limit");
        assert_eq!((limit("0::/a\n"), left("nothing")), (Some(9000), Some(9000)));
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
