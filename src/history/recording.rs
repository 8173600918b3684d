//! The one recording of the process: starting and stopping it, its texts, and what a fork leaves of it.

use super::layout::{
    Event, HEADER_BYTES, Header, Kind, LEAST_EVENTS, MAGIC, MOST_EVENTS, RECORDING, STOPPED, TEXT_BYTES,
    TextHead, TextKind, text_extent,
};
use super::memory::Memory;
use super::recorder::{self, Entry, Recorder, read_clock};
use crate::error::{Error, fail};
use crate::sys;
use crate::sys::lock::HeldByThisThread;
use crate::sys::mutex::{Guard, Mutex};
use std::ffi::CStr;
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Marks without a pool of their own.
const NO_POOL: NonZeroU16 = NonZeroU16::MAX;
/// How many different marks are known by their numbers. A mark that is displaced is written again.
const KNOWN_MARKS: usize = 64;

/// What is recorded into. Locked for texts, for new pools, and while the recording starts or stops. A slot's lock may be
/// held already.
struct Recording {
    memory: Option<Memory>,
    pools: u16,
    marks: u32,
    known_marks: [(u64, u32); KNOWN_MARKS],
}

static RECORDING_NOW: Mutex<Recording> = Mutex::new(Recording::NONE);
/// Whether there is a recording. New pools look here without the lock.
static IS_ON: AtomicBool = AtomicBool::new(false);

impl Recording {
    const NONE: Self = Recording { memory: None, pools: 0, marks: 0, known_marks: [(0, 0); KNOWN_MARKS] };

    /// Appends a text. One that does not fit is counted, and its number stays without a name.
    fn add_text(&mut self, kind: TextKind, pool: NonZeroU16, number: u32, text: &[u8]) {
        let Some(memory) = &self.memory else { return };
        let Some(header) = recorder::header() else { return };
        let text = &text[..text.len().min(4096)];
        let used = header.text_used.load(Relaxed) as usize;
        if used + text_extent(text.len()) > TEXT_BYTES {
            header.text_lost.fetch_add(1, Relaxed);
            return;
        }
        let head =
            TextHead { kind: kind as u16, pool: pool.get(), number, bytes: text.len() as u32, unused: 0 };
        let place = memory.base().wrapping_add(HEADER_BYTES + used);
        // SAFETY: within the text area, behind what is used. The lock keeps others out, and readers look only before
        // `text_used`. The extent of each text is a multiple of 8, so the head is aligned.
        unsafe { place.cast::<TextHead>().write(head) };
        let place = place.wrapping_add(size_of::<TextHead>());
        // SAFETY: as above, and the text is not in the mapping.
        unsafe { place.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        header.text_used.store((used + text_extent(text.len())) as u64, Release);
    }
}

fn lock() -> Result<Guard<'static, Recording>, Error> {
    RECORDING_NOW.lock().map_err(|HeldByThisThread| {
        fail!(Error::Busy, "a signal handler interrupted a call about the history in this thread")
    })
}

/// Returns whether events are recorded.
fn is_on() -> bool {
    IS_ON.load(Acquire)
}

/// Begins a recording of the last `events` events into a new file, or without a path into memory.
pub(crate) fn begin(path: Option<&CStr>, events: u64) -> Result<(), Error> {
    let capacity = events.clamp(LEAST_EVENTS, MOST_EVENTS).next_power_of_two();
    let mut recording = lock()?;
    if recording.memory.is_some() {
        return Err(fail!(Error::AlreadyExists, "a history is recorded already: stop it first"));
    }
    let bytes = HEADER_BYTES + TEXT_BYTES + capacity as usize * size_of::<Event>();
    let memory = Memory::new(path, bytes).map_err(|errno| refusal(path, bytes, errno))?;
    let base = memory.base();
    let header: *mut Header = base.cast();
    // SAFETY: the memory is new, zeroed, aligned to a page and large enough, and nothing else refers to it.
    let new = unsafe { &mut *header };
    new.magic = MAGIC;
    (new.header_bytes, new.event_bytes) = (HEADER_BYTES as u32, size_of::<Event>() as u32);
    (new.text_bytes, new.capacity) = (TEXT_BYTES as u64, capacity);
    (new.process, new.started) = (std::process::id(), sys::process_started());
    new.state.store(RECORDING, Relaxed);
    read_clock(&new.first);
    read_clock(&new.last);
    *recording = Recording { memory: Some(memory), ..Recording::NONE };
    recorder::set_ring(header, base.wrapping_add(HEADER_BYTES + TEXT_BYTES).cast(), capacity);
    let mut name = [0; 16];
    // SAFETY: the kernel writes at most 16 bytes there.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    recording.add_text(TextKind::Program, NO_POOL, 0, &name[..length]);
    IS_ON.store(true, Release);
    Ok(())
}

#[cold]
fn refusal(path: Option<&CStr>, bytes: usize, errno: i32) -> Error {
    let Some(path) = path else {
        return fail!(
            Error::OutOfMemory,
            "no host memory for a history of {bytes} bytes: record fewer events"
        );
    };
    let path = Path::new(std::ffi::OsStr::new(path.to_str().unwrap_or("(not UTF-8)"))).display();
    match errno {
        libc::EEXIST => fail!(
            Error::InvalidArgument,
            "the history {path} cannot be created: the file exists; remove it or choose another name"
        ),
        libc::ENOSPC | libc::EFBIG | libc::EDQUOT => fail!(
            Error::InvalidArgument,
            "the history {path} cannot be created: no room for {bytes} bytes (errno {errno}); record fewer events"
        ),
        _ => fail!(Error::InvalidArgument, "the history {path} cannot be created (errno {errno})"),
    }
}

/// Keeps new pools from recording. Pools that record go on until they are told.
pub(crate) fn close() -> Result<(), Error> {
    let recording = lock()?;
    if recording.memory.is_none() || !IS_ON.swap(false, Relaxed) {
        return Err(fail!(Error::InvalidArgument, "no history is recorded: start one first"));
    }
    Ok(())
}

/// Ends the recording, once no pool records any more. `is_used` says that a call under way may still write an event: its
/// memory stays mapped then.
pub(crate) fn end(is_used: bool) -> Result<(), Error> {
    let mut recording = lock()?;
    if let Some(header) = recorder::header() {
        recorder::note_clock();
        header.state.store(STOPPED, Release);
    }
    recorder::unset_ring();
    let old = std::mem::replace(&mut *recording, Recording::NONE);
    if let Some(memory) = old.memory.filter(|_| is_used) {
        memory.leak();
    }
    Ok(())
}

/// Writes a copy of what is recorded to a new file.
pub(crate) fn save(path: &CStr) -> Result<(), Error> {
    let recording = lock()?;
    let Some(memory) = &recording.memory else {
        return Err(fail!(Error::InvalidArgument, "no history is recorded: start one before saving it"));
    };
    recorder::note_clock();
    memory.copy_to(path).map_err(|errno| refusal(Some(path), memory.bytes(), errno))
}

/// Returns the recorder for a new pool, if there is a recording.
pub(crate) fn recorder_for(device: i32, name: &str) -> Option<Recorder> {
    let mut recording = RECORDING_NOW.lock().ok()?;
    if !is_on() || recording.memory.is_none() {
        return None;
    }
    // Pools beyond that number share the last one.
    recording.pools = (recording.pools + 1).min(NO_POOL.get() - 1);
    let pool = NonZeroU16::new(recording.pools)?;
    recording.add_text(TextKind::Pool, pool, device as u32, name.as_bytes());
    Some(Recorder(pool))
}

/// Stores the name of an operation of a pool.
pub(crate) fn name_operation(recorder: &Recorder, number: u32, name: &str) {
    if let Ok(mut recording) = RECORDING_NOW.lock() {
        recording.add_text(TextKind::Operation, recorder.0, number, name.as_bytes());
    }
}

/// Marks this moment. `hash` is that of the text.
pub(crate) fn mark(text: &str, hash: u64) -> Result<(), Error> {
    let mut recording = lock()?;
    if !is_on() || recording.memory.is_none() {
        return Err(fail!(
            Error::InvalidArgument,
            "no history is recorded: start one before the mark {text:?}"
        ));
    }
    let place = hash as usize % KNOWN_MARKS;
    let number = match recording.known_marks[place] {
        (known, number) if number != 0 && known == hash => number,
        _ => {
            recording.marks += 1;
            let number = recording.marks;
            recording.add_text(TextKind::Mark, NO_POOL, number, text.as_bytes());
            recording.known_marks[place] = (hash, number);
            number
        }
    };
    Recorder(NO_POOL).record_rarely(&Entry { number, ..Entry::of(Kind::Mark) });
    Ok(())
}

/// Forgets the recording in a forked child, which does not have its memory.
pub(crate) fn after_fork_in_child() {
    IS_ON.store(false, Relaxed);
    recorder::unset_ring();
    // SAFETY: this is the only thread. If a signal handler forks in the middle of such an access, the process is lost in
    // it anyway: the lock is never held while a program's function is called.
    let old = unsafe { RECORDING_NOW.replace_in_child(Recording::NONE) };
    if let Some(memory) = old.memory {
        memory.leave_in_child();
    }
}
