//! The trace of a program's allocations, which `bfc replay` reads: docs/trace-format.md.
//!
//! It is kept in memory and written by the 64 KiB. The process that allocates first creates the file; another that finds
//! it there, a child say, appends its number to the name.

use std::collections::HashMap;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use cuda_sys::*;
use spin::Mutex;

use crate::settings;
use crate::text::{self, Line, process};

const TRACE: &CStr = c"BFC_PRELOAD_TRACE";

/// What is written at once.
const BUFFER: usize = 64 << 10;

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The process that traces, once there is one. The child of a fork has no use for the recorder, and does not take its
/// lock either: a thread that had it at the time is not there to let go of it.
static TRACES: AtomicI32 = AtomicI32::new(0);

fn is_ours() -> bool {
    let process = process();
    match TRACES.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(traces) => traces == process,
    }
}

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

struct Recorder {
    file: c_int,
    next_id: u64,
    /// The number and the stream of what is live at an address.
    live: HashMap<u64, Noted>,
    streams: Vec<usize>,
    buffer: Vec<u8>,
}

/// An allocation in the trace.
#[derive(Clone, Copy)]
pub(crate) struct Noted {
    id: u64,
    stream: usize,
}

#[inline]
fn is_on() -> bool {
    match STATE.load(Ordering::Relaxed) {
        OFF => false,
        ON => true,
        _ => find_out(),
    }
}

#[cold]
fn find_out() -> bool {
    let is_on = settings::variable(TRACE).is_some();
    STATE.store(if is_on { ON } else { OFF }, Ordering::Relaxed);
    is_on
}

/// Works with the recorder; the first time it is made. Where it cannot be there is no trace.
fn with<T>(work: impl FnOnce(&mut Recorder) -> Option<T>) -> Option<T> {
    if !is_ours() {
        return None;
    }
    let mut place = RECORDER.lock();
    if place.is_none() {
        *place = Recorder::new();
    }
    let recorder = place.as_mut();
    if recorder.is_none() {
        STATE.store(OFF, Ordering::Relaxed);
    }
    recorder.and_then(work)
}

/// The number of a stream in the trace.
pub(crate) fn stream(stream: CUstream) -> usize {
    if !is_on() {
        return 0;
    }
    let handle = match stream.addr() {
        // The default stream by both its names.
        0 | 1 => return 0,
        // Each thread's own. No stream's handle is the address of a thread.
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
    .unwrap_or(0)
}

/// Memory was handed out.
#[inline]
pub(crate) fn allocated(address: u64, bytes: usize, stream: usize) {
    if is_on() {
        with(|recorder| recorder.allocated(address, bytes, stream));
    }
}

/// The driver has answered a request for memory.
///
/// # Safety
/// If it succeeded it has written `place`.
pub(crate) unsafe fn passed(code: CUresult, place: *mut CUdeviceptr, bytes: usize, stream: usize) {
    if code == CUDA_SUCCESS && !place.is_null() && is_on() {
        // SAFETY: by this function's contract.
        allocated(unsafe { *place }, bytes, stream);
    }
}

/// An address is about to be freed: once it is, another thread may get it at once.
#[inline]
pub(crate) fn freeing(address: u64) -> Option<Noted> {
    if is_on() { with(|recorder| recorder.live.remove(&address)) } else { None }
}

/// It was freed, unless the code says that it was not.
#[inline]
pub(crate) fn freed(noted: Option<Noted>, address: u64, code: CUresult) {
    let Some(noted) = noted else { return };
    with(|recorder| {
        if code == CUDA_SUCCESS {
            recorder.write(format_args!("- {} {}\n", noted.id, noted.stream));
        } else {
            recorder.live.try_reserve(1).ok()?;
            recorder.live.insert(address, noted);
        }
        Some(())
    });
}

/// Writes what is kept.
pub(crate) fn flush() {
    if STATE.load(Ordering::Relaxed) != ON || !is_ours() {
        return;
    }
    // A thread that has it keeps its last lines.
    if let Some(mut place) = RECORDER.try_lock()
        && let Some(recorder) = place.as_mut()
    {
        recorder.flush();
    }
}

impl Recorder {
    fn new() -> Option<Self> {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(BUFFER).ok()?;
        let file = open(settings::variable(TRACE)?)?;
        let (live, streams) = (HashMap::new(), Vec::new());
        Some(Recorder { file, next_id: 0, live, streams, buffer })
    }

    fn allocated(&mut self, address: u64, bytes: usize, stream: usize) -> Option<()> {
        if self.live.try_reserve(1).is_err() {
            self.write(format_args!("# no host memory for the rest of the trace\n"));
            self.flush();
            STATE.store(OFF, Ordering::Relaxed);
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        if let Some(gone) = self.live.insert(address, Noted { id, stream }) {
            // It ended with its context.
            self.write(format_args!("- {} {}\n", gone.id, gone.stream));
        }
        self.write(format_args!("+ {id} {bytes} {stream}\n"));
        Some(())
    }

    fn write(&mut self, line: fmt::Arguments<'_>) {
        let line = Line::new(line);
        if self.buffer.len() + line.bytes().len() > BUFFER {
            self.flush();
        }
        // It has room for them, so nothing is allocated.
        self.buffer.extend_from_slice(line.bytes());
    }

    fn flush(&mut self) {
        text::write(self.file, &self.buffer);
        self.buffer.clear();
    }
}

/// Creates the file; if it is there already another, whose name ends with the process's number.
fn open(path: &CStr) -> Option<c_int> {
    let create = |path: &CStr| {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        // SAFETY: the path is NUL-terminated.
        let file = unsafe { libc::open(path.as_ptr(), flags, 0o644 as libc::c_uint) };
        (file >= 0).then_some(file)
    };
    create(path).or_else(|| {
        let own = Line::new(format_args!("{}.{}\0", path.to_str().unwrap_or_default(), process()));
        create(CStr::from_bytes_with_nul(own.bytes()).ok()?)
    })
}
