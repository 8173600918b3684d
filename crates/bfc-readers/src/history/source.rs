//! Reading the file of a history in pieces.
//!
//! The file may be sparse: a ring has room for more events than were recorded, and a header may claim any number of
//! them. So the file is never read as a whole, and parts that were never written are not read at all.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// What a history is read from.
pub trait Source {
    /// The length in bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// Fills the buffer with the contents from a position.
    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// The first part after a position that was ever written. The rest is zeros.
    fn written(&self, from: u64) -> Option<(u64, u64)>;
}

impl Source for File {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, at)
    }

    fn written(&self, from: u64) -> Option<(u64, u64)> {
        let seek = |from: u64, whence| {
            let from = libc::off_t::try_from(from).map_err(io::Error::other)?;
            // SAFETY: no pointers are passed.
            let found = unsafe { libc::lseek(self.as_raw_fd(), from, whence) };
            u64::try_from(found).map_err(|_| io::Error::last_os_error())
        };
        let begin = match seek(from, libc::SEEK_DATA) {
            Ok(begin) => begin,
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return None,
            // The file system does not report it.
            Err(_) => from,
        };
        let end = seek(begin, libc::SEEK_HOLE).or_else(|_| Source::bytes(self)).ok()?;
        (begin < end).then_some((begin, end))
    }
}

/// For tests and fuzzing.
impl Source for Vec<u8> {
    fn bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        let found = usize::try_from(at).ok().and_then(|at| self.get(at..)?.get(..buffer.len()));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn written(&self, from: u64) -> Option<(u64, u64)> {
        let end = self.len() as u64;
        (from < end).then_some((from, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_of_a_file_are_not_read() {
        let path = std::env::temp_dir().join(format!("bfc-source-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        // Its blocks are released with the descriptor.
        std::fs::remove_file(&path).expect("it is there");
        file.set_len(64 << 20).expect("room");
        file.write_all_at(b"event", 32 << 20).expect("room");
        let (begin, end) = file.written(0).expect("something is written");
        assert!((16 << 20..=32 << 20).contains(&begin) && end < 48 << 20, "{begin} to {end}");
        assert_eq!((file.written(end), file.written(1 << 62)), (None, None));
        let mut buffer = [0; 5];
        Source::read_at(&file, 32 << 20, &mut buffer).expect("it is there");
        assert_eq!(&buffer, b"event");
        Source::read_at(&file, (64 << 20) - 4, &mut buffer).expect_err("it is cut off");
    }
}
