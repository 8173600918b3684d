//! The whole boundary to the operating system: zeroed memory, waiting, time, facts about the host.
//!
//! Nothing here knows what an allocator is. Everything is Linux: the library manages memory for runtimes
//! which run there, and a futex, `MAP_NORESERVE` and `pthread_atfork` have no portable equal.

pub(crate) mod clock;
pub(crate) mod env;
pub(crate) mod futex;
pub(crate) mod host;
pub(crate) mod lock;
pub(crate) mod mapping;
pub(crate) mod memfile;
pub(crate) mod mutex;
pub(crate) mod table;
pub(crate) mod thread;
pub(crate) mod token;
pub(crate) mod zeroed;

/// Writes some text to the standard error stream, its parts as one. None of the system calls here is made through a
/// function of the C library at which a thread can be cancelled: the unwinding would begin inside the library, and end
/// the process at its border.
pub(crate) fn write_to_stderr<const PARTS: usize>(mut parts: [&str; PARTS]) {
    let mut left: usize = parts.iter().map(|part| part.len()).sum();
    while left != 0 {
        let vector = parts.map(|part| libc::iovec { iov_base: part.as_ptr() as *mut _, iov_len: part.len() });
        // SAFETY: each element is one string, which is only read.
        let written = unsafe { libc::syscall(libc::SYS_writev, libc::STDERR_FILENO, vector.as_ptr(), PARTS) };
        match usize::try_from(written) {
            // A full pipe or disk took a part. The rest follows, though something else may come between.
            Ok(mut done) if done != 0 => {
                left -= done;
                for part in &mut parts {
                    let cut = done.min(part.len());
                    done -= cut;
                    // Where that is no character's end the rest is given up.
                    *part = part.get(cut..).unwrap_or_default();
                }
                left = left.min(parts.iter().map(|part| part.len()).sum());
            }
            Err(_) if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}

/// A number that cannot be predicted, as far as the kernel has one.
pub(crate) fn random() -> u64 {
    let mut number = 0u64;
    // By number, as above. An early kernel's pool may not be filled yet, which is not waited for.
    // SAFETY: the place is one number's, of that many bytes.
    unsafe { libc::syscall(libc::SYS_getrandom, &raw mut number, size_of::<u64>(), libc::GRND_NONBLOCK) };
    // What differs anyway where there was none: the stack's address, the process and the time.
    number ^ (&raw const number as u64).rotate_left(32) ^ (process() as u64) << 40 ^ clock::monotonic_ms()
}

/// The number of this process.
pub(crate) fn process() -> i32 {
    // SAFETY: no preconditions.
    unsafe { libc::getpid() }
}

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("libbfc supports 64-bit Linux only");

/// A box, or an error where `Box::new` would abort.
pub(crate) fn try_box<T>(value: T) -> Result<Box<T>, HostMemoryExhausted> {
    try_box_with(|| value)
}

/// The same of a value that is made once there is memory for it, so that it can be made in its place and not on the stack.
#[inline(always)]
pub(crate) fn try_box_with<T>(make: impl FnOnce() -> T) -> Result<Box<T>, HostMemoryExhausted> {
    let layout = std::alloc::Layout::new::<T>();
    const { assert!(size_of::<T>() != 0) };
    // SAFETY: the layout is not of size 0.
    let place = unsafe { std::alloc::alloc(layout) }.cast::<T>();
    if place.is_null() {
        return Err(HostMemoryExhausted);
    }
    // SAFETY: the place is new, aligned and large enough for a T.
    unsafe { place.write(make()) };
    // SAFETY: the place came from the global allocator with the layout of a T, and holds one.
    Ok(unsafe { Box::from_raw(place) })
}

/// Host memory ran out. Every allocation inside the library is fallible and ends here, never in an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostMemoryExhausted;

impl From<std::collections::TryReserveError> for HostMemoryExhausted {
    fn from(_: std::collections::TryReserveError) -> Self {
        HostMemoryExhausted
    }
}
