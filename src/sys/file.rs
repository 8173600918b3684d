//! Reading a file without an allocation that aborts.

use super::HostMemoryExhausted;
use std::fmt;
use std::os::raw::c_int;
use std::path::Path;

/// Why a file was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    Errno(i32),
    /// It has more bytes than are read.
    TooLarge(usize),
    HostMemory,
}

impl From<HostMemoryExhausted> for Unreadable {
    fn from(_: HostMemoryExhausted) -> Self {
        Unreadable::HostMemory
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // By number: the text of an error is a string that has to be allocated.
            Unreadable::Errno(libc::ENOENT) => f.write_str("cannot be read: there is no such file"),
            Unreadable::Errno(libc::EACCES) => f.write_str("cannot be read: permission denied"),
            Unreadable::Errno(libc::EISDIR) => f.write_str("cannot be read: it is a directory"),
            Unreadable::Errno(errno) => write!(f, "cannot be read (errno {errno})"),
            Unreadable::TooLarge(most) => write!(f, "has more than {most} bytes"),
            Unreadable::HostMemory => f.write_str("out of host memory (allocator metadata)"),
        }
    }
}

/// The bytes of the first read. They double with each that follows.
const FIRST_READ: usize = 64 << 10;

/// An open file. System calls are made by number, because the C library's functions are thread cancellation points.
struct Descriptor(c_int);

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is owned.
        unsafe { libc::syscall(libc::SYS_close, self.0) };
    }
}

/// Reads a file of at most `most` bytes. A pipe without a writer reads as empty, so this never waits for one.
pub(crate) fn read(path: &Path, most: usize) -> Result<Vec<u8>, Unreadable> {
    let path = path.as_os_str().as_encoded_bytes();
    let mut name = Vec::new();
    name.try_reserve_exact(path.len() + 1).map_err(HostMemoryExhausted::from)?;
    name.extend_from_slice(path);
    name.push(0);
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the name ends with a zero.
    let opened = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags) };
    let file = Descriptor(c_int::try_from(opened).ok().filter(|&fd| fd >= 0).ok_or_else(last_errno)?);
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        bytes.try_reserve(bytes.len().max(FIRST_READ)).map_err(HostMemoryExhausted::from)?;
        let room = bytes.spare_capacity_mut();
        // SAFETY: the room is writable and has that many bytes.
        let read = unsafe { libc::syscall(libc::SYS_read, file.0, room.as_mut_ptr(), room.len()) };
        match usize::try_from(read) {
            Ok(0) => return Ok(bytes),
            // SAFETY: the kernel has written that many bytes of the room.
            Ok(count) => unsafe { bytes.set_len(bytes.len() + count) },
            Err(_) if last_errno() == Unreadable::Errno(libc::EINTR) => {}
            Err(_) => return Err(last_errno()),
        }
        if bytes.len() > most {
            return Err(Unreadable::TooLarge(most));
        }
    }
}

fn last_errno() -> Unreadable {
    Unreadable::Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_a_size() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let whole = std::fs::read(here.join("Cargo.lock")).unwrap();
        assert_eq!(read(&here.join("Cargo.lock"), whole.len()).as_deref(), Ok(&*whole));
        assert_eq!(read(&here.join("Cargo.lock"), 10), Err(Unreadable::TooLarge(10)));
        assert_eq!(read(Path::new("/dev/zero"), 1 << 20), Err(Unreadable::TooLarge(1 << 20)));
        assert_eq!(read(Path::new("/dev/null"), 0).as_deref(), Ok(&[][..]));
        assert_eq!(read(&here.join("no such file"), 10), Err(Unreadable::Errno(libc::ENOENT)));
        assert_eq!(read(here, 10), Err(Unreadable::Errno(libc::EISDIR)));
    }
}
