//! What a request tries when no free chunk fits, in TensorFlow's order (`AllocateRawInternal`).
//!
//! The backend and the driver are called with the lock open, so that after each such call the world may have changed and
//! the search begins again. [`search`] says that nothing helps only where nothing was found and the lock has been held
//! since.

use super::retry_state::{Once, RetryState};
use crate::core::request::AllocRequest;
use crate::core::stream_id::Stream;
use crate::error::{Error, keeping_last_error};
use crate::pool::region_io::{Extended, extend, extend_exactly, release};
use crate::pool::slot::Guard;
use crate::pool::{context_loss, guarded, order, remap, stamp_merge};

/// How a search ended; an error is one that waiting for a free would not mend.
pub(super) type Attempt<'a> = Result<Outcome<'a>, Error>;

pub(super) enum Outcome<'a> {
    Served(u64),
    /// Nothing helps at this moment.
    Exhausted(Guard<'a>),
}

/// What a strategy did.
enum Step<'a> {
    /// Something that may help: the search begins again.
    Again(Guard<'a>),
    /// Nothing, and the lock has been held since the last search.
    Next(Guard<'a>),
    /// Nothing, and nothing else is to be tried.
    Last(Guard<'a>),
}

type Strategy = for<'a> fn(Guard<'a>, &AllocRequest<'_>, &mut RetryState) -> Result<Step<'a>, Error>;

/// The strategies in the order in which they are tried. [`Once`] has when each is tried again.
const STRATEGIES: [Strategy; 15] = [
    share,
    merge_safe,
    stay_with_what_is_held,
    await_calls,
    give_way,
    poll,
    synchronize_instead_of_growing,
    grow,
    search_thoroughly,
    wait_for_events,
    synchronize_unordered,
    merge_by_force,
    collect,
    grow_by_least,
    wait_for_all,
];

/// Searches and goes through the strategies, each once as long as nothing changes.
pub(super) fn search<'a>(
    mut guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Attempt<'a> {
    state.least = request.size;
    'search: loop {
        let request = &AllocRequest { thorough: state.thorough, ..*request };
        guard = match take(guard, request)? {
            Outcome::Exhausted(guard) => guard,
            served => return Ok(served),
        };
        for strategy in STRATEGIES {
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

/// The best chunk there is now, if any.
#[inline(never)]
fn take<'a>(mut guard: Guard<'a>, request: &AllocRequest<'_>) -> Attempt<'a> {
    if guard.is_guarded() {
        guard = guarded::turn(guard)?;
        if let Err(exhausted) = guarded::make_room(&mut guard) {
            return Err(guard.fail(exhausted.into(), request.requested));
        }
    }
    match guard.arena.alloc(request) {
        Ok(Some(addr)) if guard.is_guarded() => {
            // What is gone by now is nothing found.
            let gone = guarded::hand_out(guard, addr, request.stream)?;
            Ok(gone.map_or(Outcome::Served(addr), Outcome::Exhausted))
        }
        Ok(Some(addr)) => Ok(Outcome::Served(addr)),
        Ok(None) => Ok(Outcome::Exhausted(guard)),
        Err(exhausted) => Err(guard.fail(exhausted.into(), request.requested)),
    }
}

/// Chunks whose work is done become reusable by every stream.
fn share<'a>(guard: Guard<'a>, _: &AllocRequest<'_>, _: &mut RetryState) -> Result<Step<'a>, Error> {
    if !guard.arena.streams().is_sharing() {
        return Ok(Step::Next(guard));
    }
    order::share_a_piece(guard).map(Step::Again)
}

/// Chunks whose stamps are safe coalesce.
fn merge_safe<'a>(guard: Guard<'a>, _: &AllocRequest<'_>, _: &mut RetryState) -> Result<Step<'a>, Error> {
    if !guard.arena.is_merging() {
        return Ok(Step::Next(guard));
    }
    stamp_merge::merge_safe_piece(guard).map(Step::Again)
}

/// A request that only takes what the pool holds ends here, once the order of work was asked after.
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

/// Other threads' calls of the backend may bring what the request needs.
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

/// Threads that wait for the lock may be about to free.
fn give_way<'a>(guard: Guard<'a>, _: &AllocRequest<'_>, state: &mut RetryState) -> Result<Step<'a>, Error> {
    if state.no_growth || state.was_tried(Once::GiveWay) || !guard.is_awaited() {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::GiveWay);
    guard.give_way().check_entry().map(Step::Again)
}

/// Asks the driver which work is done: what other streams freed before it becomes reusable.
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

/// A client that knows of no streams frees for all of them, and its pool would grow for ever.
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

/// Asks the backend for a region, or for granules.
fn grow<'a>(guard: Guard<'a>, request: &AllocRequest<'_>, state: &mut RetryState) -> Result<Step<'a>, Error> {
    if state.was_tried(Once::Extend) {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::Extend);
    let guard = context_loss::renewed(guard, request.requested)?;
    let (guard, extended) = match guard.arena.range() {
        None => extend(guard, request, state.least, &mut state.refused)?,
        Some(_) => remap::grow(guard, request, &mut state.refused)?,
    };
    after_growth(guard, extended, request, state)
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

/// Examines every large enough chunk for a place at the alignment, since the pool does not grow.
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

/// Has the request's stream wait for the events of other streams' work.
fn wait_for_events<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if state.was_tried(Once::WaitForEvents) {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::WaitForEvents);
    let (guard, waited) = order::wait(guard, request)?;
    // A place may be found that reaches into what is not mapped yet.
    if state.note(waited) && guard.arena.range().is_some() {
        state.try_again(Once::Extend);
    }
    Ok(Step::Again(guard))
}

/// Memory that was freed without a stream has no event: only a synchronization makes it reusable. It comes before the
/// strategies behind it, because giving regions back and moving granules waits for the device too.
fn synchronize_unordered<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
    state: &mut RetryState,
) -> Result<Step<'a>, Error> {
    if state.was_tried(Once::Synchronize) {
        return Ok(Step::Next(guard));
    }
    state.note_tried(Once::Synchronize);
    let (guard, may_collect) = match guard.arena.streams().has_unordered() {
        true => order::synchronize_unordered(guard, request)?,
        false => order::may_disturb(guard, request.stream)?,
    };
    state.may_collect = state.note(may_collect);
    Ok(Step::Again(guard))
}

/// Stamped chunks coalesce in spite of their stamps.
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

/// Makes room of what is idle: moves granules, or gives wholly free regions back so that the backend can make a larger
/// one of them.
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
    let (guard, released) = keeping_last_error(|| release(guard, regions, request.stream));
    let guard = guard.check_entry()?;
    // What the backend did not take back is found again, or reported as out of memory.
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
            // With guards on, another thread may take the turn and with it the memory.
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

/// Asks the backend for exactly what the request needs. Here TensorFlow fails; what the backend has left may lie between two
/// sizes that it was asked for.
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

/// Waits for all work that free memory waits for.
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

/// A pool that is idle by less grows before it waits for the device.
const LITTLE: u64 = 32 << 20;

/// Whether it is better to wait for the device than to grow, for a request that may use any stream, where some of what
/// is free waits for no less: half of the pool is idle, so that many a request is served by one such wait.
fn is_worth_synchronizing(guard: &Guard<'_>, request: &AllocRequest<'_>) -> bool {
    if request.stream != Stream::ANY || !guard.arena.streams().has_unknown() {
        return false;
    }
    let in_use = guard.arena.counters().bytes_in_use;
    guard.arena.growth().pool_bytes().saturating_sub(in_use) >= LITTLE.max(request.size).max(in_use)
}
