//! The operating system: memory files, their mappings, threads and forks.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A page of the host.
pub(crate) const PAGE: u64 = 4096;

/// Rounds a number up to a multiple of a power of two.
pub(crate) fn round_up(number: u64, to: u64) -> u64 {
    number.saturating_add(to - 1) & !(to - 1)
}

/// Returns the calling thread's number. Numbers are never reused.
pub(crate) fn thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! { static NUMBER: Cell<u64> = const { Cell::new(0) }; }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

static FORKED: AtomicBool = AtomicBool::new(false);

/// Returns whether this process is the child of one that had initialized the driver.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Marks later children of this process as forked.
pub(crate) fn watch_forks() {
    static WATCHED: Once = Once::new();
    extern "C" fn child() {
        FORKED.store(true, Ordering::Relaxed);
    }
    WATCHED.call_once(|| {
        // SAFETY: the handler stores to an atomic, and the library is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    });
}

/// Creates an anonymous memory file. Returns its descriptor, or None if the system refuses.
pub(crate) fn memory_file(bytes: u64) -> Option<c_int> {
    // SAFETY: a static C string.
    let file = unsafe { libc::memfd_create(c"simcuda".as_ptr(), libc::MFD_CLOEXEC) };
    if file < 0 {
        return None;
    }
    if !resize(file, bytes) {
        close(file);
        return None;
    }
    Some(file)
}

pub(crate) fn resize(file: c_int, bytes: u64) -> bool {
    // SAFETY: no memory is involved. An access beyond the end faults, and the end never moves down here.
    unsafe { libc::ftruncate(file, bytes as i64) == 0 }
}

pub(crate) fn size(file: c_int) -> Option<u64> {
    // SAFETY: a plain structure of numbers.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: writes the structure.
    (unsafe { libc::fstat(file, &raw mut status) } == 0).then_some(status.st_size as u64)
}

pub(crate) fn duplicate(file: c_int) -> Option<c_int> {
    // SAFETY: no memory is involved.
    let copy = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 3) };
    (copy >= 0).then_some(copy)
}

/// Opens a file of another process by its descriptor there.
pub(crate) fn open_of(process: u32, file: c_int) -> Option<c_int> {
    let path = std::ffi::CString::new(format!("/proc/{process}/fd/{file}")).ok()?;
    // SAFETY: a C string.
    let opened = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    (opened >= 0).then_some(opened)
}

pub(crate) fn close(file: c_int) {
    // SAFETY: the descriptor belongs to the simulation.
    unsafe { libc::close(file) };
}

/// Frees the pages of a range of a file. They read as zeros afterwards.
pub(crate) fn punch(file: c_int, offset: u64, bytes: u64) {
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the only memory involved is what is mapped of the file, which belongs to the simulation.
    unsafe { libc::fallocate(file, how, offset as i64, bytes as i64) };
}

/// The access that a mapping allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    None,
    Read,
    Write,
}

impl Access {
    fn flags(self) -> c_int {
        match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::Write => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// Reserves addresses, at the hint if they are free there. They cannot be accessed.
pub(crate) fn reserve(hint: u64, bytes: u64) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED no existing mapping is changed.
    let at = unsafe {
        libc::mmap(hint as *mut c_void, usize::try_from(bytes).ok()?, libc::PROT_NONE, flags, -1, 0)
    };
    (at != libc::MAP_FAILED).then_some(at as u64)
}

/// Maps a range of a file at a reserved address, or anywhere for 0.
pub(crate) fn map(at: u64, bytes: u64, file: c_int, offset: u64, access: Access) -> Option<u64> {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | fixed;
    let bytes = usize::try_from(bytes).ok()?;
    // SAFETY: the addresses are reserved by `reserve` and belong to the simulation.
    let mapped = unsafe { libc::mmap(at as *mut c_void, bytes, access.flags(), flags, file, offset as i64) };
    (mapped != libc::MAP_FAILED).then_some(mapped as u64)
}

/// Turns a mapped range back into a reservation.
pub(crate) fn unmap_to_reserved(at: u64, bytes: u64) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the addresses belong to the simulation.
    let mapped = unsafe { libc::mmap(at as *mut c_void, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    mapped != libc::MAP_FAILED
}

pub(crate) fn protect(at: u64, bytes: u64, access: Access) -> bool {
    // SAFETY: the addresses belong to the simulation.
    unsafe { libc::mprotect(at as *mut c_void, bytes as usize, access.flags()) == 0 }
}

/// Unmaps addresses and ends their reservation.
pub(crate) fn unreserve(at: u64, bytes: u64) {
    // SAFETY: the addresses belong to the simulation.
    unsafe { libc::munmap(at as *mut c_void, bytes as usize) };
}

/// Allocates whole pages of host memory.
pub(crate) fn host_memory(bytes: u64) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let access = Access::Write.flags();
    // SAFETY: without MAP_FIXED no existing mapping is changed.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), usize::try_from(bytes).ok()?, access, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at as u64)
}

/// Returns the nanoseconds of a monotonic clock.
pub(crate) fn now() -> u64 {
    use std::sync::LazyLock;
    use std::time::Instant;
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}
