//! The streams that pools know, with their contexts. A stream ends with its context, and libbfc must not use it
//! afterwards. So it forgets the streams of a context before the context ends.
//!
//! The table is bounded. Pools never learn of a stream that does not fit into it: memory allocated on it comes from the
//! driver, and a free on it waits for the device like cudaFree.

use cuda_sys::*;

use super::handle::Pool;
use crate::state::contexts::is_default;
use crate::state::relations;
use crate::state::streams::{self, StreamTable};
use crate::{bfc, settings};

static KNOWN: StreamTable = StreamTable::new();

/// Records the context of a stream before a pool learns of the stream. Returns whether the pool may learn of it. Always
/// true for default streams, whose names are no handles.
pub(crate) fn note(stream: CUstream) -> bool {
    is_default(stream)
        || KNOWN.contains(stream)
        || streams::of_stream(stream).is_some_and(|context| KNOWN.insert(stream, context))
}

fn forget_in_pools(stream: CUstream) {
    for pool in Pool::of_devices() {
        // This fails if the stream was never used, which does not matter.
        bfc::forget_stream(pool.ordinal(), stream.cast());
    }
}

/// Forgets a stream that is about to be destroyed, because another one may get its handle.
pub(crate) fn forget(stream: CUstream) {
    relations::stream_ends(stream);
    streams::forget(stream);
    if settings::serves_async() && !is_default(stream) {
        KNOWN.remove(stream);
        forget_in_pools(stream);
    }
}

/// Forgets the streams of a context that is about to end.
pub(crate) fn forget_context(context: CUcontext) {
    relations::context_ends();
    streams::forget_context(context);
    if settings::serves_async() {
        KNOWN.remove_of(context, forget_in_pools);
    }
}
