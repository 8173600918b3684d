//! Environment variables, read without allocating.

use std::ffi::CStr;

/// Passes the value of `name` to `read`, if it is set and not empty. A value that is not UTF-8 is replaced by a text
/// that is never valid.
///
/// The C environment is shared. Like every library that calls `getenv`, this one relies on the program not to change a
/// variable while another thread creates an allocator.
pub(crate) fn with<T>(name: &CStr, read: impl FnOnce(&str) -> T) -> Option<T> {
    // SAFETY: the name is NUL-terminated, and the result is NULL or a string of the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: not NULL, so a NUL-terminated string that is valid at least until the next setenv.
    let value = unsafe { CStr::from_ptr(value) };
    let text = value.to_str().unwrap_or("(not UTF-8)");
    (!text.is_empty()).then(|| read(text))
}
