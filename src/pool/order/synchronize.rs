//! Waits for the device's whole context.

use super::capture_state::may_disturb;
use super::driver_stream::{Ordered, each, handle, is_reachable, list};
use super::wait::wait_elsewhere;
use crate::backend::order::Context;
use crate::core::request::AllocRequest;
use crate::core::stream_id::Stream;
use crate::core::streams::{QueueId, Work};
use crate::error::Error;
use crate::log::{self, Level};
use crate::pool::captures::Permission;
use crate::pool::mutation;
use crate::pool::pool::Pool;
use crate::pool::slot::Guard;

/// Waits until all work of the device's own context is done. Memory that was free before is then no longer used by that
/// context. Returns false if it must not wait, because a stream is captured, or a capture on a stream other than
/// `stream` is announced. Returns true without a device. Does not cover streams of other contexts, whose frees and uses
/// have events.
#[inline(never)]
pub(in crate::pool) fn synchronize<'a>(mut guard: Guard<'a>, stream: Stream) -> Ordered<'a, bool> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(true)));
    }
    let life = guard.arena.life();
    let may_wait;
    (guard, may_wait) = may_disturb(guard, stream)?;
    let noticed = guard.captures_noticed;
    if guard.arena.life() == life && !matches!(may_wait, Ok(true)) {
        return Ok((guard, may_wait));
    }
    let learnt;
    (guard, learnt) = learn_contexts(guard)?;
    let is_new = guard.is_capture_announced(stream) || guard.captures_noticed != noticed;
    if guard.arena.life() == life && is_new {
        return Ok((guard, learnt.map(|()| false)));
    }
    let mut works: Vec<Work> = match list(guard.arena.streams().queue_count()) {
        Ok(works) => works,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    let is_covered = |queue_id: QueueId, stream: Stream| {
        let context = || guard.events.context_of(queue_id, guard.arena.streams().progress_of(queue_id));
        !stream.exists() || context() == Some(Context::OWN) || mutation::is("own-context")
    };
    works.extend(
        guard
            .arena
            .streams()
            .unfinished(|_| true)
            .filter(|unfinished| is_covered(unfinished.work.queue, unfinished.stream))
            .map(|unfinished| unfinished.work),
    );
    if works.is_empty() {
        return Ok((guard, learnt.map(|()| true)));
    }
    let result;
    (guard, result) = guard.synchronizing();
    if guard.arena.life() != life {
        return Ok((guard.check_entry()?, Ok(true)));
    }
    if result.is_ok() {
        for work in works {
            guard.events.drop_done(work.queue, work.point);
            guard.arena.streams_mut().queue_done(work.queue, work.point);
        }
        guard.notify();
    }
    Ok((guard.check_entry()?, result.and(learnt).map(|()| true)))
}

/// Returns whether nothing is pending in the device's own context, so that a synchronization would not wait, and none may
/// begin that is captured. Returns true without a device.
#[inline(never)]
pub(in crate::pool) fn is_idle<'a>(mut guard: Guard<'a>, stream: Stream) -> Ordered<'a, bool> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(true)));
    }
    let may_ask;
    (guard, may_ask) = may_disturb(guard, stream)?;
    if !matches!(may_ask, Ok(true)) {
        return Ok((guard, may_ask));
    }
    let life = guard.arena.life();
    let mut event = guard.events.take_spare(Context::OWN);
    let idle;
    (guard, idle) = guard.ordering(|order| {
        let Some(_permission) = Permission::on_a_device() else { return Ok(false) };
        let event = match event {
            Some(event) => event,
            None => *event.insert(order.create_event(Context::OWN)?),
        };
        order.is_idle(event)
    });
    if guard.arena.life() == life {
        event.into_iter().for_each(|event| guard.events.recycle(event));
    }
    Ok((guard.check_entry()?, idle))
}

/// Does the same as [`synchronize`], and then waits for pending work of other contexts. That may include work which was
/// queued long after the frees, and which itself waits for what this thread does next. So this is the last step before
/// a request fails, and the reason is logged in case the program hangs here.
#[inline(never)]
pub(in crate::pool) fn wait_for_all<'a>(
    mut guard: Guard<'a>,
    request: &AllocRequest<'_>,
) -> Ordered<'a, bool> {
    const REASON: &str = "free memory is left that has no event: this is the last step before it fails";
    guard = log_wait(guard, request, REASON);
    let idle;
    (guard, idle) = synchronize(guard, request.stream)?;
    if !matches!(idle, Ok(true)) {
        return Ok((guard, idle));
    }
    let (guard, waited) = wait_elsewhere(guard)?;
    Ok((guard, waited.map(|()| true)))
}

/// Does the same as [`synchronize`], for memory that was freed without a stream. No event tells when the work on it is
/// done. The reason is logged in case the program hangs here.
#[inline(never)]
pub(in crate::pool) fn synchronize_unordered<'a>(
    guard: Guard<'a>,
    request: &AllocRequest<'_>,
) -> Ordered<'a, bool> {
    let guard = log_wait(guard, request, "memory that was freed without a stream has no event");
    synchronize(guard, request.stream)
}

/// Logs why a request is about to wait for the whole context, unless an announced capture forbids the wait.
fn log_wait<'a>(guard: Guard<'a>, request: &AllocRequest<'_>, reason: &str) -> Guard<'a> {
    let has_device = guard.backend.get().order().is_some();
    if !has_device || !log::is_wanted(Level::Warn) || guard.is_capture_announced(request.stream) {
        return guard;
    }
    let (device, bytes) = (guard.device, request.requested);
    guard.talking(|| {
        log::emit(
            Level::Warn,
            format_args!(
                "device {device}: a request of {bytes} bytes waits for all work of the device's context, because {reason}"
            ),
        );
    })
}

/// Queries the unknown contexts of streams whose work free memory waits for. They are unknown because nothing could be
/// recorded there yet.
#[inline(never)]
fn learn_contexts(mut guard: Guard<'_>) -> Ordered<'_> {
    let mut unknown: Vec<(QueueId, Stream, Option<Context>)> = match list(guard.arena.streams().queue_count())
    {
        Ok(unknown) => unknown,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    let is_unknown = |queue_id: QueueId, stream: Stream| {
        let context = || guard.events.context_of(queue_id, guard.arena.streams().progress_of(queue_id));
        let surely_lives = || {
            guard.arena.streams().living_streams().chain(guard.events.captured()).any(|live| live == stream)
        };
        // That of a default stream is known without the driver, also once the stream's thread has ended.
        let may_be_asked = || stream.context() != 0 || is_reachable(stream) && surely_lives();
        stream.exists() && context().is_none() && may_be_asked()
    };
    unknown.extend(
        guard
            .arena
            .streams()
            .unfinished(|_| true)
            .filter(|unfinished| {
                !unfinished.forgotten && is_unknown(unfinished.work.queue, unfinished.stream)
            })
            .map(|unfinished| (unfinished.work.queue, unfinished.stream, None)),
    );
    if unknown.is_empty() {
        return Ok((guard, Ok(())));
    }
    let life = guard.arena.life();
    let result;
    (guard, result) = guard.ordering(|order| {
        each(&mut unknown, |(_, stream, context)| {
            match order.context_of(handle(*stream)) {
                Ok(known) => *context = Some(known),
                // A context that the program created has ended, and nothing covers its work.
                Err(_) if stream.context() != 0 => {}
                Err(error) => return Err(error),
            }
            Ok(())
        })
    });
    if guard.arena.life() == life {
        let Pool { arena, events, .. } = &mut *guard;
        for (queue_id, stream, context) in unknown {
            context.into_iter().for_each(|context| events.learn(arena, queue_id, stream, context));
        }
    }
    Ok((guard.check_entry()?, result))
}

/// Declares that all work queued on a stream so far is done. Without a stream-ordered driver this includes forgotten
/// streams of the same name, and the default stream's includes work without a stream. With such a driver it does not,
/// because another stream may have the name by now while the forgotten one still has work.
pub(crate) fn declare_done(mut guard: Guard<'_>, stream: Stream) {
    let has_device = guard.backend.get().order().is_some();
    guard.arena.streams_mut().stream_done(stream, !has_device);
    let noticed = guard.captures_noticed;
    guard.note_capture(stream, false, noticed);
    if stream == Stream::DEFAULT && !has_device {
        guard.arena.streams_mut().stream_done(Stream::NONE, true);
        guard.arena.streams_mut().stream_done(Stream::UNKNOWN, true);
    }
    guard.notify();
}

/// Shares some of the chunks whose work is done, then opens the lock for a moment, because there may be very many of
/// them.
pub(in crate::pool) fn share_a_piece(mut guard: Guard<'_>) -> Result<Guard<'_>, Error> {
    const PIECE: usize = 64;
    guard.arena.streams_mut().share_some(PIECE);
    guard.talking(std::thread::yield_now).check_entry()
}
