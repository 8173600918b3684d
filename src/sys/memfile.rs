//! Memory files, whose pages can be mapped anywhere and moved.

use os::descriptors::{Descriptor, facts_of, fallocate};
use os::errno;
use std::os::raw::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An anonymous memory file. Some programs close all descriptors, and the number may then refer to another file. So the
/// identity of the file is checked before each use.
pub(crate) struct MemFile {
    fd: c_int,
    identity: (u64, u64),
    bytes: AtomicU64,
    /// The process that owns the memory. A forked child has the descriptor too.
    process: u32,
}

impl MemFile {
    /// Creates a file of `bytes` bytes, none of which takes memory yet. The error is the errno.
    pub(crate) fn new(bytes: u64) -> Result<Self, i32> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // Kernels before 6.3 do not know the flag. Later ones may log a warning without it.
        const MFD_NOEXEC_SEAL: u32 = 8;
        let fd = match create(flags | MFD_NOEXEC_SEAL) {
            Err(libc::EINVAL) => create(flags)?,
            other => other?,
        };
        // Another process of this user can open the file in /proc. If it were made shorter, accesses to live allocations
        // would raise SIGBUS. Without the seal the memory works too.
        // SAFETY: no pointers are passed.
        unsafe { libc::syscall(libc::SYS_fcntl, fd.number(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        let fd = fd.into_number();
        let process = std::process::id();
        let mut file = MemFile { fd, identity: (0, 0), bytes: AtomicU64::new(0), process };
        file.truncate(bytes)?;
        file.identity = file.read_identity()?;
        Ok(file)
    }

    /// Makes the file larger. The new part takes no memory yet. On failure nothing changed.
    pub(crate) fn grow(&self, bytes: u64) -> Result<(), i32> {
        if !self.is_own() {
            return Err(libc::EBADF);
        }
        self.truncate(bytes)
    }

    fn truncate(&self, bytes: u64) -> Result<(), i32> {
        // Exceeding the process's file size limit would raise a signal.
        if bytes > limit_of(libc::RLIMIT_FSIZE) {
            return Err(libc::EFBIG);
        }
        let length = i64::try_from(bytes).map_err(|_| libc::EFBIG)?;
        // SAFETY: the descriptor is this file's own.
        if unsafe { libc::ftruncate(self.fd, length) } != 0 {
            return Err(errno());
        }
        self.bytes.store(bytes, Relaxed);
        Ok(())
    }

    fn read_identity(&self) -> Result<(u64, u64), i32> {
        facts_of(self.fd).map(|facts| (facts.st_dev, facts.st_ino))
    }

    /// Returns whether the descriptor still refers to this file, and the file belongs to this process.
    pub(crate) fn is_own(&self) -> bool {
        self.process == std::process::id() && self.read_identity() == Ok(self.identity)
    }

    /// Maps `bytes` of the file starting at `offset` to `addr`, replacing existing mappings.
    ///
    /// # Safety
    /// The addresses belong to the caller, and nothing uses the existing mappings.
    pub(crate) unsafe fn map_at(&self, addr: u64, offset: u64, bytes: u64) -> Result<(), i32> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        let offset = i64::try_from(offset).map_err(|_| libc::EINVAL)?;
        let at = addr as *mut c_void;
        // SAFETY: guaranteed by the caller.
        let raw = unsafe { libc::mmap(at, bytes as usize, protection, flags, self.fd, offset) };
        if raw == libc::MAP_FAILED {
            return Err(errno());
        }
        // Forked children must not share the memory.
        // SAFETY: the range was mapped just now.
        if unsafe { libc::madvise(at, bytes as usize, libc::MADV_DONTFORK) } != 0 {
            return Err(errno());
        }
        Ok(())
    }

    /// Frees the memory of a part of the file, which reads as zero afterwards. A refusal is harmless, because the
    /// memory is then reused as it is.
    pub(crate) fn punch(&self, offset: u64, bytes: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        if self.is_own() {
            let _ = fallocate(self.fd, mode, offset, bytes);
        }
    }
}

impl Drop for MemFile {
    /// Frees the memory before closing, because a forked child that still has the file open would keep it.
    fn drop(&mut self) {
        if self.identity == (0, 0) || self.is_own() {
            self.punch(0, self.bytes.load(Relaxed));
            // SAFETY: the descriptor is this file's, and is not used again.
            unsafe { libc::syscall(libc::SYS_close, self.fd) };
        }
    }
}

fn create(flags: u32) -> Result<Descriptor, i32> {
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, c"libbfc".as_ptr(), flags) };
    // SAFETY: it was opened just now.
    unsafe { Descriptor::opened(fd) }
}

/// Returns a resource limit of the process, or `u64::MAX` if there is none.
pub(crate) fn limit_of(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the place is writable and of the right type.
    if unsafe { libc::getrlimit(resource, &mut limit) } != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
        return u64::MAX;
    }
    limit.rlim_cur
}

/// Reserved addresses without memory, which cannot be read or written.
pub(crate) struct Reservation {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

impl Reservation {
    /// Reserves `bytes` at a multiple of `alignment`. Both must be multiples of a page.
    pub(crate) fn new(bytes: u64, alignment: u64) -> Result<Self, i32> {
        let total = bytes.checked_add(alignment).ok_or(libc::ENOMEM)?;
        let raw = reserve(0, total, 0)?;
        let base = raw.next_multiple_of(alignment);
        for (from, to) in [(raw, base), (base + bytes, raw + total)] {
            if from != to {
                // SAFETY: the range is a part of the new reservation that nothing uses.
                unsafe { libc::munmap(from as *mut c_void, (to - from) as usize) };
            }
        }
        Ok(Reservation { base, bytes })
    }

    /// Replaces the mappings in a part of the reservation by an empty one.
    ///
    /// # Safety
    /// Nothing uses the existing mappings.
    pub(crate) unsafe fn empty(&self, addr: u64, bytes: u64) -> Result<(), i32> {
        assert!(
            addr >= self.base && addr - self.base <= self.bytes && bytes <= self.bytes - (addr - self.base)
        );
        reserve(addr, bytes, libc::MAP_FIXED).map(drop)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the owner ends, and with it everything that was mapped into the reservation.
        unsafe { libc::munmap(self.base as *mut c_void, self.bytes as usize) };
    }
}

/// Reserves addresses. `MAP_FIXED` may be used only inside a reservation of the caller.
fn reserve(addr: u64, bytes: u64, fixed: c_int) -> Result<u64, i32> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let bytes = usize::try_from(bytes).map_err(|_| libc::ENOMEM)?;
    // SAFETY: the address is chosen by the kernel, or is inside a reservation of the caller.
    let raw = unsafe { libc::mmap(addr as *mut c_void, bytes, libc::PROT_NONE, flags, -1, 0) };
    if raw == libc::MAP_FAILED { Err(errno()) } else { Ok(raw as u64) }
}
