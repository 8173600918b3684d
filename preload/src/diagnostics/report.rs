//! What the pools did for a process: counters, which `bfc report` reads from a file, or a summary at the end on standard
//! error.
//!
//! The counters are kept up to date in a [`Record`]. One that is mapped from a file is there whatever ends the process.

use std::ffi::{CStr, c_int};
use std::fmt::{Display, Write};
use std::mem::{MaybeUninit, offset_of};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering};

use crate::diagnostics::counters::{self, Counters, ENDED, MAGIC, POOLS, REPLACED, RUNNING, Record};
use crate::diagnostics::trace;
use crate::hooks::pinned;
use crate::pool::Pool;
use crate::state::contexts::DEVICES;
use crate::sys::file_name::FileName;
use crate::sys::lock::Owned;
use crate::sys::mapped_file::{self, Descriptor};
use crate::sys::process::{sign, started};
use crate::sys::text::{self, process};
use crate::{bfc, settings};

const REPORT: &CStr = c"BFC_PRELOAD_REPORT";

const BYTES: usize = size_of::<Record>();

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const FILE: u8 = 2;
const STANDARD_ERROR: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The process that the record is of. The child of a fork has the mapping too, and must leave it alone.
static OWNER: AtomicI32 = AtomicI32::new(0);

static RECORD: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

/// The process has come to its end. Other threads may go on, and allocate for the first time.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Held to make the record, and to write what is more than one number. Those who do not get it leave it to the next event.
static WRITER: Owned<()> = Owned::new(());

/// How many calls the newest statistics of each pool in the record have seen.
static SEEN: [AtomicU64; POOLS] = [const { AtomicU64::new(0) }; POOLS];

/// Where the report goes.
#[inline]
fn state() -> u8 {
    match STATE.load(Ordering::Relaxed) {
        UNKNOWN => find_out(),
        known => known,
    }
}

#[cold]
fn find_out() -> u8 {
    let state = match settings::variable(REPORT) {
        None => OFF,
        Some(path) if path == c"-" => STANDARD_ERROR,
        Some(_) => FILE,
    };
    STATE.store(state, Ordering::Relaxed);
    state
}

/// This process's record, which the first event makes.
fn record() -> Option<&'static Record> {
    let process = process();
    let owner = OWNER.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
    if owner.is_err_and(|owner| owner != process) {
        return None;
    }
    made().or_else(|| {
        let _only = WRITER.soon()?;
        // Another thread may have made it meanwhile, or found that it cannot be made.
        if state() == OFF || made().is_some() {
            return made();
        }
        match create() {
            Some(record) => RECORD.store(ptr::from_ref(record).cast_mut(), Ordering::Release),
            None => STATE.store(OFF, Ordering::Relaxed),
        }
        made()
    })
}

/// The same, if there is one.
fn made() -> Option<&'static Record> {
    // SAFETY: NULL, or a record that stays for good.
    unsafe { RECORD.load(Ordering::Acquire).as_ref() }
}

/// Memory of a pool was given or taken back.
#[inline]
pub(crate) fn note(pool: Pool) {
    if state() != OFF {
        update(pool);
    }
}

/// A request was refused for want of memory, which a pool might have served.
#[cold]
pub(crate) fn refused(pool: Pool, bytes: usize, verdict: &str) {
    if state() == OFF {
        return;
    }
    let Some(record) = record() else { return };
    let Some(counters) = place(pool).and_then(|at| record.pools.get(at)) else { return };
    counters.refused.fetch_add(1, Ordering::Relaxed);
    counters.largest_refused.fetch_max(bytes as u64, Ordering::Relaxed);
    if let Some(_only) = WRITER.soon() {
        write_verdict(record, bytes, verdict);
    }
    update(pool);
}

/// Its length is written last: a text that was not written wholly is none.
fn write_verdict(record: &Record, bytes: usize, verdict: &str) {
    record.verdict_length.store(0, Ordering::Release);
    record.last_refused.store(bytes as u64, Ordering::Relaxed);
    for (place, byte) in record.verdict.iter().zip(verdict.as_bytes()) {
        place.store(if *byte == b'\n' { b' ' } else { *byte }, Ordering::Relaxed);
    }
    #[allow(clippy::cast_possible_truncation)] // at most VERDICT
    record.verdict_length.store(verdict.len().min(counters::VERDICT) as u32, Ordering::Release);
}

/// Where a pool is in the record.
fn place(pool: Pool) -> Option<usize> {
    match pool.ordinal() {
        bfc::PINNED => Some(counters::PINNED),
        device => usize::try_from(device).ok().filter(|&device| device < DEVICES),
    }
}

/// Brings a pool's counters up to date.
fn update(pool: Pool) {
    let Some(at) = place(pool) else { return };
    let state = pool.state;
    let (served, freed) = (state.served.load(Ordering::Acquire), state.freed.load(Ordering::Acquire));
    // Before the lock is taken. Of a poisoned pool, or one that has ended, what was known last stays.
    let stats = pool.stats();
    let Some(record) = record() else { return };
    let (Some(counters), Some(seen)) = (record.pools.get(at), SEEN.get(at)) else { return };
    let Some(_only) = WRITER.soon() else { return };
    for (to, from) in [
        (&counters.served, &state.served),
        (&counters.freed, &state.freed),
        (&counters.obtained, &state.obtained),
        (&counters.returned, &state.returned),
        (&counters.synchronizations, &state.synchronizations),
    ] {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    record.lost_events.store(trace::lost(), Ordering::Relaxed);
    let Some(stats) = stats else { return };
    counters.peak_requested.fetch_max(stats.peak_bytes_requested, Ordering::Relaxed);
    counters.peak_in_use.fetch_max(stats.peak_bytes_in_use, Ordering::Relaxed);
    counters.peak_held.fetch_max(stats.peak_pool_bytes, Ordering::Relaxed);
    // Another thread may have come later to the pool, and sooner to here.
    if seen.load(Ordering::Relaxed) <= served + freed {
        seen.store(served + freed, Ordering::Relaxed);
        counters.requested.store(stats.bytes_requested, Ordering::Relaxed);
    }
}

/// The process ends: the last numbers, and the summary if it is for standard error.
pub(crate) fn finish() {
    IS_ENDING.store(true, Ordering::SeqCst);
    // A thread may just be making the record. One that comes later makes one that has ended.
    drop(WRITER.soon());
    let Some(record) = made().filter(|_| OWNER.load(Ordering::Relaxed) == process()) else { return };
    let devices = (0..DEVICES).filter_map(Pool::of_device);
    for pool in devices.chain([pinned::pool()]).filter(|pool| pool.state.served.load(Ordering::Relaxed) != 0)
    {
        update(pool);
    }
    record.state.store(ENDED, Ordering::Release);
    if state() == STANDARD_ERROR {
        record.used().for_each(|(name, counters)| summarize(record, &name, counters));
    }
}

/// One message. In host memory, because the thread that ends the process may have a small stack.
#[cold]
#[inline(never)]
fn summarize(record: &Record, name: &counters::Name, counters: &Counters) {
    let mut text = Summary(Vec::new());
    // What there is no host memory for is cut.
    let _ = write!(text, "libbfc: process {}, {name}\n{counters}", record.process);
    if counters.refused.load(Ordering::Relaxed) != 0 {
        let _ = record.refusal().map(|refusal| write!(text, "{refusal}"));
    }
    text::write(libc::STDERR_FILENO, &text.0);
}

struct Summary(Vec<u8>);

impl Write for Summary {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.try_reserve(text.len()).map_err(|_| std::fmt::Error)?;
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// A program was loaded: the one that was in this process before, if any, was replaced by it.
pub(crate) fn loaded() {
    if state() != FILE {
        return;
    }
    let Some(file) = settings::file(REPORT).and_then(|path| mapped_file::open(&path, 0).ok()) else { return };
    let (process, started) = (process().unsigned_abs(), started());
    let mut head = MaybeUninit::<Head>::uninit();
    for at in (0..).step_by(BYTES) {
        let bytes = size_of::<Head>();
        // SAFETY: as many bytes are valid for writing.
        let read = unsafe { libc::pread(file.0, head.as_mut_ptr().cast(), bytes, at) };
        if usize::try_from(read) != Ok(bytes) {
            return;
        }
        // SAFETY: all of it was read, and numbers may be any.
        let head = unsafe { head.assume_init_ref() };
        if (head.magic, head.process, head.started, head.state) == (MAGIC, process, started, RUNNING) {
            let state = REPLACED.to_ne_bytes();
            let at = at + offset_of!(Head, state) as libc::off_t;
            // SAFETY: as many bytes are valid for reading.
            unsafe { libc::pwrite(file.0, state.as_ptr().cast(), state.len(), at) };
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

fn create() -> Option<&'static Record> {
    // SAFETY: new memory, of zeros, which are a record.
    let memory = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), BYTES, protection, flags, -1, 0)
    };
    if memory == libc::MAP_FAILED {
        return None;
    }
    let own = memory.cast::<Record>();
    // SAFETY: mapped above, and not known elsewhere.
    unsafe { sign(&mut *own) };
    if IS_ENDING.load(Ordering::SeqCst) {
        // SAFETY: as above.
        unsafe { &*own }.state.store(ENDED, Ordering::Relaxed);
    }
    if state() == STANDARD_ERROR {
        // SAFETY: it stays for good.
        return Some(unsafe { &*own });
    }
    let path = settings::file(REPORT)?;
    // SAFETY: as above.
    let mapped = append(&path, unsafe { &*own });
    // SAFETY: mapped above, and not used any more.
    unsafe { libc::munmap(memory, BYTES) };
    mapped
        .inspect_err(|error| {
            text::complain(format_args!(
                "cannot write the report {path}: {error}; the program runs without it"
            ))
        })
        .ok()
}

/// Appends the record to the file, and maps it there.
fn append(path: &FileName, record: &Record) -> Result<&'static Record, Failure> {
    let file = mapped_file::open(path, libc::O_CREAT | libc::O_APPEND)?;
    if !has_records(&file)? {
        return Err(Failure::Foreign);
    }
    // SAFETY: no preconditions.
    let end = unsafe { libc::lseek(file.0, 0, libc::SEEK_END) };
    if end % BYTES as libc::off_t != 0 {
        return Err(Failure::Damaged);
    }
    mapped_file::check_limit(u64::try_from(end).unwrap_or(0) + BYTES as u64)?;
    // In one call: the system gives each process that appends a place of its own.
    // SAFETY: as many bytes are valid for reading.
    let written = unsafe { libc::write(file.0, ptr::from_ref(record).cast(), BYTES) };
    if written < 0 {
        return Err(mapped_file::last_error().into());
    }
    // SAFETY: no preconditions.
    let end = unsafe { libc::lseek(file.0, 0, libc::SEEK_CUR) };
    let start = end - written as libc::off_t;
    if written as usize != BYTES {
        // A part of a record would spoil the file for all that come later.
        // What follows it is another process's.
        // SAFETY: no preconditions.
        if unsafe { libc::lseek(file.0, 0, libc::SEEK_END) } == end {
            // SAFETY: as above.
            unsafe { libc::ftruncate(file.0, start) };
        }
        return Err(libc::ENOSPC.into());
    }
    if start % BYTES as libc::off_t != 0 {
        return Err(Failure::Damaged);
    }
    let page = mapped_file::page() as libc::off_t;
    let (first, last) = (start / page * page, end);
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping, where the system likes.
    let mapping =
        unsafe { libc::mmap(ptr::null_mut(), (last - first) as usize, protection, flags, file.0, first) };
    if mapping == libc::MAP_FAILED {
        return Err(mapped_file::last_error().into());
    }
    let record = mapping.wrapping_byte_add((start - first) as usize).cast::<Record>();
    // SAFETY: it was written there, is mapped for good, and is aligned for its numbers.
    Ok(unsafe { &*record })
}

/// Whether the file has nothing in it but records.
fn has_records(file: &Descriptor) -> Result<bool, c_int> {
    let mut head = [0; MAGIC.len()];
    // SAFETY: as many bytes are valid for writing.
    match unsafe { libc::pread(file.0, head.as_mut_ptr().cast(), head.len(), 0) } {
        ..0 => Err(mapped_file::last_error()),
        0 => Ok(true),
        _ => Ok(head == MAGIC),
    }
}

/// Why there is no record.
enum Failure {
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
            Failure::Foreign => f.write_str("the file is there, and is no report; name another"),
            Failure::Damaged => f.write_str("a record is cut off in the file; remove it, or name another"),
        }
    }
}
