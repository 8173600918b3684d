//! Frees.

use super::guarded;
use super::slot::{FastGuard, Slot};
use super::take_back::take_back;
use crate::error::ErrorKind;
use bfc_core::stream_id::Stream;

/// Frees a chunk.
#[inline(always)]
pub(crate) fn free(slot: &Slot, addr: u64) -> Result<(), ErrorKind> {
    match try_free(slot, addr, Stream::NONE) {
        Ok(()) => Ok(()),
        Err(entered) => free_recorded::<true>(slot, entered, addr, Stream::NONE, false),
    }
}

/// Frees a chunk in the order of a stream. `is_current` says that the device's context was found current in this call.
#[inline(always)]
pub(crate) fn free_on(slot: &Slot, addr: u64, stream: Stream, is_current: bool) -> Result<(), ErrorKind> {
    match try_free(slot, addr, stream) {
        Ok(()) => Ok(()),
        Err(entered) => free_recorded::<false>(slot, entered, addr, stream, is_current),
    }
}

/// Frees a chunk in the usual case: of a pool without observers, with the lock open and no call under way. Otherwise returns
/// the locked slot, if its lock was open.
#[inline(always)]
fn try_free(slot: &Slot, addr: u64, stream: Stream) -> Result<(), Option<FastGuard<'_>>> {
    let Some(mut entered) = slot.try_enter() else { return Err(None) };
    if !entered.pool().is_some_and(|pool| pool.arena.try_free(addr, stream)) {
        return Err(Some(entered));
    }
    leave(entered);
    Ok(())
}

/// Frees a chunk in the usual case of a pool that is recorded, and otherwise as [`free_with_guard`] does. `NO_STREAM` says
/// that there is neither a stream nor a context, which saves instructions: an event may take few.
#[inline(never)]
fn free_recorded<const NO_STREAM: bool>(
    slot: &Slot,
    entered: Option<FastGuard<'_>>,
    addr: u64,
    stream: Stream,
    is_current: bool,
) -> Result<(), ErrorKind> {
    let (stream, is_current) = if NO_STREAM { (Stream::NONE, false) } else { (stream, is_current) };
    let Some(mut entered) = entered else { return free_with_guard(slot, None, addr, stream, is_current) };
    // Without a closure, which the compiler would not inline.
    if let Some(pool) = entered.recorded_pool() {
        let before = pool.arena.counters().bytes_in_use;
        if pool.arena.try_free(addr, stream) {
            pool.note_freed(addr, stream, before);
            leave(entered);
            return Ok(());
        }
    }
    free_with_guard(slot, Some(entered), addr, stream, is_current)
}

#[inline(always)]
fn leave(entered: FastGuard<'_>) {
    if entered.has_sleepers() {
        wake(entered);
    } else {
        entered.leave();
    }
}

#[cold]
fn wake(entered: FastGuard<'_>) {
    entered.into_guard().notify();
}

/// Frees a chunk where the usual cases do not suffice.
#[inline(never)]
fn free_with_guard(
    slot: &Slot,
    entered: Option<FastGuard<'_>>,
    addr: u64,
    stream: Stream,
    is_current: bool,
) -> Result<(), ErrorKind> {
    let guard = slot.enter_after(entered)?;
    if stream != Stream::NONE {
        guard.require_no_timestamps()?;
    }
    if guard.is_guarded() {
        return guarded::free(guard, addr, stream);
    }
    take_back(guard, addr, stream, is_current)
}
