//! The legacy stream in a pool that serves cudaMallocAsync.
//!
//! cudaMallocAsync and cudaFreeAsync are operations of their stream, and those of the legacy stream order the work of
//! all blocking streams: "the legacy stream first waits on all blocking streams, the action is queued in the legacy
//! stream, and then all blocking streams wait on the legacy stream" (CUDA Runtime API, Stream synchronization behavior).
//! So a kernel on one blocking stream that uses new memory comes after one on another stream that used the memory before
//! its free. libbfc records an event at a free, which is such an action, but not while a pool knows only one stream. So
//! the pool is introduced to a second one first.

use std::ptr;
use std::sync::atomic::Ordering;

use bfc_sys::BFC_OK;
use cuda_sys::*;

use super::handle::Pool;
use crate::bfc;
use crate::state::internal_streams;

impl Pool {
    /// Prepares the pool for a request or a free in the order of a stream, with the device's primary context current.
    /// Returns false if the pool cannot serve it.
    #[inline]
    pub(crate) fn may_order(self, stream: CUstream) -> bool {
        const LEGACY: usize = 1;
        stream.addr() > LEGACY || self.state.tells_apart.load(Ordering::Relaxed) || self.tell_apart()
    }

    /// Makes the pool distinguish streams, by using one on which nothing is ever queued.
    #[cold]
    #[inline(never)]
    fn tell_apart(self) -> bool {
        if self.is_there() && !self.is_ours() && self.is_known() {
            // For a pool of the program, the program decides whether it uses streams.
            return true;
        }
        if !self.is_known() && self.create().is_err() {
            return false;
        }
        let Some(stream) = self.device().and_then(internal_streams::get_or_create) else { return false };
        let mut address = ptr::null_mut();
        // SAFETY: the pointer is valid for writing.
        let status = unsafe { bfc_sys::bfc_alloc_async(self.ordinal, 1, stream.cast(), &mut address) };
        let tells_apart = status == BFC_OK && bfc::free_async(self.ordinal, address, stream.cast()) == BFC_OK;
        self.state.tells_apart.store(tells_apart, Ordering::Relaxed);
        tells_apart
    }

    /// Records that the pool has ended, or has forgotten all streams.
    pub(super) fn forget_streams(self) {
        self.state.tells_apart.store(false, Ordering::Relaxed);
    }
}
