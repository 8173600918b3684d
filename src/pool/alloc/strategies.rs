//! The strategies for a request for which no free chunk fits, in TensorFlow's order (`AllocateRawInternal`).
//!
//! The backend and the driver are called with the lock open. The pool may have changed after each such call, so the
//! search begins again. [`search`] finds nothing only if the lock has been held since the last [`take`].

use super::retry_state::{Attempt, RetryState};
use crate::error::{ErrorKind, keeping_last_error};
use crate::pool::idle::limits;
use crate::pool::region_io::{Extended, attempt_extension, extend, extend_by_least, release};
use crate::pool::slot::{Guard, Interrupted, Outside};
use crate::pool::{context_loss, guarded, order, remap, stamp_merge};
use bfc_core::request::Request;
use bfc_core::stream_id::Stream;

/// A strategy. Returns whether it may have helped, so that the search begins again. It also begins again if the strategy has
/// opened the lock, and after a failure of the driver, which becomes the error of the request if nothing else serves it.
type Strategy = fn(&mut Guard<'_>, &Request<'_>, &mut RetryState) -> Outside<bool>;

/// The strategies in the order in which they are tried. [`Attempt`] says when each that is tried only once is tried again.
static STRATEGIES: [Strategy; 18] = [
    grow_for_small,
    share,
    merge_safe,
    compare_progress,
    await_calls,
    give_way,
    poll,
    synchronize_instead_of_growing,
    replace,
    grow,
    await_returns,
    search_all_chunks,
    wait_for_events,
    synchronize_unordered,
    merge_by_force,
    collect,
    grow_by_least,
    wait_for_all,
];

/// The strategies for a request that is served only from memory that the pool holds. They wait for nothing.
static WITHOUT_GROWTH: [Strategy; 5] = [share, merge_safe, compare_progress, poll, search_all_chunks];

/// Tries the strategies in turn, after [`take`] has found nothing, and searches again after each that may have helped. Most
/// are tried only once as long as nothing changes. Returns `None` if no strategy helps at this moment. An error is one that
/// waiting for a free would not resolve.
pub(super) fn search(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    state: &mut RetryState,
) -> Result<Option<u64>, ErrorKind> {
    state.least = request.size;
    let mut request = state.complete(guard, request);
    loop {
        match try_strategies(guard, &request, state) {
            Ok(true) => {}
            Err(Interrupted::Reborn) => {
                guard.check_entry()?;
                state.forced = None;
            }
            Ok(false) => return Ok(None),
            Err(Interrupted::Driver(failure)) => state.keep_failure(failure),
            Err(Interrupted::Ended(error)) => return Err(error),
        }
        request = state.complete(guard, &request);
        if let Some(addr) = take(guard, &request)? {
            return Ok(Some(addr));
        }
    }
}

/// Tries the strategies up to the first that may have helped.
fn try_strategies(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    let strategies: &[Strategy] = if request.no_growth { &WITHOUT_GROWTH } else { &STRATEGIES };
    for strategy in strategies {
        let openings = guard.openings();
        // With the lock open, another thread may have freed what the request needs.
        if strategy(guard, request, state)? || guard.openings() != openings {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes the best free chunk that fits now, if there is one.
#[inline(never)]
pub(super) fn take(guard: &mut Guard<'_>, request: &Request<'_>) -> Result<Option<u64>, ErrorKind> {
    if guard.is_guarded() {
        guarded::await_turn(guard)?;
        if let Err(exhausted) = guarded::make_room(guard) {
            return Err(guard.fail(exhausted.into(), request));
        }
    }
    let before = guard.arena.counters().bytes_in_use;
    match guard.arena.alloc(request) {
        Ok(Some(addr)) => {
            guard.note_allocated(addr, request, before);
            Ok(Some(addr))
        }
        Ok(None) => Ok(None),
        Err(exhausted) => Err(guard.fail(exhausted.into(), request)),
    }
}

/// Obtains a small region, so that a small request need not split a large chunk. If there is none, the request splits it.
fn grow_for_small(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    let Some(bytes) = guard.arena.small_region_for(request) else {
        return Ok(false);
    };
    state.splits_large = true;
    // The backend's functions may be calls of the driver that a capture forbids.
    if bytes == 0 || guard.is_capture_announced(request.stream) {
        return Ok(true);
    }
    limits::before_growth(guard, bytes)?;
    match attempt_extension(guard, request, bytes, &mut state.refused)? {
        Extended::Grown => state.note_own(guard, 1),
        _ => guard.arena.split_large_chunks(),
    }
    Ok(true)
}

/// Makes chunks whose work is done reusable by every stream.
fn share(guard: &mut Guard<'_>, _: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    if !guard.arena.streams().is_sharing() {
        return Ok(false);
    }
    for _ in 0..state.pieces_to_share() {
        order::share_a_piece(guard)?;
        if !guard.arena.streams().is_sharing() {
            break;
        }
    }
    Ok(true)
}

/// Coalesces chunks whose stamps are safe.
fn merge_safe(guard: &mut Guard<'_>, _: &Request<'_>, _: &mut RetryState) -> Outside<bool> {
    if !guard.arena.is_merging() {
        return Ok(false);
    }
    stamp_merge::merge_safe_piece(guard)?;
    Ok(true)
}

/// Takes note of what has changed, once memory was shared and merged.
fn compare_progress(guard: &mut Guard<'_>, _: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    state.compare_progress(guard);
    Ok(false)
}

/// Waits for other threads' calls of the backend that obtain memory, which may be what the request needs.
fn await_calls(guard: &mut Guard<'_>, _: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    if !state.may_be_served_by_a_call(guard) {
        return Ok(false);
    }
    guard.wait_for_call()?;
    Ok(true)
}

/// Lets threads go first that waited for a call, because they may be about to free.
fn give_way(guard: &mut Guard<'_>, _: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    if state.was_tried(Attempt::GiveWay) || !guard.is_awaited() {
        return Ok(false);
    }
    state.note_tried(Attempt::GiveWay);
    guard.give_way()?;
    Ok(true)
}

/// Queries which work is done, so that memory freed by other streams becomes reusable.
fn poll(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    if state.was_tried(Attempt::Poll) {
        return Ok(false);
    }
    state.note_tried(Attempt::Poll);
    let lives = guard.arena.life() == state.begun_in;
    order::poll(guard, if lives { request.stream } else { Stream::NONE })?;
    Ok(true)
}

/// Synchronizes before growing for a client that names no stream. Its freed memory waits for all streams, so without
/// this its pool would grow without bound.
fn synchronize_instead_of_growing(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    state: &mut RetryState,
) -> Outside<bool> {
    if state.was_tried(Attempt::Synchronize) || !is_worth_synchronizing(guard, request) {
        return Ok(false);
    }
    state.note_tried(Attempt::Synchronize);
    state.may_collect = false;
    state.may_collect = order::synchronize(guard, request.stream)?;
    Ok(true)
}

/// Makes a place from memory that is held and idle, for a request that is large enough: moves granules there, or gives back
/// the regions that the one it needs can replace. Both synchronize the device, so they are left until growth was refused
/// if anything is pending there: it may wait for what the caller does next.
fn replace(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    let is_tried = state.was_tried(Attempt::Replace) || state.was_tried(Attempt::Grow);
    let moves = guard.arena.moves_before_growth(request.size);
    if is_tried || !(moves || guard.arena.could_replace(state.least)) {
        return Ok(false);
    }
    state.note_tried(Attempt::Replace);
    if !order::is_idle(guard, request.stream)? {
        return Ok(true);
    }
    if moves {
        let moved = remap::move_idle(guard, request, &mut state.refused)?;
        state.note_own(guard, u64::from(matches!(moved, Extended::Grown)));
    } else {
        // With the lock open another thread may have taken or given back some of them.
        let regions = guard.arena.detach_to_replace(state.least);
        let released = keeping_last_error(|| release(guard, regions, request.stream, false));
        guard.check_entry()?;
        state.note_own(guard, released.regions);
    }
    Ok(true)
}

/// Obtains a region or granules from the backend.
fn grow(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    if state.was_tried(Attempt::Grow) {
        return Ok(false);
    }
    state.note_tried(Attempt::Grow);
    context_loss::renew_backend(guard, request)?;
    limits::before_growth(guard, state.least)?;
    let extended = match guard.arena.range() {
        None => extend(guard, request, state.least, &mut state.refused)?,
        Some(_) => remap::grow(guard, request, &mut state.refused)?,
    };
    state.note_growth(guard, extended, request)
}

/// Waits for other threads that give memory back, because the backend may have enough then. Only once it has refused:
/// they may wait for device work that itself waits for what this thread does next.
fn await_returns(guard: &mut Guard<'_>, _: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    if !state.may_be_served_by_a_return(guard) {
        return Ok(false);
    }
    guard.wait_for_call()?;
    state.permit_retry(Attempt::Grow);
    Ok(true)
}

/// Examines every large enough chunk for a place at the alignment, because the pool does not grow.
fn search_all_chunks(_: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    if !request.needs_thorough_search() {
        return Ok(false);
    }
    state.thorough = true;
    Ok(true)
}

/// Makes the request's stream wait for events of other streams' work.
fn wait_for_events(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    if state.was_tried(Attempt::WaitForEvents) {
        return Ok(false);
    }
    state.note_tried(Attempt::WaitForEvents);
    let waited = order::wait(guard, request)?;
    // The place that was found may include memory that is not mapped yet.
    if waited && guard.arena.range().is_some() {
        state.permit_retry(Attempt::Grow);
    }
    Ok(false)
}

/// Synchronizes the context if memory was freed without a stream, because such memory has no event. It precedes the
/// strategies that give regions back or move granules, because those wait for the device too.
fn synchronize_unordered(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    state: &mut RetryState,
) -> Outside<bool> {
    if state.was_tried(Attempt::Synchronize) {
        return Ok(false);
    }
    state.note_tried(Attempt::Synchronize);
    state.may_collect = false;
    state.may_collect = match guard.arena.streams().has_unordered() {
        true => order::synchronize_unordered(guard, request)?,
        false => order::may_disturb(guard, request.stream)?,
    };
    Ok(false)
}

/// Coalesces stamped chunks in spite of their stamps.
fn merge_by_force(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    if state.was_tried(Attempt::MergeByForce) || !request.accepts_any_stamp() || !guard.arena.stamps_wait() {
        return Ok(false);
    }
    let again = stamp_merge::merge_forced_piece(guard, request, &mut state.forced)?;
    if state.forced.is_none() {
        state.note_tried(Attempt::MergeByForce);
    }
    Ok(again)
}

/// Makes room from idle memory. Moves granules, or gives wholly free regions back so that the backend can provide a
/// larger one.
fn collect(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    let may_collect = state.may_collect && !guard.is_capture_announced(request.stream);
    if state.was_tried(Attempt::Collect) || !may_collect {
        return Ok(false);
    }
    state.note_tried(Attempt::Collect);
    if guard.arena.range().is_some() {
        return relocate(guard, request, state);
    }
    let regions = guard.arena.detach_for(request.size);
    if regions.is_empty() {
        return Ok(false);
    }
    let released = keeping_last_error(|| release(guard, regions, request.stream, false));
    guard.check_entry()?;
    // Regions that the backend did not take back are free memory again, and the search finds them if they fit.
    state.note_own(guard, released.regions);
    state.least = request.size;
    Ok(true)
}

/// Moves idle granules to where the request needs them.
fn relocate(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    const MOST_MOVES: u32 = 16;
    match remap::relocate(guard, request, &mut state.refused)? {
        Extended::Grown => {
            state.note_own(guard, 1);
            // With guards on, another thread may get its turn first and take the memory.
            state.moves += 1;
            if guard.is_guarded() && state.moves <= MOST_MOVES {
                state.permit_retry(Attempt::Collect);
            }
            Ok(true)
        }
        Extended::Refused => Ok(true),
        Extended::NoRoom if guard.is_bringing(u64::MAX) => {
            state.permit_retry(Attempt::Collect);
            guard.wait_for_call()?;
            Ok(true)
        }
        Extended::NoRoom => Ok(false),
    }
}

/// Obtains a region of exactly the size that the request needs. TensorFlow fails at this point, but the memory that the
/// backend has left may lie between two sizes that it was asked for.
fn grow_by_least(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    if !state.may_get_less(guard) {
        return Ok(false);
    }
    let extended = extend_by_least(guard, request, state.least, &mut state.refused)?;
    state.note_growth(guard, extended, request)
}

/// Waits for all work that free memory still waits for.
fn wait_for_all(guard: &mut Guard<'_>, request: &Request<'_>, state: &mut RetryState) -> Outside<bool> {
    let can_wait = guard.backend.get().order().is_some() && guard.arena.streams().has_unfinished();
    if state.was_tried(Attempt::WaitForAll) || !can_wait {
        return Ok(false);
    }
    state.note_tried(Attempt::WaitForAll);
    state.may_collect = false;
    state.may_collect = order::wait_for_all(guard, request)?;
    state.permit_retry(Attempt::Collect);
    Ok(true)
}

/// A pool with less idle memory than this grows before it waits for the device.
const LITTLE: u64 = 32 << 20;

/// Returns whether waiting for the device is better than growing. That is so for a request that may use any stream, if
/// free memory waits for a synchronization and at least half of the pool is idle. One such wait then serves many
/// requests.
fn is_worth_synchronizing(guard: &Guard<'_>, request: &Request<'_>) -> bool {
    if request.stream != Stream::ANY || !guard.arena.streams().has_unknown() {
        return false;
    }
    let in_use = guard.arena.counters().bytes_in_use;
    guard.arena.growth().pool_bytes().saturating_sub(in_use) >= LITTLE.max(request.size).max(in_use)
}
