//! The callback before an idle pool gives memory back (`BFC_TRIM_AFTER`). The client can say there which work is done.

use crate::error::{ErrorKind, call_back, fail};
use crate::pool::idle_time::IdleCallback;
use crate::pool::slot::{CallKind, Guard, Slot};

/// Calls the callback, if there is one, with the lock open.
pub(super) fn call(guard: &mut Guard<'_>) -> Result<(), ErrorKind> {
    let Some(callback) = guard.idle.callback else { return Ok(()) };
    let device = guard.device;
    guard.outside(CallKind::Settles, || call_back(|| callback.call(device)));
    guard.check_entry()
}

/// Sets or removes the callback. The previous one is not called any more when this returns.
pub(crate) fn set(slot: &Slot, callback: Option<IdleCallback>) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    refuse_inside(&guard)?;
    guard.idle.callback = callback;
    while guard.is_settling(false) {
        guard.wait_for_call()?;
    }
    Ok(())
}

/// Refuses a call that would wait for the callback that makes it.
pub(in crate::pool) fn refuse_inside(guard: &Guard<'_>) -> Result<(), ErrorKind> {
    if !guard.is_settling(true) {
        return Ok(());
    }
    Err(fail!(
        ErrorKind::Busy,
        "the callback of bfc_set_idle_callback would wait for itself: call this after it has returned"
    ))
}
