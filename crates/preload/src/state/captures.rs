//! Stream captures in progress. A context with a captured stream cannot be synchronized, because that would end the
//! capture. While any stream of any context is captured, freed memory stays in quarantine, and libbfc is instructed not
//! to access any device (`bfc_capture_begin`). Streams of other contexts may join a capture through events, which is
//! not observed here.

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cuda_sys::*;
use os::counting::take_one;

use crate::bfc;
use crate::state::streams::{self, named};
use crate::state::{contexts, green_contexts};
use crate::sys::{lock, process};

/// A captured stream and its context, as far as the driver reports it. NULL is none.
struct Place {
    stream: AtomicPtr<CUstream_st>,
    context: AtomicPtr<CUctx_st>,
    /// The only thread that can end the capture, or 0. "If mode is not CU_STREAM_CAPTURE_MODE_RELAXED, cuStreamEndCapture
    /// must be called on this stream from the same thread" (cuda.h, cuStreamBeginCapture), and no other thread has a handle
    /// of its default stream.
    thread: AtomicI32,
    /// Whether the mode is global, in which case the driver serves no other thread in that mode either.
    is_global: AtomicBool,
    /// That thread has ended, so there will be no graph. The capture is no longer counted, but its context cannot be
    /// synchronized as long as the stream exists.
    is_abandoned: AtomicBool,
}

/// The captured streams. A stream that does not fit here counts until its capture ends.
static PLACES: [Place; u64::BITS as usize] = [const {
    Place {
        stream: AtomicPtr::new(ptr::null_mut()),
        context: AtomicPtr::new(ptr::null_mut()),
        thread: AtomicI32::new(0),
        is_global: AtomicBool::new(false),
        is_abandoned: AtomicBool::new(false),
    }
}; u64::BITS as usize];

/// Not a stream's handle. The place is being taken or released.
const CHANGING: CUstream = ptr::without_provenance_mut(usize::MAX);

/// The number of captures, so that a check costs one load if there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of captures that were abandoned, so that a check costs one load if there are none.
static ABANDONED: AtomicUsize = AtomicUsize::new(0);

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

/// False in the test that shows that programs with captures notice missing announcements.
const ANNOUNCES: bool = !cfg!(feature = "without-announcement");

/// Notifies libbfc that a capture begins.
fn announce_begin() {
    if ANNOUNCES {
        bfc::capture_begin();
    }
}

/// Notifies libbfc that a capture has ended.
fn announce_end() {
    if ANNOUNCES {
        bfc::capture_end();
    }
}

/// Returns whether any stream is captured.
#[inline]
pub(crate) fn any() -> bool {
    COUNT.load(Ordering::Acquire) != 0 && are_any_left()
}

#[cold]
fn are_any_left() -> bool {
    PLACES.iter().for_each(Place::look_after_thread);
    COUNT.load(Ordering::Acquire) != 0
}

/// Returns whether a thread has ended in a capture of this context, which therefore cannot be synchronized, while the driver
/// itself continues to serve other threads.
pub(crate) fn is_abandoned_in(context: CUcontext) -> bool {
    let is_of = |place: &Place| {
        is_within(place.context.load(Ordering::Relaxed), context) && !place.is_global.load(Ordering::Relaxed)
    };
    ABANDONED.load(Ordering::Acquire) != 0 && PLACES.iter().any(|place| place.is_abandoned() && is_of(place))
}

/// Returns whether a context is this one, or a green context of it. A call that synchronizes or ends the primary
/// context also affects those ("green contexts that have been created will also be synchronized", cuCtxSynchronize).
fn is_within(context: CUcontext, outer: CUcontext) -> bool {
    let primary = || green_contexts::device_of(context).map(contexts::primary_of_device);
    context == outer || primary() == Some(outer)
}

impl Place {
    /// Replaces the stream in this place, if it is the given one, after `work` has changed the rest.
    fn change(&self, from: CUstream, stream: CUstream, work: impl FnOnce()) -> bool {
        if self.stream.compare_exchange(from, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        work();
        self.stream.store(stream, Ordering::Release);
        true
    }

    /// Takes a free place, which stays [`CHANGING`].
    fn reserve(&self, context: CUcontext, thread: i32, is_global: bool) -> bool {
        self.change(ptr::null_mut(), CHANGING, || {
            self.context.store(context, Ordering::Relaxed);
            self.thread.store(thread, Ordering::Relaxed);
            self.is_global.store(is_global, Ordering::Relaxed);
        })
    }

    /// Takes the capture of a stream out of the table. Returns `None` if it is not there, and otherwise whether it was
    /// counted.
    fn give_up(&self, stream: CUstream) -> Option<bool> {
        self.change(stream, CHANGING, || {}).then(|| self.release())
    }

    /// Makes a place free that is [`CHANGING`]. Returns whether its capture was counted.
    fn release(&self) -> bool {
        self.context.store(ptr::null_mut(), Ordering::Relaxed);
        let was_abandoned = self.is_abandoned.swap(false, Ordering::AcqRel);
        ABANDONED.fetch_sub(usize::from(was_abandoned), Ordering::AcqRel);
        self.stream.store(ptr::null_mut(), Ordering::Release);
        !was_abandoned
    }

    fn is_abandoned(&self) -> bool {
        self.is_abandoned.load(Ordering::Acquire)
    }

    /// Stops counting the capture if the only thread that can end it has ended.
    fn look_after_thread(&self) {
        let stream = self.stream.load(Ordering::Acquire);
        let has_ended = || match self.thread.load(Ordering::Relaxed) {
            0 => false,
            thread => !self.is_abandoned() && !process::has_thread(thread),
        };
        if stream.is_null() || stream == CHANGING || !has_ended() {
            return;
        }
        let mut is_new = false;
        self.change(stream, stream, || {
            // Meanwhile the place may have been given to another capture.
            is_new = has_ended();
            self.is_abandoned.fetch_or(is_new, Ordering::AcqRel);
        });
        if is_new {
            ABANDONED.fetch_add(1, Ordering::AcqRel);
            one_less();
        }
    }

    fn is_counted(&self) -> bool {
        !self.stream.load(Ordering::Acquire).is_null() && !self.is_abandoned()
    }

    /// Returns the stream, if it belongs to that context or to one of its green contexts.
    fn stream_of(&self, context: CUcontext) -> Option<CUstream> {
        let stream = self.stream.load(Ordering::Acquire);
        let is_one = !stream.is_null() && stream != CHANGING;
        (is_one && is_within(self.context.load(Ordering::Relaxed), context)).then_some(stream)
    }
}

/// A capture that is about to begin. It is counted, and has a place that no search finds. The stream may already be
/// captured, in which case the driver refuses the call.
pub(crate) struct Beginning {
    stream: CUstream,
    place: Option<&'static Place>,
}

/// Counts a capture that is about to begin. Waits for synchronizations that are about to begin.
pub(crate) fn begin(stream: CUstream, mode: CUstreamCaptureMode) -> Beginning {
    let stream = named(stream);
    let context = streams::of_stream(stream).unwrap_or(ptr::null_mut());
    let is_own = stream == named(ptr::null_mut()) || mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    let thread = if is_own { process::this_thread() } else { 0 };
    let is_global = mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    let place = PLACES.iter().find(|place| place.reserve(context, thread, is_global));
    COUNT.fetch_add(1, Ordering::SeqCst);
    announce_begin();
    let_entries_pass();
    Beginning { stream, place }
}

impl Beginning {
    /// Records whether the driver has begun the capture.
    pub(crate) fn end(self, has_begun: bool) {
        match self.place {
            Some(place) if has_begun => place.stream.store(self.stream, Ordering::Release),
            Some(place) => _ = place.release(),
            None => {}
        }
        if !has_begun {
            one_less();
        }
    }
}

/// Takes the calling thread's capture of a stream out of the table, like [`Place::give_up`]. The handle of a thread's
/// default stream denotes a different stream in each thread.
fn give_up(stream: CUstream) -> Option<bool> {
    let stream = named(stream);
    let is_created = stream != named(ptr::null_mut());
    let is_own =
        |place: &&Place| is_created || place.thread.load(Ordering::Relaxed) == process::this_thread();
    PLACES.iter().filter(is_own).find_map(|place| place.give_up(stream))
}

/// Counts the end of a capture. A capture whose beginning was not seen has no place in the table and is not counted:
/// otherwise the count would miss another capture that is in progress. It may be counted only if more captures are
/// counted than there are places.
pub(crate) fn ended_if_begun(stream: CUstream) {
    let was_counted = give_up(stream);
    let counted = || PLACES.iter().filter(|place| place.is_counted()).count();
    if was_counted.unwrap_or_else(|| COUNT.load(Ordering::Acquire) > counted()) {
        one_less();
    }
}

fn one_less() {
    if take_one(&COUNT, Ordering::AcqRel) {
        announce_end();
    }
}

/// The capture, if any, of a stream that is about to be destroyed. No search finds its place, because before the call
/// returns another stream may have the handle and be captured.
pub(crate) struct Destruction {
    stream: CUstream,
    place: Option<&'static Place>,
}

/// Hides the capture of a stream that is about to be destroyed. It is still counted.
pub(crate) fn destroy(stream: CUstream) -> Destruction {
    let is_worth_a_look = COUNT.load(Ordering::Acquire) | ABANDONED.load(Ordering::Acquire) != 0;
    let is_it = |place: &&Place| !stream.is_null() && place.change(stream, CHANGING, || {});
    let place = if is_worth_a_look { PLACES.iter().find(is_it) } else { None };
    Destruction { stream, place }
}

impl Destruction {
    /// Records whether the driver has destroyed the stream and ended its capture.
    pub(crate) fn end(self, is_destroyed: bool) {
        let Some(place) = self.place else { return };
        if !is_destroyed {
            place.stream.store(self.stream, Ordering::Release);
        } else if place.release() {
            one_less();
        }
    }
}

/// The captures in a context that is about to end.
pub(crate) struct ContextCaptures {
    context: CUcontext,
    /// A bit for each place.
    places: u64,
}

/// Returns the captures in a context, and in its green contexts. NULL has none.
pub(crate) fn in_context(context: CUcontext) -> ContextCaptures {
    let mut within = ContextCaptures { context, places: 0 };
    if any() && !context.is_null() {
        for (bit, place) in PLACES.iter().enumerate() {
            let is_counted = !place.is_abandoned() && place.stream_of(context).is_some();
            within.places |= u64::from(is_counted) << bit;
        }
    }
    within
}

impl ContextCaptures {
    /// Returns whether no other stream is captured.
    pub(crate) fn are_all(&self) -> bool {
        COUNT.load(Ordering::Acquire) == self.places.count_ones() as usize
    }

    /// Calls `work`, which ends the resources of their context, with these captures announced as ended, because they
    /// are about to end with it.
    pub(crate) fn disregarded(&self, work: impl FnOnce()) {
        for _ in 0..self.places.count_ones() {
            announce_end();
        }
        work();
        for _ in 0..self.places.count_ones() {
            announce_begin();
        }
    }

    /// Counts the end of these captures, which have ended with their context. Abandoned captures have ended too.
    pub(crate) fn ended(self) {
        let is_one = |bit: usize, place: &Place| self.places >> bit & 1 != 0 || place.is_abandoned();
        let places = PLACES.iter().enumerate().filter(|&(bit, place)| is_one(bit, place));
        for (_, place) in places {
            let stream = place.stream_of(self.context);
            if stream.and_then(|stream| place.give_up(stream)) == Some(true) {
                one_less();
            }
        }
    }
}
