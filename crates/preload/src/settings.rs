//! The user's settings: the environment variables `BFC_PRELOAD_...`, read once before the first hook needs them.

use os::variables;
use std::ffi::CStr;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::sys::file_name::FileName;
use crate::sys::process;
use crate::sys::text::{self, Number};

static READ: AtomicBool = AtomicBool::new(false);
static FREE_SYNCHRONIZES: AtomicBool = AtomicBool::new(false);
static SERVES_ASYNC: AtomicBool = AtomicBool::new(false);
static SERVES_PINNED: AtomicBool = AtomicBool::new(false);
static SHARES_REGIONS: AtomicBool = AtomicBool::new(false);
static WANTS_GRANULES: AtomicBool = AtomicBool::new(false);
static IS_LIMITED: AtomicBool = AtomicBool::new(false);
static MIN_BYTES: AtomicU64 = AtomicU64::new(0);
static MAX_BYTES: AtomicU64 = AtomicU64::new(u64::MAX);

/// Returns the absolute path that a variable names, with `%p` replaced by the process number and `%%` by `%`. Returns
/// `None` when out of host memory.
pub(crate) fn file(name: &'static CStr) -> Option<FileName> {
    let mut left = variables::value(name)?.to_bytes();
    let mut file = FileName::new();
    if !left.starts_with(b"/") {
        file.push_folder()?;
    }
    while let [first, rest @ ..] = left {
        left = match (first, rest) {
            (b'%', [b'p', rest @ ..]) => {
                file.push(Number::new().put(format_args!("{}", process::id())))?;
                rest
            }
            (b'%', [b'%', rest @ ..]) => {
                file.push(b"%")?;
                rest
            }
            _ => {
                file.push(&[*first])?;
                rest
            }
        };
    }
    Some(file)
}

/// Reads all settings. Concurrent calls read the same values.
pub(crate) fn read() {
    let free = of(c"BFC_PRELOAD_FREE", "wait or sync", |word| match word {
        _ if word.eq_ignore_ascii_case(b"sync") => Some(true),
        _ if word.eq_ignore_ascii_case(b"wait") => Some(false),
        _ => None,
    });
    FREE_SYNCHRONIZES.store(free.unwrap_or(false), Ordering::Relaxed);
    let switches = [
        (c"BFC_PRELOAD_ASYNC", &SERVES_ASYNC),
        (c"BFC_PRELOAD_PINNED", &SERVES_PINNED),
        (c"BFC_PRELOAD_IPC", &SHARES_REGIONS),
    ];
    for (name, place) in switches {
        place.store(
            of(name, "1 or 0 (or true, false, on, off, yes, no)", switch).unwrap_or(false),
            Ordering::Relaxed,
        );
    }
    for (name, place) in [(c"BFC_PRELOAD_MIN", &MIN_BYTES), (c"BFC_PRELOAD_MAX", &MAX_BYTES)] {
        if let Some(bytes) = of(name, "a size like 8GiB", size).filter(|&bytes| bytes != 0) {
            place.store(bytes, Ordering::Relaxed);
        }
    }
    // No other backend of libbfc has memory that a device can use.
    let granules = of(c"BFC_BACKEND", "auto, host, cuda, cuda_vmm or host_vmm", granules);
    WANTS_GRANULES.store(granules.unwrap_or(false), Ordering::Relaxed);
    // A limit of 0 counts as none, as in libbfc. libbfc itself warns of a malformed fraction when it creates the pool.
    let limit = of(c"BFC_MEMORY_LIMIT", "a size like 8GiB", size).is_some_and(|bytes| bytes != 0);
    let fraction = value(c"BFC_MEMORY_FRACTION", fraction).is_some_and(|share| share > 0.0);
    IS_LIMITED.store(limit || fraction, Ordering::Relaxed);
    READ.store(true, Ordering::Release);
}

/// Returns a variable's value, if it is set and well-formed.
fn value<T>(name: &'static CStr, parse: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    parse(variables::value(name)?.to_bytes().trim_ascii())
}

/// Returns a variable's value like [`value`], and warns about a malformed one under the conditions under which libbfc
/// prints warnings.
fn of<T>(name: &'static CStr, wanted: &str, parse: impl Fn(&[u8]) -> Option<T>) -> Option<T> {
    let (text, value) = (variables::value(name)?, value(name, parse));
    if value.is_none() {
        let [name, text] = [name, text].map(variables::text_of);
        warn(format_args!("{name}={text} is ignored: it must be {wanted}"));
    }
    value
}

/// Prints a warning, under the conditions under which libbfc prints one.
pub(crate) fn warn(what: fmt::Arguments<'_>) {
    let log = variables::value(c"BFC_LOG").map_or(&[][..], CStr::to_bytes);
    let is_quiet =
        [&b""[..], b"off", b"none", b"0", b"error", b"1"].iter().any(|word| log.eq_ignore_ascii_case(word));
    if !is_quiet {
        text::append(c"-", format_args!("libbfc warning: {what}"));
    }
}

fn is(flag: &AtomicBool) -> bool {
    if !READ.load(Ordering::Acquire) {
        read();
    }
    flag.load(Ordering::Relaxed)
}

/// Returns whether cudaFree itself waits for the device, as programs may rely on.
pub(crate) fn free_synchronizes() -> bool {
    is(&FREE_SYNCHRONIZES)
}

/// Returns whether cudaMallocAsync is served.
pub(crate) fn serves_async() -> bool {
    is(&SERVES_ASYNC)
}

/// Returns whether cudaMallocHost is served.
pub(crate) fn serves_pinned() -> bool {
    is(&SERVES_PINNED)
}

/// Returns whether memory is shared with other processes by legacy IPC handles. An allocation is then the driver's,
/// which is the region for pooled memory, and large requests are not pooled.
pub(crate) fn shares_regions() -> bool {
    is(&SHARES_REGIONS)
}

/// With [`shares_regions`], requests of at least that many bytes go to the driver. Memory that NCCL shares has 2 MiB or
/// more, and so do PyTorch's segments.
const SHARED: u64 = 1 << 20;

/// Returns whether pools consist of granules.
pub(crate) fn wants_granules() -> bool {
    is(&WANTS_GRANULES)
}

/// Returns whether the user has set a limit.
pub(crate) fn is_limited() -> bool {
    is(&IS_LIMITED)
}

/// Returns whether requests of that size are pooled.
pub(crate) fn pools(bytes: usize) -> bool {
    if !READ.load(Ordering::Acquire) {
        read();
    }
    let bytes = bytes as u64;
    let is_shared = bytes >= SHARED && SHARES_REGIONS.load(Ordering::Relaxed);
    let is_in_range =
        MIN_BYTES.load(Ordering::Relaxed) <= bytes && bytes <= MAX_BYTES.load(Ordering::Relaxed);
    bytes != 0 && is_in_range && !is_shared
}

/// Parses a switch, as libbfc parses its own.
fn switch(word: &[u8]) -> Option<bool> {
    let is = |words: [&[u8]; 4]| words.iter().any(|other| word.eq_ignore_ascii_case(other));
    match word {
        _ if is([b"1", b"true", b"on", b"yes"]) => Some(true),
        _ if is([b"0", b"false", b"off", b"no"]) => Some(false),
        _ => None,
    }
}

/// Returns whether a backend's name, with `-` or `_`, is that of granules.
fn granules(word: &[u8]) -> Option<bool> {
    let is = |name: &str| {
        let plain = word.iter().map(|&byte| if byte == b'-' { b'_' } else { byte.to_ascii_lowercase() });
        plain.eq(name.bytes())
    };
    ["auto", "host", "cuda", "cuda_vmm", "host_vmm"].into_iter().any(is).then(|| is("cuda_vmm"))
}

/// Parses a fraction of the device's memory.
fn fraction(word: &[u8]) -> Option<f64> {
    let share: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    (0.0..=1.0).contains(&share).then_some(share)
}

/// Parses a size, as libbfc parses its own: a number, optionally with decimals, and a unit of 1024s. Returns `None` if
/// it is too large.
fn size(word: &[u8]) -> Option<u64> {
    let word = std::str::from_utf8(word).ok()?;
    let digits = word.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(word.len());
    let (number, unit) = word.split_at_checked(digits)?;
    let unit = unit.trim();
    let unit = unit.strip_suffix(['b', 'B']).unwrap_or(unit);
    let unit = unit.strip_suffix(['i', 'I']).unwrap_or(unit);
    let power = ["", "k", "m", "g", "t"].iter().position(|name| unit.eq_ignore_ascii_case(name))?;
    let unit = 1_u64 << (10 * power);
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(unit);
    }
    let bytes = number.parse::<f64>().ok()? * unit as f64;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}
