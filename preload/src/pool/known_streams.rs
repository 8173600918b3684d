//! The streams that pools know, with their contexts. A stream ends with its context, and libbfc must not use it
//! afterwards. So it forgets the streams of a context before the context ends.
//!
//! The table is bounded. Pools never learn of a stream that does not fit into it: memory allocated on it comes from the
//! driver, and a free on it waits for the device like cudaFree.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use cuda_sys::*;

use super::handle::Pool;
use crate::state::contexts;
use crate::state::contexts::is_default;
use crate::{bfc, settings};

struct Known {
    /// NULL if the place is free.
    stream: AtomicPtr<CUstream_st>,
    context: AtomicPtr<CUctx_st>,
}

/// A power of two.
const PLACES: usize = 1024;

/// A stream is in one of this many places, starting with that of its hash.
const MAX_PROBES: usize = 32;

static KNOWN: [Known; PLACES] =
    [const { Known { stream: AtomicPtr::new(ptr::null_mut()), context: AtomicPtr::new(ptr::null_mut()) } };
        PLACES];

/// Returns the places where a stream may be.
fn places(stream: CUstream) -> impl Iterator<Item = &'static Known> {
    // Handles are addresses, or small steps apart. The high bits of Fibonacci hashing are well distributed.
    let hash = (stream.addr() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    let first = usize::try_from(hash).unwrap_or_default();
    (first..first + MAX_PROBES).filter_map(|place| KNOWN.get(place % PLACES))
}

/// Records the context of a stream before a pool learns of the stream. Returns whether the pool may learn of it. Always
/// true for default streams, whose names are no handles.
pub(crate) fn note(stream: CUstream) -> bool {
    if is_default(stream) || places(stream).any(|known| known.stream.load(Ordering::Acquire) == stream) {
        return true;
    }
    let Some(context) = contexts::of_stream(stream) else { return false };
    places(stream).any(|known| {
        let taken =
            known.stream.compare_exchange(ptr::null_mut(), stream, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_ok() {
            known.context.store(context, Ordering::Release);
        }
        taken.is_ok()
    })
}

fn forget_in_pools(stream: CUstream) {
    for pool in Pool::of_devices() {
        // This fails if the stream was never used, which does not matter.
        bfc::forget_stream(pool.ordinal(), stream.cast());
    }
}

/// Forgets a stream that is about to be destroyed, because another one may get its handle.
pub(crate) fn forget(stream: CUstream) {
    if !settings::serves_async() || is_default(stream) {
        return;
    }
    for known in places(stream).filter(|known| known.stream.load(Ordering::Acquire) == stream) {
        known.give_up(stream);
    }
    forget_in_pools(stream);
}

/// Forgets the streams of a context that is about to end.
pub(crate) fn forget_context(context: CUcontext) {
    if !settings::serves_async() || context.is_null() {
        return;
    }
    for known in KNOWN.iter().filter(|known| known.context.load(Ordering::Acquire) == context) {
        let stream = known.stream.load(Ordering::Acquire);
        known.give_up(stream);
        if !stream.is_null() {
            forget_in_pools(stream);
        }
    }
}

impl Known {
    fn give_up(&self, stream: CUstream) {
        self.context.store(ptr::null_mut(), Ordering::Release);
        let _ = self.stream.compare_exchange(stream, ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}
