//! Messages to the user: silent unless `BFC_LOG` or a callback asks.
//!
//! Nothing is logged while an allocator is locked, for a callback may do anything.

use crate::error::{Text, keeping_last_error};
use crate::sys::env;
use std::ffi::{c_char, c_void};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

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

// SAFETY: whoever sets a callback promises that it may be called, with its pointer, from any thread.
unsafe impl Send for Sink {}

/// Held while two words are copied, for which a spin lock is the right size.
static SINK: spin::Mutex<Sink> = spin::Mutex::new(Sink { callback: None, user_data: std::ptr::null_mut() });

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
    let level = env::with(c"BFC_LOG", |value| match value.to_ascii_lowercase_in_place().as_str() {
        "error" | "1" => Level::Error as u8,
        "warn" | "warning" | "2" => Level::Warn as u8,
        "info" | "3" => Level::Info as u8,
        "debug" | "trace" | "4" => Level::Debug as u8,
        "off" | "none" | "0" => SILENT,
        // Whoever sets the variable wants to see something, a hint at the right values first of all.
        _ => Level::Warn as u8,
    });
    let level = level.unwrap_or(SILENT);
    FROM_ENVIRONMENT.store(level, Relaxed);
    level
}

/// Sends messages to a callback instead of the standard error stream; `None` undoes it.
pub(crate) fn set_callback(callback: Option<LogCallback>, user_data: *mut c_void) {
    *SINK.lock() = Sink { callback, user_data };
}

/// Writes one message, if somebody wants messages of that level. Not for the allocation path.
pub(crate) fn emit(level: Level, words: fmt::Arguments<'_>) {
    let mut text = Text::<2048>::new();
    // Cutting is no failure.
    let _ = text.write_fmt(words);
    emit_text(level, text.as_str());
}

/// As [`emit`], for text of any length.
pub(crate) fn emit_text(level: Level, text: &str) {
    let from_environment = environment_level();
    let sink = *SINK.lock();
    let wanted = match (from_environment, sink.callback) {
        (SILENT, Some(_)) => Level::Warn as u8,
        (level, _) => level,
    };
    if level as u8 > wanted {
        return;
    }
    match sink.callback {
        Some(callback) => keeping_last_error(|| call_back(callback, sink.user_data, level, text)),
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

/// By `write`, for the standard library's stream may be locked by a thread that a fork left behind.
fn write_to_stderr(level: Level, text: &str) {
    let name = match level {
        Level::Error => "libbfc error: ",
        Level::Warn => "libbfc warning: ",
        Level::Info => "libbfc info: ",
        Level::Debug => "libbfc debug: ",
    };
    for part in [name, text, "\n"] {
        // SAFETY: the pointer and the length are those of one string.
        unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
    }
}

/// Before a fork: no other thread may be in the middle of changing the sink.
pub(crate) fn lock_for_fork() {
    std::mem::forget(SINK.lock());
}

/// After a fork, in the parent and in the child.
pub(crate) fn unlock_after_fork() {
    // SAFETY: `lock_for_fork` took the lock in this thread and forgot its guard.
    unsafe { SINK.force_unlock() };
}

/// A lower-case copy in a small buffer: the standard's allocates.
trait LowerCase {
    fn to_ascii_lowercase_in_place(&self) -> Text<16>;
}

impl LowerCase for str {
    fn to_ascii_lowercase_in_place(&self) -> Text<16> {
        let mut text = Text::new();
        let _ = self.chars().try_for_each(|letter| text.write_char(letter.to_ascii_lowercase()));
        text
    }
}
