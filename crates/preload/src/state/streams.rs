//! The contexts of streams, remembered since the streams were created. NVIDIA does not say whether cuStreamGetCtx may be
//! called during a capture, so it is called for other streams only, in the relaxed mode, and never for a captured one.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use cuda_sys::*;

use super::contexts::{self, is_default};
use super::green_contexts;
use crate::driver;

struct Place {
    /// NULL if the place is free.
    stream: AtomicPtr<CUstream_st>,
    /// NULL while the place is being taken or released.
    context: AtomicPtr<CUctx_st>,
}

/// A power of two.
const PLACES: usize = 1024;

/// A stream is in one of this many places, starting with that of its hash.
const MAX_PROBES: usize = 32;

/// A table of streams with their contexts. It is bounded.
pub(crate) struct StreamTable([Place; PLACES]);

impl StreamTable {
    pub(crate) const fn new() -> Self {
        StreamTable(
            [const { Place { stream: AtomicPtr::new(ptr::null_mut()), context: AtomicPtr::new(ptr::null_mut()) } };
                PLACES],
        )
    }

    /// Returns the places where a stream may be.
    fn places(&self, stream: CUstream) -> impl Iterator<Item = &Place> {
        // Handles are addresses, or small steps apart. The high bits of Fibonacci hashing are well distributed.
        let hash = (stream.addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
        let first = usize::try_from(hash).unwrap_or_default();
        (first..first + MAX_PROBES).filter_map(|place| self.0.get(place % PLACES))
    }

    fn find(&self, stream: CUstream) -> Option<&Place> {
        let is_it = |place: &&Place| place.stream.load(Ordering::Acquire) == stream;
        self.places(stream).find(is_it).filter(|_| !stream.is_null())
    }

    pub(crate) fn contains(&self, stream: CUstream) -> bool {
        self.find(stream).is_some()
    }

    /// Returns the context of a stream, if it is known.
    pub(crate) fn context_of(&self, stream: CUstream) -> Option<CUcontext> {
        let context = self.find(stream)?.context.load(Ordering::Acquire);
        (!context.is_null()).then_some(context)
    }

    /// Records the context of a stream. Returns false if there is no place for it.
    pub(crate) fn insert(&self, stream: CUstream, context: CUcontext) -> bool {
        let take = |place: &&Place| {
            let free = ptr::null_mut();
            place.stream.compare_exchange(free, stream, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = self.find(stream).or_else(|| self.places(stream).find(take));
        if let Some(place) = place {
            place.context.store(context, Ordering::Release);
        }
        place.is_some()
    }

    /// Forgets a stream. Returns whether it was known. Two threads may have recorded it in a place each.
    pub(crate) fn remove(&self, stream: CUstream) -> bool {
        let mut was_known = false;
        while let Some(place) = self.find(stream) {
            place.context.store(ptr::null_mut(), Ordering::Release);
            let free = ptr::null_mut();
            let _ = place.stream.compare_exchange(stream, free, Ordering::AcqRel, Ordering::Relaxed);
            was_known = true;
        }
        was_known
    }

    /// Forgets the streams of a context, and calls `work` with each of them.
    pub(crate) fn remove_of(&self, context: CUcontext, work: impl Fn(CUstream)) {
        let is_of = |place: &&Place| !context.is_null() && place.context.load(Ordering::Acquire) == context;
        for place in self.0.iter().filter(is_of) {
            let stream = place.stream.load(Ordering::Acquire);
            if !stream.is_null() && self.remove(stream) {
                work(stream);
            }
        }
    }
}

/// The streams that the program has created. Those for which there is no place are queried each time.
static CREATED: StreamTable = StreamTable::new();

/// Remembers the context of a stream that the program has created.
pub(crate) fn note_created(stream: CUstream, context: Option<CUcontext>) {
    if let Some(context) = context.filter(|_| !is_default(stream)) {
        CREATED.insert(stream, context);
    }
}

/// Forgets a stream that is about to be destroyed, because another one may get its handle.
pub(crate) fn forget(stream: CUstream) {
    CREATED.remove(stream);
}

/// Forgets the streams of a context that is about to end.
pub(crate) fn forget_context(context: CUcontext) {
    CREATED.remove_of(context, |_| {});
}

/// Returns the context of a stream. `None` if it is captured and its creation was not seen by the interposer, or if the
/// driver does not report it.
pub(crate) fn of_stream(stream: CUstream) -> Option<CUcontext> {
    if is_default(stream) {
        return contexts::current_handle();
    }
    CREATED.context_of(stream).or_else(|| ask(stream))
}

/// Returns the device of a stream's context.
pub(crate) fn device_of_stream(stream: CUstream) -> Option<usize> {
    let context = of_stream(stream)?;
    // Before CUDA 13 a green context is current to one thread only, which may not be this one.
    let mut device = green_contexts::device_of(context);
    if device.is_some() {
        return device;
    }
    contexts::run_in(context, || {
        device = contexts::current_device();
        CUDA_SUCCESS
    });
    device
}

#[cold]
fn ask(stream: CUstream) -> Option<CUcontext> {
    let ask = driver::load()?.cuStreamGetCtx().ok()?;
    if is_captured(stream) {
        return None;
    }
    let mut context = ptr::null_mut();
    // SAFETY: the caller's stream, and a pointer that is valid for writing.
    let code = relaxed(|| unsafe { ask(stream, &mut context) });
    (code == CUDA_SUCCESS && !context.is_null()).then_some(context)
}

/// Returns whether the driver can report the context of a stream.
pub(crate) fn can_ask() -> bool {
    driver::load().is_some_and(|driver| driver.cuStreamGetCtx().is_ok())
}

/// Returns the handle by which a stream is identified. The legacy default stream is never captured, so 0 is the
/// thread's default stream in a twin. NULL would be a free place in tables.
pub(crate) fn named(stream: CUstream) -> CUstream {
    if stream.is_null() { ptr::without_provenance_mut(2) } else { stream }
}

/// Returns whether the stream is in a capture, including one that has become invalid.
pub(crate) fn is_captured(stream: CUstream) -> bool {
    let Some(Ok(ask)) = driver::load().map(|driver| driver.cuStreamIsCapturing()) else { return false };
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller's stream, and a pointer that is valid for writing.
    let code = unsafe { ask(named(stream), &mut status) };
    code == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE
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
