//! A file of lines that is written through a mapping: its contents are complete however the process ends.
//!
//! No descriptor stays open, because the program might close it and reuse its number. Disk space is allocated before it
//! is written (`posix_fallocate`), so a full disk is found early.

use std::ffi::c_int;

use os::descriptors::{Descriptor, uninterrupted};
use os::files::{self, Unusable};
use os::{cancellation, errno};

use crate::sys::file_name::FileName;
use crate::sys::window::Window;

/// The file grows in steps of this size, each mapped as a whole.
const STEP: u64 = 1 << 20;

pub(crate) struct MappedFile {
    path: FileName,
    /// Device and inode. The path may name another file later.
    identity: (u64, u64),
    /// The number of bytes written.
    length: u64,
    /// The part of the file that is mapped.
    window: Window,
    /// The number of its bytes that are written.
    used: usize,
}

impl MappedFile {
    /// Creates a file that must not exist yet. The error is an errno.
    pub(crate) fn create(path: FileName) -> Result<Self, c_int> {
        let file = path.to(files::create).ok_or(libc::ENOMEM)??;
        let identity = file.identity()?;
        drop(file);
        let mut mapped = MappedFile { path, identity, length: 0, window: Window::NONE, used: 0 };
        if let Err(error) = mapped.grow(1) {
            mapped.path.to(|path| files::remove_in(None, path));
            return Err(error);
        }
        Ok(mapped)
    }

    pub(crate) fn path(&self) -> &FileName {
        &self.path
    }

    /// Appends a line, and leaves room for `spare` bytes after it. Writes nothing on failure. [`libc::EFAULT`] if the
    /// file was truncated.
    pub(crate) fn append(&mut self, line: &[u8], spare: usize) -> Result<(), c_int> {
        let Some((first, rest)) = line.split_first() else { return Ok(()) };
        if self.used + line.len() + spare > self.window.bytes() {
            self.grow(line.len() + spare)?;
        }
        // The first byte is written last, so that a line that begins with 0 is known to be incomplete.
        self.window.write([(self.used + 1, rest), (self.used, std::slice::from_ref(first))])?;
        self.used += line.len();
        self.length += line.len() as u64;
        Ok(())
    }

    /// Truncates the file to the written bytes. Later lines are still accepted. Fails if the file is no longer at its
    /// path, and with [`libc::ESTALE`] if it lacks some of what was written.
    pub(crate) fn trim(&mut self) -> Result<(), c_int> {
        (self.window, self.used) = (Window::NONE, 0);
        let file = self.open()?;
        let length = libc::off_t::try_from(self.length).map_err(|_| libc::EFBIG)?;
        if file.facts()?.st_size < length {
            return Err(libc::ESTALE);
        }
        // SAFETY: no pointers are passed.
        if unsafe { libc::ftruncate(file.number(), length) } == 0 { Ok(()) } else { Err(errno()) }
    }

    /// Maps the part after the written bytes, with room for `bytes`.
    fn grow(&mut self, bytes: usize) -> Result<(), c_int> {
        let file = self.open()?;
        let page = page();
        let start = self.length / page * page;
        let used = (self.length - start) as usize;
        let least = (used + bytes).next_multiple_of(page as usize) as u64;
        // A full disk may still have a little room.
        let take = |step| reserve(&file, start, step).map(|()| step);
        let step = take(STEP.max(least)).or_else(|first| take(least).map_err(|_| first))?;
        self.window = Window::map(&file, start, step as usize)?;
        self.used = used;
        Ok(())
    }

    /// Opens the file if it is still at its path.
    fn open(&self) -> Result<Descriptor, c_int> {
        let opened = self.path.to(|path| files::open(path, libc::O_RDWR)).ok_or(libc::ENOMEM)?;
        let (file, _) = opened.map_err(|why| match why {
            Unusable::Errno(errno) => errno,
            Unusable::ForeignOwner | Unusable::NotRegular => libc::ESTALE,
        })?;
        if file.identity()? == self.identity { Ok(file) } else { Err(libc::ESTALE) }
    }
}

/// Allocates disk space for a range of the file.
fn reserve(file: &Descriptor, start: u64, bytes: u64) -> Result<(), c_int> {
    check_limit(start + bytes)?;
    let number = file.number();
    uninterrupted(|| {
        let error = cancellation::disabled(|| {
            // SAFETY: the descriptor is open for writing.
            unsafe { libc::posix_fallocate(number, start as libc::off_t, bytes as libc::off_t) }
        });
        if error == 0 { Ok(()) } else { Err(error) }
    })
}

/// Fails if a write would exceed the process's limit on file sizes, because that raises a signal instead of an error.
pub(crate) fn check_limit(bytes: u64) -> Result<(), c_int> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is valid for writing.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if known && limit.rlim_cur != libc::RLIM_INFINITY && bytes > limit.rlim_cur {
        return Err(libc::EFBIG);
    }
    Ok(())
}

/// Returns the host's page size.
#[cold]
pub(crate) fn page() -> u64 {
    // SAFETY: no preconditions.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}
