//! The last failure of functions whose signature, given by a framework, has no room for a status.

use crate::capi::types::bfc_status_t;
use crate::sys::thread::{Local, per_thread};

#[derive(Clone, Copy)]
struct Last(bfc_status_t);

impl Local for Last {
    const EMPTY: Self = Last(0);
}

per_thread!(static LAST: Last);

/// Stores the status of a failure. Without host memory for it, it is lost.
#[cold]
pub(in crate::capi) fn note(status: bfc_status_t) {
    let _ = LAST.update(|last| last.0 = status);
}

/// Gets the status of this thread's last failed call of a function of this header that returns none. It lets wrappers
/// tell out-of-memory from other failures. The message is in bfc_last_error. A success does not change the status.
///
/// @return A status. BFC_OK if no such call has failed in this thread yet.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_adapter_status() -> bfc_status_t {
    LAST.get(|last| last.0).unwrap_or_default()
}
