//! Messages to the user. Silent unless `BFC_LOG` or a callback is set.
//!
//! Nothing is logged while an allocator is locked, because a callback may do anything.

use crate::error::{ErrorKind, Text, call_back, fail, to_text};
use crate::sys;
use crate::sys::lock::{ForkLock, HeldByThisThread, InChild};
use os::signals::Blocked;
use os::terminal::Printable;
use os::variables;
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_void};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::*};

/// The importance of a message. The numbers are those of the C ABI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// A failure that the caller may not have noticed.
    Error = 1,
    /// Something was ignored, or failed without failing the call.
    Warn = 2,
    /// Creation, destruction, regions.
    Info = 3,
    /// Attempts to grow for which the backend provided no memory.
    Debug = 4,
}

/// Receives a message: the caller's pointer, the level, and a NUL-terminated text that is valid during the call.
pub type LogCallback = extern "C" fn(user_data: *mut c_void, level: i32, message: *const c_char);

#[derive(Clone, Copy)]
struct Sink {
    callback: Option<LogCallback>,
    user_data: *mut c_void,
}

impl Sink {
    const NONE: Self = Sink { callback: None, user_data: std::ptr::null_mut() };
}

/// The destination of messages. The lock is held only while two words are copied.
struct Shared {
    lock: ForkLock,
    sink: UnsafeCell<Sink>,
}

// SAFETY: the sink is accessed only with the lock held. The caller that sets a callback guarantees that it may be
// called, with its pointer, from any thread.
unsafe impl Sync for Shared {}

static SINK: Shared = Shared { lock: ForkLock::new(), sink: UnsafeCell::new(Sink::NONE) };

impl Shared {
    /// Reads or changes the sink. Fails in a signal handler that interrupted its own thread here.
    fn with<T>(&self, work: impl FnOnce(&mut Sink) -> T) -> Result<T, HeldByThisThread> {
        let _blocked = Blocked::new();
        self.lock.acquire()?;
        // SAFETY: the lock is held.
        let result = work(unsafe { &mut *self.sink.get() });
        self.lock.release();
        Ok(result)
    }
}

/// Whether the sink has a callback. Without one nothing is formatted, and the lock is not taken, which a forking thread
/// may hold for a long time.
static HAS_CALLBACK: AtomicBool = AtomicBool::new(false);

/// Not yet read from the environment.
const UNKNOWN: u8 = u8::MAX;
/// Neither `BFC_LOG` nor a callback is set.
const SILENT: u8 = 0;
static FROM_ENVIRONMENT: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Returns the level set by `BFC_LOG`.
fn environment_level() -> u8 {
    let known = FROM_ENVIRONMENT.load(Relaxed);
    if known != UNKNOWN {
        return known;
    }
    // A user who sets the variable expects messages, first of all one about the valid values.
    let level = variables::value(c"BFC_LOG").map(variables::text_of);
    let level = level.map_or(SILENT, |value| level_named(value).unwrap_or(Level::Warn as u8));
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

/// Sends messages to a callback instead of the standard error stream. `None` undoes this. Returns [`ErrorKind::Busy`] in a
/// signal handler that interrupted an access to the callback.
pub(crate) fn set_callback(callback: Option<LogCallback>, user_data: *mut c_void) -> Result<(), ErrorKind> {
    let set = SINK.with(|sink| {
        *sink = Sink { callback, user_data };
        HAS_CALLBACK.store(callback.is_some(), Release);
    });
    set.map_err(|HeldByThisThread| {
        fail!(
            ErrorKind::Busy,
            "a signal handler interrupted a message of this thread: call again after the handler has returned"
        )
    })
}

/// Returns whether messages of a level are enabled.
pub(crate) fn is_wanted(level: Level) -> bool {
    let wanted = match environment_level() {
        SILENT if HAS_CALLBACK.load(Acquire) => Level::Warn as u8,
        wanted => wanted,
    };
    level as u8 <= wanted
}

/// Writes one message, if messages of that level are enabled. Not for use on the allocation path. The text is formatted
/// on the heap, because the calling thread's stack may be small.
pub(crate) fn emit(level: Level, words: fmt::Arguments<'_>) {
    if is_wanted(level) {
        match to_text(words) {
            Ok(text) => emit_text(level, &text),
            Err(_) => emit_cut(level, words),
        }
    }
}

/// Writes as much of a message as fits without host memory.
#[cold]
#[inline(never)]
fn emit_cut(level: Level, words: fmt::Arguments<'_>) {
    let mut text = Text::<512>::new();
    // A truncated message is not a failure.
    let _ = text.write_fmt(words);
    emit_text(level, text.as_str());
}

/// Writes a message like [`emit`], for text of any length. Names and values in it come from the program and its user, so
/// characters that control a terminal are replaced here.
pub(crate) fn emit_text(level: Level, text: &str) {
    if !is_wanted(level) {
        return;
    }
    if Printable(text).is_unchanged() {
        return send(level, text);
    }
    match to_text(format_args!("{}", Printable(text))) {
        Ok(text) => send(level, &text),
        Err(_) => send(level, "out of host memory: message lost"),
    }
}

fn send(level: Level, text: &str) {
    let sink = if HAS_CALLBACK.load(Acquire) { SINK.with(|sink| *sink) } else { Ok(Sink::NONE) };
    // In a signal handler that interrupted this code, the message is lost.
    let Ok(sink) = sink else { return };
    match sink.callback {
        Some(callback) => call_back(|| send_to(callback, sink.user_data, level, text)),
        // The callback was removed just now.
        None if environment_level() == SILENT => {}
        None => write_to_stderr(level, text),
    }
}

fn send_to(callback: LogCallback, user_data: *mut c_void, level: Level, text: &str) {
    let mut owned = Vec::new();
    if owned.try_reserve_exact(text.len() + 1).is_err() {
        return callback(user_data, level as i32, c"out of host memory: message lost".as_ptr());
    }
    owned.extend(text.bytes().filter(|&byte| byte != 0));
    owned.push(0);
    callback(user_data, level as i32, owned.as_ptr().cast());
}

/// Writes with the system call, because the standard library's stream may be locked by a thread that does not exist
/// after a fork. Uses a single call, because other threads and processes write there too.
fn write_to_stderr(level: Level, text: &str) {
    let name = match level {
        Level::Error => "libbfc error: ",
        Level::Warn => "libbfc warning: ",
        Level::Info => "libbfc info: ",
        Level::Debug => "libbfc debug: ",
    };
    sys::write_to_stderr([name, text, "\n"]);
}

/// The sink's lock, for the thread that forks.
pub(crate) fn lock() -> &'static ForkLock {
    &SINK.lock
}

/// Restores the sink in the child after a fork.
pub(crate) fn recover_in_child() {
    if SINK.lock.recover_in_child() == InChild::Torn {
        // One of its two words may have been written.
        HAS_CALLBACK.store(false, Relaxed);
        // SAFETY: there is only one thread, and it is not the one that had locked the sink.
        unsafe { *SINK.sink.get() = Sink::NONE };
    }
}
