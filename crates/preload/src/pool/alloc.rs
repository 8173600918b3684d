//! Requests: the attempts made in a pool before a request is left to the driver.

use bfc_sys::interposer::{ALIGNMENT, MAX_WAITING_FREES};
use bfc_sys::{BFC_ERROR_NO_ALLOCATOR, BFC_ERROR_OUT_OF_MEMORY, bfc_status_t};
use cuda_sys::*;

use super::handle::{Pool, Refused};
use super::requests::{ALL_HELD, GROWING, HELD};
use crate::bfc;
use crate::diagnostics::check_log::PassReason;
use crate::settings;
use crate::state::{captures, internal_streams};

impl Pool {
    /// Creates the pool if there is a limit, because programs query the amount of memory and then allocate it.
    pub(crate) fn create_if_limited(self) {
        if settings::is_limited() && !self.has_stats() {
            let _ = self.create();
        }
    }

    /// Out of line, so that the statistics are not on the stack while a pool is created.
    #[inline(never)]
    fn has_stats(self) -> bool {
        self.stats().is_some()
    }

    /// Serves a request like cudaMalloc: any work may use the memory at once.
    #[inline]
    pub(crate) fn alloc(self, bytes: usize, stream: Option<CUstream>) -> Result<u64, Refused> {
        if !self.is_known() {
            // Another thread or the program may have created the pool, so it may be able to serve the request already.
            // But a free must know the creator.
            self.create()?;
        }
        if self.waiting() >= MAX_WAITING_FREES && self.has_quarantine() {
            self.reuse_many_frees();
        }
        self.flush_deferred_frees();
        match self.request(bytes, stream, HELD) {
            Ok(address) => Ok(address),
            Err(status) => self.alloc_slowly(bytes, stream, status),
        }
    }

    #[cold]
    fn alloc_slowly(
        self,
        bytes: usize,
        stream: Option<CUstream>,
        status: bfc_status_t,
    ) -> Result<u64, Refused> {
        let settled = self.settled();
        if status == BFC_ERROR_NO_ALLOCATOR {
            self.create()?;
        } else if status != BFC_ERROR_OUT_OF_MEMORY {
            return Err(Refused::Pass(PassReason::Pool));
        } else if stream.is_some() && captures::any() {
            // libbfc might wait for captured work.
            return self.serve_or_pass(bytes, stream);
        } else if self.waiting() != 0
            && self.has_quarantine()
            && self.reuse_done_frees(bytes as u64)
            && let Ok(address) = self.request(bytes, stream, HELD)
        {
            return Ok(address);
        } else if self.waiting() != 0 && !settings::is_limited() && self.can_never_settle() {
            // Memory from the driver is freed to the driver, which itself waits.
            return self.serve_or_pass(bytes, stream);
        }
        // In the order of a stream, the pool may return memory that other streams' work still uses, because the stream
        // waits for that work. Users of cudaMalloc's memory do not wait, so their request is made without a stream and
        // waits itself.
        let stream = stream.filter(|&stream| !internal_streams::is_internal(stream));
        match self.request_growing(bytes, stream) {
            Ok(address) => return Ok(address),
            Err(BFC_ERROR_OUT_OF_MEMORY) => {}
            Err(_) => return Err(Refused::Pass(PassReason::Pool)),
        }
        // Waiting would be pointless: the driver's own cudaMalloc would refuse at once.
        let may_serve = !captures::any() && self.may_serve(bytes as u64);
        // Without a quarantine libbfc has waited for everything already, except what was deferred.
        if may_serve
            && (self.has_quarantine() || self.has_any_deferred())
            && let Some(address) = self.alloc_after_waiting(bytes, stream, settled)
        {
            return Ok(address);
        }
        // The limit applies to devices.
        if settings::is_limited() && self.ordinal != bfc::PINNED {
            return Err(Refused::OutOfMemory);
        }
        // The driver may find a contiguous range where the pool cannot.
        if may_serve {
            self.trim();
        }
        Err(Refused::Pass(PassReason::Full))
    }

    /// Attempts a request for which the pool may grow. A place with a smaller alignment is better than waiting for the
    /// device, or than a failure.
    fn request_growing(self, bytes: usize, stream: Option<CUstream>) -> Result<u64, bfc_status_t> {
        match self.request(bytes, stream, GROWING) {
            Err(BFC_ERROR_OUT_OF_MEMORY) if self.alignment_of(bytes) != ALIGNMENT => {
                self.request_at(ALIGNMENT, bytes, stream, GROWING)
            }
            done => done,
        }
    }

    /// Serves a request from the memory that the pool holds, including large chunks, or leaves it to the driver.
    fn serve_or_pass(self, bytes: usize, stream: Option<CUstream>) -> Result<u64, Refused> {
        self.request(bytes, stream, ALL_HELD).map_err(|_| Refused::Pass(PassReason::Capture))
    }

    /// Waits for the device as the last resort. `settled` is how many frees had become reusable when the request began:
    /// another thread may have made some reusable meanwhile.
    #[cold]
    fn alloc_after_waiting(self, bytes: usize, stream: Option<CUstream>, mut settled: u64) -> Option<u64> {
        // Busy threads could keep freeing memory that does not serve this request.
        const ROUNDS: u32 = 4;
        for _ in 0..ROUNDS {
            let waits = self.waits();
            if waits && !self.settle() || !waits && self.settled() == settled {
                return None;
            }
            settled = self.settled();
            if let Ok(address) = self.request_growing(bytes, stream) {
                return Some(address);
            }
        }
        None
    }
}
