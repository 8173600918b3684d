//! Descriptors of open files. None is below 3: if a standard stream of the program is closed, the system assigns its
//! number to the next file that is opened, and the program's output would be written there.

use crate::errno;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::raw::{c_int, c_long};

/// The lowest descriptor that is used.
const LOWEST: c_int = 3;

/// The number of attempts at a system call that signals interrupt.
const ATTEMPTS: usize = 100;

/// An open file or folder, closed on drop. Programs that this one executes do not inherit it.
#[derive(Debug)]
pub struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        close(self.0);
    }
}

impl Descriptor {
    /// Takes the result of a system call that opens something, with the flag for close-on-exec. A descriptor below 3 is
    /// moved up. Must be called before the descriptor is used for anything.
    ///
    /// # Safety
    /// Nothing else uses a descriptor that the call has returned.
    pub unsafe fn opened(result: c_long) -> Result<Self, i32> {
        let low = c_int::try_from(result).ok().filter(|&fd| fd >= 0).ok_or_else(errno)?;
        if low >= LOWEST {
            return Ok(Descriptor(low));
        }
        // SAFETY: no pointers are passed.
        let moved = unsafe { libc::syscall(libc::SYS_fcntl, low, libc::F_DUPFD_CLOEXEC, LOWEST) };
        let moved = c_int::try_from(moved).ok().filter(|&fd| fd >= 0).ok_or_else(errno);
        close(low);
        moved.map(Descriptor)
    }

    /// Opens a path.
    pub fn open(path: &CStr, flags: c_int) -> Result<Self, i32> {
        Self::open_at(libc::AT_FDCWD, path, flags, 0)
    }

    /// Opens a path relative to this folder.
    pub fn open_in(&self, path: &CStr, flags: c_int) -> Result<Self, i32> {
        Self::open_at(self.0, path, flags, 0)
    }

    pub(crate) fn open_at(folder: c_int, path: &CStr, flags: c_int, mode: libc::mode_t) -> Result<Self, i32> {
        let flags = flags | libc::O_CLOEXEC;
        uninterrupted(|| {
            // SAFETY: the path is NUL-terminated.
            let opened = unsafe { libc::syscall(libc::SYS_openat, folder, path.as_ptr(), flags, mode) };
            // SAFETY: it was opened just now.
            unsafe { Self::opened(opened) }
        })
    }

    /// Returns the number, which is valid while this value lives.
    pub fn number(&self) -> c_int {
        self.0
    }

    /// Gives up ownership.
    pub fn into_number(self) -> c_int {
        std::mem::ManuallyDrop::new(self).0
    }

    /// Returns the metadata of the open file.
    pub fn facts(&self) -> Result<libc::stat, i32> {
        facts_of(self.0)
    }

    /// Returns the device and inode, which identify the file.
    pub fn identity(&self) -> Result<(u64, u64), i32> {
        self.facts().map(|facts| (facts.st_dev, facts.st_ino))
    }

    /// Reads once into a buffer. Returns the bytes read, which are empty at the end of the file.
    pub fn read<'a>(&self, buffer: &'a mut [MaybeUninit<u8>]) -> Result<&'a [u8], i32> {
        let count = uninterrupted(|| {
            // SAFETY: the buffer is writable and has that many bytes.
            count(unsafe { libc::syscall(libc::SYS_read, self.0, buffer.as_mut_ptr(), buffer.len()) })
        })?;
        // SAFETY: the kernel has written that many bytes of the buffer.
        Ok(unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast(), count) })
    }

    /// Reads once into a buffer, from an offset in the file. Returns the number of bytes.
    pub fn read_at(&self, buffer: &mut [u8], place: u64) -> Result<usize, i32> {
        uninterrupted(|| {
            let (to, length) = (buffer.as_mut_ptr(), buffer.len());
            // SAFETY: the buffer is writable and has that many bytes.
            count(unsafe { libc::syscall(libc::SYS_pread64, self.0, to, length, place) })
        })
    }

    /// Writes once. Returns the number of bytes.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, i32> {
        write(self.0, bytes)
    }

    /// Writes once to an offset in the file. Returns the number of bytes.
    pub fn write_at(&self, bytes: &[u8], place: u64) -> Result<usize, i32> {
        uninterrupted(|| {
            let (from, length) = (bytes.as_ptr(), bytes.len());
            // SAFETY: that many bytes are readable.
            count(unsafe { libc::syscall(libc::SYS_pwrite64, self.0, from, length, place) })
        })
    }

    /// Allocates disk space for a range of the file.
    pub fn allocate(&self, start: u64, bytes: u64) -> Result<(), i32> {
        fallocate(self.0, 0, start, bytes)
    }
}

/// Writes once to a descriptor that this crate does not own. Returns the number of bytes.
pub fn write(descriptor: c_int, bytes: &[u8]) -> Result<usize, i32> {
    uninterrupted(|| {
        // SAFETY: that many bytes are readable.
        count(unsafe { libc::syscall(libc::SYS_write, descriptor, bytes.as_ptr(), bytes.len()) })
    })
}

/// Calls `fallocate`, again if a signal has interrupted it.
pub fn fallocate(descriptor: c_int, mode: c_int, start: u64, bytes: u64) -> Result<(), i32> {
    uninterrupted(|| {
        // SAFETY: no pointers are passed.
        count(unsafe { libc::syscall(libc::SYS_fallocate, descriptor, mode, start, bytes) })
    })
    .map(drop)
}

/// Returns the metadata of an open file.
pub fn facts_of(descriptor: c_int) -> Result<libc::stat, i32> {
    let mut facts = MaybeUninit::<libc::stat>::uninit();
    // By number, because old C libraries do not export `fstat`.
    // SAFETY: the place is writable and of the right type.
    count(unsafe { libc::syscall(libc::SYS_fstat, descriptor, facts.as_mut_ptr()) })?;
    // SAFETY: the kernel has filled it in.
    Ok(unsafe { facts.assume_init() })
}

/// Returns the metadata of the file that a path names now. A symbolic link as its last component is not followed.
pub fn facts_of_link(folder: Option<&Descriptor>, path: &CStr) -> Result<libc::stat, i32> {
    let folder = folder.map_or(libc::AT_FDCWD, Descriptor::number);
    Descriptor::open_at(folder, path, libc::O_PATH | libc::O_NOFOLLOW, 0)?.facts()
}

/// Repeats a system call while signals interrupt it. A timer of the program may interrupt every attempt, in which case
/// it fails.
pub fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, i32>) -> Result<T, i32> {
    for _ in 1..ATTEMPTS {
        match call() {
            Err(libc::EINTR) => {}
            done => return done,
        }
    }
    call()
}

fn count(result: c_long) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| errno())
}

fn close(descriptor: c_int) {
    // SAFETY: the callers own the descriptor, and do not use it again.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_opened_read_and_looked_at() {
        let folder = Descriptor::open(c"/proc/self", libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        let file = folder.open_in(c"comm", libc::O_RDONLY).unwrap();
        let mut buffer = [const { MaybeUninit::uninit() }; 64];
        let read = file.read(&mut buffer).unwrap();
        assert_eq!(read, std::fs::read("/proc/self/comm").unwrap());
        assert_eq!(file.facts().unwrap().st_mode & libc::S_IFMT, libc::S_IFREG);
        assert_eq!(Descriptor::open(c"/nonexistent/file", libc::O_RDONLY).err(), Some(libc::ENOENT));
        let own = facts_of_link(Some(&folder), c"exe").unwrap();
        assert_eq!(own.st_mode & libc::S_IFMT, libc::S_IFLNK, "the link itself");
        assert_eq!(facts_of_link(None, c"/nonexistent/file").err(), Some(libc::ENOENT));
    }

    /// Runs code that must not change this process in a child, which exits with its result.
    fn in_child(code: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = code();
            // SAFETY: ends the child.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: the child is this process's, and the place is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn no_descriptor_is_that_of_a_standard_stream() {
        let number = in_child(|| {
            (0..3).for_each(close);
            let file = Descriptor::open(c"/dev/null", libc::O_RDONLY);
            // The low number is free again.
            // SAFETY: no pointers are passed.
            let is_free = unsafe { libc::fcntl(0, libc::F_GETFD) } == -1;
            if is_free { file.map_or(1, |file| file.number()) } else { 2 }
        });
        assert!(number >= LOWEST, "{number}");
        let error = in_child(|| {
            (0..3).for_each(close);
            let limit = libc::rlimit { rlim_cur: 3, rlim_max: 3 };
            // SAFETY: the limit is readable.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
            Descriptor::open(c"/dev/null", libc::O_RDONLY).map_or_else(|errno| errno, |_| 0)
        });
        assert!([libc::EINVAL, libc::EMFILE].contains(&error), "{error}");
    }

    #[test]
    fn an_interrupted_call_is_repeated() {
        let mut left = 3;
        let done = uninterrupted(|| {
            left -= 1;
            if left == 0 { Ok(7) } else { Err(libc::EINTR) }
        });
        assert_eq!(done, Ok(7));
        assert_eq!(uninterrupted(|| Err::<(), _>(libc::EINTR)), Err(libc::EINTR));
    }
}
