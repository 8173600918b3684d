//! The identity of this process, which distinguishes it from all others, even after its end and from later processes
//! with its number.

use os::descriptors::Descriptor;
use std::ffi::CStr;

/// Returns the number of this process.
pub(crate) fn id() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }
}

/// Returns the number that the system gave the calling thread.
pub(crate) fn this_thread() -> i32 {
    // The C library has `gettid` only since glibc 2.30.
    // SAFETY: no preconditions.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Returns whether a thread of this process exists. The number may belong to another thread by now. The program's
/// `errno` stays as it is.
pub(crate) fn has_thread(thread: i32) -> bool {
    // SAFETY: no preconditions.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: it is this thread's.
    let before = unsafe { *errno };
    // SAFETY: the signal 0 only checks.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, id(), thread, 0) };
    // SAFETY: as above.
    let is_gone = sent != 0 && unsafe { std::mem::replace(&mut *errno, before) } == libc::ESRCH;
    !is_gone
}

/// Reads the beginning of a file.
fn read<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    let length = Descriptor::open(path, libc::O_RDONLY).and_then(|file| file.read_at(buffer, 0));
    length.ok().and_then(|length| buffer.get(..length)).unwrap_or_default()
}

/// Returns the start time of the process in clock ticks since the machine started. exec does not change it. 0 if /proc
/// does not provide it.
pub(crate) fn started() -> u64 {
    let mut buffer = [0; 1024];
    let stat = read(c"/proc/self/stat", &mut buffer);
    // The second field is the program's name in parentheses, which may contain any characters. This is the 22nd field.
    let behind = stat.rsplit(|&byte| byte == b')').next().unwrap_or_default();
    let field = behind.split(|&byte| byte == b' ').nth(20).unwrap_or_default();
    std::str::from_utf8(field).ok().and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Returns the inode of the namespace of process numbers. 0 if /proc does not provide it.
pub(crate) fn namespace() -> u64 {
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the path is NUL-terminated, and the struct is valid for writing.
    unsafe { libc::stat(c"/proc/self/ns/pid".as_ptr(), status.as_mut_ptr()) };
    // SAFETY: zeros are a valid struct.
    unsafe { status.assume_init() }.st_ino
}

/// Returns the identifier of this start of the machine. Empty if /proc does not provide it.
pub(crate) fn boot(buffer: &mut [u8; 40]) -> &str {
    std::str::from_utf8(read(c"/proc/sys/kernel/random/boot_id", buffer)).unwrap_or_default().trim_end()
}

/// Writes the command line into `buffer`, its words separated by spaces, as far as it fits.
pub(crate) fn command_line(buffer: &mut [u8]) {
    let length = read(c"/proc/self/cmdline", buffer).len();
    // Each word ends with a NUL.
    for byte in buffer.iter_mut().take(length.saturating_sub(1)).filter(|byte| **byte == 0) {
        *byte = b' ';
    }
}
