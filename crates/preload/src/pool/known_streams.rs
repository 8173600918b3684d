//! The streams known to pools, with their contexts. A stream ends with its context, and libbfc must not use it
//! afterwards. It therefore forgets the streams of a context before the context ends.
//!
//! The table is bounded. Pools never learn of a stream that does not fit into it: memory allocated on it comes from the
//! driver, and a free on it waits for the device like cudaFree.

use std::ptr;

use cuda_sys::*;

use super::handle::Pool;
use crate::state::contexts::{self, is_default};
use crate::state::relations;
use crate::state::streams::{self, StreamTable};
use crate::{bfc, settings};

static KNOWN: StreamTable = StreamTable::new();

/// Records the context of a stream before a pool learns of the stream. Returns whether the pool may learn of it. It
/// always may for default streams, whose names are not handles.
pub(crate) fn note(stream: CUstream) -> bool {
    is_default(stream)
        || KNOWN.contains(stream)
        || streams::of_stream(stream).is_some_and(|context| KNOWN.insert(stream, context))
}

/// Records the current context, which is not a pool's own, before the pool learns of its default streams. Its handle
/// represents them in the table. Returns whether the pool may learn of them.
pub(crate) fn note_default() -> bool {
    contexts::current_handle().is_some_and(|context| KNOWN.insert(context.cast(), context))
}

/// Forgets the default streams of a context, which libbfc identifies by the current context. Those of other threads
/// cannot be named.
fn forget_default(context: CUcontext) {
    const DEFAULT: [usize; 2] = [1, 2];
    let is_other = |pool: &Pool| pool.device().map(contexts::primary_of_device) != Some(context);
    contexts::run_in(context, || {
        for pool in Pool::of_devices().filter(is_other) {
            DEFAULT
                .iter()
                .for_each(|&name| _ = bfc::forget_stream(pool.ordinal(), ptr::without_provenance_mut(name)));
        }
        CUDA_SUCCESS
    });
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
        KNOWN.remove_of(context, |stream| match stream.cast() == context {
            true => forget_default(context),
            false => forget_in_pools(stream),
        });
    }
}
