//! Waits for the device's whole context.

use super::capture_state::may_disturb;
use super::driver_stream::{each, handle, is_reachable, try_vec};
use super::wait::wait_for_other_contexts;
use crate::backend::order::Context;
use crate::log::{self, Level};
use crate::pool::captures::Permission;
use crate::pool::mutation;
use crate::pool::pool::Pool;
use crate::pool::slot::{Guard, Interrupted, Outside, deferred, is_reborn};
use bfc_core::request::Request;
use bfc_core::stream_id::Stream;
use bfc_core::streams::{QueueId, Work};

/// Waits until all work of the device's own context is done. Memory that was free before is then no longer used by that
/// context. Returns false if it must not wait, because a stream is captured, or a capture on a stream other than
/// `stream` is announced. Returns true without a device. Does not cover streams of other contexts, whose frees and uses
/// have events.
#[inline(never)]
pub(in crate::pool) fn synchronize(guard: &mut Guard<'_>, stream: Stream) -> Outside<bool> {
    if guard.backend.get().order().is_none() {
        return Ok(true);
    }
    if !may_disturb(guard, stream)? {
        return Ok(false);
    }
    let noticed = guard.captures_noticed;
    let learnt = deferred(learn_contexts(guard))?.map_err(Interrupted::Driver);
    if guard.is_capture_announced(stream) || guard.captures_noticed != noticed {
        return learnt.map(|()| false);
    }
    let mut works: Vec<Work> = try_vec(guard.arena.streams().queue_count())?;
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
        return learnt.map(|()| true);
    }
    guard.synchronize()?;
    for work in works {
        guard.events.drop_done(work.queue, work.point);
        guard.arena.streams_mut().queue_done(work.queue, work.point);
    }
    guard.notify();
    learnt.map(|()| true)
}

/// Returns whether nothing is pending in the device's own context, so that a synchronization would not wait, and none may
/// begin that is captured. Returns true without a device.
#[inline(never)]
pub(in crate::pool) fn is_idle(guard: &mut Guard<'_>, stream: Stream) -> Outside<bool> {
    if guard.backend.get().order().is_none() {
        return Ok(true);
    }
    if !may_disturb(guard, stream)? {
        return Ok(false);
    }
    let mut event = guard.events.take_spare(Context::OWN);
    let idle = guard.order(|order| {
        let Some(_permission) = Permission::on_a_device() else { return Ok(false) };
        let event = match event {
            Some(event) => event,
            None => *event.insert(order.create_event(Context::OWN)?),
        };
        order.is_idle(event)
    });
    if !is_reborn(&idle) {
        event.into_iter().for_each(|event| guard.events.recycle(event));
    }
    idle
}

/// Synchronizes as [`synchronize`] does, and then waits for pending work of other contexts. That may include work that was
/// queued long after the frees, and which itself waits for what this thread does next. So this is the last step before
/// a request fails, and the reason is logged in case the program hangs here.
#[inline(never)]
pub(in crate::pool) fn wait_for_all(guard: &mut Guard<'_>, request: &Request<'_>) -> Outside<bool> {
    const REASON: &str = "free memory is left that has no event: this is the last step before it fails";
    log_wait(guard, request, REASON)?;
    if !synchronize(guard, request.stream)? {
        return Ok(false);
    }
    wait_for_other_contexts(guard)?;
    Ok(true)
}

/// Synchronizes as [`synchronize`] does, for memory that was freed without a stream. No event tells when the work on it
/// is done. The reason is logged in case the program hangs here.
#[inline(never)]
pub(in crate::pool) fn synchronize_unordered(guard: &mut Guard<'_>, request: &Request<'_>) -> Outside<bool> {
    log_wait(guard, request, "memory that was freed without a stream has no event")?;
    synchronize(guard, request.stream)
}

/// Logs why a request is about to wait for the whole context, unless an announced capture forbids the wait.
fn log_wait(guard: &mut Guard<'_>, request: &Request<'_>, reason: &str) -> Outside {
    let has_device = guard.backend.get().order().is_some();
    if !has_device || !log::is_wanted(Level::Warn) || guard.is_capture_announced(request.stream) {
        return Ok(());
    }
    let (device, bytes) = (guard.device, request.requested);
    guard.talk(|| {
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
fn learn_contexts(guard: &mut Guard<'_>) -> Outside {
    let mut unknown: Vec<(QueueId, Stream, Option<Context>)> = try_vec(guard.arena.streams().queue_count())?;
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
        return Ok(());
    }
    let result = guard.order(|order| {
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
    if !is_reborn(&result) {
        let Pool { arena, events, .. } = &mut **guard;
        for (queue_id, stream, context) in unknown {
            context.into_iter().for_each(|context| events.learn(arena, queue_id, stream, context));
        }
    }
    result
}

/// Declares that all work queued on a stream so far is done. Without a stream-ordered driver this includes forgotten
/// streams of the same name, and the default stream's includes work without a stream. With such a driver it does not,
/// because another stream may have the name by now while the forgotten one still has work.
pub(crate) fn declare_done(guard: &mut Guard<'_>, stream: Stream) {
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
pub(in crate::pool) fn share_a_piece(guard: &mut Guard<'_>) -> Outside {
    const PIECE: usize = 64;
    guard.arena.streams_mut().share_some(PIECE);
    guard.talk(std::thread::yield_now)
}
