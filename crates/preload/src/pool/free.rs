//! Frees.

use bfc_sys::{
    BFC_ERROR_DOUBLE_FREE, BFC_ERROR_INVALID_POINTER, BFC_ERROR_NO_ALLOCATOR, BFC_ERROR_UNSUPPORTED, BFC_OK,
};
use std::sync::atomic::Ordering;

use cuda_sys::*;

use super::handle::{MUTATED, Pool, pointer};
use crate::bfc;
use crate::settings;

/// The result of a free.
pub(crate) enum Freed {
    /// The pool has freed the chunk, or refused with this code.
    Here(CUresult),
    /// The memory does not belong to this pool, but possibly to another one.
    Elsewhere(Option<Pool>),
}

impl Freed {
    /// Returns the pool's code, if the memory belongs to it.
    pub(crate) fn code(self) -> Option<CUresult> {
        match self {
            Freed::Here(code) => Some(code),
            Freed::Elsewhere(_) => None,
        }
    }
}

impl Pool {
    /// Waits for the device's own context if the address is that of a live chunk. Returns whether other work may still use
    /// the chunk.
    fn wait_before_free(self, address: u64) -> Result<bool, CUresult> {
        let mut bytes = 0;
        // SAFETY: any address may be queried, and the pointer is valid for writing.
        if unsafe { bfc_sys::bfc_requested_size(self.ordinal, pointer(address), &mut bytes) } != BFC_OK {
            // The free itself reports the error.
            return Ok(false);
        }
        match self.synchronize_own() {
            CUDA_SUCCESS => Ok(!self.device().is_some_and(|device| self.is_sole_user(device))),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => Ok(true),
            code => Err(code),
        }
    }

    /// Frees a chunk like cudaFree, and synchronizes before or afterwards if required.
    #[inline]
    pub(crate) fn free(self, address: u64) -> Freed {
        let freed = self.give_back(address);
        let is_freed = matches!(freed, Freed::Here(CUDA_SUCCESS));
        if is_freed && settings::free_synchronizes() && self.has_quarantine() {
            return match self.synchronize_own() {
                // The chunk is free, and stays in quarantine.
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => freed,
                code => Freed::Here(code),
            };
        }
        freed
    }

    /// Frees a chunk like cudaFreeAsync. Returns `None` if the pool does not support streams because the program has
    /// created it.
    #[inline]
    pub(crate) fn free_in_order(self, address: u64, stream: CUstream) -> Option<CUresult> {
        if self.has_deferred(address) {
            return Some(CUDA_ERROR_INVALID_VALUE);
        }
        match bfc::free_async(self.ordinal, pointer(address), stream.cast()) {
            BFC_OK => {
                self.state.freed.fetch_add(1, Ordering::Relaxed);
                Some(CUDA_SUCCESS)
            }
            BFC_ERROR_UNSUPPORTED => None,
            BFC_ERROR_DOUBLE_FREE | BFC_ERROR_INVALID_POINTER => Some(CUDA_ERROR_INVALID_VALUE),
            _ => Some(CUDA_ERROR_NOT_INITIALIZED),
        }
    }

    /// Returns a chunk to the pool.
    #[inline]
    fn give_back(self, address: u64) -> Freed {
        if !self.has_quarantine() && !MUTATED {
            // The chunk may be reused at once, so no work may still use it.
            self.flush_deferred_frees();
            if self.has_deferred(address) {
                return Freed::Here(CUDA_ERROR_INVALID_VALUE);
            }
            match self.wait_before_free(address) {
                Ok(true) if self.defer_free(address) => {
                    self.flush_deferred_frees();
                    return Freed::Here(CUDA_SUCCESS);
                }
                Ok(true) => match self.wait() {
                    CUDA_SUCCESS => {}
                    code => return Freed::Here(code),
                },
                Ok(false) => {}
                Err(code) => return Freed::Here(code),
            }
        }
        match self.return_chunk(address) {
            BFC_OK => {
                self.state.freed.fetch_add(1, Ordering::Relaxed);
                Freed::Here(CUDA_SUCCESS)
            }
            BFC_ERROR_DOUBLE_FREE => Freed::Here(CUDA_ERROR_INVALID_VALUE),
            BFC_ERROR_INVALID_POINTER | BFC_ERROR_NO_ALLOCATOR => self.failed_free(address),
            // In the child of a fork, or while the pool ends. Such a free is never passed to the driver, because the
            // address may be that of a region.
            _ => Freed::Here(CUDA_ERROR_NOT_INITIALIZED),
        }
    }

    /// Returns the reason why libbfc refused: the address is inside a chunk, or free, or not of this pool.
    #[cold]
    fn failed_free(self, address: u64) -> Freed {
        match bfc::owner(address) {
            Some(owner) if owner == self.ordinal => Freed::Here(CUDA_ERROR_INVALID_VALUE),
            owner => Freed::Elsewhere(owner.and_then(Pool::of_ordinal)),
        }
    }
}
