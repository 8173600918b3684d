//! What the user set: `BFC_PRELOAD_...`, read once, before the first hook needs it.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::text;

static READ: AtomicBool = AtomicBool::new(false);
static FREE_SYNCHRONIZES: AtomicBool = AtomicBool::new(false);
static SERVES_ASYNC: AtomicBool = AtomicBool::new(false);
static SERVES_PINNED: AtomicBool = AtomicBool::new(false);
static WANTS_GRANULES: AtomicBool = AtomicBool::new(false);
static IS_LIMITED: AtomicBool = AtomicBool::new(false);
static LEAST: AtomicU64 = AtomicU64::new(0);
static MOST: AtomicU64 = AtomicU64::new(u64::MAX);

/// A setting's text, if it is set and not empty.
pub(crate) fn variable(name: &'static CStr) -> Option<&'static CStr> {
    // SAFETY: the name is NUL-terminated. Whoever changes the environment while others read it breaks C's own rule.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: not NULL, so a NUL-terminated text of the environment.
    let value = unsafe { CStr::from_ptr(value) };
    (!value.is_empty()).then_some(value)
}

/// Reads all of them. Threads that come at the same time read the same.
pub(crate) fn read() {
    let free = of(c"BFC_PRELOAD_FREE", "wait or sync", |word| match word {
        _ if word.eq_ignore_ascii_case(b"sync") => Some(true),
        _ if word.eq_ignore_ascii_case(b"wait") => Some(false),
        _ => None,
    });
    FREE_SYNCHRONIZES.store(free.unwrap_or(false), Ordering::Relaxed);
    for (name, place) in [(c"BFC_PRELOAD_ASYNC", &SERVES_ASYNC), (c"BFC_PRELOAD_PINNED", &SERVES_PINNED)] {
        place.store(of(name, "a switch like 1", switch).unwrap_or(false), Ordering::Relaxed);
    }
    for (name, place) in [(c"BFC_PRELOAD_MIN", &LEAST), (c"BFC_PRELOAD_MAX", &MOST)] {
        if let Some(bytes) = of(name, "a size like 8GiB", size).filter(|&bytes| bytes != 0) {
            place.store(bytes, Ordering::Relaxed);
        }
    }
    // No other backend of libbfc's has memory that a device can use; libbfc itself says what is wrong with a word.
    let backend = variable(c"BFC_BACKEND").map_or(&[][..], CStr::to_bytes);
    WANTS_GRANULES.store(backend.trim_ascii().eq_ignore_ascii_case(b"cuda_vmm"), Ordering::Relaxed);
    let limited = [c"BFC_MEMORY_LIMIT", c"BFC_MEMORY_FRACTION"].iter().any(|name| variable(name).is_some());
    IS_LIMITED.store(limited, Ordering::Relaxed);
    READ.store(true, Ordering::Release);
}

/// A variable's value. A malformed one is ignored, with a warning where libbfc would write one.
fn of<T>(name: &'static CStr, wanted: &str, parse: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    let text = variable(name)?;
    let value = parse(text.to_bytes().trim_ascii());
    let log = variable(c"BFC_LOG").map_or(&[][..], CStr::to_bytes);
    let is_quiet =
        [&b""[..], b"off", b"none", b"0", b"error", b"1"].iter().any(|word| log.eq_ignore_ascii_case(word));
    if value.is_none() && !is_quiet {
        let [name, text] = [name, text].map(|text| text.to_str().unwrap_or("?"));
        text::append(c"-", format_args!("libbfc warning: {name}={text} is ignored: it must be {wanted}"));
    }
    value
}

fn is(flag: &AtomicBool) -> bool {
    if !READ.load(Ordering::Acquire) {
        read();
    }
    flag.load(Ordering::Relaxed)
}

/// Whether cudaFree itself waits for the device, as programs may rely on.
pub(crate) fn free_synchronizes() -> bool {
    is(&FREE_SYNCHRONIZES)
}

/// Whether cudaMallocAsync is served.
pub(crate) fn serves_async() -> bool {
    is(&SERVES_ASYNC)
}

/// Whether cudaMallocHost is served.
pub(crate) fn serves_pinned() -> bool {
    is(&SERVES_PINNED)
}

/// Whether pools are of granules that are mapped.
pub(crate) fn wants_granules() -> bool {
    is(&WANTS_GRANULES)
}

/// Whether the user said how much memory there is.
pub(crate) fn is_limited() -> bool {
    is(&IS_LIMITED)
}

/// Whether requests of that size are pooled.
pub(crate) fn pools(bytes: usize) -> bool {
    if !READ.load(Ordering::Acquire) {
        read();
    }
    let bytes = bytes as u64;
    bytes != 0 && LEAST.load(Ordering::Relaxed) <= bytes && bytes <= MOST.load(Ordering::Relaxed)
}

/// A switch, as libbfc's own are written.
fn switch(word: &[u8]) -> Option<bool> {
    let is = |words: [&[u8]; 4]| words.iter().any(|other| word.eq_ignore_ascii_case(other));
    match word {
        _ if is([b"1", b"true", b"on", b"yes"]) => Some(true),
        _ if is([b"0", b"false", b"off", b"no"]) => Some(false),
        _ => None,
    }
}

/// A size, as libbfc's own are written: a number, perhaps with a fraction, and a unit of 1024s.
fn size(word: &[u8]) -> Option<u64> {
    let digits = word.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
    let (number, unit) = word.split_at_checked(digits)?;
    let number: f64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    let unit = unit.trim_ascii();
    let power = match unit.first().map(u8::to_ascii_lowercase) {
        None | Some(b'b') => 0,
        Some(b'k') => 1,
        Some(b'm') => 2,
        Some(b'g') => 3,
        Some(b't') => 4,
        Some(_) => return None,
    };
    let rest = unit.get(usize::from(power != 0)..).unwrap_or_default();
    let known = [&b""[..], b"b", b"ib", b"i"].iter().any(|end| rest.eq_ignore_ascii_case(end));
    let bytes = number * (1_u64 << (10 * power)) as f64;
    // Larger than any size there is saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    known.then_some(bytes as u64)
}
