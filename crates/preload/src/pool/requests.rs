//! Single calls of libbfc: one request, one free, one trim.

use bfc_sys::interposer::{self, ALIGNMENT};
use bfc_sys::{
    BFC_ERROR_UNSUPPORTED, BFC_OK, BFC_REQUEST_ATTEMPT, BFC_REQUEST_NO_GROWTH, BFC_REQUEST_ON_STREAM,
    BFC_REQUEST_SIZE_512, bfc_request_t, bfc_status_t,
};
use std::ptr;
use std::sync::atomic::Ordering;

use cuda_sys::*;

use super::handle::{Pool, pointer};
use crate::bfc;
use crate::diagnostics::report;
use crate::settings;
use crate::state::internal_streams;
use crate::sys::mapped_file;

/// The flags of an attempt without growth, in which a small request leaves large chunks to large ones.
pub(super) const HELD: u32 = BFC_REQUEST_NO_GROWTH | BFC_REQUEST_ATTEMPT;
/// The flags of an attempt for which the pool may grow.
pub(super) const GROWING: u32 = BFC_REQUEST_ATTEMPT;
/// The flags of a request for any memory that the pool holds. Its failure does not count either.
pub(super) const ALL_HELD: u32 = BFC_REQUEST_NO_GROWTH;

impl Pool {
    /// Returns the alignment of a request of that size.
    #[inline]
    pub(super) fn alignment_of(self, bytes: usize) -> usize {
        match interposer::alignment_of(bytes) {
            // Pinned memory begins at a page of the host.
            large if large != ALIGNMENT && self.ordinal == bfc::PINNED => {
                usize::try_from(mapped_file::page()).unwrap_or(ALIGNMENT)
            }
            alignment => alignment,
        }
    }

    #[inline]
    pub(super) fn request(
        self,
        bytes: usize,
        stream: Option<CUstream>,
        flags: u32,
    ) -> Result<u64, bfc_status_t> {
        self.request_at(self.alignment_of(bytes), bytes, stream, flags)
    }

    /// Attempts a request. Its failure does not count as one of the program: see [`Pool::note_failure`].
    #[inline(never)] // Its arguments for libbfc would be in the frames of all callers that try several times.
    pub(super) fn request_at(
        self,
        alignment: usize,
        bytes: usize,
        stream: Option<CUstream>,
        flags: u32,
    ) -> Result<u64, bfc_status_t> {
        let (stream, on_stream) = match stream {
            Some(stream) => (stream.cast(), BFC_REQUEST_ON_STREAM),
            None => (ptr::null_mut(), 0),
        };
        let request = bfc_request_t {
            struct_size: size_of::<bfc_request_t>(),
            bytes,
            alignment,
            stream,
            freed_before: 0,
            flags: flags | on_stream | BFC_REQUEST_SIZE_512,
            reserved: 0,
        };
        let mut address = ptr::null_mut();
        // SAFETY: the struct has the size that it states, and the pointer is valid for writing.
        match unsafe { bfc_sys::bfc_alloc_ex(self.ordinal, &request, &mut address) } {
            BFC_OK => {
                if report::is_on() {
                    self.state.served.fetch_add(1, Ordering::Relaxed);
                }
                Ok(address.addr() as u64)
            }
            status => Err(status),
        }
    }

    /// Counts a request of the program that neither this pool nor the driver has served. `was_asked`: whether the pool
    /// was asked.
    #[cold]
    pub(crate) fn note_failure(self, bytes: usize, was_asked: bool) {
        let request = bfc_request_t {
            struct_size: size_of::<bfc_request_t>(),
            bytes,
            // If the pool was not asked, alignment cannot be the cause.
            alignment: if was_asked { self.alignment_of(bytes) } else { 0 },
            flags: BFC_REQUEST_SIZE_512,
            ..bfc_request_t::default()
        };
        // SAFETY: the struct has the size that it states. Without a pool there is nothing to count in.
        unsafe { bfc_sys::bfc_alloc_failed(self.ordinal, &request) };
    }

    /// Frees a chunk that nothing uses. A pool that knows streams gets it on an internal stream, on which
    /// nothing is ever queued. Freed without a stream, it would wait for a synchronization.
    #[inline]
    pub(super) fn return_chunk(self, address: u64) -> bfc_status_t {
        if settings::serves_async()
            && let Some(stream) = usize::try_from(self.ordinal).ok().and_then(internal_streams::get)
        {
            let status = bfc::free_async(self.ordinal, pointer(address), stream.cast());
            if status != BFC_ERROR_UNSUPPORTED {
                return status;
            }
        }
        bfc::free(self.ordinal, pointer(address))
    }

    /// Returns unused regions to the driver.
    pub(crate) fn trim(self) {
        if self.is_there() {
            let mut released = 0;
            // SAFETY: the pointer is valid for writing.
            unsafe { bfc_sys::bfc_trim(self.ordinal, 0, &mut released) };
        }
    }
}
