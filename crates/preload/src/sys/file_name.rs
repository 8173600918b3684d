//! A file name on the heap, because a thread's stack may be too small for it.

use os::terminal::Lossy;
use std::ffi::CStr;
use std::fmt::{self, Display};

pub(crate) struct FileName {
    /// Contains no NUL.
    bytes: Vec<u8>,
}

impl FileName {
    pub(crate) const fn new() -> Self {
        FileName { bytes: Vec::new() }
    }

    /// Appends bytes. Returns `None` when out of host memory.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Option<()> {
        // Including the terminating NUL.
        self.bytes.try_reserve(bytes.len() + 1).ok()?;
        self.bytes.extend_from_slice(bytes);
        Some(())
    }

    /// Appends the current folder and a slash.
    pub(crate) fn push_folder(&mut self) -> Option<()> {
        // SAFETY: with NULL the C library allocates the buffer.
        let folder = unsafe { libc::getcwd(std::ptr::null_mut(), 0) };
        if folder.is_null() {
            return None;
        }
        // SAFETY: not NULL, so a NUL-terminated path.
        let pushed = self.push(unsafe { CStr::from_ptr(folder) }.to_bytes());
        // SAFETY: allocated above.
        unsafe { libc::free(folder.cast()) };
        pushed?;
        self.push(b"/")
    }

    /// Returns this name with a suffix.
    pub(crate) fn with(&self, end: &[u8]) -> Option<Self> {
        let mut name = FileName::new();
        name.push(&self.bytes)?;
        name.push(end)?;
        Some(name)
    }

    /// Calls a function of the C library with this name.
    pub(crate) fn to<T>(&self, call: impl FnOnce(&CStr) -> T) -> Option<T> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(self.bytes.len() + 1).ok()?;
        bytes.extend_from_slice(&self.bytes);
        bytes.push(0);
        CStr::from_bytes_with_nul(&bytes).ok().map(call)
    }
}

impl Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Lossy(&self.bytes).fmt(f)
    }
}
