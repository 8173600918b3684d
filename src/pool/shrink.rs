//! Giving free memory back to the backend: trims, and lower limits.

use super::captures::refuse_for_a_capture;
use super::pool::Pool;
use super::region_io::release;
use super::slot::{Guard, Slot};
use super::{order, remap, stamp_merge};
use crate::core::stream_id::Stream;
use crate::error::{Error, LastError, keeping_last_error};
use crate::log::{self, Level};
use crate::options::Options;

/// Gives wholly free regions back as long as `keep` bytes stay held. Returns the number of bytes given back.
pub(crate) fn trim(slot: &Slot, keep: u64) -> Result<u64, Error> {
    give_free_back(slot.enter_for_long()?, keep, false)
}

/// Changes the limit, and gives free memory beyond it back.
pub(crate) fn set_limit(slot: &Slot, limit: u64) -> Result<(), Error> {
    limit_to(slot.enter()?, limit)
}

/// Changes the limit to the one that creation with these options would set.
pub(crate) fn set_limit_as(slot: &Slot, options: &Options<'_>) -> Result<(), Error> {
    options.check()?;
    let (guard, limit) = slot.enter()?.asking(|backend| options.limit_on(backend));
    limit_to(guard.check_entry()?, limit?)
}

fn limit_to(mut guard: Guard<'_>, limit: u64) -> Result<(), Error> {
    let mut limit = limit;
    if let Some(range) = guard.arena.range() {
        // The range has no more addresses, and only whole granules are mapped.
        limit = limit.min(range.bytes);
        limit -= limit % range.granule;
        let prepared;
        (guard, prepared) = guard.asking(|backend| backend.granules().map_or(Ok(()), |of| of.admit(limit)));
        guard = guard.check_entry()?;
        prepared?;
    }
    guard.arena.set_limit(limit);
    guard.notify();
    let device = guard.device;
    guard = guard.talking(|| {
        log::emit(Level::Info, format_args!("device {device}: the limit is {limit} bytes from now on"));
    });
    guard = guard.check_entry()?;
    if guard.arena.growth().pool_bytes() <= limit {
        return Ok(());
    }
    // The limit holds in any case. Memory that cannot be given back now is given back by the next trim.
    keeping_last_error(|| {
        if give_free_back(guard, limit, true).is_err() {
            log::emit(
                Level::Warn,
                format_args!("device {device}: memory is held beyond the limit: {LastError}"),
            );
        }
    });
    Ok(())
}

/// Gives wholly free regions back as long as `keep` bytes stay held. With `below`, it gives regions back until no more
/// than `keep` bytes are held.
fn give_free_back(guard: Guard<'_>, keep: u64, below: bool) -> Result<u64, Error> {
    let (mut guard, idle) = order::synchronize(guard, Stream::NONE)?;
    while guard.arena.streams().is_sharing() {
        guard = order::share_a_piece(guard)?;
    }
    while guard.arena.is_merging() {
        guard = stamp_merge::merge_safe_piece(guard)?;
    }
    if matches!(idle, Ok(false)) {
        // A capture is an error only if there is memory to give back.
        return if guard.arena.could_trim(keep) { Err(refuse_for_a_capture()) } else { Ok(0) };
    }
    let released;
    if guard.arena.range().is_some() {
        (guard, released) = remap::trim(guard, keep)?;
    } else {
        let arena = &mut guard.arena;
        let regions = if below { arena.detach_beyond(keep) } else { arena.detach_above(keep) }?;
        let given;
        (guard, given) = release(guard, regions, Stream::NONE);
        guard = guard.check_entry()?;
        released = given.failure.map_or(Ok(given.bytes), Err);
    }
    let Pool { arena, events, .. } = &mut *guard;
    arena.forget_past();
    events.forget_past(arena);
    guard.notify();
    released
}
