//! Environment variables, read without allocating.

use std::ffi::CStr;

/// The value of `name` if it is set and not empty. What is not UTF-8 reads as a value that nothing is.
///
/// The C environment is shared: like every library that calls `getenv`, this one relies on the program
/// not to change a variable while another thread creates an allocator.
pub(crate) fn with<T>(name: &CStr, read: impl FnOnce(&str) -> T) -> Option<T> {
    // SAFETY: the name is NUL-terminated; the result is NULL or a string of the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: not NULL, so a NUL-terminated string which lives at least until the next setenv.
    let value = unsafe { CStr::from_ptr(value) };
    let text = value.to_str().unwrap_or("(not UTF-8)");
    (!text.is_empty()).then(|| read(text))
}
