//! Reading a file without an allocation that aborts.

use super::c_string::joined;
use bfc_hostmem::HostMemoryExhausted;
use os::descriptors::Descriptor;
use std::fmt;
use std::path::Path;

/// The reason why a file was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    Errno(i32),
    /// The file is larger than the maximum.
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
            // Only the number, because the text of an error would be an allocated string.
            Unreadable::Errno(libc::ENOENT) => f.write_str("cannot be read: there is no such file"),
            Unreadable::Errno(libc::EACCES) => f.write_str("cannot be read: permission denied"),
            Unreadable::Errno(libc::EISDIR) => f.write_str("cannot be read: it is a directory"),
            Unreadable::Errno(errno) => write!(f, "cannot be read (errno {errno})"),
            Unreadable::TooLarge(most) => write!(f, "has more than {most} bytes"),
            Unreadable::HostMemory => f.write_str("out of host memory (allocator metadata)"),
        }
    }
}

/// The bytes of the first read. They double with each further read.
const FIRST_READ: usize = 64 << 10;

/// Reads a file of at most `most` bytes. A pipe without a writer reads as empty, so this never waits for one.
pub(crate) fn read(path: &Path, most: usize) -> Result<Vec<u8>, Unreadable> {
    let name = joined(&[path.as_os_str().as_encoded_bytes()])?;
    let file = Descriptor::open(&name, libc::O_RDONLY | libc::O_NONBLOCK).map_err(Unreadable::Errno)?;
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        bytes.try_reserve(bytes.len().max(FIRST_READ)).map_err(HostMemoryExhausted::from)?;
        match file.read(bytes.spare_capacity_mut()).map(<[u8]>::len) {
            Ok(0) => return Ok(bytes),
            // SAFETY: that many bytes of the room were written.
            Ok(count) => unsafe { bytes.set_len(bytes.len() + count) },
            Err(errno) => return Err(Unreadable::Errno(errno)),
        }
        if bytes.len() > most {
            return Err(Unreadable::TooLarge(most));
        }
    }
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
