//! The order of device work: what streams still do to free memory, and how a request gets it all the same.
//!
//! [`record`] gives each free that others could profit from an event of its own; [`wait`] asks which events are done, and
//! waits for some; [`events`] keeps them. Here is what concerns a whole context: captures, which neither may disturb, and
//! synchronization. The driver is called with the lock open.
//!
//! Nothing is queued on a stream whose capture is announced by `bfc_pool_begin`, and nothing is waited for but events of
//! before: it may begin at any time. Of a stream that is captured without an announcement the driver is asked, which
//! helps unless the capture begins between the answer and the next call. Where that is seen the event counts for nothing.

mod events;
mod held;
mod record;
mod wait;

use self::record::{Outcome, Recording};
use super::slot::Guard;
use super::{Pool, mutation};
use crate::backend::order::{self as driver, Capture, Context, Order};
use crate::core::request::AllocRequest;
use crate::core::stream_id::Stream;
use crate::core::streams::QueueId;
use crate::core::streams::Work;
use crate::error::{DeferredError, Error};
use crate::log::{self, Level};
use crate::sys::{HostMemoryExhausted, thread};

pub(crate) use self::events::Events;
pub(super) use self::record::record_free;
pub(super) use self::wait::{poll, wait, wait_for_the_end};

/// Does something with each, whatever comes of the others; the last failure, whose message is stored.
fn each<T>(tasks: &mut [T], work: impl FnMut(&mut T) -> Result<(), Error>) -> Result<(), Error> {
    tasks.iter_mut().map(work).filter(Result::is_err).last().unwrap_or(Ok(()))
}

/// By the name that the driver has for it.
fn handle(stream: Stream) -> driver::Stream {
    driver::Stream(stream.handle())
}

/// Whether this thread may record events on a stream.
fn is_reachable(stream: Stream) -> bool {
    stream.thread() == 0 || thread::number() == Some(stream.thread())
}

/// Requests of a stream that is captured leave all others alone.
fn is_captured(order: &dyn Order, stream: Stream) -> Result<bool, Error> {
    if !stream.exists() {
        return Ok(false);
    }
    // A handle of no stream is not captured; what is to be done on it fails by itself.
    Ok(order.capture_of(handle(stream))? == Capture::Active)
}

/// Whether one of these streams is captured. One that the program has destroyed is not.
pub(super) fn is_one_captured(order: &dyn Order, streams: &[driver::Stream]) -> Result<bool, Error> {
    for &stream in streams {
        if order.capture_of(stream)? == Capture::Active {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Pool {
    fn forget_events(&mut self, stream: Stream) {
        self.events.forget(&self.arena, stream);
    }

    /// The streams that may be captured, so far as they surely live; none without a device.
    fn live_streams(&self, also: Stream) -> Result<Vec<Stream>, HostMemoryExhausted> {
        if self.backend.get().order().is_none() {
            return Ok(Vec::new());
        }
        let all = || {
            self.arena
                .streams()
                .living_streams()
                .chain(self.events.captured())
                .chain([also])
                .filter(|stream| stream.exists())
        };
        let reachable = || all().filter(|&stream| is_reachable(stream));
        let mut streams = list(reachable().count() + 1)?;
        // The default stream waits for all that block, whether the pool knows them or not.
        streams.push(Stream::DEFAULT);
        streams.extend(reachable());
        Ok(streams)
    }

    /// The streams to ask before the device is waited for: none to be waited beside, where the capture of another stream
    /// is announced, for it may begin at any time.
    pub(super) fn streams_to_wait_beside(
        &self,
        also: Stream,
    ) -> Result<Option<Vec<driver::Stream>>, HostMemoryExhausted> {
        if self.backend.get().order().is_some() && self.is_capture_announced(also) {
            return Ok(None);
        }
        let live = self.live_streams(also)?;
        let mut streams = list(live.len())?;
        streams.extend(live.into_iter().map(handle));
        Ok(Some(streams))
    }
}

fn list<T>(length: usize) -> Result<Vec<T>, HostMemoryExhausted> {
    let mut list = Vec::new();
    list.try_reserve_exact(length)?;
    Ok(list)
}

/// How a look after the order of work ended: the pool as it is now, and whether the driver did as it should; or
/// why the allocator is of no use any more. What the driver failed to do may not matter in the end.
pub(super) type Ordered<'a, T = ()> = Result<(Guard<'a>, Result<T, DeferredError>), Error>;

/// Whether some stream is captured that the pool knows, the calling thread's own default stream and that of all
/// included, for which those wait that block. What waits for the device would break that capture, giving memory back
/// too. False without a device.
#[inline(never)]
pub(super) fn is_any_captured<'a>(mut guard: Guard<'a>, stream: Stream) -> Ordered<'a, bool> {
    let (mut gone, mut uncaptured): (Vec<Stream>, Vec<Stream>) = (Vec::new(), Vec::new());
    let mut learnt: Vec<(QueueId, Stream, Context)> = Vec::new();
    let mut unknown: Vec<(QueueId, Stream)> = Vec::new();
    let streams = guard.live_streams(stream).and_then(|streams| {
        gone.try_reserve(streams.len())?;
        uncaptured.try_reserve(streams.len())?;
        learnt.try_reserve(streams.len())?;
        unknown.try_reserve(streams.len())?;
        Ok(streams)
    });
    let streams = match streams {
        Ok(streams) => streams,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    // Of a stream that was captured nothing could be recorded or asked; this may be the last time that it surely lives.
    let queues = streams.iter().filter_map(|&stream| Some((guard.arena.streams().queue_of(stream)?, stream)));
    unknown.extend(queues.filter(|&(queue_id, stream)| guard.events.is_unknown(queue_id, stream)));
    let life = guard.arena.life();
    let result;
    (guard, result) = guard.ordering(|order| {
        for stream in streams {
            match order.capture_of(handle(stream))? {
                Capture::Active => return Ok(true),
                Capture::None => {
                    if let Some(&(queue_id, _)) = unknown.iter().find(|&&(_, other)| other == stream) {
                        // What fails is asked for again another time.
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
    if guard.arena.life() == life {
        let Pool { arena, events, .. } = &mut *guard;
        learnt
            .into_iter()
            .for_each(|(queue_id, stream, context)| events.learn(arena, queue_id, stream, context));
        uncaptured.into_iter().for_each(|stream| guard.events.note_uncaptured(stream));
        gone.into_iter().for_each(|stream| drop_destroyed(&mut guard, stream));
    }
    Ok((guard.check_entry()?, result))
}

/// The program has destroyed a stream and not said so: the driver is not asked about it again, unless the caller names
/// the handle anew. What was freed there has its events, or waits for a synchronization of the context.
fn drop_destroyed(guard: &mut Guard<'_>, stream: Stream) {
    // Without host memory it is asked about again.
    if guard.arena.streams_mut().forget_stream(stream).is_ok() {
        guard.forget_events(stream);
    }
}

/// Waits until the device's own context is idle: then none of its work touches anything that was free before. False
/// where it may not wait: a stream is captured, or any but `stream` may be at any time. True without a device. Nothing is
/// learnt of streams of other contexts; what was freed or used there has events.
#[inline(never)]
pub(super) fn synchronize<'a>(mut guard: Guard<'a>, stream: Stream) -> Ordered<'a, bool> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(true)));
    }
    let life = guard.arena.life();
    let may_wait;
    (guard, may_wait) = may_disturb(guard, stream)?;
    if guard.arena.life() == life && !matches!(may_wait, Ok(true)) {
        return Ok((guard, may_wait));
    }
    let learnt;
    (guard, learnt) = learn_contexts(guard)?;
    if guard.arena.life() == life && guard.is_capture_announced(stream) {
        return Ok((guard, learnt.map(|()| false)));
    }
    let mut works: Vec<Work> = match list(guard.arena.streams().queue_count()) {
        Ok(works) => works,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    let is_vouched_for = |queue_id: QueueId, stream: Stream| {
        let context = || guard.events.context_of(queue_id, guard.arena.streams().progress_of(queue_id));
        !stream.exists() || context() == Some(Context::OWN) || mutation::is("own-context")
    };
    works.extend(
        guard
            .arena
            .streams()
            .unfinished(|_| true)
            .filter(|unfinished| is_vouched_for(unfinished.work.queue, unfinished.stream))
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

/// The last step before a request fails: as [`synchronize`], and waits for what is left of other contexts. That may be work
/// which was queued long after the frees, and which itself waits for what this thread does next. So nothing else is left
/// to try by now, and the log has the reason where a program hangs here.
#[inline(never)]
pub(super) fn wait_for_all<'a>(mut guard: Guard<'a>, request: &AllocRequest<'_>) -> Ordered<'a, bool> {
    const REASON: &str = "free memory is left that has no event: this is the last step before it fails";
    guard = log_wait(guard, request, REASON);
    let idle;
    (guard, idle) = synchronize(guard, request.stream)?;
    if !matches!(idle, Ok(true)) {
        return Ok((guard, idle));
    }
    let (guard, waited) = wait::wait_elsewhere(guard)?;
    Ok((guard, waited.map(|()| true)))
}

/// As [`synchronize`], for memory that was freed without a stream: no event tells when the work on it is done. The log has
/// the reason where a program hangs here.
#[inline(never)]
pub(super) fn synchronize_unordered<'a>(guard: Guard<'a>, request: &AllocRequest<'_>) -> Ordered<'a, bool> {
    let guard = log_wait(guard, request, "memory that was freed without a stream has no event");
    synchronize(guard, request.stream)
}

/// Says why a request is about to wait for the whole context, if it may.
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

/// Whether what waits for the device may be done: no stream is captured, and none but `stream` is announced to be.
#[inline(never)]
pub(super) fn may_disturb<'a>(mut guard: Guard<'a>, stream: Stream) -> Ordered<'a, bool> {
    if guard.is_capture_announced(stream) {
        return Ok((guard, Ok(false)));
    }
    let captured;
    (guard, captured) = is_any_captured(guard, stream)?;
    // Meanwhile another thread may have announced one.
    let announced = guard.is_capture_announced(stream);
    Ok((guard, captured.map(|captured| !captured && !announced)))
}

/// Asks for the contexts of streams whose work free memory waits for, as far as they are not known: nothing could be
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
        stream.exists() && is_reachable(stream) && context().is_none() && surely_lives()
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
            *context = Some(order.context_of(handle(*stream))?);
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

/// A capture is announced: waits until nothing is under way any more that might break it. What begins from now on knows
/// of it.
pub(super) fn leave_alone(mut guard: Guard<'_>) -> Result<(), Error> {
    let last_call = guard.last_call();
    while guard.backend.get().order().is_some() && guard.is_disturbing(last_call) {
        guard = guard.wait_for_call()?;
    }
    Ok(())
}

/// The stream is about to end: the last event on it, which stands for all that was freed there and that will be.
#[inline(never)]
pub(crate) fn forget<'a>(
    mut guard: Guard<'a>,
    stream: Stream,
) -> Result<(Guard<'a>, Result<(), Error>), Error> {
    let queue_id = guard.arena.streams().queue_of(stream);
    let work = guard.arena.streams_mut().forget_stream(stream)?;
    let life = guard.arena.life();
    // Only threads that are recording on it or querying it still know it.
    let last_call = guard.last_call();
    while guard.is_ordering(last_call) {
        guard = guard.wait_for_call()?;
    }
    // Meanwhile everything may have gone, the queue with it; or all of that work is done, and the queue is another's.
    let is_of_use = guard.backend.get().order().is_some() && guard.arena.life() == life;
    // A queue that nothing waits for may have events too. A stream that was alone has a queue only since it was forgotten.
    let queue_id = work.map(|work| work.queue).or(queue_id);
    let Some(work) = work.filter(|&work| is_of_use && !guard.arena.streams().is_done(work)) else {
        guard.forget_events(stream);
        if is_of_use {
            let mut foreign = guard.events.take_foreign_spare();
            // All of it is done, if the queue is not another stream's by now.
            if let Some(queue_id) =
                queue_id.filter(|&queue_id| guard.arena.streams().progress_of(queue_id).stream == stream)
            {
                guard.events.take_foreign(queue_id, &mut foreign);
            }
            guard = destroy_all(guard, foreign);
        }
        return Ok((guard.check_entry()?, Ok(())));
    };
    let Pool { arena, events, .. } = &mut *guard;
    // Whatever is freed there later has this point too.
    let mut recording = Recording::last(events, arena, work);
    let recorded;
    // What fails once may have passed, and the stream cannot be queried later.
    (guard, recorded) =
        guard.ordering(|order| recording.carry_out(order).or_else(|_| recording.carry_out(order)));
    if guard.arena.life() == life {
        if recording.outcome == Outcome::Captured {
            recording.outcome = Outcome::NotRecorded;
        }
        let is_covered = recording.outcome == Outcome::Recorded;
        recording.note(&mut guard);
        guard.forget_events(stream);
        let mut foreign = guard.events.take_foreign_spare();
        if is_covered {
            guard.events.take_foreign(work.queue, &mut foreign);
        }
        guard = destroy_all(guard, foreign);
    }
    Ok((guard.check_entry()?, recorded.map_err(DeferredError::say)))
}

/// Destroys events of other contexts, which may end with a stream that is forgotten: those of its queue, for which the last
/// one, of the device's own context, stands, and spare ones.
fn destroy_all(mut guard: Guard<'_>, foreign: Vec<driver::Event>) -> Guard<'_> {
    if !foreign.is_empty() {
        (guard, _) = guard.ordering(|order| {
            foreign.into_iter().for_each(|event| order.destroy_event(event));
            Ok(())
        });
    }
    guard
}

/// The caller vouches that all work queued on a stream so far is done. Where there is no device to ask, work without
/// a stream goes with the default stream's, and that of forgotten streams of the name with the name: on a device
/// another stream may have it by now, while the first still works.
pub(crate) fn vouch(mut guard: Guard<'_>, stream: Stream) {
    let has_device = guard.backend.get().order().is_some();
    guard.arena.streams_mut().stream_done(stream, !has_device);
    if stream == Stream::DEFAULT && !has_device {
        guard.arena.streams_mut().stream_done(Stream::NONE, true);
        guard.arena.streams_mut().stream_done(Stream::UNKNOWN, true);
    }
    guard.notify();
}

/// Has some of the chunks shared whose work is done, and opens the lock for a moment: there may be very many.
pub(super) fn share_a_piece(mut guard: Guard<'_>) -> Result<Guard<'_>, Error> {
    const PIECE: usize = 64;
    guard.arena.streams_mut().share_some(PIECE);
    guard.talking(std::thread::yield_now).check_entry()
}

/// A stream of the caller's, by its handle.
pub(crate) fn stream_of(handle: u64) -> Result<Stream, Error> {
    if handle != Stream::OF_THIS_THREAD {
        return Ok(Stream::of_handle(handle));
    }
    match thread::number() {
        Some(number) => Ok(Stream::of_thread(number)),
        None => Err(HostMemoryExhausted.into()),
    }
}

/// The end of the allocator; at the end of the process the driver may be down already, which is no matter.
pub(super) fn end(mut guard: Guard<'_>) -> Guard<'_> {
    const TRIES: u32 = 2;
    let mut events = guard.events.take_all();
    for _ in 0..TRIES {
        // What fails on the way to the device may have passed.
        if !events.is_empty() {
            (guard, _) = guard.ordering(|order| {
                events.drain(..).for_each(|event| order.destroy_event(event));
                Ok(())
            });
        }
    }
    guard
}

#[cfg(test)]
mod tests;
