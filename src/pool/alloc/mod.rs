//! Serves requests from the arena, or otherwise by the strategies, until nothing helps and the retry timeout has
//! passed.
//!
//! The order of steps is TensorFlow's (`AllocateRawInternal` and `AllocatorRetry`).

mod retry_state;
mod strategies;

use self::retry_state::RetryState;
use self::strategies::take;
use super::history::Origin;
use super::slot::{FastGuard, Guard, Slot, or_reborn};
use super::snapshot::PoolSnapshot;
use super::{context_loss, guarded};
use crate::error::{ErrorKind, OutOfMemory, fail, fail_for_memory};
use crate::log::{self, Level};
use crate::report::{self, failure::Verdict};
use crate::sys::clock::Deadline;
use bfc_core::request::Request;
use bfc_core::stats::FailureCause;
use bfc_core::stream_id::Stream;
use bfc_core::units::{MAX_CHUNK, UNIT, round_up};
use bfc_hostmem::HostMemoryExhausted;
use std::time::Duration;

/// Serves a request without special requirements, in the order of a stream or of none. Returns address 0 for 0 bytes.
#[inline(always)]
pub(crate) fn alloc(slot: &Slot, bytes: u64, stream: Stream) -> Result<u64, ErrorKind> {
    match try_alloc(slot, bytes, stream) {
        Ok(addr) => Ok(addr),
        Err(entered) if stream == Stream::NONE => alloc_recorded::<true>(slot, entered, bytes, stream),
        Err(entered) => alloc_recorded::<false>(slot, entered, bytes, stream),
    }
}

/// Serves a request in the usual case: from a free chunk of a pool without observers, with the lock open and no call under
/// way. Otherwise returns the locked slot, if its lock was open.
#[inline(always)]
fn try_alloc(slot: &Slot, bytes: u64, stream: Stream) -> Result<u64, Option<FastGuard<'_>>> {
    let Some(mut entered) = slot.try_enter() else { return Err(None) };
    if let Some(size @ 1..) = round_up(bytes)
        && let Some(pool) = entered.pool()
        && let Some(addr) = pool.arena.try_alloc(size, bytes, stream)
    {
        entered.leave();
        return Ok(addr.get());
    }
    Err(Some(entered))
}

/// Serves a request in the usual case of a pool that is recorded, and otherwise as [`serve`] does. `NO_STREAM` says that the
/// stream is [`Stream::NONE`], which saves instructions: an event may take few.
#[inline(never)]
fn alloc_recorded<const NO_STREAM: bool>(
    slot: &Slot,
    entered: Option<FastGuard<'_>>,
    bytes: u64,
    stream: Stream,
) -> Result<u64, ErrorKind> {
    let stream = if NO_STREAM { Stream::NONE } else { stream };
    let Some(mut entered) = entered else { return serve_plain_request(slot, None, bytes, stream) };
    // Apart from the other conditions, with which the compiler would evaluate it as a number.
    let Some(pool) = entered.recorded_pool() else {
        return serve_plain_request(entered.slot(), Some(entered), bytes, stream);
    };
    let before = pool.arena.counters().bytes_in_use;
    // Sizes of 0 and beyond the largest are for the other path, and one comparison tells. So the size is rounded up here:
    // `round_up` has a comparison of its own, and the two become one that takes an instruction more.
    let last = bytes.wrapping_sub(1);
    if last < MAX_CHUNK - UNIT
        && let Some(addr) = pool.arena.try_alloc((last | (UNIT - 1)) + 1, bytes, stream)
    {
        if let Some(history) = &pool.history {
            history.allocated(&pool.arena, addr.get(), bytes, stream, before, Origin::NONE);
        }
        entered.leave();
        return Ok(addr.get());
    }
    serve_plain_request(entered.slot(), Some(entered), bytes, stream)
}

/// Serves a request from a free chunk, with tables that may have to grow for it, and otherwise by the strategies.
#[inline(never)]
fn serve_plain_request(
    slot: &Slot,
    entered: Option<FastGuard<'_>>,
    bytes: u64,
    stream: Stream,
) -> Result<u64, ErrorKind> {
    let Some(mut entered) = entered else {
        return serve(slot.enter_after(None)?, &Request::new(bytes, stream));
    };
    let mut is_searched = false;
    if let Some(size @ 1..) = round_up(bytes)
        && let Some(pool) = entered.any_pool()
        && (stream == Stream::NONE || !pool.arena.settings().reuse.has_stamps())
    {
        let before = pool.arena.counters().bytes_in_use;
        let allocated = pool.arena.alloc_plain_request(size, bytes, stream);
        if let Ok(Some(addr)) = allocated {
            if let Some(history) = &pool.history {
                history.allocated(&pool.arena, addr, bytes, stream, before, Origin::NONE);
            }
            entered.leave();
            return Ok(addr);
        }
        is_searched = allocated.is_ok();
    }
    let (guard, request) = (slot.enter_after(Some(entered))?, Request::new(bytes, stream));
    // The arena is not searched again for what it does not have.
    if is_searched { serve_by_strategies(guard, &request) } else { serve(guard, &request) }
}

/// Serves a request without a stream, a bound on stamps and an operation. Returns address 0 for 0 bytes.
pub(crate) fn alloc_aligned(slot: &Slot, request: &Request<'_>) -> Result<u64, ErrorKind> {
    let Some(mut entered) = slot.try_enter() else { return serve(slot.enter_after(None)?, request) };
    let Request { size, requested, alignment, .. } = *request;
    // The usual case, as in `try_alloc`.
    if requested != 0
        && !request.is_too_large()
        && let Some(pool) = entered.pool()
        && let Some(addr) = pool.arena.try_alloc_aligned(size, requested, alignment)
    {
        entered.leave();
        return Ok(addr);
    }
    serve(slot.enter_after(Some(entered))?, request)
}

/// Serves a request with the lock held. Returns address 0 for 0 bytes.
#[inline(never)]
pub(crate) fn serve(mut guard: Guard<'_>, request: &Request<'_>) -> Result<u64, ErrorKind> {
    if request.max_stamp != u64::MAX {
        guard.require_timestamps("freed_before")?;
    }
    if request.stream != Stream::NONE {
        guard.require_no_timestamps()?;
    }
    if request.requested == 0 {
        return Ok(0);
    }
    if guard.is_guarded() {
        return serve_guarded(guard, &request.with_size(guarded::chunk_size(request.requested)));
    }
    if let Some(refused) = refuse(&mut guard, request) {
        return Err(refused);
    }
    match take(&mut guard, request)? {
        Some(addr) => Ok(addr),
        None => serve_by_strategies(guard, request),
    }
}

/// Serves a request of a pool without the debug mode for which there is no free chunk.
#[cold]
fn serve_by_strategies(mut guard: Guard<'_>, request: &Request<'_>) -> Result<u64, ErrorKind> {
    let begun_in = guard.arena.life();
    match retry(&mut guard, request, begun_in)? {
        Some(addr) => Ok(addr),
        None => Err(give_up(guard, request)),
    }
}

/// Serves a request in the debug mode, whose chunk has room for the guards. They are written before the call returns.
#[cold]
fn serve_guarded(mut guard: Guard<'_>, request: &Request<'_>) -> Result<u64, ErrorKind> {
    let begun_in = guard.arena.life();
    if let Some(refused) = refuse(&mut guard, request) {
        return Err(refused);
    }
    loop {
        let found = match take(&mut guard, request)? {
            Some(addr) => Some(addr),
            None => retry(&mut guard, request, begun_in)?,
        };
        let Some(addr) = found else { return Err(give_up(guard, request)) };
        match guarded::hand_out(&mut guard, addr, request.stream) {
            Ok(messages) => {
                drop(guard);
                messages.emit();
                return Ok(addr);
            }
            // If all memory is lost, and the chunk with it, the request begins again.
            Err(interrupted) => or_reborn(Err(interrupted), &guard, ())?,
        }
    }
}

/// Refuses a request that nothing can serve: for more than any chunk can have, or with an alignment larger than the limit,
/// because only chance could provide a place with it.
#[inline]
fn refuse(guard: &mut Guard<'_>, request: &Request<'_>) -> Option<ErrorKind> {
    // The limit may have been lowered below what the pool holds.
    let growth = guard.arena.growth();
    let is_unlikely = request.alignment > UNIT.max(growth.limit()).max(growth.pool_bytes());
    if request.is_too_large() || is_unlikely { Some(refusal(guard, request)) } else { None }
}

#[cold]
fn refusal(guard: &mut Guard<'_>, request: &Request<'_>) -> ErrorKind {
    let Request { requested: bytes, alignment, .. } = *request;
    let numbers = verdict_of(guard, request).numbers();
    if request.is_too_large() {
        let numbers = OutOfMemory { cause: FailureCause::Other, ..numbers };
        let error =
            fail_for_memory(numbers, format_args!("{bytes} bytes are more than any chunk can have (64 TiB)"));
        return guard.fail(error, request);
    }
    let cause = FailureCause::Alignment;
    guard.count_failure(request, cause);
    let limit = guard.arena.growth().limit();
    let numbers = OutOfMemory { cause, ..numbers };
    fail_for_memory(numbers, format_args!("alignment {alignment} is larger than the limit of {limit} bytes"))
}

/// Searches for memory until the retry timeout has passed, after [`take`] has found none. `begun_in` is the value of
/// `Arena::life` when the request began. Out of line, so that its frame is not on the stack when the report of a failure is
/// written.
#[inline(never)]
fn retry(guard: &mut Guard<'_>, request: &Request<'_>, begun_in: u64) -> Result<Option<u64>, ErrorKind> {
    let state = RetryState::new(begun_in);
    let mut pause = Pause { deadline: None, has_probed: false, state };
    loop {
        if let Some(addr) = strategies::search(guard, request, &mut pause.state)? {
            return Ok(Some(addr));
        }
        if request.no_growth {
            return Err(has_none(guard, request));
        }
        if !pause.wait_for_change(guard, request)? {
            return Ok(None);
        }
        let request = pause.state.complete(guard, request);
        if let Some(addr) = take(guard, &request)? {
            return Ok(Some(addr));
        }
    }
}

/// The caller has other ways to get memory, so this does not count as a failure.
#[inline(never)]
fn has_none(guard: &Guard<'_>, request: &Request<'_>) -> ErrorKind {
    let (name, bytes) = (&guard.name, request.requested);
    fail!(ErrorKind::OutOfMemory, "{name}: no memory that it holds serves {bytes} bytes without growth")
}

/// What is known between two searches of a request.
struct Pause {
    deadline: Option<Deadline>,
    /// Whether it was checked whether the device's context still lives.
    has_probed: bool,
    state: RetryState,
}

impl Pause {
    /// Waits until another search may find something. Returns false if none may. Out of line, so that its frame is not on
    /// the stack during a search.
    #[inline(never)]
    fn wait_for_change(&mut self, guard: &mut Guard<'_>, request: &Request<'_>) -> Result<bool, ErrorKind> {
        let Pause { deadline, has_probed, state } = self;
        // As in TensorFlow, the last attempt comes after the timeout.
        let is_circular = state.refused().is_some_and(|refusal| refusal.is_circular);
        let left = match guard.retry {
            Duration::ZERO => None,
            // Waiting cannot help, because this thread is in a call that holds up the one it would wait for.
            _ if is_circular || guard.must_not_wait() => None,
            retry => deadline.get_or_insert_with(|| Deadline::after(retry)).remaining(),
        };
        let Some(left) = left else {
            if *has_probed || guard.backend.get().life().is_none() {
                return match state.take_failure() {
                    Some(failure) => Err(guard.fail(failure.say(), request)),
                    None => Ok(false),
                };
            }
            // The last attempt is made again after this, because the lock was open.
            *has_probed = true;
            let life = guard.arena.life();
            context_loss::probe_memory(guard, false);
            guard.check_entry()?;
            if guard.arena.life() != life {
                state.forget_attempts(None);
            }
            return Ok(true);
        };
        if state.has_missed(guard) {
            // Something changed during the search, so it is repeated without sleeping.
            state.reset_rounds();
            return Ok(true);
        }
        guard.wait(Some(left));
        guard.check_entry()?;
        state.reset_rounds();
        if deadline.is_some_and(|deadline| deadline.remaining().is_none()) {
            // Pending work may have been done meanwhile.
            state.forget_attempts(state.refused());
        }
        Ok(true)
    }
}

/// Fails a request that nothing could serve, and stores the reason.
#[inline(never)]
fn give_up(guard: Guard<'_>, request: &Request<'_>) -> ErrorKind {
    let verdict = verdict_of(&guard, request);
    let error = fail_for_memory(verdict.numbers(), format_args!("{}: {verdict}", guard.name));
    report_failure(guard, request, &verdict);
    error
}

/// Counts a request that the caller has attempted and could not serve in any other way either.
#[cold]
pub(crate) fn count_failed_attempt(guard: Guard<'_>, request: &Request<'_>) {
    let request = Request { is_attempt: false, ..*request };
    let request =
        if guard.is_guarded() { request.with_size(guarded::chunk_size(request.requested)) } else { request };
    let verdict = verdict_of(&guard, &request);
    report_failure(guard, &request, &verdict);
}

fn verdict_of(guard: &Guard<'_>, request: &Request<'_>) -> Verdict {
    Verdict::new(&guard.arena, guard.backend.get().name(), request)
}

/// Counts a failure, unless the caller does, and logs a report if that is enabled.
#[inline(never)]
fn report_failure(mut guard: Guard<'_>, request: &Request<'_>, verdict: &Verdict) {
    guard.count_failure(request, verdict.cause());
    if !request.is_attempt
        && guard.report_failures
        && log::is_wanted(Level::Error)
        && report::failure::is_due()
    {
        match failure_report(guard, verdict) {
            Ok(text) => log::emit_text(Level::Error, &text),
            Err(_) => {
                log::emit(Level::Error, format_args!("no host memory for the report of a failed request"))
            }
        }
    }
}

#[inline(never)]
fn failure_report(guard: Guard<'_>, verdict: &Verdict) -> Result<String, HostMemoryExhausted> {
    let snapshot = PoolSnapshot::of(&guard)?;
    drop(guard);
    report::to_string(|out| report::failure::write(out, &snapshot.subject(), Some(verdict)))
}
