//! Waits for pending work, on behalf of a request that found no memory.
//!
//! Only an event that was recorded at a free is waited for, because it covers nothing later. Work queued after the free
//! may itself wait for what the request's stream does next, as a posted receive does. The driver is called with the
//! lock open, and the events are held meanwhile.

use super::driver_stream::{each, handle, is_captured, reachable_for, try_vec};
use super::record::record_work;
use crate::backend::order::{Capture, Context, Event, Order};
use crate::error::{ErrorKind, keeping_last_error};
use crate::pool::captures::Permission;
use crate::pool::events::{Events, Marker};
use crate::pool::pool::Pool;
use crate::pool::slot::{Guard, Outside, is_reborn};
use bfc_core::arena::Arena;
use bfc_core::request::Request;
use bfc_core::stream_id::Stream;
use bfc_core::streams::{Dependencies, Place, QueueId, Unfinished, Work};
use bfc_hostmem::HostMemoryExhausted;

/// Makes the request's stream wait for the work of other streams, so that memory freed there becomes its own. A request
/// without a stream waits in the calling thread. Returns whether there was something to wait for.
#[inline(never)]
pub(in crate::pool) fn wait(guard: &mut Guard<'_>, request: &Request<'_>) -> Outside<bool> {
    if guard.backend.get().order().is_none() {
        return Ok(false);
    }
    let Some((awaited, place)) = plan_wait(guard, request)? else { return Ok(false) };
    match request.stream.exists() {
        true => wait_on_stream(guard, request, awaited, place)?,
        false => wait_in_this_thread(guard, awaited)?,
    }
    Ok(true)
}

/// Returns the work to wait for with its events, which are held from here on, and the place where the request is to be
/// served. Returns `None` if no memory would serve the request after that. The list may be empty, if the request needs
/// to wait only for work of its own stream.
fn plan_wait(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
) -> Result<Option<(Vec<Awaited>, Place)>, HostMemoryExhausted> {
    let Pool { arena, events, .. } = &mut **guard;
    arena.streams_mut().enter_request(request)?;
    let dependencies = arena.dependencies(request, |work| events.to_wait_for(work).is_some())?;
    let Some(Dependencies { works, place }) = dependencies else { return Ok(None) };
    let mut awaited = try_vec(works.len())?;
    for work in works {
        let Some(Marker { point, event, .. }) = events.to_wait_for(work) else { return Ok(None) };
        awaited.push(Awaited { work: Work { point, ..work }, event, is_over: false });
    }
    events.hold(awaited.iter().map(|awaited| awaited.event))?;
    Ok(Some((awaited, place)))
}

/// Work to wait for.
struct Awaited {
    work: Work,
    event: Event,
    /// The stream waits for the work, or the work is done.
    is_over: bool,
}

fn wait_on_stream(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    mut awaited: Vec<Awaited>,
    place: Place,
) -> Outside {
    let at_risk = guard.arena.streams().is_at_risk_of_others(request.stream);
    let result = guard.order(|order| {
        // What is queued on a legacy default stream breaks captures of blocking streams.
        let permission = request.stream.is_legacy().then(Permission::on_a_device);
        if at_risk || matches!(permission, Some(None)) || is_captured(order, request.stream)? {
            return Ok(false);
        }
        each(&mut awaited, |awaited| {
            order.make_wait(handle(request.stream), awaited.event)?;
            awaited.is_over = true;
            Ok(())
        })?;
        Ok(true)
    });
    if is_reborn(&result) {
        return result.map(drop);
    }
    let Pool { arena, events, .. } = &mut **guard;
    awaited.iter().for_each(|awaited| events.release(awaited.work, awaited.event));
    let may_adopt = matches!(result, Ok(true)) || awaited.iter().any(|awaited| awaited.is_over);
    let over = awaited.iter().filter(|awaited| awaited.is_over).map(|awaited| awaited.work);
    // The point must come after the waits. An event that another thread recorded on the stream before them covers only
    // earlier points.
    let queue_id = if may_adopt { arena.streams_mut().enter_request(request).unwrap_or(None) } else { None };
    let since = queue_id.map(|queue_id| arena.streams_mut().next_work(queue_id));
    let adopted = match (try_vec(awaited.len()), since) {
        (Ok(mut works), Some(since)) => {
            works.extend(over);
            arena.adopt(request, &works, place, since)
        }
        _ => false,
    };
    let is_for_others =
        adopted && !request.stream.is_private() && !arena.streams().is_at_risk(request.stream);
    if let Some(since) = since.filter(|_| is_for_others) {
        // Other streams may reuse what the request leaves over, after an event of its own.
        record_work(guard, since)?;
    }
    result.map(drop)
}

/// Waits in this thread for pending work of other contexts, which no synchronization of the device's own covers.
pub(super) fn wait_for_other_contexts(guard: &mut Guard<'_>) -> Outside {
    let awaited = newest_of_other_contexts(guard)?;
    if awaited.is_empty() { Ok(()) } else { wait_in_this_thread(guard, awaited) }
}

/// Returns the newest event of each queue of another context that free memory waits for. The events are held from here
/// on.
fn newest_of_other_contexts(guard: &mut Guard<'_>) -> Result<Vec<Awaited>, HostMemoryExhausted> {
    let mut awaited = try_vec(guard.arena.streams().queue_count())?;
    let Pool { arena, events, .. } = &mut **guard;
    awaited.extend(arena.streams().unfinished(|_| true).filter_map(|unfinished| {
        let queue_id = unfinished.work.queue;
        if !unfinished.stream.exists()
            || events.context_of(queue_id, arena.streams().progress_of(queue_id)) == Some(Context::OWN)
        {
            return None;
        }
        let newest = events.newest(queue_id)?;
        Some(Awaited {
            work: Work { queue: queue_id, point: newest.point },
            event: newest.event,
            is_over: false,
        })
    }));
    events.hold(awaited.iter().map(|awaited| awaited.event))?;
    Ok(awaited)
}

/// Waits for work of other contexts that may use the memory, before all of it is given back. Covers queues with events,
/// and streams with memory in use or with work that has no event. Failures are ignored, because the allocator ends in any
/// case. Returns false if an announced capture forbids one of the waits: then the allocator may not end.
pub(in crate::pool) fn wait_for_the_end(guard: &mut Guard<'_>) -> bool {
    if guard.backend.get().order().is_none() {
        return true;
    }
    let awaited = newest_of_other_contexts(guard).unwrap_or_default();
    let mut live = Vec::new();
    let Pool { arena, events, .. } = &**guard;
    let living = arena.streams().living_streams().filter(|stream| !stream.is_default());
    for stream in living.chain(uncovered_in_other_contexts(arena, events)) {
        let stream = reachable_for(stream);
        if live.contains(&stream) || live.try_reserve(1).is_err() {
            continue;
        }
        live.push(stream);
    }
    if awaited.is_empty() && live.is_empty() {
        return true;
    }
    let mut is_allowed = true;
    // A failure is of no interest, nor that the allocator is being destroyed.
    let _ = keeping_last_error(|| {
        guard.wait_for_events(|order| {
            for awaited in &awaited {
                let _ = order.wait_for(awaited.event);
            }
            for stream in live {
                // What is queued on a legacy default stream breaks captures of blocking streams.
                let permission = stream.is_legacy().then(Permission::on_a_device);
                if matches!(permission, Some(None)) {
                    is_allowed = false;
                    break;
                }
                let _ = wait_for_stream(order, stream);
            }
            Ok(())
        })
    });
    awaited.iter().for_each(|awaited| guard.events.release(awaited.work, awaited.event));
    is_allowed
}

/// Returns created streams of other contexts, or of an unknown one, with work that has no event: memory was freed there
/// in a capture, or the driver failed. They exist, because the program had to forget them before their end.
fn uncovered_in_other_contexts<'a>(
    arena: &'a Arena,
    events: &'a Events,
) -> impl Iterator<Item = Stream> + 'a {
    let is_elsewhere = |queue_id: QueueId, stream: Stream| match events
        .context_of(queue_id, arena.streams().progress_of(queue_id))
    {
        Some(context) => context != Context::OWN,
        None => events.is_noted_captured(stream),
    };
    let uncovered = arena.streams().unfinished(|_| true).filter(move |unfinished| {
        let Unfinished { work, stream, forgotten } = *unfinished;
        // The context of a default stream may have ended.
        let is_created = stream.exists() && stream.context() == 0;
        is_created && !forgotten && !events.covers(work) && is_elsewhere(work.queue, stream)
    });
    uncovered.map(|unfinished| unfinished.stream)
}

/// Waits for all work queued on a live stream, if the stream is of another context and not captured.
fn wait_for_stream(order: &dyn Order, stream: Stream) -> Result<(), ErrorKind> {
    if order.capture_of(handle(stream))? != Capture::None {
        return Ok(());
    }
    let context = order.context_of(handle(stream))?;
    if context == Context::OWN {
        return Ok(());
    }
    let event = order.create_event(context)?;
    let waited = order.record(event, handle(stream)).and_then(|()| order.wait_for(event));
    order.destroy_event(event);
    waited
}

/// Waits in this thread for the given work.
fn wait_in_this_thread(guard: &mut Guard<'_>, mut awaited: Vec<Awaited>) -> Outside {
    let result = guard.wait_for_events(|order| {
        each(&mut awaited, |awaited| {
            order.wait_for(awaited.event)?;
            awaited.is_over = true;
            Ok(())
        })
    });
    if is_reborn(&result) {
        return result;
    }
    for Awaited { work, event, is_over } in awaited {
        guard.events.release(work, event);
        if is_over {
            guard.events.drop_done(work.queue, work.point);
            guard.arena.streams_mut().queue_done(work.queue, work.point);
        }
    }
    guard.notify();
    result
}
