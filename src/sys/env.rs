//! Environment variables, read without allocating.

use std::ffi::{CStr, c_char};

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

/// Passes the name and value of each variable whose name begins with `prefix` to `visit`, until that fails. Names and
/// values that are not UTF-8 are replaced as in [`with`]. The same rule holds for changes of the environment.
pub(crate) fn each<E>(prefix: &[u8], mut visit: impl FnMut(&str, &str) -> Result<(), E>) -> Result<(), E> {
    // SAFETY: the C library's variable. It is NULL, or a list of strings that ends with NULL.
    let mut entry = unsafe { environ };
    if entry.is_null() {
        return Ok(());
    }
    loop {
        // SAFETY: within the list, or its end.
        let variable = unsafe { entry.read() };
        if variable.is_null() {
            return Ok(());
        }
        // SAFETY: a NUL-terminated string of the environment.
        let variable = unsafe { CStr::from_ptr(variable) }.to_bytes();
        if variable.starts_with(prefix)
            && let Some(end) = variable.iter().position(|&byte| byte == b'=')
        {
            let text = |bytes| std::str::from_utf8(bytes).unwrap_or("(not UTF-8)");
            visit(text(&variable[..end]), text(&variable[end + 1..]))?;
        }
        entry = entry.wrapping_add(1);
    }
}

unsafe extern "C" {
    /// The environment of the process (POSIX).
    static environ: *const *const c_char;
}
