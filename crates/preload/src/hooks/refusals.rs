//! Requests that failed because memory ran out, for the trace and the report.

use std::fmt::{self, Display};

use cuda_sys::*;

use crate::bfc::{LastError, MESSAGE};
use crate::diagnostics::check_log::PassReason;
use crate::diagnostics::{report, trace};
use crate::pool::Pool;
use crate::state::contexts::{self, Current};
use crate::sys::text::Text;
use crate::{driver, settings};

/// The settings that may be raised. The reader of a report may not know how the program was started.
const LIMIT: &[u8] = b"; raise --limit or --fraction if one is set (BFC_MEMORY_LIMIT, BFC_MEMORY_FRACTION)";

/// The verdict of libbfc that another growth policy can change. It names the library's options, which the
/// program lacks.
const DOUBLING: &[u8] = b"; regions double in size";
const BY_NEED: &[u8] = b"; --growth need avoids doubling";

/// The verdict of libbfc that granules can change. They have no legacy IPC handles.
const FRAGMENTATION: &[u8] = b": fragmentation. ";
const GRANULES: &[u8] = b"; --backend cuda-vmm fragments less (BFC_BACKEND=cuda_vmm)";

/// The reason why there was no memory.
#[derive(Clone, Copy)]
pub(crate) enum Verdict {
    /// The pool's reason, from libbfc's last message.
    Pool,
    /// The driver refused a request that the pool did not serve, for this reason.
    Driver(&'static str),
}

impl Verdict {
    /// Returns the verdict on a request that was passed to the driver.
    pub(crate) fn of(why: PassReason) -> Self {
        match why {
            PassReason::Full | PassReason::Pool => Verdict::Pool,
            PassReason::Size => {
                Verdict::Driver("requests of this size are left to the driver (--min, --max, --ipc)")
            }
            PassReason::Context => Verdict::Driver("the current context is not the device's primary one"),
            PassReason::OwnPool => {
                Verdict::Driver("the program has set a memory pool of its own (cudaDeviceSetMemPool)")
            }
            PassReason::NoContext => Verdict::Driver("there was no current context"),
            PassReason::Capture => {
                Verdict::Driver("a stream was captured, so the pool could not wait for memory")
            }
        }
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Pool => LastError.fmt(f),
            Verdict::Driver(why) => write!(f, "the driver has no memory for it; {why}"),
        }
    }
}

/// Reports a request like that of cudaMalloc if it failed with out of memory. Returns the code.
#[inline]
pub(crate) fn note(code: CUresult, bytes: usize, stream: usize, verdict: Verdict) -> CUresult {
    if code == CUDA_ERROR_OUT_OF_MEMORY {
        note_device(bytes, stream, verdict);
    }
    code
}

#[cold]
fn note_device(bytes: usize, stream: usize, verdict: Verdict) {
    with_text(verdict, |text| {
        trace::refused(bytes, stream, text);
        if let Some(pool) = current_device().and_then(Pool::of_device) {
            note_in(pool, bytes, verdict, text);
        }
    });
}

/// Formats the message once, before any lock is taken, because it queries libbfc.
fn with_text(verdict: Verdict, note: impl FnOnce(&str)) {
    let mut text = Text::<MESSAGE>::new();
    text.put(format_args!("{verdict}"));
    if matches!(verdict, Verdict::Pool) {
        advise(&mut text);
    }
    // The text may be cut within a character.
    let text = text.bytes().utf8_chunks().next();
    note(text.map_or("", |chunk| chunk.valid()));
}

/// Appends the settings that may help.
fn advise(text: &mut Text<MESSAGE>) {
    if settings::is_limited() {
        text.push(LIMIT);
    }
    let says = |verdict: &[u8]| text.bytes().windows(verdict.len()).any(|part| part == verdict);
    let (is_doubling, is_fragmented) = (says(DOUBLING), says(FRAGMENTATION));
    if is_doubling {
        text.push(BY_NEED);
    }
    if is_fragmented && !settings::wants_granules() && !settings::shares_regions() {
        text.push(GRANULES);
    }
}

/// Reports a request like [`note`], for a known pool.
pub(crate) fn note_of(pool: Pool, code: CUresult, bytes: usize, verdict: Verdict) {
    if code == CUDA_ERROR_OUT_OF_MEMORY {
        with_text(verdict, |text| note_in(pool, bytes, verdict, text));
    }
}

/// The only place that counts a request as a failure: in the report, and in libbfc's statistics and history.
fn note_in(pool: Pool, bytes: usize, verdict: Verdict, text: &str) {
    pool.note_failure(bytes, matches!(verdict, Verdict::Pool));
    report::refused(pool, bytes, text);
}

/// Returns the device of the current context, which need not be a primary one.
fn current_device() -> Option<usize> {
    if let Current::Primary(device) = contexts::current() {
        return Some(device);
    }
    let get = driver::load()?.cuCtxGetDevice().ok()?;
    let mut device = 0;
    // SAFETY: the pointer is valid for writing.
    let code = unsafe { get(&mut device) };
    usize::try_from(device).ok().filter(|_| code == CUDA_SUCCESS)
}
