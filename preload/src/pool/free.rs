//! Taking memory back.

use std::sync::atomic::Ordering;

use cuda_sys::*;

use super::handle::{MUTATED, Pool, pointer};
use crate::bfc;
use crate::settings;

/// What became of a free.
pub(crate) enum Freed {
    /// The pool has taken the chunk back, or says why not.
    Here(CUresult),
    /// It is none of this pool's memory, but perhaps of another one's.
    Elsewhere(Option<Pool>),
}

impl Freed {
    /// What the pool says, if it is its memory.
    pub(crate) fn code(self) -> Option<CUresult> {
        match self {
            Freed::Here(code) => Some(code),
            Freed::Elsewhere(_) => None,
        }
    }
}

impl Pool {
    /// Waits for the device before a live chunk of this pool is freed.
    fn wait_before_free(self, address: u64) -> CUresult {
        let mut bytes = 0;
        // SAFETY: any address may be asked for, and the pointer is valid for writing.
        match unsafe { bfc::bfc_requested_size(self.ordinal, pointer(address), &mut bytes) } {
            bfc::OK => self.wait(),
            // The free itself says what is wrong.
            _ => CUDA_SUCCESS,
        }
    }

    /// cudaFree of an address that is this pool's if anybody's.
    #[inline]
    pub(crate) fn free(self, address: u64) -> Freed {
        let freed = self.give_back(address);
        let is_freed = matches!(freed, Freed::Here(CUDA_SUCCESS));
        if is_freed && settings::free_synchronizes() && self.has_quarantine() {
            return match self.synchronize() {
                // It is freed, and waits.
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED => freed,
                code => Freed::Here(code),
            };
        }
        freed
    }

    /// cudaFreeAsync of an address of this pool. `None` if the pool takes no streams: the program has created it.
    #[inline]
    pub(crate) fn free_in_order(self, address: u64, stream: CUstream) -> Option<CUresult> {
        match bfc::bfc_free_async(self.ordinal, pointer(address), stream.cast()) {
            bfc::OK => {
                self.state.freed.fetch_add(1, Ordering::Relaxed);
                Some(CUDA_SUCCESS)
            }
            bfc::UNSUPPORTED => None,
            bfc::DOUBLE_FREE | bfc::INVALID_POINTER => Some(CUDA_ERROR_INVALID_VALUE),
            _ => Some(CUDA_ERROR_NOT_INITIALIZED),
        }
    }

    /// Takes a chunk back.
    #[inline]
    fn give_back(self, address: u64) -> Freed {
        if !self.has_quarantine() && !MUTATED {
            // What is freed here may be handed out at once, so it must not be in use any more.
            self.flush_deferred_frees();
            if self.has_deferred(address) {
                return Freed::Here(CUDA_ERROR_INVALID_VALUE);
            }
            match self.wait_before_free(address) {
                CUDA_SUCCESS => {}
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if self.defer_free(address) => {
                    return Freed::Here(CUDA_SUCCESS);
                }
                code => return Freed::Here(code),
            }
        }
        match self.return_chunk(address) {
            bfc::OK => {
                self.state.freed.fetch_add(1, Ordering::Relaxed);
                Freed::Here(CUDA_SUCCESS)
            }
            bfc::DOUBLE_FREE => Freed::Here(CUDA_ERROR_INVALID_VALUE),
            bfc::INVALID_POINTER | bfc::NO_ALLOCATOR => self.failed_free(address),
            // In the child of a fork, or while the pool ends: never to the driver, to which it may be a region.
            _ => Freed::Here(CUDA_ERROR_NOT_INITIALIZED),
        }
    }

    /// It is inside of a chunk, or free, or not of this pool.
    #[cold]
    fn failed_free(self, address: u64) -> Freed {
        match bfc::owner(address) {
            Some(owner) if owner == self.ordinal => Freed::Here(CUDA_ERROR_INVALID_VALUE),
            owner => Freed::Elsewhere(owner.and_then(Pool::of_ordinal)),
        }
    }
}
