//! What libbfc and its interposer have in common at the boundary to Linux. Both run inside of programs that they know nothing
//! about: descriptors may be closed, other users may own a file, threads may be cancelled at any moment.
//!
//! Nothing here allocates. Errors are the errno. System calls are made by number where the C library's function is a thread
//! cancellation point, because unwinding would begin inside the library and abort the process at its boundary.

pub mod cancellation;
pub mod counting;
pub mod descriptors;
pub mod files;
pub mod signals;
pub mod terminal;
pub mod terms;
pub mod variables;

/// Returns the error number of the last system call of this thread.
pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
