//! The strategies of a request for which no free chunk fits, in TensorFlow's order (`AllocateRawInternal`).
//!
//! The backend and the driver are called with the lock open. The pool may have changed after each such call, so the
//! search begins again. [`search`] reports exhaustion only if nothing was found and the lock has been held since.

use super::retry_state::{Once, RetryState};
use crate::core::request::AllocRequest;
use crate::core::stream_id::Stream;
use crate::error::{DeferredError, Error, keeping_last_error, unsaid};
use crate::pool::region_io::{Extended, extend, extend_exactly, release, try_to_extend};
use crate::pool::slot::Guard;
use crate::pool::{context_loss, guarded, limits, order, remap, stamp_merge};

/// The result of a search. An error is one that waiting for a free would not resolve.
pub(super) type Attempt<'a> = Result<Outcome<'a>, Error>;

pub(super) enum Outcome<'a> {
    Served(u64),
    /// No strategy helps at this moment.
    Exhausted(Guard<'a>),
}

/// The result of a strategy.
enum Step<'a> {
    /// It may have helped, so the search begins again.
    Again(Guard<'a>),
    /// It did nothing, and the lock has been held since the last search.
    Next(Guard<'a>),
    /// It did nothing, and no other strategy is to be tried.
    Last(Guard<'a>),
}

type Strategy = for<'a> fn(Guard<'a>, &AllocRequest<'_>, &mut RetryState) -> Result<Step<'a>, Error>;

/// The strategies in the order in which they are tried. [`Once`] documents when each is tried again.
static STRATEGIES: [Strategy; 18] = [
    grow_for_small,
    share,
    merge_safe,
    stay_with_what_is_held,
    await_calls,
    give_way,
    poll,
    synchronize_instead_of_growing,
    replace,
    grow,
    await_returns,
    search_thoroughly,
    wait_for_events,
    synchronize_unordered,
    merge_by_force,
    collect,
    grow_by_least,
    wait_for_all,
];

/// Searches for a chunk and tries the strategies in turn, most of them only once as long as nothing changes.
pub(super) fn search<'a>(
    mut guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Attempt<'a> {
    state.least = request.size;
    'search: loop {
        let splits_large = request.splits_large || state.splits_large;
        // While chunks are left to share or to merge, the search is repeated after each piece.
        let thorough = state.thorough && !guard.arena.is_settling();
        let request = &AllocRequest { thorough, splits_large, ..*request };
        guard = match take(guard, request)? {
            Outcome::Exhausted(guard) => guard,
            served => return Ok(served),
        };
        for strategy in &STRATEGIES {
            guard = match strategy(guard, request, state)? {
                Step::Again(guard_now) => {
                    guard = guard_now;
                    continue 'search;
                }
                Step::Next(guard) => guard,
                Step::Last(guard) => return Ok(Outcome::Exhausted(guard)),
            };
        }
        return Ok(Outcome::Exhausted(guard));
    }
}

/// Takes the best free chunk that fits now, if there is one.
#[inline(never)]
fn take<'a>(mut guard: Guard<'a>, request: &AllocRequest<'_>) -> Attempt<'a> {
    if guard.is_guarded() {
        guard = guarded::turn(guard)?;
        if let Err(exhausted) = guarded::make_room(&mut guard) {
            return Err(guard.fail(exhausted.into(), request));
        }
    }
    let before = guard.arena.counters().bytes_in_use;
    let allocated = guard.arena.alloc(request);
    if let Ok(Some(addr)) = allocated {
        guard.note_allocated(addr, request, before);
    }
    match allocated {
        Ok(Some(addr)) if guard.is_guarded() => {
            // If the context has ended meanwhile, the chunk is lost and the search has found nothing.
            let lost = guarded::hand_out(guard, addr, request.stream)?;
            Ok(lost.map_or(Outcome::Served(addr), Outcome::Exhausted))
        }
        Ok(Some(addr)) => Ok(Outcome::Served(addr)),
        Ok(None) => Ok(Outcome::Exhausted(guard)),
        Err(exhausted) => Err(guard.fail(exhausted.into(), request)),
    }
}

/// Obtains a small region, so that a small request need not split a large chunk. If there is none, the request splits it.
fn grow_for_small<'a>(
    mut guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if state.no_growth {
        return Ok(Step::Next(guard));
    }
    let Some(bytes) = guard.arena.small_region_for(request) else {
        return Ok(Step::Next(guard));
    };
    state.splits_large = true;
    // The backend's functions may be calls of the driver that a capture forbids.
    if bytes == 0 || guard.is_capture_announced(request.stream) {
        return Ok(Step::Again(guard));
    }
    guard = limits::before_growth(guard, bytes)?;
    let extended;
    (guard, extended) =
        unsaid(|| try_to_extend(guard, request, bytes, &mut state.refused)).map_err(DeferredError::say)?;
    match extended {
        Extended::Grown => state.note_own(&guard, 1),
        _ => guard.arena.split_large_chunks(),
    }
    Ok(Step::Again(guard))
}

/// Makes chunks whose work is done reusable by every stream.
fn share<'a>(mut guard: Guard<'a>, _: &AllocRequest<'_>, state: &mut RetryState) -> Result<Step<'a>, Error> {
    if !guard.arena.streams().is_sharing() {
        return Ok(Step::Next(guard));
    }
    for _ in 0..state.pieces_to_share() {
        guard = order::share_a_piece(guard)?;
        if !guard.arena.streams().is_sharing() {
            break;
        }
    }
    Ok(Step::Again(guard))
}

/// Coalesces chunks whose stamps are safe.
fn merge_safe<'a>(guard: Guard<'a>, _: &AllocRequest<'_>, _: &mut RetryState) -> Result<Step<'a>, Error> {
    if !guard.arena.is_merging() {
        return Ok(Step::Next(guard));
    }
    stamp_merge::merge_safe_piece(guard).map(Step::Again)
}

/// Ends a request without growth, once pending work was queried and a thorough search was made if need be.
fn stay_with_what_is_held<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    state.look(&guard);
    if !state.no_growth || !state.was_tried(Once::Poll) {
        return Ok(Step::Next(guard));
    }
    if request.needs_thorough_search() {
        state.thorough = true;
        return Ok(Step::Again(guard));
    }
    Ok(Step::Last(guard))
}

/// Waits for other threads' calls of the backend that obtain memory, which may be what the request needs.
fn await_calls<'a>(
    guard: Guard<'a>,
    _: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if state.no_growth || !state.may_be_served_by_a_call(&guard) {
        return Ok(Step::Next(guard));
    }
    guard.wait_for_call().map(Step::Again)
}

/// Lets threads go first that waited for a call, because they may be about to free.
fn give_way<'a>(guard: Guard<'a>, _: &AllocRequest<'_>, state: &mut RetryState) -> Result<Step<'a>, Error> {
    if state.no_growth || state.was_tried(Once::GiveWay) || !guard.is_awaited() {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::GiveWay);
    guard.give_way().check_entry().map(Step::Again)
}

/// Queries which work is done, so that memory freed by other streams becomes reusable.
fn poll<'a>(guard: Guard<'a>, request: &AllocRequest<'_>, state: &mut RetryState) -> Result<Step<'a>, Error> {
    if state.was_tried(Once::Poll) {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::Poll);
    let lives = guard.arena.life() == state.begun_in;
    let (guard, polled) = order::poll(guard, if lives { request.stream } else { Stream::NONE })?;
    state.note(polled);
    Ok(Step::Again(guard))
}

/// Synchronizes before growing for a client that names no stream. Its freed memory waits for all streams, so without
/// this its pool would grow without bound.
fn synchronize_instead_of_growing<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if state.was_tried(Once::Synchronize) || !is_worth_synchronizing(&guard, request) {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::Synchronize);
    let (guard, idle) = order::synchronize(guard, request.stream)?;
    state.may_collect = state.note(idle);
    Ok(Step::Again(guard))
}

/// Makes a place from memory that is held and idle, for a request that is large enough: moves granules there, or gives back
/// the regions that the one it needs can replace. Both synchronize the device, so they are left until growth was refused
/// if anything is pending there: it may wait for what the caller does next.
fn replace<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    let is_tried = state.was_tried(Once::Replace) || state.was_tried(Once::Extend);
    let moves = guard.arena.moves_before_growth(request.size);
    if is_tried || !(moves || guard.arena.could_replace(state.least)) {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::Replace);
    let (mut guard, is_idle) = order::is_idle(guard, request.stream)?;
    if !state.note(is_idle) {
        return Ok(Step::Again(guard));
    }
    if moves {
        let moved;
        (guard, moved) = remap::move_idle(guard, request, &mut state.refused)?;
        state.note_own(&guard, u64::from(matches!(moved, Extended::Grown)));
    } else {
        // With the lock open another thread may have taken or given back some of them.
        let regions = guard.arena.detach_to_replace(state.least);
        let released;
        (guard, released) = keeping_last_error(|| release(guard, regions, request.stream, false));
        guard = guard.check_entry()?;
        state.note_own(&guard, released.regions);
    }
    Ok(Step::Again(guard))
}

/// Obtains a region or granules from the backend.
fn grow<'a>(guard: Guard<'a>, request: &AllocRequest<'_>, state: &mut RetryState) -> Result<Step<'a>, Error> {
    if state.was_tried(Once::Extend) {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::Extend);
    let guard = context_loss::renewed(guard, request)?;
    let guard = limits::before_growth(guard, state.least)?;
    let (guard, extended) = match guard.arena.range() {
        None => extend(guard, request, state.least, &mut state.refused)?,
        Some(_) => remap::grow(guard, request, &mut state.refused)?,
    };
    after_growth(guard, extended, request, state)
}

/// Waits for other threads that give memory back, because the backend may have enough then. Only once it has refused:
/// they may wait for device work that itself waits for what this thread does next.
fn await_returns<'a>(
    guard: Guard<'a>,
    _: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if !state.may_be_served_by_a_return(&guard) {
        return Ok(Step::Next(guard));
    }
    let guard = guard.wait_for_call()?;
    state.try_again(Once::Extend);
    Ok(Step::Again(guard))
}

fn after_growth<'a>(
    guard: Guard<'a>,
    extended: Extended,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    let (guard, again) = state.note_growth(guard, extended, request)?;
    Ok(if again { Step::Again(guard) } else { Step::Next(guard) })
}

/// Examines every large enough chunk for a place at the alignment, because the pool does not grow.
fn search_thoroughly<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if !request.needs_thorough_search() {
        return Ok(Step::Next(guard));
    }
    state.thorough = true;
    Ok(Step::Again(guard))
}

/// Makes the request's stream wait for events of other streams' work.
fn wait_for_events<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if state.was_tried(Once::WaitForEvents) {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::WaitForEvents);
    let last_call = guard.last_call();
    let (guard, waited) = order::wait(guard, request)?;
    // The place that was found may include memory that is not mapped yet.
    if state.note(waited) && guard.arena.range().is_some() {
        state.try_again(Once::Extend);
    }
    Ok(again_if_opened(guard, last_call))
}

/// Synchronizes the context if memory was freed without a stream, because such memory has no event. It precedes the
/// strategies that give regions back or move granules, because those wait for the device too.
fn synchronize_unordered<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if state.was_tried(Once::Synchronize) {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::Synchronize);
    let last_call = guard.last_call();
    let (guard, may_collect) = match guard.arena.streams().has_unordered() {
        true => order::synchronize_unordered(guard, request)?,
        false => order::may_disturb(guard, request.stream)?,
    };
    state.may_collect = state.note(may_collect);
    Ok(again_if_opened(guard, last_call))
}

/// Searches again if a call was made with the lock open since the one of that number. Otherwise nothing has changed.
fn again_if_opened(guard: Guard<'_>, last_call: u64) -> Step<'_> {
    if guard.last_call() == last_call { Step::Next(guard) } else { Step::Again(guard) }
}

/// Coalesces stamped chunks in spite of their stamps.
fn merge_by_force<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if state.was_tried(Once::MergeByForce) || request.max_stamp != u64::MAX || !guard.arena.stamps_wait() {
        return Ok(Step::Next(guard));
    }
    let (guard, again) = stamp_merge::merge_forced_piece(guard, request, &mut state.forced)?;
    if state.forced.is_none() {
        state.note_tried(Once::MergeByForce);
    }
    Ok(if again { Step::Again(guard) } else { Step::Next(guard) })
}

/// Makes room from idle memory. Moves granules, or gives wholly free regions back so that the backend can provide a
/// larger one.
fn collect<'a>(
    mut guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    let may_collect = state.may_collect && !guard.is_capture_announced(request.stream);
    if state.was_tried(Once::Collect) || !may_collect {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::Collect);
    if guard.arena.range().is_some() {
        return relocate(guard, request, state);
    }
    let regions = guard.arena.detach_for(request.size);
    if regions.is_empty() {
        return Ok(Step::Next(guard));
    }
    let (guard, released) = keeping_last_error(|| release(guard, regions, request.stream, false));
    let guard = guard.check_entry()?;
    // Regions that the backend did not take back are free memory again, and the search finds them if they fit.
    state.note_own(&guard, released.regions);
    state.least = request.size;
    Ok(Step::Again(guard))
}

/// Moves idle granules to where the request needs them.
fn relocate<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    const MOST_MOVES: u32 = 16;
    let (guard, moved) = remap::relocate(guard, request, &mut state.refused)?;
    match moved {
        Extended::Grown => {
            state.note_own(&guard, 1);
            // With guards on, another thread may get its turn first and take the memory.
            state.moves += 1;
            if guard.is_guarded() && state.moves <= MOST_MOVES {
                state.try_again(Once::Collect);
            }
            Ok(Step::Again(guard))
        }
        Extended::Refused => Ok(Step::Again(guard)),
        Extended::NoRoom if guard.is_bringing(u64::MAX) => {
            state.try_again(Once::Collect);
            guard.wait_for_call().map(Step::Again)
        }
        Extended::NoRoom => Ok(Step::Next(guard)),
    }
}

/// Obtains a region of exactly the size that the request needs. TensorFlow fails at this point, but the memory that the
/// backend has left may lie between two sizes that it was asked for.
fn grow_by_least<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if !state.may_get_less(&guard) {
        return Ok(Step::Next(guard));
    }
    let (guard, extended) = extend_exactly(guard, request, state.least, &mut state.refused)?;
    after_growth(guard, extended, request, state)
}

/// Waits for all work that free memory still waits for.
fn wait_for_all<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    let can_wait = guard.backend.get().order().is_some() && guard.arena.streams().has_unfinished();
    if state.was_tried(Once::WaitForAll) || !can_wait {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::WaitForAll);
    let (guard, idle) = order::wait_for_all(guard, request)?;
    state.may_collect = state.note(idle);
    state.try_again(Once::Collect);
    Ok(Step::Again(guard))
}

/// A pool with less idle memory than this grows before it waits for the device.
const LITTLE: u64 = 32 << 20;

/// Returns whether waiting for the device is better than growing. That is so for a request that may use any stream, if
/// free memory waits for a synchronization and at least half of the pool is idle. One such wait then serves many
/// requests.
fn is_worth_synchronizing(guard: &Guard<'_>, request: &AllocRequest<'_>) -> bool {
    if request.stream != Stream::ANY || !guard.arena.streams().has_unknown() {
        return false;
    }
    let in_use = guard.arena.counters().bytes_in_use;
    guard.arena.growth().pool_bytes().saturating_sub(in_use) >= LITTLE.max(request.size).max(in_use)
}
