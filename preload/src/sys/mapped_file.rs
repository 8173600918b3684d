//! A file that is written through a mapping: its contents are complete however the process ends.
//!
//! No descriptor stays open, because the program might close it and reuse its number. Disk space is allocated before it
//! is written (`posix_fallocate`), so a full disk is an error instead of a signal.

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::sys::file_name::FileName;

/// The file grows in steps of this size, each mapped as a whole.
const STEP: u64 = 1 << 20;

pub(crate) struct MappedFile {
    path: FileName,
    /// Device and inode. The path may name another file later.
    identity: (u64, u64),
    /// How many bytes were written.
    length: u64,
    window: Window,
}

/// The part of the file that is mapped.
struct Window {
    start: *mut u8,
    bytes: usize,
    /// How many of its bytes are written.
    used: usize,
}

// SAFETY: the value owns the mapping.
unsafe impl Send for MappedFile {}

impl Window {
    const NONE: Self = Window { start: ptr::null_mut(), bytes: 0, used: 0 };
}

impl MappedFile {
    /// Creates a file that must not exist yet. The error is an errno.
    pub(crate) fn create(path: FileName) -> Result<Self, c_int> {
        let file = open(&path, libc::O_CREAT | libc::O_EXCL)?;
        let identity = file.identity()?;
        drop(file);
        let mut mapped = MappedFile { path, identity, length: 0, window: Window::NONE };
        if let Err(error) = mapped.grow(1) {
            // SAFETY: the path is NUL-terminated.
            mapped.path.to(|path| unsafe { libc::unlink(path.as_ptr()) });
            return Err(error);
        }
        Ok(mapped)
    }

    pub(crate) fn path(&self) -> &FileName {
        &self.path
    }

    /// Appends a line, and leaves room for `spare` bytes behind it. Writes nothing on failure.
    pub(crate) fn append(&mut self, line: &[u8], spare: usize) -> Result<(), c_int> {
        let Some((first, rest)) = line.split_first() else { return Ok(()) };
        if self.window.used + line.len() + spare > self.window.bytes {
            self.grow(line.len() + spare)?;
        }
        let Window { start, used, .. } = &mut self.window;
        let place = start.wrapping_add(*used);
        // SAFETY: the window has room for the line.
        unsafe { ptr::copy_nonoverlapping(rest.as_ptr(), place.wrapping_add(1), rest.len()) };
        // Stored last, so that a line that begins with 0 is known to be incomplete.
        // SAFETY: as above, and no other thread is here.
        unsafe { AtomicU8::from_ptr(place) }.store(*first, Ordering::Release);
        *used += line.len();
        self.length += line.len() as u64;
        Ok(())
    }

    /// Truncates the file to what was written. Later lines are still accepted. Fails if the file is no longer at its
    /// path.
    pub(crate) fn trim(&mut self) -> Result<(), c_int> {
        self.unmap();
        let file = self.open()?;
        let length = libc::off_t::try_from(self.length).map_err(|_| libc::EFBIG)?;
        // SAFETY: a descriptor of the file, of which nothing is mapped any more.
        if unsafe { libc::ftruncate(file.0, length) } == 0 { Ok(()) } else { Err(last_error()) }
    }

    /// Maps the part behind what is written, with room for `bytes`.
    fn grow(&mut self, bytes: usize) -> Result<(), c_int> {
        let file = self.open()?;
        let page = page();
        let start = self.length / page * page;
        let used = (self.length - start) as usize;
        let least = (used + bytes).next_multiple_of(page as usize) as u64;
        // A full disk may still have a little room.
        let take = |step| reserve(&file, start, step).map(|()| step);
        let step = take(STEP.max(least)).or_else(|first| take(least).map_err(|_| first))?;
        let (protection, offset) = (libc::PROT_READ | libc::PROT_WRITE, start as libc::off_t);
        // SAFETY: a new mapping at an address chosen by the system.
        let mapping = unsafe {
            libc::mmap(ptr::null_mut(), step as usize, protection, libc::MAP_SHARED, file.0, offset)
        };
        if mapping == libc::MAP_FAILED {
            return Err(last_error());
        }
        self.unmap();
        self.window = Window { start: mapping.cast(), bytes: step as usize, used };
        Ok(())
    }

    /// Opens the file if it is still at its path.
    fn open(&self) -> Result<Descriptor, c_int> {
        let file = open(&self.path, 0)?;
        if file.identity()? == self.identity { Ok(file) } else { Err(libc::ESTALE) }
    }

    fn unmap(&mut self) {
        let Window { start, bytes, .. } = std::mem::replace(&mut self.window, Window::NONE);
        if !start.is_null() {
            // SAFETY: mapped by this value, and not used afterwards.
            unsafe { libc::munmap(start.cast(), bytes) };
        }
    }
}

/// A file descriptor, closed on drop.
pub(crate) struct Descriptor(c_int);

impl Descriptor {
    /// Returns the number, which is valid while this value lives.
    pub(crate) fn number(&self) -> c_int {
        self.0
    }

    fn identity(&self) -> Result<(u64, u64), c_int> {
        let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the struct is valid for writing.
        if unsafe { libc::fstat(self.0, status.as_mut_ptr()) } != 0 {
            return Err(last_error());
        }
        // SAFETY: written above.
        let status = unsafe { status.assume_init() };
        Ok((status.st_dev, status.st_ino))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor.
        unsafe { libc::close(self.0) };
    }
}

/// Opens a file for reading and writing.
pub(crate) fn open(path: &FileName, flags: c_int) -> Result<Descriptor, c_int> {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | flags;
    // SAFETY: the path is NUL-terminated.
    let open = |path: &CStr| unsafe { libc::open(path.as_ptr(), flags, 0o644 as libc::c_uint) };
    match path.to(open).ok_or(libc::ENOMEM)? {
        ..0 => Err(last_error()),
        file => Ok(Descriptor(file)),
    }
}

/// Allocates disk space for a range of the file.
fn reserve(file: &Descriptor, start: u64, bytes: u64) -> Result<(), c_int> {
    check_limit(start + bytes)?;
    let mut error = libc::EINTR;
    // A timer of the program may interrupt the call repeatedly.
    for _ in 0..100 {
        // SAFETY: the descriptor is open for writing.
        error = unsafe { libc::posix_fallocate(file.0, start as libc::off_t, bytes as libc::off_t) };
        if error != libc::EINTR {
            break;
        }
    }
    if error == 0 { Ok(()) } else { Err(error) }
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

pub(crate) fn last_error() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
