//! Why a call failed whose signature, a framework's, has no place for a status.

use crate::capi::types::bfc_status_t;
use crate::sys::thread::{Local, per_thread};

#[derive(Clone, Copy)]
struct Last(bfc_status_t);

impl Local for Last {
    const EMPTY: Self = Last(0);
}

per_thread!(static LAST: Last);

/// Remembers a failure; without host memory for it, it is lost.
#[cold]
pub(in crate::capi) fn note(status: bfc_status_t) {
    let _ = LAST.update(|last| last.0 = status);
}

/// Gets the status of this thread's last failed call of a function of this header that returns none: a shim around one
/// tells by it memory that ran out from all else. Its words are in bfc_last_error. A success leaves it.
///
/// @return A status; BFC_OK if no such call has failed yet in this thread.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_adapter_status() -> bfc_status_t {
    LAST.get(|last| last.0).unwrap_or_default()
}
