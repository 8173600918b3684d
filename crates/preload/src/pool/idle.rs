//! Idle pools, whose memory libbfc's thread returns to the driver (`BFC_TRIM_AFTER`). It calls this module to find out
//! which frees are reusable.

use std::ffi::c_void;

use super::handle::Pool;
use super::probe::ProbeResult;
use crate::bfc;
use crate::state::captures;

/// Makes waiting frees reusable before a pool is trimmed. Called again while any are waiting.
pub(super) unsafe extern "C" fn settle(_: *mut c_void, ordinal: i32) {
    if captures::any() {
        return;
    }
    let pool = if ordinal == bfc::PINNED { Some(Pool::pinned()) } else { Pool::of_ordinal(ordinal) };
    let Some(pool) = pool else { return };
    pool.flush_deferred_frees();
    if pool.waiting() != 0 && pool.has_quarantine() && pool.probe_twice() == ProbeResult::Unsupported {
        pool.synchronize();
    }
}
