//! Keeps the shared library's own panics off the standard error stream.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// In `libbfc.so` the standard library is our own copy, so its panic hook is ours to silence. In a Rust
/// program, or where the static library is linked into something larger, the hook is the program's.
pub(super) fn silence_own_panics() {
    // Not a `Once`: a child forked in the middle of it would wait forever.
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Relaxed) && is_own_library() {
        // No capture, so no memory is needed.
        std::panic::set_hook(Box::new(|_| {}));
    }
}

/// Whether this code was loaded from a file named `libbfc.so`, with or without a version.
fn is_own_library() -> bool {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    let here = silence_own_panics as fn() as *const c_void;
    // SAFETY: any address may be asked for; `info` is valid for writing.
    if unsafe { libc::dladdr(here, &mut info) } == 0 || info.dli_fname.is_null() {
        return false;
    }
    // SAFETY: not NULL, so a string that lives as long as the loaded object.
    let file = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    file.rsplit(|&byte| byte == b'/').next().is_some_and(|name| name.starts_with(b"libbfc.so"))
}
