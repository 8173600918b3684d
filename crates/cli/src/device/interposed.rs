//! A device whose requests are made as the interposer makes them (`crates/preload/src/pool/alloc.rs`). The device's work is done
//! whenever it is asked for.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use bfc_sys::interposer::{self, Waiting};
use bfc_sys::{bfc_request_t, bfc_status_t};

use super::{Device, Frees};

impl Device<'_> {
    /// Requests memory in the order of the interposer's attempts (`crates/preload/src/pool/alloc.rs`).
    #[cold]
    pub(super) fn alloc_interposed(&self, bytes: usize, frees: Frees, out: &mut *mut c_void) -> bfc_status_t {
        use bfc_sys::BFC_ERROR_OUT_OF_MEMORY as NONE;
        // Small requests without growth leave large chunks to large requests, as those of the interposer do.
        const NO_GROWTH: u32 = bfc_sys::BFC_REQUEST_NO_GROWTH | bfc_sys::BFC_REQUEST_ATTEMPT;
        let mut attempt = |alignment: usize, flags: u32| {
            let request = bfc_request_t {
                struct_size: size_of::<bfc_request_t>(),
                bytes,
                alignment,
                flags: flags | bfc_sys::BFC_REQUEST_SIZE_512,
                ..bfc_request_t::default()
            };
            // SAFETY: a valid struct that says its own size, and an out-pointer that is valid for a write.
            unsafe { (self.library.api.bfc_alloc_ex)(self.ordinal, &raw const request, &raw mut *out) }
        };
        let alignment = interposer::alignment_of(bytes);
        if frees == Frees::Wait {
            if self.waiting() >= interposer::MAX_WAITING_FREES {
                self.make_reusable(self.frees());
            }
            match attempt(alignment, NO_GROWTH) {
                NONE if self.waiting() != 0 && self.is_worth_a_probe(bytes) => {
                    self.make_reusable(self.frees());
                    match attempt(alignment, NO_GROWTH) {
                        NONE => {}
                        status => return status,
                    }
                }
                NONE => {}
                status => return status,
            }
        }
        let mut attempts = || match attempt(alignment, 0) {
            NONE => attempt(interposer::ALIGNMENT, 0),
            status => status,
        };
        match attempts() {
            NONE if frees == Frees::Wait && self.waiting() != 0 => {
                self.make_reusable(self.frees());
                attempts()
            }
            status => status,
        }
    }

    fn is_worth_a_probe(&self, bytes: usize) -> bool {
        self.stats().is_ok_and(|stats| {
            let (in_use, peak_in_use) = (stats.bytes_in_use, stats.peak_bytes_in_use);
            let (held, limit) = (stats.pool_bytes, stats.bytes_limit);
            let waiting = Waiting { frees: self.waiting(), in_use, peak_in_use, held, limit };
            waiting.is_worth_a_probe(bytes as u64)
        })
    }

    /// How many frees of this pool wait.
    fn waiting(&self) -> u64 {
        self.frees().saturating_sub(self.reusable.load(Ordering::Relaxed))
    }

    /// Whether freed memory is reusable only after [`Self::make_reusable`].
    pub fn waits(&self) -> bool {
        self.interposed == Some(Frees::Wait)
    }

    /// How many frees of this pool have a stamp.
    fn frees(&self) -> u64 {
        let mut frees = 0;
        // SAFETY: the out-pointer is valid for a write. Without stamps it stays 0.
        unsafe { (self.library.api.bfc_timestamp)(self.ordinal, &raw mut frees) };
        frees
    }

    /// Makes the memory of this pool's first frees reusable.
    pub fn make_reusable(&self, frees: u64) {
        self.reusable.fetch_max(frees, Ordering::Relaxed);
        // SAFETY: any numbers may be passed. It fails only for a pool without stamps.
        unsafe { (self.library.api.bfc_set_safe_frontier)(self.ordinal, frees + 1) };
    }
}
