//! The boundary to the operating system: files, waiting, time, and facts about the host.
//!
//! Nothing here depends on the allocator. Everything is for Linux, because the library manages memory for runtimes that
//! run there. A futex, `MAP_NORESERVE` and `pthread_atfork` have no portable equivalent.

pub(crate) mod c_string;
pub(crate) mod clock;
pub(crate) mod file;
pub(crate) mod file_mapping;
pub(crate) mod folder;
pub(crate) mod futex;
pub(crate) mod host;
pub(crate) mod huge_pages;
pub(crate) mod lock;
pub(crate) mod mapped_path;
pub(crate) mod memfile;
pub(crate) mod mutex;
pub(crate) mod numa;
pub(crate) mod own_pointer;
mod process;
pub(crate) mod thread;
pub(crate) mod token;

pub(crate) use self::process::{boot, has_ended, process, process_namespace, process_started};

/// Writes text to the standard error stream, all parts by one call. The system calls here avoid functions of the C
/// library that are thread cancellation points, because unwinding would begin inside the library and abort the process
/// at its boundary.
pub(crate) fn write_to_stderr<const PARTS: usize>(mut parts: [&str; PARTS]) {
    let mut left: usize = parts.iter().map(|part| part.len()).sum();
    while left != 0 {
        let vector = parts.map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() });
        // SAFETY: each element is one string, which is only read.
        let written = unsafe { libc::syscall(libc::SYS_writev, libc::STDERR_FILENO, vector.as_ptr(), PARTS) };
        match usize::try_from(written) {
            // A full pipe or disk accepted only a part. The rest follows, although other output may come between.
            Ok(mut done) if done != 0 => {
                left -= done;
                for part in &mut parts {
                    let cut = done.min(part.len());
                    done -= cut;
                    // If the cut is inside a character, the rest of the part is dropped.
                    *part = part.get(cut..).unwrap_or_default();
                }
                left = left.min(parts.iter().map(|part| part.len()).sum());
            }
            Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}

/// Returns a number that cannot be predicted, as far as the kernel provides one.
pub(crate) fn random() -> u64 {
    let mut number = 0u64;
    // By number, as above. During early boot the kernel's pool may not be initialized. The call does not wait for that.
    // SAFETY: the pointer is to one number of that many bytes.
    unsafe { libc::syscall(libc::SYS_getrandom, &raw mut number, size_of::<u64>(), libc::GRND_NONBLOCK) };
    // If the kernel has none, these values differ anyway: the stack's address, the process and the time.
    number ^ (&raw const number as u64).rotate_left(32) ^ (process() as u64) << 40 ^ clock::monotonic_ms()
}
