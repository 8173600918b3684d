//! A process's record of counters: created in memory, and then mapped from the file of the report.

use std::ffi::c_int;
use std::fmt::Display;
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use super::counters::{MAGIC, REPLACED, RUNNING, Record};
use crate::sys::file_name::FileName;
use crate::sys::mapped_file::{self, Descriptor};
use crate::sys::process;

const BYTES: usize = size_of::<Record>();

/// Maps a record that is not in a file, and identifies the process in it.
pub(super) fn map() -> Option<&'static Record> {
    // SAFETY: new zeroed memory, which is a valid record.
    let memory = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), BYTES, protection, flags, -1, 0)
    };
    if memory == libc::MAP_FAILED {
        return None;
    }
    let own = memory.cast::<Record>();
    // SAFETY: mapped above, and not used anywhere else.
    unsafe { sign(&mut *own) };
    // SAFETY: as above; it is unmapped by `move_to_file` only.
    Some(unsafe { &*own })
}

/// Identifies the process in an empty record.
fn sign(record: &mut Record) {
    record.magic = MAGIC;
    record.process = process::id().unsigned_abs();
    record.started = process::started();
    record.namespace = process::namespace();
    // SAFETY: nothing is written without a pointer.
    record.began = u64::try_from(unsafe { libc::time(ptr::null_mut()) }).unwrap_or(0);
    process::boot(&mut record.boot);
    process::command_line(&mut record.program);
}

/// Appends a record that [`map`] has returned to a file, and maps it there. The first mapping ends, even on failure.
pub(super) fn move_to_file(record: &'static Record, path: &FileName) -> Result<&'static Record, Failure> {
    let mapped = append(path, record);
    // SAFETY: mapped by `map`, whose only caller passes it here.
    unsafe { libc::munmap(ptr::from_ref(record).cast_mut().cast(), BYTES) };
    mapped
}

/// Appends a record to a file, and maps it there.
fn append(path: &FileName, record: &Record) -> Result<&'static Record, Failure> {
    let file = mapped_file::open(path, libc::O_CREAT | libc::O_APPEND)?;
    if !has_records(&file)? {
        return Err(Failure::Foreign);
    }
    // SAFETY: no preconditions.
    let end = unsafe { libc::lseek(file.number(), 0, libc::SEEK_END) };
    if end % BYTES as libc::off_t != 0 {
        return Err(Failure::Damaged);
    }
    mapped_file::check_limit(u64::try_from(end).unwrap_or(0) + BYTES as u64)?;
    // With one call, so that the system gives each appending process a place of its own.
    // SAFETY: that many bytes are valid for reading.
    let written = unsafe { libc::write(file.number(), ptr::from_ref(record).cast(), BYTES) };
    if written < 0 {
        return Err(mapped_file::last_error().into());
    }
    // SAFETY: no preconditions.
    let end = unsafe { libc::lseek(file.number(), 0, libc::SEEK_CUR) };
    let start = end - written as libc::off_t;
    if written as usize != BYTES {
        // A partial record would damage the file for all later ones. If something follows it, that belongs to another
        // process.
        // SAFETY: no preconditions.
        if unsafe { libc::lseek(file.number(), 0, libc::SEEK_END) } == end {
            // SAFETY: as above.
            unsafe { libc::ftruncate(file.number(), start) };
        }
        return Err(libc::ENOSPC.into());
    }
    if start % BYTES as libc::off_t != 0 {
        return Err(Failure::Damaged);
    }
    let page = mapped_file::page() as libc::off_t;
    let (first, last) = (start / page * page, end);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping at an address chosen by the system.
    let mapping = unsafe {
        libc::mmap(ptr::null_mut(), (last - first) as usize, protection, flags, file.number(), first)
    };
    if mapping == libc::MAP_FAILED {
        return Err(mapped_file::last_error().into());
    }
    let record = mapping.wrapping_byte_add((start - first) as usize).cast::<Record>();
    // SAFETY: the record was written there, is never unmapped, and is aligned for its fields.
    Ok(unsafe { &*record })
}

/// Returns whether the file contains only records.
fn has_records(file: &Descriptor) -> Result<bool, c_int> {
    let mut head = [0; MAGIC.len()];
    // SAFETY: that many bytes are valid for writing.
    match unsafe { libc::pread(file.number(), head.as_mut_ptr().cast(), head.len(), 0) } {
        ..0 => Err(mapped_file::last_error()),
        0 => Ok(true),
        _ => Ok(head == MAGIC),
    }
}

/// Why the record is not in the file.
pub(super) enum Failure {
    System(c_int),
    Foreign,
    Damaged,
}

impl From<c_int> for Failure {
    fn from(error: c_int) -> Self {
        Failure::System(error)
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::System(error) => write!(f, "{}", std::io::Error::from_raw_os_error(*error)),
            Failure::Foreign => f.write_str("the file is there and is not a report; name another"),
            Failure::Damaged => f.write_str("a record is cut off in the file; remove it, or name another"),
        }
    }
}

/// Marks the record of this process's previous program, if there is one, as replaced, because this program was started
/// by exec.
pub(super) fn mark_replaced(path: &FileName) {
    let Ok(file) = mapped_file::open(path, 0) else { return };
    let (process, started) = (process::id().unsigned_abs(), process::started());
    let mut head = MaybeUninit::<Head>::uninit();
    for at in (0..).step_by(BYTES) {
        let bytes = size_of::<Head>();
        // SAFETY: that many bytes are valid for writing.
        let read = unsafe { libc::pread(file.number(), head.as_mut_ptr().cast(), bytes, at) };
        if usize::try_from(read) != Ok(bytes) {
            return;
        }
        // SAFETY: all of it was read, and its fields are plain numbers.
        let head = unsafe { head.assume_init_ref() };
        if (head.magic, head.process, head.started, head.state) == (MAGIC, process, started, RUNNING) {
            let state = REPLACED.to_ne_bytes();
            let at = at + offset_of!(Head, state) as libc::off_t;
            // SAFETY: that many bytes are valid for reading.
            unsafe { libc::pwrite(file.number(), state.as_ptr().cast(), state.len(), at) };
        }
    }
}

/// The beginning of a record.
#[repr(C)]
struct Head {
    magic: [u8; 64],
    state: u32,
    process: u32,
    started: u64,
}

const _: () = assert!(offset_of!(Head, started) == offset_of!(Record, started));
const _: () = assert!(offset_of!(Head, state) == offset_of!(Record, state));
