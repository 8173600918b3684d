//! The limit of a pool that exists, and limits that follow the memory of the system: that of a control group may change
//! while the program runs.
//!
//! A limit that is a share of the total is compared with it before the pool grows, at most once a second, and whenever it
//! has no room. With `BFC_TRIM_AFTER` a thread compares it too, whatever the pool does.

use super::give_back::{discard_beyond, give_back_to, record_trim};
use crate::backend::granules::Granules;
use crate::error::ErrorKind;
use crate::log::{self, Level};
use crate::options::{Limit, share_of};
use crate::pool::limit_share::LimitShare;
use crate::pool::slot::{CallKind, Guard, Outside, Slot, deferred, or_reborn, unsaid_outside};

/// Brings the limit up to date, before the pool grows by at least `least` bytes.
pub(in crate::pool) fn before_growth(guard: &mut Guard<'_>, least: u64) -> Outside {
    match guard.limit_share.get() {
        Some(share) if guard.limit_share.is_due() || least > guard.arena.growth().available() => {
            renew(guard, share)
        }
        _ => Ok(()),
    }
}

/// Brings the limit of a pool up to date that nothing may be using.
pub(super) fn keep_up_to_date(slot: &Slot) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    match guard.limit_share.get() {
        Some(share) => or_reborn(renew(&mut guard, share), &guard, ()),
        None => Ok(()),
    }
}

/// Determines the total memory, and sets the limit to a share of it. Free memory beyond it goes back. A limit that cannot
/// be determined stays.
#[inline(never)]
fn renew(guard: &mut Guard<'_>, share: f64) -> Outside {
    guard.limit_share.note_compared();
    let total = guard.ask(CallKind::Orders, |backend| backend.total_now());
    guard.check_entry()?;
    // Another thread may have set a limit meanwhile.
    let Some(total) = total.filter(|_| guard.limit_share.get() == Some(share)) else { return Ok(()) };
    let limit = share_of(total, share);
    if limit != guard.arena.growth().limit() {
        put_in_force(guard, Limit { bytes: limit, share: Some(share) })?;
    }
    if guard.arena.growth().pool_bytes() > guard.arena.growth().limit() {
        give_beyond(guard)?;
    }
    Ok(())
}

/// Gives wholly free regions beyond the limit back, and the pages of free chunks, without waiting for work. What cannot go
/// back now goes back later.
#[inline(never)]
fn give_beyond(guard: &mut Guard<'_>) -> Outside {
    let limit = guard.arena.growth().limit();
    let released = deferred(unsaid_outside(guard, |guard| give_back_to(guard, limit, true)))?;
    let discarded = discard_beyond(guard, limit, |_| true)?;
    record_trim(guard, released.unwrap_or(0) + discarded);
    Ok(())
}

/// Changes the limit. Memory beyond it stays held. On a failure the limit is what it was.
pub(super) fn change_limit(guard: &mut Guard<'_>, mut limit: Limit) -> Outside {
    if let Some(range) = guard.arena.range() {
        // The range has no more addresses, and only whole granules are mapped.
        let bytes = limit.bytes.min(range.bytes);
        limit.bytes = bytes - bytes % range.granule;
        let admit = |of: &dyn Granules| of.admit(limit.bytes);
        let prepared = guard.ask(CallKind::Orders, |backend| backend.granules().map_or(Ok(()), admit));
        guard.check_entry()?;
        prepared?;
    }
    put_in_force(guard, limit)
}

#[inline(never)]
fn put_in_force(guard: &mut Guard<'_>, limit: Limit) -> Outside {
    let Limit { bytes, share } = limit;
    guard.limit_share = LimitShare::new(share.filter(|_| guard.arena.growth().grows()));
    guard.arena.set_limit(bytes);
    if let Some(history) = &guard.history {
        history.limited(&guard.arena);
    }
    guard.notify();
    let device = guard.device;
    guard.talk(|| {
        log::emit(Level::Info, format_args!("device {device}: the limit is {bytes} bytes from now on"));
    })
}
