//! A process's record of counters, in memory, and its copy in the file of the report, which is kept up to date through a
//! mapping.

use std::ffi::c_int;
use std::fmt::Display;
use std::mem::offset_of;
use std::ops::Range;
use std::ptr;

use os::descriptors::Descriptor;
use os::files::{self, Unusable};

use crate::settings;
use crate::sys::file_name::FileName;
use crate::sys::window::{self, Window};
use crate::sys::{mapped_file, process};
use bfc_formats::counters::{GRANULES, MAGIC, REGIONS, REPLACED, RUNNING, Record, SYNCHRONIZING, WAITING};

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
    // SAFETY: as above; it is never unmapped.
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
    record.memory = if settings::wants_granules() { GRANULES } else { REGIONS };
    record.frees = if settings::free_synchronizes() { SYNCHRONIZING } else { WAITING };
}

/// Appends a record that no other thread uses yet to a file, and maps it there. Returns the address of the copy.
pub(super) fn append(path: &FileName, record: &Record) -> Result<*mut u8, Failure> {
    let file = path.to(files::open_to_append).ok_or(libc::ENOMEM)??;
    if !has_records(&file)? {
        return Err(Failure::Foreign);
    }
    let bytes = BYTES as u64;
    let end = file.facts()?.st_size.unsigned_abs();
    if !end.is_multiple_of(bytes) {
        return Err(Failure::Damaged);
    }
    mapped_file::check_limit(end + bytes)?;
    // With one call, so that the system gives each appending process a place of its own.
    // SAFETY: a record is plain numbers without padding.
    let written = file.write(unsafe { std::slice::from_raw_parts(ptr::from_ref(record).cast(), BYTES) })?;
    // SAFETY: no pointers are passed.
    let end = unsafe { libc::lseek(file.number(), 0, libc::SEEK_CUR) };
    let start = end.unsigned_abs() - written as u64;
    if written != BYTES {
        // A partial record would damage the file for all later ones. If something follows it, that belongs to another
        // process.
        if file.facts()?.st_size == end {
            // SAFETY: no pointers are passed.
            unsafe { libc::ftruncate(file.number(), start as libc::off_t) };
        }
        return Err(libc::ENOSPC.into());
    }
    if !start.is_multiple_of(bytes) {
        return Err(Failure::Damaged);
    }
    // Pages may be larger than a record.
    let first = start / mapped_file::page() * mapped_file::page();
    let before = (start - first) as usize;
    Ok(Window::map(&file, first, before + BYTES)?.leak().wrapping_add(before))
}

/// Copies parts of a record to the address that [`append`] has returned. [`libc::EFAULT`] if the file was truncated.
pub(super) fn update<const PARTS: usize>(
    copy: *mut u8,
    record: &Record,
    parts: [Range<usize>; PARTS],
) -> Result<(), c_int> {
    let start = ptr::from_ref(record).cast::<u8>();
    let parts = parts.map(|part| {
        let place = part.start.min(BYTES);
        let bytes = part.end.clamp(place, BYTES) - place;
        (copy.wrapping_add(place), ptr::slice_from_raw_parts(start.wrapping_add(place), bytes))
    });
    // SAFETY: the parts are inside the record, and the places inside its copy, which is never unmapped.
    unsafe { window::copy(parts) }
}

/// Returns whether the file contains only records.
fn has_records(file: &Descriptor) -> Result<bool, c_int> {
    let mut head = [0; MAGIC.len()];
    Ok(file.read_at(&mut head, 0)? == 0 || head == MAGIC)
}

/// The reason why the record is not in the file.
pub(super) enum Failure {
    Unusable(Unusable),
    Foreign,
    Damaged,
}

impl From<Unusable> for Failure {
    fn from(why: Unusable) -> Self {
        Failure::Unusable(why)
    }
}

impl From<c_int> for Failure {
    fn from(error: c_int) -> Self {
        Failure::Unusable(error.into())
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Unusable(why) => why.fmt(f),
            Failure::Foreign => f.write_str("the file exists and is not a report; name another"),
            Failure::Damaged => f.write_str("a record in the file is truncated; remove it, or name another"),
        }
    }
}

/// Marks the record of this process's previous program, if there is one, as replaced, because this program was started
/// by exec.
pub(super) fn mark_replaced(path: &FileName) {
    let Some(Ok(file)) = path.to(|path| files::open_shared(path, 0)) else { return };
    let own = (MAGIC, RUNNING, process::id().unsigned_abs(), process::started());
    let mut head = [0; size_of::<Head>()];
    for at in (0..).step_by(BYTES) {
        if file.read_at(&mut head, at) != Ok(head.len()) {
            return;
        }
        // SAFETY: the buffer has that many bytes, and any bytes are plain numbers.
        let head = unsafe { head.as_ptr().cast::<Head>().read_unaligned() };
        if (head.magic, head.state, head.process, head.started) == own {
            let _ = file.write_at(&REPLACED.to_ne_bytes(), at + offset_of!(Head, state) as u64);
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
