//! Frees.

use super::guarded;
use super::slot::{FastGuard, Slot};
use super::take_back::{free_now, free_now_on};
use crate::core::stream_id::Stream;
use crate::error::Error;

/// Frees a chunk.
#[inline(always)]
pub(crate) fn free(slot: &Slot, addr: u64) -> Result<(), Error> {
    match free_at_once(slot, addr, Stream::NONE) {
        Ok(()) => Ok(()),
        Err(entered) => free_recorded(slot, entered, addr),
    }
}

/// Frees a chunk in the order of a stream. `is_current` says that the device's context was found current in this call.
#[inline(always)]
pub(crate) fn free_on(slot: &Slot, addr: u64, stream: Stream, is_current: bool) -> Result<(), Error> {
    match free_at_once(slot, addr, stream) {
        Ok(()) => Ok(()),
        Err(entered) => free_recorded_on(slot, entered, addr, stream, is_current),
    }
}

/// Frees a chunk in the usual case. Otherwise returns the slot, if it was ready.
#[inline(always)]
fn free_at_once(slot: &Slot, addr: u64, stream: Stream) -> Result<(), Option<FastGuard<'_>>> {
    let Some(mut entered) = slot.try_enter() else { return Err(None) };
    if !entered.pool().is_some_and(|pool| pool.arena.free_at_once(addr, stream)) {
        return Err(Some(entered));
    }
    leave(entered);
    Ok(())
}

/// Frees a chunk in the usual case of a pool that is recorded, and otherwise as [`free_otherwise`] does.
#[inline(never)]
fn free_recorded(slot: &Slot, entered: Option<FastGuard<'_>>, addr: u64) -> Result<(), Error> {
    match free_recorded_at_once(entered, addr, Stream::NONE) {
        Ok(()) => Ok(()),
        Err(entered) => free_otherwise(slot, entered, addr),
    }
}

#[inline(never)]
fn free_recorded_on(
    slot: &Slot,
    entered: Option<FastGuard<'_>>,
    addr: u64,
    stream: Stream,
    is_current: bool,
) -> Result<(), Error> {
    match free_recorded_at_once(entered, addr, stream) {
        Ok(()) => Ok(()),
        Err(entered) => free_otherwise_on(slot, entered, addr, stream, is_current),
    }
}

#[inline(always)]
fn free_recorded_at_once<'a>(
    entered: Option<FastGuard<'a>>,
    addr: u64,
    stream: Stream,
) -> Result<(), Option<FastGuard<'a>>> {
    let Some(mut entered) = entered else { return Err(None) };
    // Without a closure, which the compiler would not inline.
    if let Some(pool) = entered.recorded_pool()
        && pool.free_recorded(addr, stream)
    {
        leave(entered);
        return Ok(());
    }
    Err(Some(entered))
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

#[inline(never)]
fn free_otherwise(slot: &Slot, entered: Option<FastGuard<'_>>, addr: u64) -> Result<(), Error> {
    let guard = slot.enter_after(entered)?;
    if guard.is_guarded() { guarded::free(guard, addr, Stream::NONE) } else { free_now(guard, addr) }
}

#[inline(never)]
fn free_otherwise_on(
    slot: &Slot,
    entered: Option<FastGuard<'_>>,
    addr: u64,
    stream: Stream,
    is_current: bool,
) -> Result<(), Error> {
    let guard = slot.enter_after(entered)?;
    guard.require_no_timestamps()?;
    if guard.is_guarded() {
        return guarded::free(guard, addr, stream);
    }
    free_now_on(guard, addr, stream, is_current)
}
