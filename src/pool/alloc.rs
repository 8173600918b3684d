//! Serving requests: find, grow, merge, collect, wait, fail.
//!
//! The order is TensorFlow's (`AllocateRawInternal` and `AllocatorRetry`). What differs: the backend is
//! called with the lock open, so after each such call the world may have changed and the search begins
//! again.

use super::region_io::{Extended, Refusal, extend, extend_exactly, release};
use super::slot::{Guard, Slot};
use super::snapshot::PoolSnapshot;
use super::{context_loss, guarded, order, remap, stamp_merge};
use crate::core::arena::Progress;
use crate::core::heap::Tag;
use crate::core::request::AllocRequest;
use crate::core::stamps::ForcedPass;
use crate::core::stats::FailureCause;
use crate::core::stream_id::Stream;
use crate::core::units::{UNIT, round_up, round_up_to_512};
use crate::error::{DeferredError, Error, fail, keeping_last_error};
use crate::log::{self, Level};
use crate::report;
use crate::sys::HostMemoryExhausted;
use crate::sys::clock::Deadline;
use std::time::Duration;

/// What a caller asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestParams<'a> {
    pub(crate) bytes: u64,
    /// 0 is 256.
    pub(crate) alignment: u64,
    /// 0 is any.
    pub(crate) freed_before: u64,
    /// Who needs an allocator with timestamps for it, if anybody does.
    pub(crate) stamped: Option<&'static str>,
    /// In whose order; `Stream::NONE` is the caller's.
    pub(crate) stream: Stream,
    /// Whether the size is rounded up to a multiple of 512, and not of 256.
    pub(crate) in_512: bool,
    /// Only from what the pool holds: the backend is asked for no memory, and no work is waited for.
    pub(crate) no_growth: bool,
    /// The operation that it is for, if it is for one.
    pub(crate) scope: Option<&'a Tag>,
}

/// How an attempt ended; an error is one that waiting for a free would not mend.
type Attempt<'a> = Result<Outcome<'a>, Error>;

enum Outcome<'a> {
    Served(u64),
    /// Nothing helps at this moment.
    Exhausted(Guard<'a>),
}

/// Serves a request for memory in the order of a stream, or of none, and nothing else; 0 bytes are address 0.
#[inline(always)]
pub(crate) fn alloc_plain(slot: &Slot, bytes: u64, stream: Stream) -> Result<u64, Error> {
    let mut guard = match slot.enter_plainly() {
        Ok(guard) => guard,
        Err(guard) => {
            return serve(guard.check_entry()?, &RequestParams { bytes, stream, ..RequestParams::default() });
        }
    };
    if stream != Stream::NONE {
        require_no_timestamps(&guard)?;
    }
    let Some(size) = round_up(bytes) else { return Err(refuse_overflow(guard, bytes)) };
    if size == 0 {
        return Ok(0);
    }
    if let Ok(Some(addr)) = guard.arena.alloc_plain(size, bytes, stream) {
        guard.leave();
        return Ok(addr);
    }
    alloc_slowly(guard, &AllocRequest::plain(size, bytes, stream), false)
}

/// Serves a request; 0 bytes are address 0.
#[cfg(test)]
pub(crate) fn alloc(slot: &Slot, params: &RequestParams<'_>) -> Result<u64, Error> {
    serve(slot.enter()?, params)
}

/// Serves a request; 0 bytes are address 0.
#[cold]
pub(crate) fn serve(mut guard: Guard<'_>, params: &RequestParams<'_>) -> Result<u64, Error> {
    if let Some(what) = params.stamped {
        require_timestamps(&guard, what)?;
    }
    if params.stream != Stream::NONE {
        require_no_timestamps(&guard)?;
    }
    let size = if guard.is_guarded() {
        guarded::chunk_size(params.bytes)
    } else {
        let round = if params.in_512 { round_up_to_512 } else { round_up };
        round(params.bytes)
    };
    let Some(size) = size else { return Err(refuse_overflow(guard, params.bytes)) };
    if size == 0 {
        return Ok(0);
    }
    let max_stamp = match params.freed_before {
        0 => u64::MAX,
        stamp => stamp,
    };
    let RequestParams { bytes: requested, alignment, stream, no_growth, scope, .. } = *params;
    let request = AllocRequest { size, requested, alignment, max_stamp, thorough: false, stream, scope };
    // The limit may have been lowered below what is held.
    if request.alignment > UNIT.max(guard.arena.growth().limit()).max(guard.arena.growth().pool_bytes()) {
        return Err(refuse_alignment(guard, &request));
    }
    if guard.is_guarded() {
        return alloc_slowly(guard, &request, no_growth);
    }
    match guard.arena.alloc(&request) {
        Ok(Some(addr)) => Ok(addr),
        _ => alloc_slowly(guard, &request, no_growth),
    }
}

pub(crate) fn require_timestamps(guard: &Guard<'_>, what: &str) -> Result<(), Error> {
    if guard.arena.settings().timestamps {
        return Ok(());
    }
    Err(fail!(Error::Unsupported, "{what}: the allocator was created without BFC_TIMESTAMPS"))
}

/// Stamps and streams are two answers to one question.
#[inline]
pub(crate) fn require_no_timestamps(guard: &Guard<'_>) -> Result<(), Error> {
    if !guard.arena.settings().timestamps {
        return Ok(());
    }
    Err(fail!(
        Error::Unsupported,
        "the allocator was created with BFC_TIMESTAMPS, which excludes stream order"
    ))
}

#[cold]
fn refuse_overflow(guard: Guard<'_>, bytes: u64) -> Error {
    guard.fail(fail!(Error::OutOfMemory, "{bytes} bytes are more than any chunk can have (64 TiB)"), bytes)
}

/// Whether a place so aligned exists would be luck.
#[cold]
fn refuse_alignment(mut guard: Guard<'_>, request: &AllocRequest<'_>) -> Error {
    guard.arena.count_failure(request.requested, FailureCause::Alignment);
    let (alignment, limit) = (request.alignment, guard.arena.growth().limit());
    fail!(Error::OutOfMemory, "alignment {alignment} is larger than the limit of {limit} bytes")
}

#[cold]
fn alloc_slowly(guard: Guard<'_>, request: &AllocRequest<'_>, no_growth: bool) -> Result<u64, Error> {
    match search(guard, request, no_growth)? {
        Outcome::Served(addr) => Ok(addr),
        Outcome::Exhausted(guard) => Err(give_up(guard, request)),
    }
}

/// Out of line, so that a report of the failure does not come on top of its frame.
#[inline(never)]
fn search<'a>(mut guard: Guard<'a>, request: &AllocRequest<'_>, no_growth: bool) -> Attempt<'a> {
    let begun_in = guard.arena.life();
    let (mut deadline, mut looked) = (None, false);
    let mut tried = RetryState { no_growth, begun_in, ..RetryState::default() };
    loop {
        guard = match attempt(guard, request, &mut tried)? {
            Outcome::Exhausted(guard) => guard,
            served => return Ok(served),
        };
        if no_growth {
            // The caller has other ways, so it is no failure to count.
            let (name, bytes) = (&guard.name, request.requested);
            return Err(fail!(Error::OutOfMemory, "{name}: no free chunk that it holds has {bytes} bytes"));
        }
        // As in the original the last attempt comes after the time is up.
        let is_circular = tried.refused.is_some_and(|refusal| refusal.is_circular);
        let left = match guard.retry {
            Duration::ZERO => None,
            // The caller waits for this request in a call of an allocator that this one would wait for.
            _ if is_circular => None,
            retry => deadline.get_or_insert_with(|| Deadline::after(retry)).remaining(),
        };
        let Some(left) = left else {
            if looked || guard.backend.get().life().is_none() {
                return match tried.failure {
                    Some(failure) => Err(guard.fail(failure.say(), request.requested)),
                    None => Ok(Outcome::Exhausted(guard)),
                };
            }
            // The last attempt again comes behind it, for the lock was open.
            looked = true;
            let life = guard.arena.life();
            guard = context_loss::look(guard, false).check_entry()?;
            if guard.arena.life() != life {
                tried.begin_again(None);
            }
            continue;
        };
        if tried.seen != Some(guard.arena.progress()) {
            // It gave up in the middle of things that happen, so there is nothing to sleep for.
            tried.rounds = 0;
            continue;
        }
        guard = guard.wait(Some(left)).check_entry()?;
        tried.rounds = 0;
        if deadline.is_some_and(|deadline| deadline.remaining().is_none()) {
            // The order of work may have got further.
            tried.begin_again(tried.refused);
        }
    }
}

/// What a request has tried since something last changed: trying it again would not help. Without this, those
/// whom the backend refuses would wake each other to ask it for ever.
#[derive(Default)]
struct RetryState {
    /// Whether there is nothing to try but what the pool holds.
    no_growth: bool,
    /// The life of the device's context that the request was made in: with it the stream that it names ends.
    begun_in: u64,
    /// How far things were at that time.
    seen: Option<Progress>,
    /// How often something had changed. In the end a request is answered, however busy others are.
    rounds: u32,
    /// Calls up to this number were under way then: they may bring something. Later ones are not waited for,
    /// or a thread that asks and asks would keep the others from asking.
    last_call: u64,
    gave_way: bool,
    polled: bool,
    waited: bool,
    synchronized: bool,
    /// Nothing was captured then.
    may_collect: bool,
    extended: bool,
    /// All chunks are looked at for a place at the alignment from now on, for it does not grow.
    thorough: bool,
    merged: bool,
    /// The forced merges that it is in the midst of.
    forced: Option<ForcedPass>,
    collected: bool,
    waited_for_all: bool,
    /// What it need not ask the backend for again.
    refused: Option<Refusal>,
    /// What the driver failed to do for it meanwhile: why it fails, if nothing else serves it.
    failure: Option<DeferredError>,
    /// How often granules were moved for it.
    moves: u32,
}

impl RetryState {
    const ROUNDS: u32 = 4;
    const MOVES: u32 = 16;

    /// Nothing was tried yet, but what the backend refused. Out of line: a second one would be in the frame of the search.
    #[inline(never)]
    fn begin_again(&mut self, refused: Option<Refusal>) {
        let RetryState { no_growth, begun_in, .. } = *self;
        *self = RetryState { no_growth, begun_in, refused, ..RetryState::default() };
    }

    /// What was freed may merge and be collected; growth is tried again only where regions came or went.
    fn look(&mut self, guard: &Guard<'_>) {
        let now = guard.arena.progress();
        let Some(seen) = self.seen.replace(now) else {
            self.last_call = guard.last_call();
            return;
        };
        if seen == now {
            return;
        }
        if self.rounds == Self::ROUNDS {
            self.seen = Some(seen);
            return;
        }
        self.rounds += 1;
        (self.polled, self.waited, self.synchronized, self.failure) = (false, false, false, None);
        (self.merged, self.collected, self.waited_for_all) = (false, false, false);
        if seen.regions != now.regions {
            (self.last_call, self.extended) = (guard.last_call(), false);
        }
    }

    /// What came of a look after the order of work; the request goes on without, unless the driver failed to serve it
    /// otherwise too.
    fn note<T: Default>(&mut self, answer: Result<T, DeferredError>) -> T {
        answer.unwrap_or_else(|failure| {
            self.failure = Some(failure);
            T::default()
        })
    }

    /// Whether the backend refused more than a request needs, but not that.
    fn may_get_less(&self, guard: &Guard<'_>, least: u64) -> bool {
        let refused = Refusal::limit(self.refused, guard);
        guard.arena.range().is_none() && refused != u64::MAX && refused > least
    }

    /// What came of asking for more memory. Returns whether the search begins again.
    fn note_growth<'a>(
        &mut self,
        mut guard: Guard<'a>,
        extended: Extended,
        request: &AllocRequest<'_>,
        least: &mut u64,
    ) -> Result<(Guard<'a>, bool), Error> {
        match extended {
            Extended::Grown => {
                // What a backend gave that did not honour the alignment has to have it inside.
                *least = request.size.saturating_add(request.alignment.max(UNIT) - UNIT);
                self.note_own(&guard, 1);
            }
            Extended::Refused => {}
            Extended::NoRoom if guard.is_bringing(u64::MAX) => {
                // The room is set aside for another thread's region, which may come to nothing.
                guard = guard.wait_for_call()?;
                self.extended = false;
            }
            Extended::NoRoom => return Ok((guard, false)),
        }
        Ok((guard, true))
    }

    /// This thread itself has obtained or given back so many regions: what it tried it need not try again for
    /// that, but growth; and others may have set out meanwhile.
    fn note_own(&mut self, guard: &Guard<'_>, regions: u64) {
        if let Some(seen) = &mut self.seen {
            seen.regions += regions;
        }
        (self.last_call, self.extended) = (guard.last_call(), false);
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

/// Goes through everything that may help, each once as long as nothing changes. Whenever the lock was open the
/// search begins again, so that no free is missed: `Exhausted` is said only where nothing was found and the lock
/// has been held since.
fn attempt<'a>(mut guard: Guard<'a>, request: &AllocRequest<'_>, tried: &mut RetryState) -> Attempt<'a> {
    let mut least = request.size;
    loop {
        let request = &AllocRequest { thorough: tried.thorough, ..*request };
        guard = match take(guard, request)? {
            Outcome::Exhausted(guard) => guard,
            served => return Ok(served),
        };
        if guard.arena.streams().is_sharing() {
            guard = order::share_a_piece(guard)?;
            continue;
        }
        if guard.arena.is_merging() {
            guard = stamp_merge::merge_safe_piece(guard)?;
            continue;
        }
        tried.look(&guard);
        if tried.no_growth && tried.polled {
            if request.needs_thorough_search() {
                tried.thorough = true;
                continue;
            }
            return Ok(Outcome::Exhausted(guard));
        }
        if !tried.no_growth && guard.is_bringing(tried.last_call) {
            guard = guard.wait_for_call()?;
            continue;
        }
        if !tried.no_growth && !tried.gave_way && guard.is_awaited() {
            tried.gave_way = true;
            guard = guard.give_way().check_entry()?;
            continue;
        }
        // What other streams freed: all whose work is done, then, where the pool cannot grow, behind their work.
        if !tried.polled {
            tried.polled = true;
            let polled;
            let lives = guard.arena.life() == tried.begun_in;
            (guard, polled) = order::poll(guard, if lives { request.stream } else { Stream::NONE })?;
            tried.note(polled);
            continue;
        }
        // Whoever knows of no streams frees for all of them, and would grow for ever.
        if !tried.synchronized && is_worth_synchronizing(&guard, request) {
            tried.synchronized = true;
            let idle;
            (guard, idle) = order::synchronize(guard, request.stream)?;
            tried.may_collect = tried.note(idle);
            continue;
        }
        if !tried.extended {
            tried.extended = true;
            guard = context_loss::renewed(guard, request.requested)?;
            let extended;
            (guard, extended) = match guard.arena.range() {
                None => extend(guard, request, least, &mut tried.refused)?,
                Some(_) => remap::grow(guard, request, &mut tried.refused)?,
            };
            let again;
            (guard, again) = tried.note_growth(guard, extended, request, &mut least)?;
            if again {
                continue;
            }
        }
        if request.needs_thorough_search() {
            tried.thorough = true;
            continue;
        }
        if !tried.waited {
            tried.waited = true;
            let waited;
            (guard, waited) = order::wait(guard, request)?;
            // A place may be found that reaches into what is not mapped yet.
            let may_map_more = tried.note(waited) && guard.arena.range().is_some();
            tried.extended &= !may_map_more;
            continue;
        }
        // Memory that was freed without a stream has no event: only a synchronization makes it reusable. It comes before
        // the steps behind it, because giving regions back and moving granules waits for the device too.
        if !tried.synchronized {
            tried.synchronized = true;
            let may_collect;
            (guard, may_collect) = match guard.arena.streams().has_unordered() {
                true => order::synchronize_unordered(guard, request)?,
                false => order::may_disturb(guard, request.stream)?,
            };
            tried.may_collect = tried.note(may_collect);
            continue;
        }
        if !tried.merged && request.max_stamp == u64::MAX && guard.arena.stamps_wait() {
            let again;
            (guard, again) = stamp_merge::merge_forced_piece(guard, request, &mut tried.forced)?;
            tried.merged = tried.forced.is_none();
            if again {
                continue;
            }
        }
        if !tried.collected && tried.may_collect && !guard.is_capture_announced(request.stream) {
            tried.collected = true;
            let again;
            (guard, again) = collect(guard, request, tried, &mut least)?;
            if again {
                continue;
            }
        }
        // Here TensorFlow fails. What the backend has left may lie between two sizes that it was asked for.
        if tried.may_get_less(&guard, least) {
            let extended;
            (guard, extended) = extend_exactly(guard, request, least, &mut tried.refused)?;
            let again;
            (guard, again) = tried.note_growth(guard, extended, request, &mut least)?;
            if again {
                continue;
            }
        }
        let can_wait = guard.backend.get().order().is_some() && guard.arena.streams().has_unfinished();
        if tried.waited_for_all || !can_wait {
            return Ok(Outcome::Exhausted(guard));
        }
        tried.waited_for_all = true;
        let idle;
        (guard, idle) = order::wait_for_all(guard, request)?;
        tried.may_collect = tried.note(idle);
        tried.collected = false;
    }
}

/// Makes room of what is idle: moves granules, or gives wholly free regions back so that the backend can make a larger
/// one of them. Returns whether the search is to begin again; where it is not, the lock has been held since the last.
#[inline(never)]
fn collect<'a>(
    mut guard: Guard<'a>,
    request: &AllocRequest<'_>,
    tried: &mut RetryState,
    least: &mut u64,
) -> Result<(Guard<'a>, bool), Error> {
    if guard.arena.range().is_some() {
        let moved;
        (guard, moved) = remap::relocate(guard, request, &mut tried.refused)?;
        match moved {
            Extended::Grown => {
                tried.note_own(&guard, 1);
                // With guards on, another thread may take the turn and with it the memory.
                tried.moves += 1;
                tried.collected = !guard.is_guarded() || tried.moves > RetryState::MOVES;
            }
            Extended::Refused => {}
            Extended::NoRoom if guard.is_bringing(u64::MAX) => {
                guard = guard.wait_for_call()?;
                tried.collected = false;
            }
            Extended::NoRoom => return Ok((guard, false)),
        }
        return Ok((guard, true));
    }
    let regions = guard.arena.detach_for(request.size);
    if regions.is_empty() {
        return Ok((guard, false));
    }
    let released;
    (guard, released) = keeping_last_error(|| release(guard, regions, request.stream));
    guard = guard.check_entry()?;
    // What the backend did not take back is found again, or reported as out of memory.
    tried.note_own(&guard, released.regions);
    *least = request.size;
    Ok((guard, true))
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

/// Nothing helped: count, say why, and write a report if somebody wants one.
#[inline(never)]
fn give_up(mut guard: Guard<'_>, request: &AllocRequest<'_>) -> Error {
    let verdict = report::failure::Verdict::new(&guard.arena, request);
    guard.arena.count_failure(request.requested, verdict.cause());
    let error = fail!(Error::OutOfMemory, "{}: {verdict}", guard.name);
    if guard.report_failures && log::is_wanted(Level::Error) && report::failure::is_due() {
        match failure_report(guard, &verdict) {
            Ok(text) => log::emit_text(Level::Error, &text),
            Err(_) => {
                log::emit(Level::Error, format_args!("no host memory for the report of a failed request"))
            }
        }
    }
    error
}

#[inline(never)]
fn failure_report(
    guard: Guard<'_>,
    verdict: &report::failure::Verdict,
) -> Result<String, HostMemoryExhausted> {
    let snapshot = PoolSnapshot::of(&guard)?;
    drop(guard);
    report::to_string(|out| report::failure::write(out, &snapshot.subject(), Some(verdict)))
}
