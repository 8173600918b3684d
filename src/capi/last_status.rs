//! The last failure of functions whose signature, given by a framework, has no room for a status.

use super::types::bfc_status_t;
use crate::sys::thread::{Local, per_thread};

#[derive(Clone, Copy)]
struct LastStatus(bfc_status_t);

impl Local for LastStatus {
    const EMPTY: Self = LastStatus(0);
}

per_thread!(static LAST: LastStatus);

/// Stores the status of a failure. Without host memory for it, it is lost.
#[cold]
pub(super) fn store(status: bfc_status_t) {
    let _ = LAST.update(|last| last.0 = status);
}

/// Returns the status of this thread's last failure.
pub(super) fn get() -> bfc_status_t {
    LAST.get(|last| last.0).unwrap_or_default()
}
