//! Trims, lower limits, and pools that have been at rest for some time.

use super::callback;
use super::give_back::{discard_beyond, give_back_to, give_settled_back, record_trim, settle};
use super::limits::{self, change_limit};
use crate::error::{DeferredError, ErrorKind, LastError, keeping_last_error};
use crate::log::{self, Level};
use crate::options::{Limit, Options};
use crate::pool::captures::refuse_for_a_capture;
use crate::pool::idle_time::Activity;
use crate::pool::pool::Pool;
use crate::pool::slot::{CallKind, Guard, Slot, deferred, or_reborn};
use crate::pool::{order, stamp_merge};
use bfc_core::stream_id::Stream;
use std::time::Duration;

/// Gives wholly free regions back as long as `keep` bytes stay held. Returns the number of bytes given back.
pub(crate) fn trim(slot: &Slot, keep: u64) -> Result<u64, ErrorKind> {
    give_free_back(&mut slot.enter_for_long()?, keep, false)
}

/// Changes the limit, and gives free memory beyond it back.
pub(crate) fn set_limit(slot: &Slot, limit: u64) -> Result<(), ErrorKind> {
    limit_to(slot.enter()?, Limit::fixed(limit))
}

/// Changes the limit to the one that creation with these options would set.
pub(crate) fn set_limit_as(slot: &Slot, options: &Options<'_>) -> Result<(), ErrorKind> {
    options.check()?;
    let mut guard = slot.enter()?;
    let limit = guard.ask(CallKind::Orders, |backend| options.limit_on(backend));
    guard.check_entry()?;
    limit_to(guard, limit?)
}

fn limit_to(mut guard: Guard<'_>, limit: Limit) -> Result<(), ErrorKind> {
    or_reborn(change_limit(&mut guard, limit), &guard, ())?;
    let (device, limit) = (guard.device, guard.arena.growth().limit());
    if guard.arena.growth().pool_bytes() <= limit {
        return Ok(());
    }
    // The limit holds in any case. Memory that cannot be given back now is given back by the next trim.
    keeping_last_error(|| {
        let given = give_free_back(&mut guard, limit, true);
        drop(guard);
        if given.is_err() {
            log::emit(
                Level::Warn,
                format_args!("device {device}: memory is held beyond the limit: {LastError}"),
            );
        }
    });
    Ok(())
}

/// Gives wholly free regions back as long as `keep` bytes stay held. With `below`, it gives regions back until no more
/// than `keep` bytes are held. Returns the number of bytes that it has given back, of a device also those that another thread
/// has meanwhile.
fn give_free_back(guard: &mut Guard<'_>, keep: u64, below: bool) -> Result<u64, ErrorKind> {
    let (held, life) = (guard.arena.growth().pool_bytes(), guard.arena.life());
    if !wait_until_idle(guard)? {
        // A capture is an error only if there is memory to give back.
        return if guard.arena.could_trim(keep) { Err(refuse_for_a_capture()) } else { Ok(0) };
    }
    let released = or_reborn(deferred(give_back_to(guard, keep, below)), guard, Ok(0))?;
    let discarded = or_reborn(discard_beyond(guard, keep, |_| true), guard, 0)?;
    record_trim(guard, released.as_ref().map_or(discarded, |bytes| bytes + discarded));
    forget_past(guard);
    let released = released.map_err(DeferredError::say);
    if guard.backend.get().order().is_none() {
        return released;
    }
    // The caller wants the memory, which for the driver is in use until the other thread's call has ended.
    let last_call = guard.last_call();
    while guard.is_giving_back(last_call) {
        guard.wait_for_call()?;
    }
    // What was lost with its context was not given back.
    let gone = if guard.arena.life() == life { held } else { 0 };
    let gone = gone.saturating_sub(guard.arena.growth().pool_bytes());
    released.map(|bytes| bytes.max(gone))
}

/// Waits for the work that uses free memory, and coalesces what it has left. Returns false if a capture forbids to wait.
fn wait_until_idle(guard: &mut Guard<'_>) -> Result<bool, ErrorKind> {
    // A failure of the driver is no capture: without it less memory may go back. After a loss of all memory nothing is left
    // to wait for.
    let idle = or_reborn(deferred(order::synchronize(guard, Stream::NONE)), guard, Ok(true))?;
    if matches!(idle, Ok(true)) {
        // Other contexts' work is not covered by that, and is not waited for.
        let _polled = or_reborn(deferred(order::poll(guard, Stream::NONE)), guard, Ok(()))?;
    }
    while guard.arena.streams().is_sharing() {
        or_reborn(order::share_a_piece(guard), guard, ())?;
    }
    while guard.arena.is_merging() {
        or_reborn(stamp_merge::merge_safe_piece(guard), guard, ())?;
    }
    Ok(!matches!(idle, Ok(false)))
}

/// Shrinks tables to what the pool needs now, and wakes threads that wait for a change.
fn forget_past(guard: &mut Guard<'_>) {
    let Pool { arena, events, .. } = &mut **guard;
    arena.forget_past();
    events.forget_past(arena);
    guard.notify();
}

/// How many times in the time of rest after which a pool gives memory back its counters are compared.
const LOOKS: u32 = 4;

/// The approximate number of bytes that an idle pool gives back at a time. A request that comes meanwhile waits for one
/// piece at most.
const PIECE: u64 = 64 << 20;

/// Gives the free memory of a pool back if it has been idle long enough at the time `now`, in milliseconds. Returns in
/// what time to call this again, or `None` if the pool does not give memory back by itself.
pub(crate) fn trim_if_idle(slot: &Slot, now: u64) -> Option<Duration> {
    // An allocator that is destroyed meanwhile ends below.
    let _ = keeping_last_error(|| limits::keep_up_to_date(slot));
    let mut guard = slot.enter().ok()?;
    let after = guard.idle.after()?;
    let counted = activity_of(&guard);
    if guard.idle.is_due(counted, now) {
        // An allocator that is destroyed meanwhile is not looked at again.
        let _ = trim_idle(guard, slot, now);
    }
    Some(after / LOOKS)
}

/// Lets the client say which work is done, and gives all free memory back. Does so again after another time of rest if a
/// capture is under way, the driver has refused, or work is left that nobody else may find to be done.
fn trim_idle(mut guard: Guard<'_>, slot: &Slot, now: u64) -> Result<(), ErrorKind> {
    callback::call(&mut guard)?;
    // What the client has freed there does not stop the trim.
    let calls = activity_of(&guard).calls;
    let (device, after) = (guard.device, guard.idle.after().unwrap_or_default());
    let trimmed = trim_in_pieces(&mut guard, calls);
    drop(guard);
    if let Ok(bytes @ 1..) = trimmed {
        log::emit(
            Level::Info,
            format_args!("device {device}: idle for {} s: gave {bytes} bytes back", after.as_secs_f64()),
        );
    }
    let mut guard = slot.enter()?;
    // The driver or the client may know more by then.
    let may_be_asked = guard.backend.get().order().is_some() || guard.idle.callback.is_some();
    let work_is_left = || {
        guard.arena.stamps_wait() && guard.idle.callback.is_some()
            || guard.arena.streams().unfinished(|_| true).next().is_some()
    };
    if trimmed.is_err() || may_be_asked && work_is_left() {
        guard.idle.try_again(now);
    }
    Ok(())
}

/// Returns what was counted so far. `bfc_reset_stats` sets the calls back, which looks like a call.
fn activity_of(guard: &Guard<'_>) -> Activity {
    let counters = guard.arena.counters();
    let calls = counters.num_allocs().wrapping_add(counters.num_frees());
    Activity { calls, settled: guard.arena.work_done() }
}

/// Gives all free memory back in pieces, as long as no call comes in between. The lock is open while the backend takes a
/// piece.
fn trim_in_pieces(guard: &mut Guard<'_>, calls: u64) -> Result<u64, ErrorKind> {
    let is_idle = wait_until_idle(guard)?;
    // What is found to be done from now on has memory given back again.
    let settled = activity_of(guard).settled;
    guard.idle.note_settled(settled);
    let mut total = 0;
    while activity_of(guard).calls == calls && is_idle {
        let keep = guard.arena.held_without(PIECE);
        let is_settled = or_reborn(settle(guard, keep), guard, true)?;
        if activity_of(guard).calls != calls {
            break;
        }
        match or_reborn(give_settled_back(guard, keep, false, is_settled), guard, 0)? {
            0 => break,
            bytes => total += bytes,
        }
    }
    let goes_on = |guard: &Guard<'_>| activity_of(guard).calls == calls && is_idle;
    let discarded = or_reborn(discard_beyond(guard, 0, goes_on), guard, 0)?;
    if total != 0 {
        forget_past(guard);
    }
    total += discarded;
    record_trim(guard, total);
    if is_idle { Ok(total) } else { Err(refuse_for_a_capture()) }
}
