//! Serves requests from the arena, or otherwise by the strategies, until nothing helps and the retry timeout has
//! passed.
//!
//! The order of steps is TensorFlow's (`AllocateRawInternal` and `AllocatorRetry`).

mod retry_state;
mod strategies;

use self::retry_state::RetryState;
use super::guarded::Messages;
use super::slot::{FastGuard, Guard, Interrupted, Slot, or_reborn};
use super::snapshot::PoolSnapshot;
use super::{context_loss, guarded};
use crate::core::heap::Tag;
use crate::core::request::AllocRequest;
use crate::core::stats::FailureCause;
use crate::core::stream_id::Stream;
use crate::core::units::{MAX_CHUNK, UNIT, round_up, round_up_to_512};
use crate::error::{Error, fail};
use crate::log::{self, Level};
use crate::report::{self, failure::Verdict};
use crate::sys::HostMemoryExhausted;
use crate::sys::clock::Deadline;
use std::time::Duration;

/// The parameters of a caller's request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestParams<'a> {
    pub(crate) bytes: u64,
    /// The alignment in bytes. 0 stands for 256.
    pub(crate) alignment: u64,
    /// The largest acceptable stamp of a chunk's last free. 0 accepts any.
    pub(crate) freed_before: u64,
    /// The name of the feature that was used and needs an allocator with timestamps, if any.
    pub(crate) stamped: Option<&'static str>,
    /// The stream in whose order the request is. `Stream::NONE` stands for no stream.
    pub(crate) stream: Stream,
    /// Whether the size is rounded up to a multiple of 512 instead of 256.
    pub(crate) in_512: bool,
    /// Whether the request is served only from memory that the pool holds, without growth and without waiting for work.
    pub(crate) no_growth: bool,
    /// Whether the caller has other ways to serve the request, and calls [`count_failed`] when it has none left.
    pub(crate) is_attempt: bool,
    /// Whether the memory will be freed soon.
    pub(crate) short_lived: bool,
    /// The operation that the request is for, if any.
    pub(crate) scope: Option<&'a Tag>,
    /// The number of its backtrace, if one was captured for the history.
    pub(crate) stack: u64,
}

impl RequestParams<'_> {
    /// Returns the size of the chunk, in a pool without guards.
    #[inline]
    fn size(&self) -> Option<u64> {
        if self.in_512 { round_up_to_512(self.bytes) } else { round_up(self.bytes) }
    }

    /// Returns the size of the chunk, with its guards if the pool has them.
    fn size_in(&self, guard: &Guard<'_>) -> Option<u64> {
        if guard.is_guarded() { guarded::chunk_size(self.bytes) } else { self.size() }
    }

    /// Returns the request for a chunk of this size.
    #[inline]
    pub(crate) fn request(&self, size: u64) -> AllocRequest<'_> {
        AllocRequest {
            size,
            requested: self.bytes,
            alignment: self.alignment,
            max_stamp: if self.freed_before == 0 { u64::MAX } else { self.freed_before },
            thorough: false,
            short_lived: self.short_lived,
            // It cannot ask again with growth, so it has what there is.
            splits_large: self.no_growth && !self.is_attempt,
            stream: self.stream,
            scope: self.scope,
            stack: self.stack,
            is_attempt: self.is_attempt || self.no_growth,
        }
    }
}

/// Serves a request without special parameters, in the order of a stream or of none. Returns address 0 for 0 bytes.
#[inline(always)]
pub(crate) fn alloc_plain(slot: &Slot, bytes: u64, stream: Stream) -> Result<u64, Error> {
    match alloc_at_once(slot, bytes, stream) {
        Ok(addr) => Ok(addr),
        Err(missed) if stream == Stream::NONE => alloc_recorded::<true>(missed, bytes, stream),
        Err(missed) => alloc_recorded::<false>(missed, bytes, stream),
    }
}

/// A slot in which a request was not served in the usual case.
enum Missed<'a> {
    Locked(FastGuard<'a>),
    /// Another thread holds the lock.
    Busy(&'a Slot),
}

/// Serves a request in the usual case.
#[inline(always)]
fn alloc_at_once(slot: &Slot, bytes: u64, stream: Stream) -> Result<u64, Missed<'_>> {
    let Some(mut entered) = slot.try_enter() else { return Err(Missed::Busy(slot)) };
    if let Some(size @ 1..) = round_up(bytes)
        && let Some(pool) = entered.pool()
        && let Some(addr) = pool.arena.alloc_at_once(size, bytes, stream)
    {
        entered.leave();
        return Ok(addr.get());
    }
    Err(Missed::Locked(entered))
}

/// Serves a request in the usual case of a pool that is recorded, and otherwise as [`alloc_otherwise`] does. `NO_STREAM`
/// says that the stream is [`Stream::NONE`], which saves instructions: an event may take few.
#[inline(never)]
fn alloc_recorded<const NO_STREAM: bool>(
    missed: Missed<'_>,
    bytes: u64,
    stream: Stream,
) -> Result<u64, Error> {
    let stream = if NO_STREAM { Stream::NONE } else { stream };
    let mut entered = match missed {
        Missed::Locked(entered) => entered,
        Missed::Busy(slot) => return alloc_otherwise(slot, None, bytes, stream),
    };
    let Some(pool) = entered.recorded_pool() else {
        return alloc_otherwise(entered.slot(), Some(entered), bytes, stream);
    };
    // Sizes of 0 and beyond the largest are for the other path, and one comparison tells.
    if bytes.wrapping_sub(1) < MAX_CHUNK - UNIT
        && let Some(size) = round_up(bytes)
        && let Some(addr) = pool.alloc_recorded(size, bytes, stream)
    {
        entered.leave();
        return Ok(addr.get());
    }
    alloc_recorded_otherwise(entered, bytes, stream)
}

/// Serves a request of a pool that is recorded where the usual case does not suffice.
#[inline(never)]
fn alloc_recorded_otherwise(mut entered: FastGuard<'_>, bytes: u64, stream: Stream) -> Result<u64, Error> {
    if let Some(size @ 1..) = round_up(bytes)
        && let Some(pool) = entered.recorded_pool()
        && let Some(addr) = pool.alloc_plain_recorded(size, bytes, stream)
    {
        entered.leave();
        return Ok(addr);
    }
    alloc_otherwise(entered.slot(), Some(entered), bytes, stream)
}

#[inline(never)]
fn alloc_otherwise(
    slot: &Slot,
    entered: Option<FastGuard<'_>>,
    bytes: u64,
    stream: Stream,
) -> Result<u64, Error> {
    let mut guard = slot.enter_after(entered)?;
    if !guard.is_ready() {
        return serve(guard, &RequestParams { bytes, stream, ..RequestParams::default() });
    }
    if stream != Stream::NONE {
        guard.require_no_timestamps()?;
    }
    let Some(size) = round_up(bytes) else {
        return Err(refuse_overflow(guard, &AllocRequest::plain(0, bytes, stream)));
    };
    if size == 0 {
        return Ok(0);
    }
    if let Ok(Some(addr)) = guard.arena.alloc_plain(size, bytes, stream) {
        guard.leave();
        return Ok(addr);
    }
    alloc_slowly(guard, &AllocRequest::plain(size, bytes, stream), false)
}

/// Serves a request without a stream, a bound on stamps and an operation. Returns address 0 for 0 bytes.
pub(crate) fn alloc_aligned(slot: &Slot, params: &RequestParams<'_>) -> Result<u64, Error> {
    match alloc_aligned_at_once(slot, params) {
        Ok(addr) => Ok(addr),
        Err(entered) => serve(slot.enter_after(entered)?, params),
    }
}

/// Serves the same request in the usual case. Otherwise returns the slot, if it was ready.
#[inline(always)]
fn alloc_aligned_at_once<'a>(
    slot: &'a Slot,
    params: &RequestParams<'_>,
) -> Result<u64, Option<FastGuard<'a>>> {
    let Some(mut entered) = slot.try_enter() else { return Err(None) };
    if let Some(size @ 1..) = params.size()
        && let Some(pool) = entered.pool()
        && let Some(addr) = pool.arena.alloc_aligned_at_once(size, params.bytes, params.alignment.max(UNIT))
    {
        entered.leave();
        return Ok(addr);
    }
    Err(Some(entered))
}

/// Serves a request. Returns address 0 for 0 bytes.
#[cfg(test)]
pub(crate) fn alloc(slot: &Slot, params: &RequestParams<'_>) -> Result<u64, Error> {
    serve(slot.enter()?, params)
}

/// Serves a request with the lock held. Returns address 0 for 0 bytes.
#[cold]
pub(crate) fn serve(mut guard: Guard<'_>, params: &RequestParams<'_>) -> Result<u64, Error> {
    if let Some(what) = params.stamped {
        guard.require_timestamps(what)?;
    }
    if params.stream != Stream::NONE {
        guard.require_no_timestamps()?;
    }
    let Some(size) = params.size_in(&guard) else { return Err(refuse_overflow(guard, &params.request(0))) };
    if size == 0 {
        return Ok(0);
    }
    let (request, no_growth) = (params.request(size), params.no_growth);
    // The limit may have been lowered below what the pool holds.
    if request.alignment > UNIT.max(guard.arena.growth().limit()).max(guard.arena.growth().pool_bytes()) {
        return Err(refuse_alignment(guard, &request));
    }
    if guard.is_guarded() {
        return alloc_slowly(guard, &request, no_growth);
    }
    let before = guard.arena.counters().bytes_in_use;
    match guard.arena.alloc(&request) {
        Ok(Some(addr)) => {
            guard.note_allocated(addr, &request, before);
            Ok(addr)
        }
        _ => alloc_slowly(guard, &request, no_growth),
    }
}

#[cold]
fn refuse_overflow(mut guard: Guard<'_>, request: &AllocRequest<'_>) -> Error {
    let bytes = request.requested;
    guard.fail(fail!(Error::OutOfMemory, "{bytes} bytes are more than any chunk can have (64 TiB)"), request)
}

/// Refuses an alignment larger than the limit, because only chance could provide a place with it.
#[cold]
fn refuse_alignment(mut guard: Guard<'_>, request: &AllocRequest<'_>) -> Error {
    guard.note_failure(request, FailureCause::Alignment);
    let (alignment, limit) = (request.alignment, guard.arena.growth().limit());
    fail!(Error::OutOfMemory, "alignment {alignment} is larger than the limit of {limit} bytes")
}

/// Serves a request for which no free chunk fits.
#[cold]
fn alloc_slowly(mut guard: Guard<'_>, request: &AllocRequest<'_>, no_growth: bool) -> Result<u64, Error> {
    loop {
        let Some(addr) = retry(&mut guard, request, no_growth)? else { return Err(give_up(guard, request)) };
        if !guard.is_guarded() {
            return Ok(addr);
        }
        match guarded::hand_out(&mut guard, addr, request.stream) {
            // All memory is lost, and the chunk with it.
            Err(Interrupted::Reborn) => guard.check_entry()?,
            handed_out => {
                drop(guard);
                return or_reborn(handed_out.map(Messages::emit), ()).map(|()| addr);
            }
        }
    }
}

/// Searches for memory until the retry timeout has passed. Out of line, so that its frame is not on the stack when the
/// report of a failure is written.
#[inline(never)]
fn retry(guard: &mut Guard<'_>, request: &AllocRequest<'_>, no_growth: bool) -> Result<Option<u64>, Error> {
    let state = RetryState::new(no_growth, guard.arena.life());
    let mut pause = Pause { deadline: None, looked: false, state };
    loop {
        if let Some(addr) = strategies::search(guard, request, &mut pause.state)? {
            return Ok(Some(addr));
        }
        if no_growth {
            return Err(has_none(guard, request));
        }
        if !pause.before_next(guard, request)? {
            return Ok(None);
        }
    }
}

/// The caller has other ways to get memory, so this does not count as a failure.
#[inline(never)]
fn has_none(guard: &Guard<'_>, request: &AllocRequest<'_>) -> Error {
    let (name, bytes) = (&guard.name, request.requested);
    fail!(Error::OutOfMemory, "{name}: no memory that it holds serves {bytes} bytes without growth")
}

/// What is known between two searches of a request.
struct Pause {
    deadline: Option<Deadline>,
    /// Whether it was looked whether the device's context still lives.
    looked: bool,
    state: RetryState,
}

impl Pause {
    /// Waits until another search may find something. Returns false if none may. Out of line, so that its frame is not on
    /// the stack during a search.
    #[inline(never)]
    fn before_next(&mut self, guard: &mut Guard<'_>, request: &AllocRequest<'_>) -> Result<bool, Error> {
        let Pause { deadline, looked, state } = self;
        // As in TensorFlow, the last attempt comes after the timeout.
        let is_circular = state.refused().is_some_and(|refusal| refusal.is_circular);
        let left = match guard.retry {
            Duration::ZERO => None,
            // Waiting cannot help, because this thread is in a call that holds up the one it would wait for.
            _ if is_circular || guard.must_not_wait() => None,
            retry => deadline.get_or_insert_with(|| Deadline::after(retry)).remaining(),
        };
        let Some(left) = left else {
            if *looked || guard.backend.get().life().is_none() {
                return match state.take_failure() {
                    Some(failure) => Err(guard.fail(failure.say(), request)),
                    None => Ok(false),
                };
            }
            // The last attempt is made again after this, because the lock was open.
            *looked = true;
            let life = guard.arena.life();
            context_loss::look(guard, false);
            guard.check_entry()?;
            if guard.arena.life() != life {
                state.begin_again(None);
            }
            return Ok(true);
        };
        if state.has_missed(guard) {
            // Something changed during the search, so it is repeated without sleeping.
            state.rest();
            return Ok(true);
        }
        guard.wait(Some(left));
        guard.check_entry()?;
        state.rest();
        if deadline.is_some_and(|deadline| deadline.remaining().is_none()) {
            // Pending work may have been done meanwhile.
            state.begin_again(state.refused());
        }
        Ok(true)
    }
}

/// Fails a request that nothing could serve, and stores the reason.
#[inline(never)]
fn give_up(guard: Guard<'_>, request: &AllocRequest<'_>) -> Error {
    let verdict = verdict_of(&guard, request);
    let error = fail!(Error::OutOfMemory, "{}: {verdict}", guard.name);
    note_failure(guard, request, &verdict);
    error
}

/// Counts a request that the caller has attempted and could not serve in any other way either.
#[cold]
pub(crate) fn count_failed(guard: Guard<'_>, params: &RequestParams<'_>) {
    let size = params.size_in(&guard).unwrap_or(params.bytes);
    let request = AllocRequest { is_attempt: false, ..params.request(size) };
    let verdict = verdict_of(&guard, &request);
    note_failure(guard, &request, &verdict);
}

fn verdict_of(guard: &Guard<'_>, request: &AllocRequest<'_>) -> Verdict {
    Verdict::new(&guard.arena, guard.backend.get().name(), request)
}

/// Counts a failure, unless the caller does, and logs a report if that is enabled.
#[inline(never)]
fn note_failure(mut guard: Guard<'_>, request: &AllocRequest<'_>, verdict: &Verdict) {
    guard.note_failure(request, verdict.cause());
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
