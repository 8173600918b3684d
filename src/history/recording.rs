//! The one recording of the process: starting and stopping it, its texts, and its state after a fork.

use super::entry::Entry;
use super::interner::Interner;
use super::python;
use super::recorder::Recorder;
use super::ring::{self, Owned};
use crate::error::{ErrorKind, fail};
use crate::sys::lock::HeldByThisThread;
use crate::sys::mutex::{Guard, Mutex};
use bfc_formats::history::layout::{
    Event, HEADER_BYTES, Kind, LEAST_EVENTS, MOST_EVENTS, MOST_TEXT, ModuleHead, OPTIONS_BYTES, STACK_BYTES,
    STOPPED, TEXT_BYTES, TextHead, TextKind, text_extent,
};
use os::signals::Blocked;
use os::terminal::Lossy;
use std::ffi::CStr;
use std::num::NonZeroU16;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};

/// The pool number of marks, which belong to no pool.
const NO_POOL: NonZeroU16 = NonZeroU16::MAX;
/// The number of different marks whose numbers are cached. A displaced mark is written again.
const KNOWN_MARKS: usize = 64;

/// The recording. Locked for texts, for new pools, and while the recording starts or stops. A slot's lock may be
/// held already.
struct Recording {
    ring: Option<Owned>,
    /// A thread is creating the ring of the next recording.
    is_starting: bool,
    pools: u16,
    marks: u32,
    known_marks: [(u64, u32); KNOWN_MARKS],
    /// With backtraces.
    stacks: Option<Interner>,
    /// The number of module loads and unloads in the process when modules were recorded.
    loads: Option<(u64, u64)>,
}

static RECORDING_NOW: Mutex<Recording> = Mutex::new(Recording::NONE);
/// Whether there is a recording. New pools look here without the lock.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// The backtraces of the recording.
static WANTED_STACKS: AtomicU32 = AtomicU32::new(0);
/// The number of recordings begun. It distinguishes the backtraces of one from those of the next.
static RECORDINGS: AtomicU32 = AtomicU32::new(0);

/// A backtrace of a recording.
#[derive(Clone, Copy)]
pub(crate) struct Captured {
    stack: u32,
    recording: u32,
}

impl Captured {
    pub(crate) const NONE: Self = Captured { stack: 0, recording: 0 };

    /// Converts it to a number, which is 0 for none.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.stack) | u64::from(self.recording) << 32
    }

    /// Returns the backtrace with a number in the recording that a pool writes to. None if it was captured for an
    /// earlier one.
    #[inline]
    pub(crate) fn stack_of(number: u64) -> u32 {
        let recording = (number >> 32) as u32;
        if recording == RECORDINGS.load(Relaxed) { number as u32 } else { 0 }
    }
}

impl Recording {
    const NONE: Self = Recording {
        ring: None,
        is_starting: false,
        pools: 0,
        marks: 0,
        known_marks: [(0, 0); KNOWN_MARKS],
        stacks: None,
        loads: None,
    };

    /// Appends a text. One that does not fit is counted, and its number stays without a name.
    fn add_text(&mut self, kind: TextKind, pool: NonZeroU16, number: u32, text: &[u8]) {
        self.add_parts(kind, pool, number, [&text[..text.len().min(MOST_TEXT)]]);
    }

    /// Appends a text of several parts.
    fn add_parts<const PARTS: usize>(
        &mut self,
        kind: TextKind,
        pool: NonZeroU16,
        number: u32,
        parts: [&[u8]; PARTS],
    ) {
        let Some(ring) = &self.ring else { return };
        let header = ring.header();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let used = header.text_used.load(Relaxed) as usize;
        if used.saturating_add(text_extent(bytes)) > TEXT_BYTES {
            header.text_lost.fetch_add(1, Relaxed);
            return;
        }
        let head = TextHead { kind: kind as u16, pool: pool.get(), number, bytes: bytes as u32, unused: 0 };
        let place = ring.texts().wrapping_add(used);
        // SAFETY: within the text area, after the used part. The lock excludes other threads, and readers look only
        // before `text_used`. The extent of each text is a multiple of 8, so the head is aligned.
        unsafe { place.cast::<TextHead>().write(head) };
        let mut place = place.wrapping_add(size_of::<TextHead>());
        for part in parts {
            // SAFETY: as above, and the text is not in the mapping.
            unsafe { place.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
            place = place.wrapping_add(part.len());
        }
        header.text_used.store((used + text_extent(bytes)) as u64, Release);
    }
}

/// Returns the recording, unless a child of a raw `clone` has inherited it: then it is dropped.
fn of_this_process(mut recording: Guard<'static, Recording>) -> Guard<'static, Recording> {
    if recording.ring.as_ref().is_some_and(|ring| !ring.is_published()) {
        leave(std::mem::replace(&mut *recording, Recording::NONE));
    }
    recording
}

fn lock() -> Result<Guard<'static, Recording>, HeldByThisThread> {
    RECORDING_NOW.lock().map(of_this_process)
}

fn lock_or_busy() -> Result<Guard<'static, Recording>, ErrorKind> {
    lock().map_err(|HeldByThisThread| {
        fail!(ErrorKind::Busy, "a signal handler interrupted a call about the history in this thread")
    })
}

/// Returns whether events are recorded.
fn is_on() -> bool {
    IS_ON.load(Acquire)
}

/// The bits that select the backtraces of a recording.
pub(crate) const NATIVE: u32 = 1;
pub(crate) const PYTHON: u32 = 2;

/// Begins a recording of the last `events` events into a new file, or without a path into memory. `stacks` selects
/// the backtraces.
pub(crate) fn begin(path: Option<&CStr>, events: u64, stacks: u32) -> Result<(), ErrorKind> {
    if stacks & !(NATIVE | PYTHON) != 0 {
        return Err(fail!(ErrorKind::InvalidArgument, "{stacks} stands for no backtraces: use BFC_STACKS_"));
    }
    if stacks & PYTHON != 0
        && let Some(why) = python::refusal()
    {
        return Err(fail!(ErrorKind::Unsupported, "backtraces of Python cannot be recorded: {why}"));
    }
    let capacity = events.clamp(LEAST_EVENTS, MOST_EVENTS).next_power_of_two();
    let mut recording = lock_or_busy()?;
    if recording.ring.is_some() || recording.is_starting {
        return Err(fail!(ErrorKind::AlreadyExists, "a history is recorded already: stop it first"));
    }
    recording.is_starting = true;
    drop(recording);
    // With the lock open, because a large file may take long.
    let new = new_ring(path, capacity, stacks);
    let mut recording = lock_or_busy()?;
    let is_this_process = std::mem::take(&mut recording.is_starting);
    let (ring, interner) = new?;
    if !is_this_process {
        ring.leave_in_child();
        return Err(fail!(ErrorKind::Busy, "a signal handler forked while the history was started"));
    }
    RECORDINGS.store(ring.recording(), Relaxed);
    ring.publish();
    *recording = Recording { ring: Some(ring), stacks: interner, ..Recording::NONE };
    WANTED_STACKS.store(stacks, Relaxed);
    let mut name = [0; 16];
    // SAFETY: the kernel writes at most 16 bytes there.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    recording.add_text(TextKind::Program, NO_POOL, 0, &name[..length]);
    IS_ON.store(true, Release);
    Ok(())
}

/// Creates the ring of the next recording, and the tables of its backtraces.
fn new_ring(path: Option<&CStr>, capacity: u64, stacks: u32) -> Result<(Owned, Option<Interner>), ErrorKind> {
    let stack_bytes = if stacks == 0 { 0 } else { STACK_BYTES };
    let bytes = HEADER_BYTES + TEXT_BYTES + stack_bytes + capacity as usize * size_of::<Event>();
    let interner = if stacks == 0 { None } else { Some(Interner::new()) };
    let interner = interner.transpose().map_err(|_| refusal(None, bytes, libc::ENOMEM))?;
    let number = RECORDINGS.load(Relaxed) + 1;
    let ring =
        Owned::new(path, capacity, stack_bytes, number).map_err(|errno| refusal(path, bytes, errno))?;
    // SAFETY: the area is that large, and the recording releases both at the same time.
    let interner = interner.zip(ring.stacks()).map(|(interner, area)| unsafe { interner.in_area(area) });
    Ok((ring, interner))
}

#[cold]
fn refusal(path: Option<&CStr>, bytes: usize, errno: i32) -> ErrorKind {
    let Some(path) = path else {
        return fail!(
            ErrorKind::OutOfMemory,
            "no host memory for a history of {bytes} bytes: record fewer events"
        );
    };
    let path = Lossy(path.to_bytes());
    match errno {
        libc::EEXIST => fail!(
            ErrorKind::InvalidArgument,
            "the history {path} cannot be created: the file exists; remove it or choose another name"
        ),
        libc::ENOSPC | libc::EFBIG | libc::EDQUOT => fail!(
            ErrorKind::InvalidArgument,
            "the history {path} cannot be created: no room for {bytes} bytes (errno {errno}); record fewer events"
        ),
        _ => fail!(ErrorKind::InvalidArgument, "the history {path} cannot be created (errno {errno})"),
    }
}

/// Keeps new pools from recording. Pools that record continue until they are notified.
pub(crate) fn close() -> Result<(), ErrorKind> {
    let recording = lock_or_busy()?;
    if recording.ring.is_none() || !IS_ON.swap(false, Relaxed) {
        return Err(fail!(ErrorKind::InvalidArgument, "no history is recorded: start one first"));
    }
    Ok(())
}

/// Ends the recording, once no pool records. `is_used` means that a pool could not be notified: the ring is kept then,
/// because this thread may be writing into it.
pub(crate) fn end(is_used: bool) -> Result<(), ErrorKind> {
    let mut recording = lock_or_busy()?;
    WANTED_STACKS.store(0, Relaxed);
    ring::unpublish();
    let old = std::mem::replace(&mut *recording, Recording::NONE);
    if let Some(ring) = &old.ring {
        ring.note_clock();
        ring.header().state.store(STOPPED, Release);
    }
    if is_used {
        std::mem::forget(old.ring);
    }
    Ok(())
}

/// Writes a copy of the recording to a new file. Recording continues meanwhile, and may be stopped.
pub(crate) fn save(path: &CStr) -> Result<(), ErrorKind> {
    let ring = lock_or_busy()?.ring.as_ref().map(Owned::share);
    let Some(ring) = ring else {
        return Err(fail!(ErrorKind::InvalidArgument, "no history is recorded: start one before saving it"));
    };
    ring.note_clock();
    ring.save(path).map_err(|errno| refusal(Some(path), ring.bytes(), errno))
}

/// Returns the recorder for a new pool, if there is a recording.
pub(crate) fn recorder_for(device: i32, name: &str) -> Option<Recorder> {
    let mut recording = lock().ok()?;
    let number = recording.ring.as_ref().filter(|_| is_on())?.recording();
    // Pools above that number share the last one.
    recording.pools = (recording.pools + 1).min(NO_POOL.get() - 1);
    let pool = NonZeroU16::new(recording.pools)?;
    recording.add_text(TextKind::Pool, pool, device as u32, name.as_bytes());
    Some(Recorder { pool, recording: number })
}

/// Stores the name of an operation of a pool.
pub(crate) fn name_operation(recorder: &Recorder, number: u32, name: &str) {
    add_text_of(recorder, TextKind::Operation, number, name.as_bytes());
}

/// Stores the options of a pool: bits of [`super::options`], and three numbers.
pub(crate) fn note_options(recorder: &Recorder, bits: u32, numbers: [u64; OPTIONS_BYTES / 8]) {
    let mut text = [0; OPTIONS_BYTES];
    for (place, number) in text.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    add_text_of(recorder, TextKind::Options, bits, &text);
}

/// Appends a text of a pool, unless its recording has ended.
fn add_text_of(recorder: &Recorder, kind: TextKind, number: u32, text: &[u8]) {
    let Ok(mut recording) = lock() else { return };
    if recording.ring.as_ref().is_some_and(|ring| ring.recording() == recorder.recording) {
        recording.add_text(kind, recorder.pool, number, text);
    }
}

/// Marks this moment. `hash` is that of the text.
pub(crate) fn mark(text: &str, hash: u64) -> Result<(), ErrorKind> {
    let mut recording = lock_or_busy()?;
    let Some(now) = recording.ring.as_ref().filter(|_| is_on()).map(|ring| ring.recording()) else {
        return Err(fail!(
            ErrorKind::InvalidArgument,
            "no history is recorded for the mark {text:?}: set BFC_HISTORY_FILE or use bfc run --history, which record \
             from the first allocator on, or call bfc_history_start"
        ));
    };
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
    Recorder { pool: NO_POOL, recording: now }.record_rare_event(&Entry { number, ..Entry::of(Kind::Mark) });
    Ok(())
}

pub(super) fn wanted_stacks() -> u32 {
    WANTED_STACKS.load(Relaxed)
}

/// Runs `work` with the tables of the recording, if it has backtraces. In a signal handler that interrupted such a call
/// the tables are not available.
fn with_stacks<T>(blocked: &Blocked, work: impl FnOnce(&mut Recording) -> Option<T>) -> Option<T> {
    let mut recording = RECORDING_NOW.lock_while(blocked).map(of_this_process).ok()?;
    if recording.stacks.is_some() { work(&mut recording) } else { None }
}

fn captured(stack: u32) -> Captured {
    Captured { stack, recording: RECORDINGS.load(Relaxed) }
}

/// Returns a backtrace that is in the file.
pub(super) fn find_stack(blocked: &Blocked, words: &[u64]) -> Option<Captured> {
    with_stacks(blocked, |recording| recording.stacks.as_mut()?.find(words).map(captured))
}

/// Stores a backtrace, unless it is in the file.
pub(super) fn add_stack(blocked: &Blocked, words: &[u64]) -> Captured {
    let added = with_stacks(blocked, |recording| {
        let Recording { stacks, ring, .. } = recording;
        stacks.as_mut()?.add(words, ring.as_ref()?.header()).map(captured)
    });
    added.unwrap_or(Captured::NONE)
}

/// Returns the number of a Python function. Its text is stored first if it is new.
pub(super) fn number_of_function(blocked: &Blocked, text: &[u8]) -> Option<u32> {
    with_stacks(blocked, |recording| {
        let function = recording.stacks.as_mut()?.function(text)?;
        if function.is_new {
            recording.add_text(TextKind::Function, NO_POOL, function.number, text);
        }
        Some(function.number)
    })
}

/// Stores the number of module loads and unloads. Returns false if it has not changed, and without a recording.
pub(super) fn note_loads(adds: u64, subs: u64) -> bool {
    let noted = with_stacks(&Blocked::new(), |recording| {
        let is_known = recording.loads == Some((adds, subs));
        let is_one_gone = recording.loads.is_some_and(|(_, before)| before != subs);
        recording.loads = Some((adds, subs));
        if is_one_gone {
            recording.stacks.as_mut()?.forget_modules();
        }
        Some(!is_known)
    });
    noted.unwrap_or(false)
}

/// Stores a module, unless it is in the file.
pub(super) fn add_module(head: &ModuleHead, build_id: &[u8], path: &[u8]) {
    with_stacks(&Blocked::new(), |recording| {
        let stacks = recording.stacks.as_mut()?;
        if stacks.is_new_module([head.start, head.bias], path) {
            let since = stacks.next_number();
            // SAFETY: a plain struct without padding.
            let bytes =
                unsafe { std::slice::from_raw_parts((&raw const *head).cast(), size_of::<ModuleHead>()) };
            recording.add_parts(TextKind::Module, NO_POOL, since, [bytes, build_id, path]);
        }
        Some(())
    });
}

/// Stores the module of the program itself.
pub(super) fn add_program_module(head: &ModuleHead, build_id: &[u8]) {
    let mut path = [0_u8; 1024];
    // SAFETY: the buffer has that many bytes.
    let length = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), path.len()) };
    add_module(head, build_id, path.get(..usize::try_from(length).unwrap_or(0)).unwrap_or_default());
}

/// Forgets the recording in a forked child, which does not have its memory.
pub(crate) fn after_fork_in_child() {
    // SAFETY: this is the only thread. If a fault handler forks during such an access, the process
    // is lost anyway: the lock is never held while a program's function is called.
    leave(unsafe { RECORDING_NOW.replace_in_child(Recording::NONE) });
}

/// Detaches the recording, which stays with the parent.
fn leave(recording: Recording) {
    IS_ON.store(false, Relaxed);
    WANTED_STACKS.store(0, Relaxed);
    ring::unpublish();
    if let Some(ring) = recording.ring {
        ring.leave_in_child();
        // This thread may continue to write there, if it forked in a signal handler.
        std::mem::forget(ring);
    }
}
