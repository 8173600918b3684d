//! Giving free memory back to the backend: wholly free regions, and the pages of free chunks.

use crate::pool::pool::Pool;
use crate::pool::region_io::release;
use crate::pool::remap;
use crate::pool::slot::{Guard, Interrupted, Outside};
use bfc_core::arena::Cursor;
use bfc_core::stream_id::Stream;
use bfc_core::units::Span;
use std::time::{Duration, Instant};

/// Gives wholly free regions back as long as `keep` bytes stay held. With `below`, it gives regions back until no more than
/// `keep` bytes are held. Returns the number of bytes given back.
pub(super) fn give_back_to(guard: &mut Guard<'_>, keep: u64, below: bool) -> Outside<u64> {
    let is_settled = settle(guard, if below { 0 } else { keep })?;
    give_settled_back(guard, keep, below, is_settled)
}

/// Gives memory back as [`give_back_to`] does, after [`settle`].
pub(super) fn give_settled_back(
    guard: &mut Guard<'_>,
    keep: u64,
    below: bool,
    is_settled: bool,
) -> Outside<u64> {
    if guard.arena.range().is_some() {
        return remap::trim(guard, keep, is_settled);
    }
    let arena = &mut guard.arena;
    let regions = if below { arena.detach_beyond(keep)? } else { arena.detach_above(keep)? };
    let given = release(guard, regions, Stream::NONE, is_settled);
    guard.check_entry()?;
    given.failure.map_or(Ok(given.bytes), |error| Err(Interrupted::failure(|| error)))
}

/// Waits for the device before memory is taken out of the pool, so that no request has to wait for that. Returns whether no
/// work can use free memory any more. If not, or if other threads free memory all the time, the caller has to wait once more
/// with the memory taken out.
pub(super) fn settle(guard: &mut Guard<'_>, keep: u64) -> Outside<bool> {
    const ROUNDS: u32 = 4;
    for _ in 0..ROUNDS {
        let has_device = guard.backend.get().order().is_some();
        if !has_device || !guard.arena.could_trim(keep) {
            break;
        }
        let state = |guard: &Guard<'_>| (guard.arena.life(), guard.arena.progress());
        let before = state(guard);
        let waited = guard.let_work_end(Stream::NONE, None, None);
        guard.check_entry()?;
        if waited.is_err() {
            break;
        }
        if state(guard) == before {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Records that memory was given back, if it was.
pub(super) fn record_trim(guard: &Guard<'_>, bytes: u64) {
    if let Some(history) = guard.history.as_ref().filter(|_| bytes != 0) {
        history.trimmed(&guard.arena, bytes);
    }
}

/// How much is discarded at first by one call with the lock held, and how much at most: this, or a 4096th of the pool.
/// The size doubles as long as that was quick, because little of the memory was resident.
const LEAST_AT_ONCE: u64 = 4 << 20;
const MOST_AT_ONCE: u64 = 256 << 20;
const LEAST_SHARE: u64 = 4096;

/// For how long the lock is held, unless a single call takes longer.
const QUICK: Duration = Duration::from_micros(100);

/// How many chunks are looked at with the lock held.
const CHUNKS_AT_ONCE: usize = 4096;

/// Gives the pages of free chunks in regions that stay held back to the system, where the backend can do so, as long as
/// `keep` bytes stay, and while `goes_on` says so. Returns the number of bytes. No more of these regions is populated.
pub(super) fn discard_beyond(
    guard: &mut Guard<'_>,
    keep: u64,
    goes_on: impl Fn(&Guard<'_>) -> bool,
) -> Outside<u64> {
    guard.arena.leave_all_unpopulated();
    let mut discarding =
        Discarding { total: 0, cursor: Cursor::default(), at_once: LEAST_AT_ONCE, is_over: false };
    while guard.may_discard() && goes_on(guard) && discarding.go_on(guard, keep) {
        guard.talk(std::thread::yield_now)?;
    }
    Ok(discarding.total)
}

struct Discarding {
    total: u64,
    cursor: Cursor,
    at_once: u64,
    /// Set once a span was cut off because no more may be given back. What is left of that is less than whole pages.
    is_over: bool,
}

impl Discarding {
    /// Goes on for a short time. Returns false at the end.
    fn go_on(&mut self, guard: &mut Guard<'_>, keep: u64) -> bool {
        let Discarding { total, cursor, at_once, is_over } = self;
        let Pool { arena, backend, .. } = &mut **guard;
        let (held, backend, begun) = (arena.growth().pool_bytes(), backend.get(), Instant::now());
        if held.saturating_sub(keep) <= *total {
            return false;
        }
        let largest = MOST_AT_ONCE.max(held / LEAST_SHARE);
        let mut now = begun;
        let is_visited = arena.visit_idle(cursor, CHUNKS_AT_ONCE, |Span { base, bytes }| {
            let left = held.saturating_sub(keep).saturating_sub(*total);
            if *is_over || left == 0 || now - begun >= QUICK {
                return None;
            }
            let bytes = bytes.min(left).min(*at_once);
            *is_over = bytes == left;
            // SAFETY: no chunk in use and no work under way has this memory, and the lock is held.
            let discarded = unsafe { backend.discard(Span { base, bytes }) };
            *total += discarded.map_or(0, |span| span.bytes);
            let before = std::mem::replace(&mut now, Instant::now());
            *at_once = if now - before < QUICK { (2 * *at_once).min(largest) } else { LEAST_AT_ONCE };
            Some(bytes)
        });
        !is_visited && !*is_over && held.saturating_sub(keep) > *total
    }
}
