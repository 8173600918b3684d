//! Memory that is a file: its pages may be mapped anywhere, and moved.
//!
//! All system calls are made by number, as in `write_to_stderr`, where the C library's function is a point at
//! which a thread can be cancelled.

use std::os::raw::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A file without a name, in memory. Programs that close all descriptors on principle exist, and the number may
/// come to mean another file: so it is looked at before it is used.
pub(crate) struct MemFile {
    fd: c_int,
    identity: (u64, u64),
    bytes: AtomicU64,
    /// The process whose memory it is: in a forked child the descriptor is there too.
    process: u32,
}

impl MemFile {
    /// A file of so many bytes, none of which takes memory yet. The error is the system's number.
    pub(crate) fn new(bytes: u64) -> Result<Self, i32> {
        let flags = libc::MFD_CLOEXEC;
        // Kernels before 6.3 do not know the flag, later ones may complain where it is absent.
        const MFD_NOEXEC_SEAL: u32 = 8;
        let fd = match create(flags | MFD_NOEXEC_SEAL) {
            Err(libc::EINVAL) => create(flags)?,
            other => other?,
        };
        let process = std::process::id();
        let mut file = MemFile { fd, identity: (0, 0), bytes: AtomicU64::new(0), process };
        file.truncate(bytes)?;
        file.identity = file.look()?;
        Ok(file)
    }

    /// Makes it as large as that; what is new takes no memory yet. On failure nothing changed.
    pub(crate) fn grow(&self, bytes: u64) -> Result<(), i32> {
        if !self.is_there() {
            return Err(libc::EBADF);
        }
        self.truncate(bytes)
    }

    fn truncate(&self, bytes: u64) -> Result<(), i32> {
        // A file that is too large for the process's limit would bring it a signal.
        if bytes > limit_of(libc::RLIMIT_FSIZE) {
            return Err(libc::EFBIG);
        }
        let length = i64::try_from(bytes).map_err(|_| libc::EFBIG)?;
        // SAFETY: the descriptor is this file's own.
        if unsafe { libc::ftruncate(self.fd, length) } != 0 {
            return Err(last_errno());
        }
        self.bytes.store(bytes, Relaxed);
        Ok(())
    }

    fn look(&self) -> Result<(u64, u64), i32> {
        // SAFETY: integers only.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // By number, for the C library's function is younger than the oldest one that is supported.
        // SAFETY: the place is writable and of the right type.
        if unsafe { libc::syscall(libc::SYS_fstat, self.fd, &raw mut stat) } != 0 {
            return Err(last_errno());
        }
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Whether the descriptor still is this file, and the file this process's.
    pub(crate) fn is_there(&self) -> bool {
        self.process == std::process::id() && self.look() == Ok(self.identity)
    }

    /// Maps `bytes` of the file from `offset` on at `addr`, in place of what is there.
    ///
    /// # Safety
    /// The addresses belong to the caller, and nobody relies on what is mapped there.
    pub(crate) unsafe fn map_at(&self, addr: u64, offset: u64, bytes: u64) -> Result<(), i32> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let offset = i64::try_from(offset).map_err(|_| libc::EINVAL)?;
        let at = addr as *mut c_void;
        // SAFETY: the caller's.
        let raw = unsafe { libc::mmap(at, bytes as usize, protection, flags, self.fd, offset) };
        if raw == libc::MAP_FAILED {
            return Err(last_errno());
        }
        // The memory is no child's.
        // SAFETY: the range was mapped just now.
        if unsafe { libc::madvise(at, bytes as usize, libc::MADV_DONTFORK) } != 0 {
            return Err(last_errno());
        }
        Ok(())
    }

    /// Gives the memory of a part of the file back; it reads as zero afterwards. A refusal is harmless: the memory
    /// is then found in use again.
    pub(crate) fn punch(&self, offset: u64, bytes: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        if self.is_there() {
            // SAFETY: by number; the descriptor is this file's.
            unsafe { libc::syscall(libc::SYS_fallocate, self.fd, mode, offset, bytes) };
        }
    }
}

impl Drop for MemFile {
    /// A forked child may still have the file open: it must not keep its memory.
    fn drop(&mut self) {
        if self.identity == (0, 0) || self.is_there() {
            self.punch(0, self.bytes.load(Relaxed));
            // SAFETY: by number; the descriptor is this file's, and is not used again.
            unsafe { libc::syscall(libc::SYS_close, self.fd) };
        }
    }
}

fn create(flags: u32) -> Result<c_int, i32> {
    // SAFETY: by number; the name is NUL-terminated.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, c"libbfc".as_ptr(), flags) };
    c_int::try_from(fd).ok().filter(|&fd| fd >= 0).ok_or_else(last_errno)
}

/// A limit of the process; `u64::MAX` if there is none.
pub(crate) fn limit_of(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the place is writable and of the right type.
    if unsafe { libc::getrlimit(resource, &mut limit) } != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return u64::MAX;
    }
    limit.rlim_cur
}

/// Addresses without memory that nobody else gets: they cannot be read or written.
pub(crate) struct Reservation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

impl Reservation {
    /// Reserves `bytes` at a multiple of `alignment`; both are multiples of a page.
    pub(crate) fn new(bytes: u64, alignment: u64) -> Result<Self, i32> {
        let total = bytes.checked_add(alignment).ok_or(libc::ENOMEM)?;
        let raw = reserve(0, total, 0)?;
        let base = raw.next_multiple_of(alignment);
        for (from, to) in [(raw, base), (base + bytes, raw + total)] {
            if from != to {
                // SAFETY: a part of what was reserved just now, which nobody knows.
                unsafe { libc::munmap(from as *mut c_void, (to - from) as usize) };
            }
        }
        Ok(Reservation { base, bytes })
    }

    /// Puts an empty reservation in place of what is mapped in a part of it.
    ///
    /// # Safety
    /// Nobody relies on what is mapped there.
    pub(crate) unsafe fn empty(&self, addr: u64, bytes: u64) -> Result<(), i32> {
        assert!(
            addr >= self.base && addr - self.base <= self.bytes && bytes <= self.bytes - (addr - self.base)
        );
        reserve(addr, bytes, libc::MAP_FIXED).map(drop)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: its owner ends, and with it whatever was mapped into it.
        unsafe { libc::munmap(self.base as *mut c_void, self.bytes as usize) };
    }
}

/// With `MAP_FIXED` in a reservation of the caller's only.
fn reserve(addr: u64, bytes: u64, fixed: c_int) -> Result<u64, i32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let bytes = usize::try_from(bytes).map_err(|_| libc::ENOMEM)?;
    // SAFETY: either at an address of the kernel's choice, or inside a reservation of the caller's.
    let raw = unsafe { libc::mmap(addr as *mut c_void, bytes, libc::PROT_NONE, flags, -1, 0) };
    if raw == libc::MAP_FAILED { Err(last_errno()) } else { Ok(raw as u64) }
}
