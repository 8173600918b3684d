//! How much memory this process may use.

use std::ffi::CStr;

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
    physical.min(cgroup_limit())
}

/// The least limit of the process's control group and its ancestors; `u64::MAX` where there is none.
fn cgroup_limit() -> u64 {
    let mut limit = read_number(c"/sys/fs/cgroup/memory.max")
        .or_else(|| read_number(c"/sys/fs/cgroup/memory/memory.limit_in_bytes"))
        .unwrap_or(u64::MAX);
    let mut buffer = [0u8; 1024];
    let Some(groups) = read_file(c"/proc/self/cgroup", &mut buffer) else { return limit };
    // Version 2 has one line, `0::/path`; inside a container the path is usually just `/`.
    let Some(path) = groups.lines().find_map(|line| line.strip_prefix("0::")) else { return limit };
    let mut path = path.trim_end_matches('/');
    while !path.is_empty() {
        let mut name = [0u8; 1200];
        if let Some(name) = join(&mut name, &["/sys/fs/cgroup", path, "/memory.max\0"]) {
            limit = limit.min(read_number(name).unwrap_or(u64::MAX));
        }
        path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    limit
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
    fn paths_that_do_not_fit_are_left_out() {
        assert_eq!(join(&mut [0; 8], &["/a", "/b\0"]), Some(c"/a/b"));
        assert_eq!(join(&mut [0; 4], &["/a", "/b\0"]), None);
    }
}
