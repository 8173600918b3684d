//! Messages to the user: silent unless `BFC_LOG` or a callback asks.
//!
//! Nothing is logged while an allocator is locked, for a callback may do anything.

use crate::error::{Error, Text, fail, keeping_last_error, to_text};
use crate::sys::lock::{HeldByThisThread, Lock, NotTaken};
use crate::sys::{self, env};
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_void};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

/// How important a message is. The numbers are those of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// Something failed that the caller may not have seen.
    Error = 1,
    /// Something was ignored or went wrong and was survived.
    Warn = 2,
    /// Creation, destruction, regions.
    Info = 3,
    /// Extensions for which the backend gave nothing.
    Debug = 4,
}

/// Receives a message: the caller's pointer, the level, and a NUL-terminated text valid during the call.
pub type LogCallback = extern "C" fn(user_data: *mut c_void, level: i32, message: *const c_char);

#[derive(Clone, Copy)]
struct Sink {
    callback: Option<LogCallback>,
    user_data: *mut c_void,
}

impl Sink {
    const NONE: Self = Sink { callback: None, user_data: std::ptr::null_mut() };
}

/// Where messages go. The lock is held while two words are copied.
struct Shared {
    lock: Lock,
    sink: UnsafeCell<Sink>,
    /// A forking thread has locked it; not if the thread was interrupted while it had it locked.
    locked_for_fork: AtomicBool,
}

// SAFETY: the sink is touched with the lock held only. The caller that sets a callback promises that it may be called, with
// its pointer, from any thread.
unsafe impl Sync for Shared {}

static SINK: Shared =
    Shared { lock: Lock::new(), sink: UnsafeCell::new(Sink::NONE), locked_for_fork: AtomicBool::new(false) };

impl Shared {
    /// Reads or changes the sink. Not for a signal handler that interrupted its own thread here.
    fn with<T>(&self, work: impl FnOnce(&mut Sink) -> T) -> Result<T, HeldByThisThread> {
        self.lock.acquire()?;
        // SAFETY: the lock is held.
        let result = work(unsafe { &mut *self.sink.get() });
        self.lock.release();
        Ok(result)
    }
}

/// Whether the sink has a callback: where nobody listens nothing is formatted, and no lock is taken which a
/// forking thread may hold for long.
static HAS_CALLBACK: AtomicBool = AtomicBool::new(false);

/// Not yet read from the environment.
const UNKNOWN: u8 = u8::MAX;
/// Neither `BFC_LOG` nor a callback.
const SILENT: u8 = 0;
static FROM_ENVIRONMENT: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The level that `BFC_LOG` asks for.
fn environment_level() -> u8 {
    let known = FROM_ENVIRONMENT.load(Relaxed);
    if known != UNKNOWN {
        return known;
    }
    // A user who sets the variable wants to see something, first of all a hint at the right values.
    let level = env::with(c"BFC_LOG", |value| level_named(value).unwrap_or(Level::Warn as u8));
    let level = level.unwrap_or(SILENT);
    FROM_ENVIRONMENT.store(level, Relaxed);
    level
}

/// Returns the number of a level that `BFC_LOG` may name.
fn level_named(text: &str) -> Option<u8> {
    let is = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    match () {
        () if is(&["error", "1"]) => Some(Level::Error as u8),
        () if is(&["warn", "warning", "2"]) => Some(Level::Warn as u8),
        () if is(&["info", "3"]) => Some(Level::Info as u8),
        () if is(&["debug", "trace", "4"]) => Some(Level::Debug as u8),
        () if is(&["off", "none", "0"]) => Some(SILENT),
        () => None,
    }
}

/// Returns whether a value of `BFC_LOG` is one of those documented.
pub(crate) fn is_level(text: &str) -> bool {
    level_named(text).is_some()
}

/// Sends messages to a callback instead of the standard error stream; `None` undoes it. [`Error::Busy`] for a signal
/// handler that interrupted a look at the callback.
pub(crate) fn set_callback(callback: Option<LogCallback>, user_data: *mut c_void) -> Result<(), Error> {
    let set = SINK.with(|sink| {
        *sink = Sink { callback, user_data };
        HAS_CALLBACK.store(callback.is_some(), Release);
    });
    set.map_err(|HeldByThisThread| {
        fail!(Error::Busy, "a signal handler interrupted a message of this thread")
    })
}

/// Whether anybody wants messages of a level.
pub(crate) fn is_wanted(level: Level) -> bool {
    let wanted = match environment_level() {
        SILENT if HAS_CALLBACK.load(Acquire) => Level::Warn as u8,
        wanted => wanted,
    };
    level as u8 <= wanted
}

/// Writes one message, if messages of that level are wanted. Not for the allocation path. The text is made in host
/// memory, because the calling thread's stack may be small.
pub(crate) fn emit(level: Level, words: fmt::Arguments<'_>) {
    if is_wanted(level) {
        match to_text(words) {
            Ok(text) => emit_text(level, &text),
            Err(_) => emit_cut(level, words),
        }
    }
}

/// What there is room for without host memory.
#[cold]
#[inline(never)]
fn emit_cut(level: Level, words: fmt::Arguments<'_>) {
    let mut text = Text::<512>::new();
    // Cutting is no failure.
    let _ = text.write_fmt(words);
    emit_text(level, text.as_str());
}

/// As [`emit`], for text of any length.
pub(crate) fn emit_text(level: Level, text: &str) {
    if !is_wanted(level) {
        return;
    }
    let sink = if HAS_CALLBACK.load(Acquire) { SINK.with(|sink| *sink) } else { Ok(Sink::NONE) };
    // In a signal handler that came between, the message is lost.
    let Ok(sink) = sink else { return };
    match sink.callback {
        Some(callback) => keeping_last_error(|| call_back(callback, sink.user_data, level, text)),
        // A callback was taken away just now.
        None if environment_level() == SILENT => {}
        None => write_to_stderr(level, text),
    }
}

fn call_back(callback: LogCallback, user_data: *mut c_void, level: Level, text: &str) {
    let mut owned = Vec::new();
    if owned.try_reserve_exact(text.len() + 1).is_err() {
        return callback(user_data, level as i32, c"out of host memory: message lost".as_ptr());
    }
    owned.extend(text.bytes().filter(|&byte| byte != 0));
    owned.push(0);
    callback(user_data, level as i32, owned.as_ptr().cast());
}

/// By the system call, for the standard library's stream may be locked by a thread that a fork left behind. All in one,
/// for other threads and processes write there too.
fn write_to_stderr(level: Level, text: &str) {
    let name = match level {
        Level::Error => "libbfc error: ",
        Level::Warn => "libbfc warning: ",
        Level::Info => "libbfc info: ",
        Level::Debug => "libbfc debug: ",
    };
    sys::write_to_stderr([name, text, "\n"]);
}

/// Whether this thread was interrupted while it had the sink locked.
pub(crate) fn is_locked_here() -> bool {
    SINK.lock.is_held_here()
}

/// Before a fork: no other thread may be in the middle of changing the sink. False where another one was until the
/// deadline. Only the one thread that has it locked, or holds it anyway, may prepare a fork.
pub(crate) fn lock_for_fork(deadline: u64) -> bool {
    let locked = SINK.lock.acquire_before(deadline);
    if locked != Err(NotTaken::TimedOut) {
        SINK.locked_for_fork.store(locked.is_ok(), Relaxed);
    }
    locked != Err(NotTaken::TimedOut)
}

/// In a child whose fork was not prepared: no fork has locked anything.
pub(crate) fn forget_fork() {
    SINK.locked_for_fork.store(false, Relaxed);
}

/// After a fork in the parent.
pub(crate) fn unlock_in_parent() {
    if SINK.locked_for_fork.load(Relaxed) {
        SINK.lock.release();
    }
}

/// After a fork in the child.
pub(crate) fn recover_in_child() {
    let is_locked = SINK.locked_for_fork.load(Relaxed);
    if !is_locked && SINK.lock.is_taken() && !SINK.lock.is_held_here() {
        // A thread that is not here may have written one of its two words.
        HAS_CALLBACK.store(false, Relaxed);
        // SAFETY: there is one thread, which is not the one that has it locked.
        unsafe { *SINK.sink.get() = Sink::NONE };
        SINK.lock.reset_after_fork();
    }
    if is_locked {
        SINK.lock.reset_after_fork();
    }
}
