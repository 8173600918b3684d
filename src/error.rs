//! What can go wrong, and the words for it.
//!
//! The words of a thread's last failure are kept in a buffer of fixed size, which the first threads have
//! without asking for memory at a moment when there may be none.

use crate::sys::HostMemoryExhausted;
use crate::sys::thread::{Local, per_thread};
use std::ffi::CStr;
use std::fmt::{self, Write};

/// Why a call failed. The numbers are those of `bfc_status_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum Error {
    /// A NULL out-pointer, a bad alignment, an unknown flag or backend, a bad ordinal or `struct_size`.
    InvalidArgument = 1,
    /// Nothing was created for that device.
    NoAllocator = 2,
    /// There is one already: share it.
    AlreadyExists = 3,
    /// Device or host memory ran out, or the size overflows when rounded.
    OutOfMemory = 4,
    /// Not the start of a chunk of this device: foreign, interior or stale.
    InvalidPointer = 5,
    /// The start of a chunk that is free already.
    DoubleFree = 6,
    /// Destroyed while allocations live, or entered again from a callback.
    Busy = 7,
    /// No driver, no such device, or a driver too old for that backend.
    BackendUnavailable = 8,
    /// The driver or a callback failed with something other than out of memory.
    BackendFailed = 9,
    /// Not by this backend, or not without that flag.
    Unsupported = 10,
    /// The allocator is being destroyed, or its memory is not in this forked process.
    ShuttingDown = 11,
    /// A broken invariant: the allocator is poisoned.
    Internal = 12,
}

impl Error {
    /// The status as a number of the C ABI.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// The same text as `bfc_status_string`.
    pub fn text(self) -> &'static str {
        status_text(self.code()).to_str().unwrap_or_default()
    }
}

/// The static text of a status; unknown numbers have one too.
pub(crate) const fn status_text(status: i32) -> &'static CStr {
    match status {
        0 => c"success",
        1 => c"invalid argument",
        2 => c"no allocator was created for this device",
        3 => c"an allocator already exists for this device",
        4 => c"out of memory",
        5 => c"not a live allocation of this device",
        6 => c"double free",
        7 => c"busy: allocations live, or the call re-entered the allocator from a callback",
        8 => c"backend unavailable",
        9 => c"backend failed",
        10 => c"unsupported by this backend or without the flag it needs",
        11 => c"shutting down",
        12 => c"internal error: the allocator is poisoned",
        _ => c"unknown status",
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for Error {}

impl From<HostMemoryExhausted> for Error {
    fn from(_: HostMemoryExhausted) -> Self {
        set_last_error(format_args!("out of host memory for the allocator's own books"));
        Error::OutOfMemory
    }
}

/// Longer messages are cut.
const CAPACITY: usize = 1024;

per_thread!(static WORDS: Text<CAPACITY>);

impl Local for Text<CAPACITY> {
    const EMPTY: Self = Text::new();
}

/// Remembers the words of a failure for this thread; without any memory for them they are lost. Out of
/// line: its buffer does not belong on the stack of calls that succeed.
#[cold]
#[inline(never)]
pub(crate) fn set_last_error(words: fmt::Arguments<'_>) {
    let mut text = Text::new();
    // Cutting is no failure.
    let _ = text.write_fmt(words);
    WORDS.update(|last| *last = text);
}

/// The words of this thread's last failure; empty if nothing failed yet.
pub(crate) fn with_last_error<T>(read: impl FnOnce(&str) -> T) -> T {
    // A copy, for reading may fail in its turn.
    let words = WORDS.get(|last| *last);
    read(words.as_ref().map_or("", Text::as_str))
}

/// Calls a function of the program, which may come back and fail, and keeps the words of before.
pub(crate) fn keeping_last_error<T>(call: impl FnOnce() -> T) -> T {
    let words = WORDS.get(|last| *last);
    let result = call();
    if let Some(words) = words.or(WORDS.get(|_| Text::EMPTY)) {
        WORDS.update(|last| *last = words);
    }
    result
}

/// A failure of a step that a call may do without: with its words, which are the thread's last only once they are
/// said.
#[derive(Clone, Copy)]
pub(crate) struct Unsaid {
    error: Error,
    words: Text<CAPACITY>,
}

impl Unsaid {
    /// A failure whose words are in `fail!`.
    fn of(error: Error) -> Self {
        Unsaid { error, words: WORDS.get(|last| *last).unwrap_or(Text::new()) }
    }

    pub(crate) fn is(&self, error: Error) -> bool {
        self.error == error
    }

    /// It is the call's failure after all.
    pub(crate) fn say(self) -> Error {
        WORDS.update(|last| *last = self.words);
        self.error
    }
}

impl From<HostMemoryExhausted> for Unsaid {
    fn from(exhausted: HostMemoryExhausted) -> Self {
        keeping_last_error(|| Unsaid::of(exhausted.into()))
    }
}

/// Does something that a call may do without. A success leaves the last error, whatever failed on the way.
#[allow(clippy::result_large_err)] // Only where nothing is in a hurry.
pub(crate) fn unsaid<T>(step: impl FnOnce() -> Result<T, Error>) -> Result<T, Unsaid> {
    keeping_last_error(|| step().map_err(Unsaid::of))
}

/// Remembers the words and returns the error, for `return Err(fail!(...))`.
macro_rules! fail {
    ($error:expr, $($words:tt)*) => {{
        $crate::error::set_last_error(format_args!($($words)*));
        $error
    }};
}
pub(crate) use fail;

/// Text in a fixed buffer; what does not fit is cut at a character.
#[derive(Clone, Copy)]
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    pub(crate) const fn new() -> Self {
        Text { bytes: [0; N], length: 0 }
    }

    pub(crate) fn as_str(&self) -> &str {
        str_of(&self.bytes[..self.length])
    }
}

/// Buffers are filled from whole characters only, so this never loses anything.
fn str_of(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = N - self.length;
        let cut = (0..=part.len().min(room)).rev().find(|&at| part.is_char_boundary(at)).unwrap_or(0);
        self.bytes[self.length..self.length + cut].copy_from_slice(&part.as_bytes()[..cut]);
        self.length += cut;
        if cut == part.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_are_cut_at_a_character() {
        let mut text = Text::<8>::new();
        assert!(write!(text, "äöüäöüäöü").is_err());
        assert_eq!(text.as_str(), "äöüä");
    }

    #[test]
    fn what_a_callback_fails_is_forgotten() {
        let fails = || keeping_last_error(|| fail!(Error::Busy, "in a callback"));
        std::thread::spawn(move || {
            fails();
            with_last_error(|words| assert_eq!(words, ""));
            let _ = fail!(Error::Busy, "before");
            fails();
            with_last_error(|words| assert_eq!(words, "before"));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_failure_is_said_late_or_never() {
        let _ = fail!(Error::Busy, "before");
        let failed = unsaid(|| Err::<(), _>(fail!(Error::BackendFailed, "on the way"))).unwrap_err();
        let exhausted = Unsaid::from(HostMemoryExhausted);
        with_last_error(|words| assert_eq!(words, "before"));
        assert_eq!(failed.say(), Error::BackendFailed);
        with_last_error(|words| assert_eq!(words, "on the way"));
        assert_eq!(exhausted.say(), Error::OutOfMemory);
        with_last_error(|words| assert!(words.contains("host memory"), "{words}"));
    }

    #[test]
    fn each_thread_has_its_own_words() {
        let _ = fail!(Error::Busy, "here {}", 1);
        std::thread::spawn(|| with_last_error(|words| assert_eq!(words, ""))).join().unwrap();
        with_last_error(|words| assert_eq!(words, "here 1"));
    }
}
