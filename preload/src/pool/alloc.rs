//! Serving a request, and what is tried before it is left to the driver.

use cuda_sys::*;

use super::handle::{Pool, Refused};
use super::requests::ALIGNMENT;
use crate::bfc::{self, Stats, Status};
use crate::diagnostics::check_log::PassReason;
use crate::settings;
use crate::state::{captures, internal_streams};

/// Pools with so many waiting frees are synchronized anyway: their chunks take host memory and keep others from merging.
const MAX_WAITING_FREES: u64 = 1024;

impl Pool {
    /// The same, where there is a limit also before anything was allocated: programs ask what there is, and then take it.
    pub(crate) fn stats_or_create(self) -> Option<Stats> {
        self.stats().or_else(|| {
            if !settings::is_limited() {
                return None;
            }
            self.create().ok()?;
            self.stats()
        })
    }

    /// Serves a request of cudaMalloc's kind: the memory may be used by any work from now on.
    #[inline]
    pub(crate) fn alloc(self, bytes: usize, stream: Option<CUstream>) -> Result<u64, Refused> {
        if !self.is_known() {
            // It may serve already, created by another thread or by the program. But a free has to know whose it is.
            self.create()?;
        }
        if self.waiting() >= MAX_WAITING_FREES && self.has_quarantine() {
            self.reuse_waiting_frees(u64::MAX);
        }
        self.flush_deferred_frees();
        match self.request(bytes, stream, bfc::HELD_ONLY) {
            Ok(address) => Ok(address),
            Err(status) => self.alloc_slowly(bytes, stream, status),
        }
    }

    #[cold]
    fn alloc_slowly(self, bytes: usize, stream: Option<CUstream>, status: Status) -> Result<u64, Refused> {
        if status == bfc::NO_ALLOCATOR {
            self.create()?;
        } else if status != bfc::OUT_OF_MEMORY {
            return Err(Refused::Pass(PassReason::Pool));
        } else if stream.is_some() && captures::any() {
            // What libbfc would wait for may be captured.
            return Err(Refused::Pass(PassReason::Capture));
        } else if self.waiting() != 0
            && self.has_quarantine()
            && self.reuse_waiting_frees(bytes as u64)
            && let Ok(address) = self.request(bytes, stream, bfc::HELD_ONLY)
        {
            return Ok(address);
        }
        // In the order of a stream it may be memory that others' work is still to leave: the stream waits for that. But
        // whoever uses what cudaMalloc gave waits for nobody, so that is a request without a stream, which itself waits.
        let stream = stream.filter(|&stream| !internal_streams::is_internal(stream));
        match self.request(bytes, stream, 0) {
            Ok(address) => return Ok(address),
            Err(bfc::OUT_OF_MEMORY) => {}
            Err(_) => return Err(Refused::Pass(PassReason::Pool)),
        }
        // Rather at another place than behind a synchronization, or not at all.
        if self.alignment_of(bytes) != ALIGNMENT
            && let Ok(address) = self.request_at(ALIGNMENT, bytes, stream, 0)
        {
            return Ok(address);
        }
        // Without a quarantine libbfc has waited for everything already.
        if self.waiting() != 0
            && self.has_quarantine()
            && self.synchronize() == CUDA_SUCCESS
            && let Ok(address) =
                self.request(bytes, stream, 0).or_else(|_| self.request_at(ALIGNMENT, bytes, stream, 0))
        {
            return Ok(address);
        }
        // The limit is meant for devices.
        if settings::is_limited() && self.ordinal != bfc::PINNED {
            return Err(Refused::OutOfMemory);
        }
        // The driver may find in one piece what the pool cannot.
        self.trim();
        Err(Refused::Pass(PassReason::Full))
    }
}
