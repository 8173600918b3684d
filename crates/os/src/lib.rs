//! Code shared by libbfc and its interposer at the boundary to Linux. Both run inside programs that they know nothing
//! about: descriptors may be closed, other users may own a file, threads may be cancelled at any moment.
//!
//! Nothing here allocates. Errors are the errno. System calls are made by number where the C library's function is a thread
//! cancellation point, because unwinding would begin inside the library and abort the process at its boundary.

// Checked here, because both are built after this package, so that nothing else fails first. musl lacks symbol versions
// and the loader audit, on which the interposer's lookups rely, and its programs are static, so nothing can be
// preloaded into them.
#[cfg(not(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64")))]
compile_error!(
    "libbfc supports 64-bit Linux with the GNU C library (glibc) only: build for a target like x86_64-unknown-linux-gnu"
);

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
