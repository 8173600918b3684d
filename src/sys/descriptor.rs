//! File descriptors. System calls are made by number where the C library's function is a thread cancellation point (as in
//! `write_to_stderr`) or newer than the oldest version that the library supports, as `fstat` is.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::raw::c_int;

/// An open file or folder, closed on drop. Errors are the errno.
pub(crate) struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is owned, and not used again.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

impl Descriptor {
    /// Opens a path. It is not inherited by programs that this one executes.
    pub(crate) fn open(path: &CStr, flags: c_int) -> Result<Self, i32> {
        Self::open_at(libc::AT_FDCWD, path, flags, 0)
    }

    /// Opens a path relative to this folder. A file that is created has the mode.
    pub(crate) fn open_in(&self, path: &CStr, flags: c_int, mode: libc::mode_t) -> Result<Self, i32> {
        Self::open_at(self.0, path, flags, mode)
    }

    pub(super) fn open_at(folder: c_int, path: &CStr, flags: c_int, mode: libc::mode_t) -> Result<Self, i32> {
        let flags = flags | libc::O_CLOEXEC;
        // SAFETY: the path is NUL-terminated.
        let opened = unsafe { libc::syscall(libc::SYS_openat, folder, path.as_ptr(), flags, mode) };
        c_int::try_from(opened).ok().filter(|&fd| fd >= 0).map(Descriptor).ok_or_else(errno)
    }

    pub(crate) fn number(&self) -> c_int {
        self.0
    }

    /// Gives up ownership.
    pub(super) fn into_number(self) -> c_int {
        std::mem::ManuallyDrop::new(self).0
    }

    pub(crate) fn facts(&self) -> Result<libc::stat, i32> {
        facts_of(self.0)
    }

    /// Reads once into a buffer. Returns how many bytes were read, 0 at the end.
    pub(crate) fn read<'a>(&self, buffer: &'a mut [MaybeUninit<u8>]) -> Result<&'a [u8], i32> {
        // SAFETY: the buffer is writable and has that many bytes.
        let read = unsafe { libc::syscall(libc::SYS_read, self.0, buffer.as_mut_ptr(), buffer.len()) };
        let count = usize::try_from(read).map_err(|_| errno())?;
        // SAFETY: the kernel has written that many bytes of the buffer.
        Ok(unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast(), count) })
    }
}

/// Returns the facts of an open file.
pub(super) fn facts_of(descriptor: c_int) -> Result<libc::stat, i32> {
    let mut facts = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the place is writable and of the right type.
    let got = unsafe { libc::syscall(libc::SYS_fstat, descriptor, facts.as_mut_ptr()) };
    // SAFETY: the kernel has filled it in, if the call has succeeded.
    if got == 0 { Ok(unsafe { facts.assume_init() }) } else { Err(errno()) }
}

/// Returns the facts of what a path leads to now. A symbolic link in its last place is not followed.
pub(crate) fn facts_of_link(folder: Option<&Descriptor>, path: &CStr) -> Result<libc::stat, i32> {
    let folder = folder.map_or(libc::AT_FDCWD, Descriptor::number);
    Descriptor::open_at(folder, path, libc::O_PATH | libc::O_NOFOLLOW, 0)?.facts()
}

/// Returns the error number of the last system call of this thread.
pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_read_and_looked_at() {
        let folder = Descriptor::open(c"/proc/self", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        let file = folder.open_in(c"comm", libc::O_RDONLY, 0).unwrap();
        let mut buffer = [const { MaybeUninit::uninit() }; 64];
        let read = file.read(&mut buffer).unwrap();
        assert_eq!(read, std::fs::read("/proc/self/comm").unwrap());
        assert_eq!(file.facts().unwrap().st_mode & libc::S_IFMT, libc::S_IFREG);
        assert_eq!(Descriptor::open(c"/nonexistent/file", libc::O_RDONLY).err(), Some(libc::ENOENT));
        let own = facts_of_link(Some(&folder), c"exe").unwrap();
        assert_eq!(own.st_mode & libc::S_IFMT, libc::S_IFLNK, "the link itself");
        assert_eq!(facts_of_link(None, c"/nonexistent/file").err(), Some(libc::ENOENT));
    }
}
