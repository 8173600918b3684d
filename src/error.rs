//! Errors and their messages.
//!
//! The message of a thread's last failure is kept in a buffer of fixed size. The first threads have one without
//! allocating, because there may be no memory at that moment.

use crate::sys::thread::{Local, NoValue, per_thread};
use bfc_core::stats::FailureCause;
use bfc_hostmem::HostMemoryExhausted;
use os::cancellation;
use std::ffi::CStr;
use std::fmt::{self, Write};

/// Why a call failed. The numbers are those of `bfc_status_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(i32)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An invalid alignment, flag, backend, ordinal, size or combination of options. In C also a NULL out-pointer or a wrong
    /// `struct_size`.
    InvalidArgument = 1,
    /// There is no allocator for that device.
    NoAllocator = 2,
    /// There already is an allocator for that device, which can be shared.
    AlreadyExists = 3,
    /// Device or host memory ran out, or a size overflows when rounded.
    OutOfMemory = 4,
    /// The pointer is not the start of a chunk of this device: foreign, interior or stale.
    InvalidPointer = 5,
    /// The pointer is the start of a chunk that is already free.
    DoubleFree = 6,
    /// The allocator is to be destroyed with live allocations, or is called from its own callback.
    Busy = 7,
    /// There is no driver or no such device, or the driver is too old for that backend.
    BackendUnavailable = 8,
    /// The driver or a callback failed with something other than out of memory.
    BackendFailed = 9,
    /// Unsupported by this backend, or a required flag is missing.
    Unsupported = 10,
    /// The allocator is being destroyed, or its memory does not exist in this forked process.
    ShuttingDown = 11,
    /// An invariant is broken. The allocator is poisoned.
    Internal = 12,
}

impl ErrorKind {
    /// Returns the status as a number of the C ABI.
    pub const fn code(self) -> i32 {
        self as i32
    }

    /// Returns the text of `bfc_status_string`.
    pub fn text(self) -> &'static str {
        status_text(self.code()).to_str().unwrap_or_default()
    }
}

/// The numbers of a request that found no memory, at the moment when it failed. In bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct OutOfMemory {
    /// What the caller asked for.
    pub requested: u64,
    /// Free memory that the request may use, in any number of pieces.
    pub free: u64,
    /// The largest of these pieces.
    pub largest_free: u64,
    /// Free memory that the request may not use yet: it waits for other streams or for the safe frontier, or belongs to
    /// private pools.
    pub waiting: u64,
    /// What the limit leaves for growth. 0 if the backend gives no more.
    pub room_to_grow: u64,
    /// The most that the pool may hold, or what it holds since before the limit was lowered.
    pub limit: u64,
    /// Whether memory is exhausted or fragmented, or why else there is none.
    pub cause: FailureCause,
    pub(crate) would_fit: Option<u64>,
}

impl OutOfMemory {
    /// Returns bytes for which the same request would have been served at that moment. More may fit, because memory that is
    /// moved or given back for a request does not count. `None` if that is not known: with an alignment above 256, and with
    /// an age of the memory ([`Request::freed_before`](crate::Request::freed_before)).
    pub fn would_fit(&self) -> Option<usize> {
        self.would_fit.map(|bytes| bytes as usize)
    }
}

/// Returns the static text of a status. Unknown numbers have one too.
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

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for ErrorKind {}

const NO_HOST_MEMORY: &str = "out of host memory (allocator metadata)";

impl From<HostMemoryExhausted> for ErrorKind {
    fn from(_: HostMemoryExhausted) -> Self {
        set_last_error(format_args!("{NO_HOST_MEMORY}"));
        ErrorKind::OutOfMemory
    }
}

impl From<NoValue> for ErrorKind {
    fn from(refused: NoValue) -> Self {
        match refused {
            NoValue::HostMemory => HostMemoryExhausted.into(),
            NoValue::InUse => fail!(
                ErrorKind::Busy,
                "a signal handler interrupted a call of this thread: call again after the handler has returned"
            ),
        }
    }
}

/// The longest message. Longer ones are truncated.
const CAPACITY: usize = 1024;

per_thread!(static WORDS: Words);

/// A thread's messages: that of its last failure, after those of calls that were interrupted by a callback. They share
/// one buffer instead of copies in each call's frame, because threads may have small stacks.
#[derive(Clone, Copy)]
struct Words {
    bytes: [u8; 2 * CAPACITY],
    /// The message of the last failure.
    start: usize,
    end: usize,
    /// The position of the next message, after those that are kept.
    free: usize,
    /// The numbers of the last failure, if it was a request that found no memory.
    shortage: Option<OutOfMemory>,
}

impl Local for Words {
    const EMPTY: Self = Words { bytes: [0; 2 * CAPACITY], start: 0, end: 0, free: 0, shortage: None };
}

impl Words {
    fn as_str(&self) -> &str {
        str_of(&self.bytes[self.start..self.end])
    }

    fn set(&mut self, words: fmt::Arguments<'_>) {
        (self.start, self.end, self.shortage) = (self.free, self.free, None);
        self.append(words);
    }

    fn append(&mut self, words: fmt::Arguments<'_>) {
        let limit = self.bytes.len().min(self.start + CAPACITY);
        let mut rest = BufferRest { room: &mut self.bytes[self.end..limit], length: 0 };
        // A truncated message is not a failure.
        let _ = rest.write_fmt(words);
        self.end += rest.length;
    }
}

/// Records the message of a failure for this thread. Without memory for it, it is lost. `words` must not come from
/// [`with_last_error`].
#[cold]
#[inline(never)]
pub(crate) fn set_last_error(words: fmt::Arguments<'_>) {
    let _ = WORDS.update(|last| last.set(words));
}

/// Records the message and the numbers of a request that found no memory. Returns the error.
#[cold]
#[inline(never)]
pub(crate) fn fail_for_memory(shortage: OutOfMemory, words: fmt::Arguments<'_>) -> ErrorKind {
    let _ = WORDS.update(|last| {
        last.set(words);
        last.shortage = Some(shortage);
    });
    ErrorKind::OutOfMemory
}

/// Returns the numbers of this thread's last failure, if it was a request that found no memory.
pub(crate) fn last_shortage() -> Option<OutOfMemory> {
    WORDS.with(|last| last.and_then(|words| words.shortage))
}

/// Appends to the message that this call has just recorded.
#[cold]
#[inline(never)]
pub(crate) fn append_to_last_error(words: fmt::Arguments<'_>) {
    let _ = WORDS.update(|last| last.append(words));
}

/// The message of all failures in a process without storage for thread-specific messages.
const NO_KEY: &str =
    "no thread-specific key is left for error messages (pthread_key_create): the program has too many";

/// Passes the message of this thread's last failure to `read`. Empty if nothing has failed yet. `read` must not fail,
/// or call a function of the program.
pub(crate) fn with_last_error<T>(read: impl FnOnce(&str) -> T) -> T {
    let without = if WORDS.lacks_key() { NO_KEY } else { "" };
    WORDS.with(|last| read(last.map_or(without, Words::as_str)))
}

/// The message of this thread's last failure, as an argument of a log message.
pub(crate) struct LastError;

impl fmt::Display for LastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        with_last_error(|words| f.write_str(words))
    }
}

/// Calls a function of the program, which may call back and fail. Keeps the previous message, and disables cancellation of the
/// thread meanwhile: it would unwind through the library.
pub(crate) fn call_back<T>(call: impl FnOnce() -> T) -> T {
    keeping_last_error(|| cancellation::disabled(call))
}

/// Does work that may fail, and keeps the previous message.
pub(crate) fn keeping_last_error<T>(call: impl FnOnce() -> T) -> T {
    let _kept = KeptMessage::new();
    call()
}

/// The place of a message, and the numbers of its failure.
#[derive(Default)]
struct Kept {
    start: usize,
    end: usize,
    free: usize,
    shortage: Option<OutOfMemory>,
}

/// Protects the last message from failures, until this is dropped.
struct KeptMessage {
    /// The previous message. None if the thread had none.
    before: Option<Kept>,
}

impl KeptMessage {
    #[inline(never)]
    fn new() -> Self {
        let before = WORDS.change(|words| {
            let Words { start, end, free, shortage, .. } = *words;
            words.free = free.max(end);
            Kept { start, end, free, shortage }
        });
        KeptMessage { before }
    }
}

impl Drop for KeptMessage {
    #[inline(never)]
    fn drop(&mut self) {
        let Kept { start, end, free, shortage } = self.before.take().unwrap_or_default();
        WORDS.change(|words| {
            (words.start, words.end, words.free, words.shortage) = (start, end, free, shortage);
        });
    }
}

/// The failure of a step that is not required, with its message. It becomes the thread's last error only if it is
/// reported.
pub(crate) struct DeferredError {
    error: ErrorKind,
    /// None if there was no host memory for the message.
    words: Option<String>,
}

impl DeferredError {
    /// Creates one from a failure whose message was set by `fail!`.
    #[cold]
    #[inline(never)]
    pub(crate) fn of(error: ErrorKind) -> Self {
        DeferredError { error, words: to_text(format_args!("{LastError}")).ok() }
    }

    pub(crate) fn is(&self, error: ErrorKind) -> bool {
        self.error == error
    }

    /// Reports the failure as that of the call.
    #[cold]
    #[inline(never)]
    pub(crate) fn say(self) -> ErrorKind {
        match self.words {
            Some(words) => set_last_error(format_args!("{words}")),
            None => set_last_error(format_args!("{}; {NO_HOST_MEMORY}", self.error)),
        }
        self.error
    }
}

impl From<HostMemoryExhausted> for DeferredError {
    fn from(_: HostMemoryExhausted) -> Self {
        DeferredError { error: ErrorKind::OutOfMemory, words: None }
    }
}

/// Performs a step that is not required. Leaves the thread's last error as it was.
pub(crate) fn unsaid<T>(step: impl FnOnce() -> Result<T, ErrorKind>) -> Result<T, DeferredError> {
    keeping_last_error(|| step().map_err(DeferredError::of))
}

/// Records the message and returns the error, for `return Err(fail!(...))`.
macro_rules! fail {
    ($error:expr, $($words:tt)*) => {{
        $crate::error::set_last_error(format_args!($($words)*));
        $error
    }};
}
pub(crate) use fail;

/// Text in a fixed buffer. Text that does not fit is truncated at a character.
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

/// Converts bytes to text. Buffers contain only whole characters, so this loses nothing.
fn str_of(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let mut rest = BufferRest { room: &mut self.bytes[self.length..], length: 0 };
        let written = rest.write_str(part);
        self.length += rest.length;
        written
    }
}

/// The rest of a buffer, and the number of bytes filled.
struct BufferRest<'a> {
    room: &'a mut [u8],
    length: usize,
}

impl Write for BufferRest<'_> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.room.len() - self.length;
        let cut = (0..=part.len().min(room)).rev().find(|&at| part.is_char_boundary(at)).unwrap_or(0);
        self.room[self.length..self.length + cut].copy_from_slice(&part.as_bytes()[..cut]);
        self.length += cut;
        if cut == part.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

/// A `String` that returns an error instead of aborting if it cannot grow.
#[derive(Default)]
pub(crate) struct Fallible(pub(crate) String);

impl Write for Fallible {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        self.0.try_reserve(part.len()).map_err(|_| fmt::Error)?;
        self.0.push_str(part);
        Ok(())
    }
}

/// Formats a message on the heap.
pub(crate) fn to_text(words: fmt::Arguments<'_>) -> Result<String, HostMemoryExhausted> {
    let mut text = Fallible::default();
    text.write_fmt(words).map_err(|_| HostMemoryExhausted)?;
    Ok(text.0)
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
        let fails = || keeping_last_error(|| fail!(ErrorKind::Busy, "in a callback"));
        std::thread::spawn(move || {
            fails();
            with_last_error(|words| assert_eq!(words, ""));
            let _ = fail!(ErrorKind::Busy, "before");
            fails();
            with_last_error(|words| assert_eq!(words, "before"));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn words_are_kept_however_deep_callbacks_nest() {
        let words = || with_last_error(str::to_owned);
        let long = "w".repeat(CAPACITY + 1);
        let _ = fail!(ErrorKind::Busy, "first");
        keeping_last_error(|| {
            assert_eq!(words(), "first");
            keeping_last_error(|| {
                let _ = fail!(ErrorKind::Busy, "third");
                append_to_last_error(format_args!(", and more"));
                assert_eq!(words(), "third, and more");
            });
            assert_eq!(words(), "first");
            let _ = fail!(ErrorKind::Busy, "{long}");
            assert_eq!(words(), long[1..]);
            keeping_last_error(|| {
                let _ = fail!(ErrorKind::Busy, "{long}");
                assert_eq!(words(), long[1 + "first".len()..], "as far as there is room");
                keeping_last_error(|| fail!(ErrorKind::Busy, "without room"));
            });
            assert_eq!(words(), long[1..]);
        });
        assert_eq!(words(), "first");
        let _ = fail!(ErrorKind::Busy, "second");
        assert_eq!(words(), "second");
    }

    #[test]
    fn a_panic_in_a_callback_leaves_the_words() {
        let _ = fail!(ErrorKind::Busy, "before");
        let panics = || keeping_last_error(|| panic!("{}", fail!(ErrorKind::Internal, "inside")));
        assert!(std::panic::catch_unwind(panics).is_err());
        with_last_error(|words| assert_eq!(words, "before"));
    }

    #[test]
    fn a_failure_is_said_late_or_never() {
        let _ = fail!(ErrorKind::Busy, "before");
        let failed = unsaid(|| Err::<(), _>(fail!(ErrorKind::BackendFailed, "on the way"))).unwrap_err();
        let exhausted = DeferredError::from(HostMemoryExhausted);
        with_last_error(|words| assert_eq!(words, "before"));
        assert_eq!(failed.say(), ErrorKind::BackendFailed);
        with_last_error(|words| assert_eq!(words, "on the way"));
        assert_eq!(exhausted.say(), ErrorKind::OutOfMemory);
        with_last_error(|words| assert!(words.contains("host memory"), "{words}"));
    }

    #[test]
    fn each_thread_has_its_own_words() {
        let _ = fail!(ErrorKind::Busy, "here {}", 1);
        std::thread::spawn(|| with_last_error(|words| assert_eq!(words, ""))).join().unwrap();
        with_last_error(|words| assert_eq!(words, "here 1"));
    }
}
