//! Stream captures in progress. A context with a captured stream cannot be synchronized, because that would end the
//! capture. While any stream of any context is captured, freed memory stays in quarantine, and libbfc is told not to
//! access any device (`bfc_capture_begin`). Streams of other contexts may join a capture through events, which is not
//! observed here.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cuda_sys::*;

use crate::bfc;
use crate::driver;
use crate::state::contexts;
use crate::sys::lock;

/// A captured stream and its context, as far as the driver reports it. NULL is none.
struct Place {
    stream: AtomicPtr<CUstream_st>,
    context: AtomicPtr<CUctx_st>,
}

/// The captured streams. A stream that does not fit here counts until its capture ends.
static PLACES: [Place; u64::BITS as usize] =
    [const { Place { stream: AtomicPtr::new(ptr::null_mut()), context: AtomicPtr::new(ptr::null_mut()) } };
        u64::BITS as usize];

/// Not a stream's handle: the place is being taken or released.
const CHANGING: CUstream = ptr::without_provenance_mut(usize::MAX);

/// The number of captures, so that a check costs one load if there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of threads that synchronize, or are about to.
static SYNCHRONIZING: AtomicUsize = AtomicUsize::new(0);

/// When the last of these threads arrived, by [`now`].
static ENTERED: AtomicU64 = AtomicU64::new(0);

/// How long the beginning of a capture waits for a synchronization that has begun. The driver checks for captures when
/// it is called: cuCtxSynchronize "blocks until the current context has completed all preceding requested tasks", and
/// work captured later is not among these. Only the way into the call is at risk, for which this limit is enough even
/// if the scheduler suspends the thread. Waiting for the end might never return, because the work may depend on the
/// next action of the capturing thread.
const ENTRY: Duration = Duration::from_secs(1);

/// Returns the monotonic clock in nanoseconds.
fn now() -> u64 {
    u64::try_from(lock::now().as_nanos()).unwrap_or(u64::MAX)
}

/// Makes one call that synchronizes, unless any stream is captured, because the call would break the capture. No
/// capture begins while the thread is on its way into the driver. Each such call is checked individually, because a
/// capture may begin between two of them.
pub(crate) fn unless_capturing(synchronize: impl FnOnce() -> CUresult) -> CUresult {
    if any() {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    ENTERED.fetch_max(now(), Ordering::SeqCst);
    // Either this thread sees the capture that begins, or the capture sees this thread.
    SYNCHRONIZING.fetch_add(1, Ordering::SeqCst);
    let code =
        if COUNT.load(Ordering::SeqCst) == 0 { synchronize() } else { CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED };
    SYNCHRONIZING.fetch_sub(1, Ordering::SeqCst);
    code
}

/// Calls `work` with the thread's capture mode relaxed: a query of an event "is prohibited" while a thread captures in
/// another mode (cuda.h, cuThreadExchangeStreamCaptureMode), and would invalidate that capture.
pub(crate) fn relaxed<T>(work: impl FnOnce() -> T) -> T {
    let exchange = driver::load().and_then(|driver| driver.cuThreadExchangeStreamCaptureMode().ok());
    let mut mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the pointer is valid for reading and writing.
    let is_exchanged = exchange.is_some_and(|exchange| unsafe { exchange(&mut mode) } == CUDA_SUCCESS);
    let result = work();
    if let Some(exchange) = exchange.filter(|_| is_exchanged) {
        // SAFETY: as above.
        unsafe { exchange(&mut mode) };
    }
    result
}

/// Waits until no thread is on its way into a call that synchronizes.
fn let_entries_pass() {
    let is_entering = || {
        SYNCHRONIZING.load(Ordering::SeqCst) != 0
            && Duration::from_nanos(now().saturating_sub(ENTERED.load(Ordering::SeqCst))) < ENTRY
    };
    while is_entering() {
        // SAFETY: no preconditions.
        unsafe { libc::sched_yield() };
    }
}

/// False for the test that programs with captures notice missing announcements.
const ANNOUNCES: bool = !cfg!(feature = "without-announcement");

/// Tells libbfc that a capture begins.
fn announce_begin() {
    if ANNOUNCES {
        bfc::capture_begin();
    }
}

/// Tells libbfc that a capture has ended.
fn announce_end() {
    if ANNOUNCES {
        bfc::capture_end();
    }
}

/// Returns whether any stream is captured.
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// The name of a stream in the table. The legacy default stream is never captured, so 0 is the thread's default stream
/// in a twin; and NULL would be a free place.
fn named(stream: CUstream) -> CUstream {
    if stream.is_null() { ptr::without_provenance_mut(2) } else { stream }
}

impl Place {
    /// Replaces a stream in this place, if it is there.
    fn change(&self, from: CUstream, stream: CUstream, context: CUcontext) -> bool {
        if self.stream.compare_exchange(from, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        self.context.store(context, Ordering::Relaxed);
        self.stream.store(stream, Ordering::Release);
        true
    }

    fn give_up(&self, stream: CUstream) -> bool {
        self.change(stream, ptr::null_mut(), ptr::null_mut())
    }

    fn is_taken(&self) -> bool {
        !self.stream.load(Ordering::Acquire).is_null()
    }

    /// Returns the stream, if it is of that context.
    fn stream_of(&self, context: CUcontext) -> Option<CUstream> {
        let stream = self.stream.load(Ordering::Acquire);
        let is_one = !stream.is_null() && stream != CHANGING;
        (is_one && self.context.load(Ordering::Relaxed) == context).then_some(stream)
    }
}

/// Counts a capture that is about to begin. Waits for synchronizations that are about to begin.
pub(crate) fn begun(stream: CUstream) {
    let context = contexts::of_stream(named(stream)).unwrap_or(ptr::null_mut());
    PLACES.iter().find(|place| place.change(ptr::null_mut(), named(stream), context));
    COUNT.fetch_add(1, Ordering::SeqCst);
    announce_begin();
    let_entries_pass();
}

/// Reverts [`begun`]: the capture did not begin.
pub(crate) fn ended(stream: CUstream) {
    PLACES.iter().find(|place| place.give_up(named(stream)));
    one_less();
}

/// Counts the end of a capture. One whose beginning was not seen has no place in the table and is not counted:
/// otherwise the count would lack another capture that is in progress. Only where more captures are counted than there
/// are places it may be one of those.
pub(crate) fn ended_if_begun(stream: CUstream) {
    let is_known = PLACES.iter().any(|place| place.give_up(named(stream)));
    if is_known || COUNT.load(Ordering::Acquire) > PLACES.iter().filter(|place| place.is_taken()).count() {
        one_less();
    }
}

fn one_less() {
    let less = |count: usize| count.checked_sub(1);
    if COUNT.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less).is_ok() {
        announce_end();
    }
}

/// Counts the end of the capture, if any, that a destroyed stream was in.
pub(crate) fn destroyed(stream: CUstream) {
    if any() && !stream.is_null() && PLACES.iter().any(|place| place.give_up(stream)) {
        one_less();
    }
}

/// The captures in a context that is about to end.
pub(crate) struct ContextCaptures {
    context: CUcontext,
    /// A bit for each place.
    places: u64,
}

/// Returns the captures in a context. NULL has none.
pub(crate) fn in_context(context: CUcontext) -> ContextCaptures {
    let mut within = ContextCaptures { context, places: 0 };
    if any() && !context.is_null() {
        for (bit, place) in PLACES.iter().enumerate() {
            within.places |= u64::from(place.stream_of(context).is_some()) << bit;
        }
    }
    within
}

impl ContextCaptures {
    pub(crate) fn are_any(&self) -> bool {
        self.places != 0
    }

    /// Returns whether no other stream is captured.
    pub(crate) fn are_all(&self) -> bool {
        COUNT.load(Ordering::Acquire) == self.places.count_ones() as usize
    }

    /// Calls `work`, which ends what is of their context, with these captures announced as ended: they are about to end
    /// with it.
    pub(crate) fn disregarded(&self, work: impl FnOnce()) {
        for _ in 0..self.places.count_ones() {
            announce_end();
        }
        work();
        for _ in 0..self.places.count_ones() {
            announce_begin();
        }
    }

    /// Counts the end of these captures, which have ended with their context.
    pub(crate) fn ended(self) {
        let places = PLACES.iter().enumerate().filter(|(bit, _)| self.places >> bit & 1 != 0);
        for (_, place) in places {
            if place.stream_of(self.context).is_some_and(|stream| place.give_up(stream)) {
                one_less();
            }
        }
    }
}

/// Returns whether the stream is in a capture, including one that has become invalid.
pub(crate) fn is_captured(stream: CUstream) -> bool {
    let Some(Ok(ask)) = driver::load().map(|driver| driver.cuStreamIsCapturing()) else { return false };
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller's stream, and a pointer that is valid for writing.
    let code = unsafe { ask(named(stream), &mut status) };
    code == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE
}
