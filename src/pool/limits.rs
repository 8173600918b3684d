//! The limit of a pool that exists, and limits that follow the memory of the system: that of a control group may change
//! while the program runs.
//!
//! A limit that is a share of the total is compared with it before the pool grows, at most once a second, and before the
//! limit refuses growth. With `BFC_TRIM_AFTER` a thread compares it too, whatever the pool does.

use super::give_back::{discard_beyond, give_back_to, record_trim};
use super::slot::{Guard, Slot};
use crate::error::{Error, keeping_last_error};
use crate::log::{self, Level};
use crate::options::share_of;

/// Brings the limit up to date, before the pool grows by at least `least` bytes.
pub(super) fn before_growth(guard: Guard<'_>, least: u64) -> Result<Guard<'_>, Error> {
    match guard.limit_share.get() {
        Some(share) if guard.limit_share.is_due() || least > guard.arena.growth().available() => {
            renew(guard, share)
        }
        _ => Ok(guard),
    }
}

/// Brings the limit of a pool up to date, also if nothing uses the pool.
pub(super) fn look(slot: &Slot) -> Result<(), Error> {
    let guard = slot.enter()?;
    if let Some(share) = guard.limit_share.get() {
        renew(guard, share)?;
    }
    Ok(())
}

/// Asks for the total memory, and sets the limit to a share of it. Free memory beyond a lower limit goes back.
#[inline(never)]
fn renew(mut guard: Guard<'_>, share: f64) -> Result<Guard<'_>, Error> {
    guard.limit_share.note_asked();
    let (guard, total) = guard.asking(|backend| backend.total_memory());
    let guard = guard.check_entry()?;
    // Another thread may have set a limit meanwhile.
    let Some(total) = total.filter(|_| guard.limit_share.get() == Some(share)) else { return Ok(guard) };
    let limit = share_of(total, share);
    if possible(&guard, limit) == guard.arena.growth().limit() {
        return Ok(guard);
    }
    // If the backend cannot prepare for the limit now, the next look tries again.
    let (guard, _) = keeping_last_error(|| change_limit(guard, limit))?;
    if guard.arena.growth().pool_bytes() > guard.arena.growth().limit() {
        give_beyond(guard)
    } else {
        Ok(guard)
    }
}

/// Gives wholly free regions beyond the limit back, and the pages of free chunks, without waiting for work.
#[inline(never)]
fn give_beyond(guard: Guard<'_>) -> Result<Guard<'_>, Error> {
    let limit = guard.arena.growth().limit();
    let (guard, released) = keeping_last_error(|| give_back_to(guard, limit, true))?;
    let (guard, discarded) = discard_beyond(guard, limit, |_| true)?;
    record_trim(&guard, released.unwrap_or(0) + discarded);
    Ok(guard)
}

/// Changes the limit. Memory beyond it stays held. The inner error is one of the backend: it cannot prepare for the limit,
/// which stays as it was.
#[inline(never)]
pub(super) fn change_limit(
    mut guard: Guard<'_>,
    limit: u64,
) -> Result<(Guard<'_>, Result<(), Error>), Error> {
    let limit = possible(&guard, limit);
    if guard.arena.range().is_some() {
        let prepared;
        (guard, prepared) = guard.asking(|backend| backend.granules().map_or(Ok(()), |of| of.admit(limit)));
        guard = guard.check_entry()?;
        if prepared.is_err() {
            return Ok((guard, prepared));
        }
    }
    guard.arena.set_limit(limit);
    if let Some(history) = &guard.history {
        history.limited(&guard.arena);
    }
    guard.notify();
    let device = guard.device;
    guard = guard.talking(|| {
        log::emit(Level::Info, format_args!("device {device}: the limit is {limit} bytes from now on"));
    });
    Ok((guard.check_entry()?, Ok(())))
}

/// Returns the limit that a pool can have. A range has no more addresses than it reserved, and only whole granules are
/// mapped.
fn possible(guard: &Guard<'_>, limit: u64) -> u64 {
    let Some(range) = guard.arena.range() else { return limit };
    let limit = limit.min(range.bytes);
    limit - limit % range.granule
}
