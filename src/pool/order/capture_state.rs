//! Queries whether streams are captured, because anything that waits for the device would break their captures.

use super::driver_stream::{handle, is_captured, try_vec};
use crate::backend::order::{Capture, Context};
use crate::error::ErrorKind;
use crate::pool::captures;
use crate::pool::pool::Pool;
use crate::pool::slot::{Guard, Outside, is_reborn};
use crate::sys::clock::Deadline;
use bfc_core::stream_id::Stream;
use bfc_core::streams::QueueId;
use std::time::Duration;

impl Pool {
    pub(super) fn forget_events(&mut self, stream: Stream) {
        self.events.forget(&self.arena, stream);
    }
}

/// Returns whether a stream that certainly exists is being captured. That includes the legacy default stream, which
/// synchronizes with blocking streams. Anything that waits for the device would break the capture, including giving
/// memory back. Returns false without a device.
#[inline(never)]
pub(in crate::pool) fn is_any_captured(guard: &mut Guard<'_>, stream: Stream) -> Outside<bool> {
    let streams = guard.streams_to_query(stream)?;
    let (mut gone, mut uncaptured): (Vec<Stream>, Vec<Stream>) =
        (try_vec(streams.len())?, try_vec(streams.len())?);
    let mut learnt: Vec<(QueueId, Stream, Context)> = try_vec(streams.len())?;
    let mut unknown: Vec<(QueueId, Stream)> = try_vec(streams.len())?;
    // Nothing could be recorded on a stream while it was captured, nor its context queried. This may be the last time
    // that it certainly exists.
    let queues = streams.iter().filter_map(|&stream| Some((guard.arena.streams().queue_of(stream)?, stream)));
    unknown.extend(queues.filter(|&(queue_id, stream)| guard.events.is_unknown(queue_id, stream)));
    let noticed = guard.captures_noticed;
    let mut active = None;
    let result = guard.order(|order| {
        for stream in streams {
            match order.capture_of(handle(stream))? {
                Capture::Active => {
                    active = Some(stream);
                    return Ok(true);
                }
                Capture::None => {
                    if let Some(&(queue_id, _)) = unknown.iter().find(|&&(_, other)| other == stream) {
                        // If this fails, the context is queried again another time.
                        let Ok(context) = order.context_of(handle(stream)) else { continue };
                        learnt.push((queue_id, stream, context));
                    }
                    uncaptured.push(stream);
                }
                Capture::NoStream => gone.push(stream),
            }
        }
        Ok(false)
    });
    if !is_reborn(&result) {
        let Pool { arena, events, .. } = &mut **guard;
        learnt
            .into_iter()
            .for_each(|(queue_id, stream, context)| events.learn(arena, queue_id, stream, context));
        uncaptured.into_iter().for_each(|stream| guard.note_capture(stream, false, noticed));
        active.into_iter().for_each(|stream| guard.note_capture(stream, true, noticed));
        gone.into_iter().for_each(|stream| drop_destroyed(guard, stream));
    }
    result
}

/// Forgets a stream that the program has destroyed without notice. The driver is not called with its handle again,
/// unless the caller names it. Memory freed there has its events, or waits for a synchronization of the context.
fn drop_destroyed(guard: &mut Guard<'_>, stream: Stream) {
    let stream = stream.in_pool(0);
    // Without host memory the stream stays known, and is queried again.
    if guard.arena.streams_mut().forget_stream(stream).is_ok() {
        guard.forget_events(stream);
    }
}

/// Returns whether the allocator may wait for the device: no stream is being captured, and no capture of a stream other
/// than `stream` is announced.
#[inline(never)]
pub(in crate::pool) fn may_disturb(guard: &mut Guard<'_>, stream: Stream) -> Outside<bool> {
    let noticed = guard.captures_noticed;
    // Meanwhile another thread may have announced or noticed one.
    Ok(!guard.is_capture_announced(stream)
        && !is_any_captured(guard, stream)?
        && !guard.is_capture_announced(stream)
        && guard.captures_noticed == noticed)
}

/// Queries whether the stream that a request names is captured, and notes it: the request may be refused, or its memory
/// may be freed, before anything else tells that the stream exists. The default streams are always queried.
#[inline(never)]
pub(super) fn note_capture_of(guard: &mut Guard<'_>, named: Stream) -> Outside {
    if !named.exists() || named.is_default() {
        return Ok(());
    }
    let noticed = guard.captures_noticed;
    let mut is_named_captured = None;
    let result = guard.order(|order| {
        is_named_captured = Some(is_captured(order, named)?);
        Ok(())
    });
    if let Some(is_captured) = is_named_captured.filter(|_| !is_reborn(&result)) {
        guard.note_capture(named, is_captured, noticed);
    }
    result
}

/// Waits until no call is about to enter the driver that might break a capture which was just announced, for
/// [`captures::ENTRY`] at most. Calls that begin later take the announcement into account. Does not wait for device work.
pub(in crate::pool) fn await_disturbing_calls(guard: &mut Guard<'_>) -> Result<(), ErrorKind> {
    const MOMENT: Duration = Duration::from_millis(10);
    let (last_call, deadline) = (guard.last_call(), Deadline::after(captures::ENTRY));
    while guard.backend.get().order().is_some()
        && guard.is_disturbing(last_call, deadline.remaining().is_some())
    {
        guard.wait_for_call_within(Some(MOMENT))?;
    }
    Ok(())
}
