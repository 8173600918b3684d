//! Environment variables, read without allocating.
//!
//! The C environment is shared. Like every library that calls `getenv`, this one relies on the program not to change a
//! variable while another thread uses the library.

use std::ffi::{CStr, c_char};

/// Replaces the value of a variable that must be text and is not UTF-8. It is never valid.
const NO_TEXT: &str = "(not UTF-8)";

/// The variables that a privileged process ignores: those that name files, plans and histories, load libraries, or change
/// where memory comes from. Otherwise the user who starts a set-user-ID program could make it write, rename and read
/// files with its rights.
const OF_THE_UNPRIVILEGED: &[&CStr] = &[
    c"BFC_BACKEND",
    c"BFC_HISTORY",
    c"BFC_HISTORY_FILE",
    c"BFC_HISTORY_STACKS",
    c"BFC_LIBRARY",
    c"BFC_PLAN",
    c"BFC_PRELOAD_CHECK",
    c"BFC_PRELOAD_LIBRARY",
    c"BFC_PRELOAD_REPORT",
    c"BFC_PRELOAD_TRACE",
    c"BFC_PUBLISH",
];

/// Returns whether a privileged process ignores a variable.
pub fn is_of_the_unprivileged(name: &CStr) -> bool {
    OF_THE_UNPRIVILEGED.contains(&name)
}

/// Returns whether a variable is set, and this process ignores it because it is privileged.
pub fn is_ignored(name: &CStr) -> bool {
    is_privileged() && is_of_the_unprivileged(name) && of_environment(name).is_some()
}

/// Returns whether the process has more rights than the user who started it, as a set-user-ID program does.
fn is_privileged() -> bool {
    // SAFETY: no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Returns the value of a variable, if it is set, not empty, and not ignored here. It is valid until the program changes
/// the variable.
pub fn value(name: &CStr) -> Option<&'static CStr> {
    if is_ignored(name) { None } else { of_environment(name) }
}

fn of_environment(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: the name is NUL-terminated.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: not NULL, so a NUL-terminated string of the environment.
    let value = unsafe { CStr::from_ptr(value) };
    (!value.is_empty()).then_some(value)
}

/// Returns the value of a variable that must be text. A value that is not UTF-8 is replaced by a text that is never
/// valid.
pub fn text_of(value: &CStr) -> &str {
    value.to_str().unwrap_or(NO_TEXT)
}

/// Passes the name and value of each variable whose name begins with `prefix` to `visit`, until that fails. Ignored ones are
/// included. Names and values that are not UTF-8 are replaced as by [`text_of`].
pub fn each<E>(prefix: &[u8], mut visit: impl FnMut(&str, &str) -> Result<(), E>) -> Result<(), E> {
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
            let text = |bytes| std::str::from_utf8(bytes).unwrap_or(NO_TEXT);
            visit(text(&variable[..end]), text(&variable[end + 1..]))?;
        }
        entry = entry.wrapping_add(1);
    }
}

unsafe extern "C" {
    /// The environment of the process (POSIX).
    static environ: *const *const c_char;
}
