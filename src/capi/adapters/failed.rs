//! The failure of a function whose signature has no room for a status.

use crate::capi::last_status;
use crate::capi::types::bfc_status_t;

/// Returns the status of this thread's last failed call of a function of this header that returns none. It lets
/// wrappers tell out-of-memory from other failures. The error message is in bfc_last_error. A success does not change
/// the status.
///
/// @return A status. BFC_OK if no such call has failed in this thread yet.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_adapter_status() -> bfc_status_t {
    last_status::get()
}
