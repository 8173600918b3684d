//! The trace of a program's allocations, which `bfc replay` reads. See docs/trace-format.md.
//!
//! Each line is in the file as soon as it is written, however the process ends ([`MappedFile`]). The first process that
//! allocates creates the file. If the file exists, for example for a child, a process appends its number to the name. A
//! program that follows in the same process by exec appends one more number.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU64, Ordering};

use cuda_sys::*;
use os::signals::Blocked;
use os::{cancellation, variables};

use crate::settings;
use crate::sys::file_name::FileName;
use crate::sys::lock::OwnerLock;
use crate::sys::mapped_file::MappedFile;
use crate::sys::process;
use crate::sys::text::{self, Line, Number};
use crate::sys::window::CUT_OFF;
use bfc_formats::counters::Counted;

const TRACE: &CStr = c"BFC_PRELOAD_TRACE";

/// Room kept for the line that gives the reason why the trace ends.
const LAST_LINE: usize = 256;

/// The number of programs of one process that can write traces.
const PROGRAMS: u32 = 1000;

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
/// The trace could not be continued.
const STOPPED: u8 = 3;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The process that writes the trace, once there is one. The child of a fork neither uses the recorder nor takes its
/// lock, because the thread that held it at the time does not exist there to release it.
static TRACES: AtomicI32 = AtomicI32::new(0);

fn is_ours() -> bool {
    let process = process::id();
    match TRACES.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(traces) => traces == process,
    }
}

static RECORDER: OwnerLock<Option<Recorder>> = OwnerLock::new(None);

/// Events after the trace stopped, or in a signal handler that interrupted the recorder.
static LOST: AtomicU64 = AtomicU64::new(0);

struct Recorder {
    file: MappedFile,
    next_id: u64,
    /// The number and the stream of each live allocation, by address.
    live: HashMap<u64, TracedAllocation>,
    streams: Vec<usize>,
}

/// An allocation in the trace.
#[derive(Clone, Copy)]
pub(crate) struct TracedAllocation {
    id: u64,
    stream: usize,
}

#[inline]
fn is_on() -> bool {
    match STATE.load(Ordering::Relaxed) {
        OFF | STOPPED => false,
        ON => true,
        _ => find_out(),
    }
}

#[cold]
fn find_out() -> bool {
    let is_on = variables::value(TRACE).is_some();
    let found = if is_on { ON } else { OFF };
    // Another thread may have continued already.
    let known = STATE.compare_exchange(UNKNOWN, found, Ordering::Relaxed, Ordering::Relaxed);
    known.map_or_else(|known| known == ON, |_| is_on)
}

/// The trace has stopped, or this thread was interrupted in the recorder.
struct Missed;

/// Calls `work` with the recorder, which the first call creates. If that fails there is no trace.
fn with<T>(work: impl FnOnce(&mut Recorder) -> Option<T>) -> Result<Option<T>, Missed> {
    if !is_ours() {
        return Ok(None);
    }
    let _blocked = Blocked::new();
    let mut place = RECORDER.lock().ok_or(Missed)?;
    // The state may have changed while this thread waited.
    match STATE.load(Ordering::Relaxed) {
        STOPPED => return Err(Missed),
        OFF => return Ok(None),
        _ => {}
    }
    if place.is_none() {
        // The standard library's hash map calls functions that are cancellation points.
        *place = cancellation::disabled(Recorder::new);
    }
    let recorder = place.as_mut();
    if recorder.is_none() {
        STATE.store(OFF, Ordering::Relaxed);
    }
    Ok(recorder.and_then(work))
}

/// Records an event, which is counted as lost if it is missed.
fn event(work: impl FnOnce(&mut Recorder) -> Option<()>) {
    if with(work).is_err() {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the number of a stream in the trace.
pub(crate) fn stream(stream: CUstream) -> usize {
    if !is_on() {
        return 0;
    }
    let handle = match stream.addr() {
        // The default stream, by both its handles.
        0 | 1 => return 0,
        // Each thread's own default stream. No stream's handle is the address of a thread.
        // SAFETY: no preconditions.
        2 => unsafe { libc::pthread_self() as usize },
        handle => handle,
    };
    with(|recorder| {
        if let Some(place) = recorder.streams.iter().position(|&known| known == handle) {
            return Some(place + 1);
        }
        recorder.streams.try_reserve(1).ok()?;
        recorder.streams.push(handle);
        Some(recorder.streams.len())
    })
    .ok()
    .flatten()
    .unwrap_or(0)
}

/// Returns whether there is no trace. The first event determines this.
#[inline]
fn is_off() -> bool {
    STATE.load(Ordering::Relaxed) == OFF
}

/// Records an allocation.
#[inline]
pub(crate) fn allocated(address: u64, bytes: usize, stream: usize) {
    if !is_off() {
        note_allocated(address, bytes, stream);
    }
}

#[cold]
#[inline(never)]
fn note_allocated(address: u64, bytes: usize, stream: usize) {
    if is_on() {
        event(|recorder| recorder.allocated(address, bytes, stream));
    } else {
        note_lost();
    }
}

/// Records a request that failed because memory ran out.
#[cold]
pub(crate) fn refused(bytes: usize, stream: usize, verdict: &str) {
    if is_on() {
        event(|recorder| recorder.write(format_args!("! {bytes} {stream} # {verdict}")));
    } else {
        note_lost();
    }
}

/// Counts an event as lost if the trace has stopped.
#[inline]
fn note_lost() {
    if STATE.load(Ordering::Relaxed) == STOPPED {
        LOST.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the number of events missing in the trace.
pub(crate) fn lost() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// Records the driver's answer to a request for memory.
///
/// # Safety
/// `place` was written if the call succeeded.
pub(crate) unsafe fn passed(code: CUresult, place: *mut CUdeviceptr, bytes: usize, stream: usize) {
    if code == CUDA_SUCCESS && !place.is_null() {
        // SAFETY: by this function's contract.
        allocated(unsafe { *place }, bytes, stream);
    }
}

/// Removes an allocation from the table before it is freed, because another thread may get its address afterwards.
#[inline]
pub(crate) fn freeing(address: u64) -> Option<TracedAllocation> {
    if is_off() { None } else { remove(address) }
}

#[cold]
#[inline(never)]
fn remove(address: u64) -> Option<TracedAllocation> {
    if !is_on() {
        return None;
    }
    with(|recorder| recorder.live.remove(&address)).unwrap_or_else(|Missed| {
        // After the trace has stopped, the free itself is counted.
        if STATE.load(Ordering::Relaxed) != STOPPED {
            LOST.fetch_add(1, Ordering::Relaxed);
        }
        None
    })
}

/// Records a free, unless the code shows that it failed.
#[inline]
pub(crate) fn freed(noted: Option<TracedAllocation>, address: u64, code: CUresult) {
    if noted.is_some() || !is_off() {
        note_freed(noted, address, code);
    }
}

#[cold]
#[inline(never)]
fn note_freed(noted: Option<TracedAllocation>, address: u64, code: CUresult) {
    let Some(noted) = noted else {
        if code == CUDA_SUCCESS && address != 0 {
            note_lost();
        }
        return;
    };
    if code == CUDA_SUCCESS {
        event(|recorder| recorder.write(format_args!("- {} {}", noted.id, noted.stream)));
        return;
    }
    let _ = with(|recorder| {
        recorder.live.try_reserve(1).ok()?;
        recorder.live.insert(address, noted)
    });
}

/// Completes the trace when the process ends.
pub(crate) fn finish() {
    if TRACES.load(Ordering::Relaxed) != process::id() {
        return;
    }
    let _blocked = Blocked::new();
    if let Some(mut place) = RECORDER.lock_briefly()
        && let Some(recorder) = place.as_mut()
    {
        let trimmed = recorder.file.trim();
        let path = recorder.file.path();
        match trimmed {
            Ok(()) => {}
            Err(libc::ENOENT | libc::ESTALE) => text::print_error(format_args!(
                "the trace {path} was removed, replaced or truncated while the program ran: what was recorded is lost"
            )),
            Err(error) => {
                let why = io::Error::from_raw_os_error(error);
                text::print_error(format_args!(
                    "the trace {path} ends with zero bytes, which cannot be cut off: {why}"
                ));
            }
        }
        if lost() != 0 {
            text::print_error(format_args!(
                "the trace {path} is incomplete: it lacks {}",
                Counted(lost(), "event")
            ));
        }
    }
}

impl Recorder {
    fn new() -> Option<Self> {
        let file = create(settings::file(TRACE)?)?;
        let mut recorder = Recorder { file, next_id: 0, live: HashMap::new(), streams: Vec::new() };
        let (process, started, namespace) = (process::id(), process::started(), process::namespace());
        let mut buffer = [0; 40];
        let boot = process::boot(&mut buffer);
        recorder.write(format_args!(
            "%bfc-trace 1 process={process} started={started} boot={boot} namespace={namespace}"
        ))?;
        Some(recorder)
    }

    fn allocated(&mut self, address: u64, bytes: usize, stream: usize) -> Option<()> {
        if self.live.try_reserve(1).is_err() {
            self.stop(format_args!("out of host memory"));
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        if let Some(gone) = self.live.insert(address, TracedAllocation { id, stream }) {
            // The earlier allocation ended with its context.
            self.write(format_args!("- {} {}", gone.id, gone.stream))?;
        }
        self.write(format_args!("+ {id} {bytes} {stream}"))
    }

    fn write(&mut self, line: fmt::Arguments<'_>) -> Option<()> {
        match self.append(line, LAST_LINE) {
            Ok(()) => Some(()),
            Err(error) => {
                match error {
                    libc::EFAULT => self.stop(format_args!("{CUT_OFF}")),
                    _ => self.stop(format_args!("{}", io::Error::from_raw_os_error(error))),
                }
                None
            }
        }
    }

    /// Appends a line. Out of line, so that its text is not in the frame of a caller.
    #[inline(never)]
    fn append(&mut self, text: fmt::Arguments<'_>, spare: usize) -> Result<(), c_int> {
        let mut line = Line::new();
        self.file.append(line.put_line(text), spare)
    }

    /// Ends the trace with this event, and prints the reason.
    #[cold]
    #[inline(never)]
    fn stop(&mut self, why: fmt::Arguments<'_>) {
        STATE.store(STOPPED, Ordering::Relaxed);
        note_lost();
        // Room was kept for this line.
        let _ = self.append(format_args!("%incomplete {why}"), 0);
        text::print_error(format_args!(
            "the trace {} cannot grow and ends here: {why}; the program goes on without it",
            self.file.path()
        ));
    }
}

/// Creates the file. If it exists, creates another one whose name ends with the process's number.
fn create(path: FileName) -> Option<MappedFile> {
    let mut tried = Err(libc::EEXIST);
    for program in 0..PROGRAMS {
        tried = MappedFile::create(own_name(&path, program)?);
        if !matches!(tried, Err(libc::EEXIST)) {
            break;
        }
    }
    let failed = |error: &c_int| {
        let why = io::Error::from_raw_os_error(*error);
        text::print_error(format_args!("cannot write the trace {path}: {why}; the program runs without it"));
    };
    tried.inspect_err(failed).ok()
}

/// Returns `PATH`, `PATH.PID`, `PATH.PID.2` and so on.
fn own_name(path: &FileName, program: u32) -> Option<FileName> {
    match program {
        0 => path.with(b""),
        1 => path.with(Number::new().put(format_args!(".{}", process::id()))),
        _ => path.with(Number::new().put(format_args!(".{}.{program}", process::id()))),
    }
}
