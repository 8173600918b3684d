//! Asking which work is done, and waiting for some of it: what a request does that finds nothing.
//!
//! Any event may be queried. Only one that was recorded at a free is waited for, because it stands for nothing later:
//! work that was queued behind the free may itself wait for what the request's stream does next, as a receive that was
//! posted does. The driver is called with the lock open, and the events are held meanwhile.

use super::events::{Kind, Marker};
use super::record::{Recording, record_work};
use super::{Ordered, each, handle, is_captured, is_reachable, list};
use crate::backend::order::{Capture, Context, Event, Order, State};
use crate::core::request::AllocRequest;
use crate::core::stream_id::Stream;
use crate::core::streams::QueueId;
use crate::core::streams::Work;
use crate::core::streams::{Dependencies, Place};
use crate::error::{Error, keeping_last_error};
use crate::pool::slot::Guard;
use crate::pool::{Pool, mutation};
use crate::sys::HostMemoryExhausted;

/// What is asked about one queue: a sample of its events, the oldest first.
struct Question {
    queue_id: QueueId,
    /// Between these points, both left out.
    range: (u64, u64),
    events: Vec<Marker>,
    /// Whether there are more between those of the sample.
    is_sample: bool,
    /// How many of them are known to be done, from the first on.
    done: usize,
    /// One that stands for nothing, and whether it may be recorded again.
    useless: Option<(Event, bool)>,
}

impl Question {
    /// Asks by halving: work is done in order.
    fn ask(&mut self, order: &dyn Order) -> Result<(), Error> {
        let (mut least, mut most) = (0, self.events.len());
        // Mostly either nothing is done or all is.
        let mut at = 0;
        while least < most {
            match order.state(self.events[at].event)? {
                State::Done => least = at + 1,
                State::Pending => most = at,
                state => {
                    self.useless = Some((self.events[at].event, state == State::Captured));
                    break;
                }
            }
            self.done = least;
            at = if at == 0 { most.saturating_sub(1) } else { least + (most - least) / 2 };
        }
        Ok(())
    }

    fn held(&self) -> impl Iterator<Item = (Work, Event)> + '_ {
        let work = |marker: &Marker| (Work { queue: self.queue_id, point: marker.point }, marker.event);
        self.events.iter().map(work)
    }

    /// What is left to ask, if the sample left something out.
    fn rest(&self) -> Option<Range> {
        let after = self.done.checked_sub(1).map_or(self.range.0, |last| self.events[last].point);
        let before = self.events.get(self.done).map_or(self.range.1, |marker| marker.point);
        (self.is_sample && self.useless.is_none()).then_some((self.queue_id, (after, before)))
    }
}

/// Looks which work of other streams is done by now.
#[inline(never)]
pub(in crate::pool) fn poll(mut guard: Guard<'_>, stream: Stream) -> Ordered<'_> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(())));
    }
    let learnt;
    (guard, learnt) = learn_sole(guard, stream)?;
    let learnt_named;
    (guard, learnt_named) = learn_named(guard, stream)?;
    let mut ranges = match ranges(&guard) {
        Ok(ranges) => ranges,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    let mut result = learnt.and(learnt_named);
    while !ranges.is_empty() {
        let asked;
        (guard, asked) = ask(guard, stream, &mut ranges)?;
        if asked.is_err() {
            result = asked;
            break;
        }
    }
    Ok((guard, result))
}

/// The context of the stream that is the only one so far: its work is not that of the device's own context if it is of
/// another, and then nothing of it is reused by others, or given back, before an event says that it is done.
#[inline(never)]
fn learn_sole(mut guard: Guard<'_>, named: Stream) -> Ordered<'_> {
    let is_unknown = |&sole: &Stream| sole == named && !guard.events.knows_sole(sole);
    let sole = guard.arena.streams().sole_stream().filter(is_unknown);
    let Some(sole) = sole else { return Ok((guard, Ok(()))) };
    let life = guard.arena.life();
    let result;
    (guard, result) = guard.ordering(|order| {
        // A captured stream is not asked for its context: that may invalidate the capture.
        if order.capture_of(handle(sole))? != Capture::None {
            return Ok(None);
        }
        order.context_of(handle(sole)).map(Some)
    });
    if guard.arena.life() != life {
        return Ok((guard.check_entry()?, Ok(())));
    }
    if let Ok(Some(context)) = result {
        guard.events.learn_sole(sole, context);
    }
    // What is not known to be of this context is treated as of another.
    if guard.events.is_elsewhere(sole) && guard.arena.streams().sole_stream() == Some(sole) {
        guard.arena.streams_mut().require_queues()?;
    }
    Ok((guard.check_entry()?, result.map(drop)))
}

/// The context of the stream that the caller names, if it has a queue and nothing could be recorded there yet: else no
/// synchronization would cover what was freed there meanwhile.
#[inline(never)]
fn learn_named(mut guard: Guard<'_>, named: Stream) -> Ordered<'_> {
    let queue_id = guard.arena.streams().queue_of(named);
    let is_unknown = |queue_id: &QueueId| {
        guard.events.context_of(*queue_id, guard.arena.streams().progress_of(*queue_id)).is_none()
    };
    let Some(queue_id) = queue_id.filter(|_| named.exists() && is_reachable(named)).filter(is_unknown) else {
        return Ok((guard, Ok(())));
    };
    let life = guard.arena.life();
    let result;
    (guard, result) = guard.ordering(|order| match order.capture_of(handle(named))? {
        Capture::None => order.context_of(handle(named)).map(Some),
        _ => Ok(None),
    });
    if guard.arena.life() == life
        && let Ok(Some(context)) = result
    {
        let Pool { arena, events, .. } = &mut *guard;
        events.learn(arena, queue_id, named, context);
    }
    Ok((guard.check_entry()?, result.map(drop)))
}

/// A queue, and the points that are asked about: those after the first one, and before the second one.
type Range = (QueueId, (u64, u64));

/// The queues whose work free memory waits for, each with all of its points that are not done.
fn ranges(guard: &Guard<'_>) -> Result<Vec<Range>, HostMemoryExhausted> {
    let mut ranges = list(guard.arena.streams().queue_count())?;
    ranges.extend(guard.arena.streams().unfinished(|_| true).map(|unfinished| {
        let queue_id = unfinished.work.queue;
        (queue_id, (guard.arena.streams().progress_of(queue_id).done, u64::MAX))
    }));
    Ok(ranges)
}

/// Asks about some queues once, and leaves the ranges that are left to ask about.
#[inline(never)]
fn ask<'a>(mut guard: Guard<'a>, named: Stream, ranges: &mut Vec<Range>) -> Ordered<'a> {
    let is_first = ranges.iter().any(|&(_, (_, before))| before == u64::MAX);
    let (mut questions, mut recordings) = match plan(&mut guard, named, ranges, is_first) {
        Ok(planned) => planned,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    ranges.clear();
    if questions.is_empty() && recordings.is_empty() {
        return Ok((guard, Ok(())));
    }
    let life = guard.arena.life();
    let result;
    (guard, result) = guard.ordering(|order| {
        if is_captured(order, named)? {
            return Ok(());
        }
        let recorded = each(&mut recordings, |recording| {
            recording.carry_out(order)?;
            recording.look(order)
        });
        each(&mut questions, |question| question.ask(order)).and(recorded)
    });
    if guard.arena.life() != life {
        // The events are gone, and no work is left to wait for.
        return Ok((guard.check_entry()?, Ok(())));
    }
    let mut news = false;
    for question in questions {
        question.held().for_each(|(work, event)| guard.events.release(work, event));
        let queue_id = question.queue_id;
        if let Some((event, is_spare)) = question.useless {
            guard.events.discard(queue_id, event, is_spare);
        }
        if let Some(last) = question.done.checked_sub(1).map(|last| question.events[last]) {
            guard.events.drop_done(queue_id, last.point);
            news |= guard.arena.streams_mut().queue_done(queue_id, last.point);
        }
        // There is room for as many as there were.
        ranges.extend(question.rest());
    }
    for recording in recordings {
        news |= recording.note(&mut guard);
    }
    if news {
        guard.notify();
    }
    Ok((guard.check_entry()?, result))
}

/// The events to ask about, which are held from here on; and at first late ones to record, for work that has none, on
/// streams that surely live: the default ones, and the one that the caller names.
fn plan(
    guard: &mut Guard<'_>,
    named: Stream,
    ranges: &[Range],
    is_first: bool,
) -> Result<(Vec<Question>, Vec<Recording>), HostMemoryExhausted> {
    let Pool { arena, events, .. } = &mut **guard;
    // Each is asked about few of them, by halving, but all are held meanwhile.
    const EVENTS: usize = 256;
    let most = (EVENTS / ranges.len().max(1)).clamp(4, 32);
    let (mut questions, mut recordings) = (list(ranges.len())?, list(ranges.len())?);
    for &(queue_id, range) in ranges {
        let mut sample = Vec::new();
        let is_sample = events.sample(queue_id, range, most, &mut sample);
        if !sample.is_empty() && events.hold(sample.iter().map(|marker| marker.event)).is_ok() {
            questions.push(Question { queue_id, range, events: sample, is_sample, done: 0, useless: None });
        }
        let progress = arena.streams().progress_of(queue_id);
        let (stream, work) = (progress.stream, Work { queue: queue_id, point: progress.newest });
        let may_be_asked =
            stream.is_default() || stream.exists() && (stream == named || mutation::is("late-event"));
        let may_record = is_first && may_be_asked && !progress.forgotten;
        if may_record && is_reachable(stream) && !arena.streams().is_at_risk(stream) && !events.covers(work) {
            recordings.push(Recording::new(events, arena, work, Kind::Late));
        }
    }
    Ok((questions, recordings))
}

/// Puts the request's stream behind the work of others, so that what they freed becomes its own; a request without a
/// stream waits here. Whether there was something to wait for.
#[inline(never)]
pub(in crate::pool) fn wait<'a>(mut guard: Guard<'a>, request: &AllocRequest<'_>) -> Ordered<'a, bool> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(false)));
    }
    let (awaited, place) = match plan_wait(&mut guard, request) {
        Ok(Some(plan)) => plan,
        Ok(None) => return Ok((guard, Ok(false))),
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    let (guard, waited) = match request.stream.exists() {
        true => wait_on_stream(guard, request, awaited, place)?,
        false => wait_here(guard, awaited)?,
    };
    Ok((guard, waited.map(|()| true)))
}

/// The work to wait for, with its events, which are held from here on, and where the request is to be served; none if nothing
/// would serve it then. It may be no work at all, where what the request's own stream has queued is all that there is to
/// wait for.
fn plan_wait(
    guard: &mut Guard<'_>,
    request: &AllocRequest<'_>,
) -> Result<Option<(Vec<Awaited>, Place)>, HostMemoryExhausted> {
    let Pool { arena, events, .. } = &mut **guard;
    let dependencies = arena.dependencies(request, |work| events.to_wait_for(work).is_some())?;
    let Some(Dependencies { works, place }) = dependencies else { return Ok(None) };
    let mut awaited = list(works.len())?;
    for work in works {
        let Some(Marker { point, event, .. }) = events.to_wait_for(work) else { return Ok(None) };
        awaited.push(Awaited { work: Work { point, ..work }, event, is_over: false });
    }
    events.hold(awaited.iter().map(|awaited| awaited.event))?;
    Ok(Some((awaited, place)))
}

/// Work that something waits for.
struct Awaited {
    work: Work,
    event: Event,
    /// The stream waits for it, or it is done.
    is_over: bool,
}

fn wait_on_stream<'a>(
    mut guard: Guard<'a>,
    request: &AllocRequest<'_>,
    mut awaited: Vec<Awaited>,
    place: Place,
) -> Ordered<'a> {
    let (life, at_risk) = (guard.arena.life(), guard.arena.streams().is_at_risk_of_others(request.stream));
    let result;
    (guard, result) = guard.ordering(|order| {
        if at_risk || is_captured(order, request.stream)? {
            return Ok(false);
        }
        each(&mut awaited, |awaited| {
            order.make_wait(handle(request.stream), awaited.event)?;
            awaited.is_over = true;
            Ok(())
        })?;
        Ok(true)
    });
    if guard.arena.life() != life {
        return Ok((guard.check_entry()?, Ok(())));
    }
    let Pool { arena, events, .. } = &mut *guard;
    awaited.iter().for_each(|awaited| events.release(awaited.work, awaited.event));
    let may_adopt = matches!(result, Ok(true)) || awaited.iter().any(|awaited| awaited.is_over);
    let over = awaited.iter().filter(|awaited| awaited.is_over).map(|awaited| awaited.work);
    // The point comes behind the waits: an event that another thread recorded on the stream before them stands for
    // earlier points only.
    let since = arena
        .streams()
        .queue_of_request(request)
        .filter(|_| may_adopt)
        .map(|queue_id| arena.streams_mut().next_work(queue_id));
    let adopted = match (list(awaited.len()), since) {
        (Ok(mut works), Some(since)) => {
            works.extend(over);
            arena.adopt(request, &works, place, since)
        }
        _ => false,
    };
    let is_for_others =
        adopted && !request.stream.is_private() && !arena.streams().is_at_risk(request.stream);
    match since.filter(|_| is_for_others) {
        // What the request leaves of it is for others behind an event of its own.
        Some(since) => guard = record_work(guard, since)?,
        None => guard = guard.check_entry()?,
    }
    Ok((guard, result.map(drop)))
}

/// Waits in this thread for what is left of other contexts, which no synchronization of the device's own covers.
pub(super) fn wait_elsewhere(mut guard: Guard<'_>) -> Ordered<'_> {
    match newest_elsewhere(&mut guard) {
        Ok(awaited) if awaited.is_empty() => Ok((guard, Ok(()))),
        Ok(awaited) => wait_here(guard, awaited),
        Err(exhausted) => Ok((guard, Err(exhausted.into()))),
    }
}

/// The newest event of each queue of another context that free memory waits for; they are held from here on.
fn newest_elsewhere(guard: &mut Guard<'_>) -> Result<Vec<Awaited>, HostMemoryExhausted> {
    let mut awaited = list(guard.arena.streams().queue_count())?;
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

/// Before all memory is given back: waits for work of other contexts that may touch it, as far as there are events or
/// streams with memory in use. What fails is left out, for the allocator ends in any case.
pub(in crate::pool) fn wait_for_the_end(mut guard: Guard<'_>) -> Guard<'_> {
    if guard.backend.get().order().is_none() {
        return guard;
    }
    let awaited = newest_elsewhere(&mut guard).unwrap_or_default();
    let mut live = Vec::new();
    for stream in guard.arena.streams().living_streams().filter(|stream| !stream.is_default()) {
        if live.contains(&stream) || live.try_reserve(1).is_err() {
            continue;
        }
        live.push(stream);
    }
    if awaited.is_empty() && live.is_empty() {
        return guard;
    }
    keeping_last_error(|| {
        let (mut guard, _) = guard.waiting(|order| {
            for awaited in &awaited {
                let _ = order.wait_for(awaited.event);
            }
            for stream in live {
                let _ = wait_for_stream(order, stream);
            }
            Ok(())
        });
        awaited.iter().for_each(|awaited| guard.events.release(awaited.work, awaited.event));
        guard
    })
}

/// Waits for all that is queued on a live stream of another context.
fn wait_for_stream(order: &dyn Order, stream: Stream) -> Result<(), Error> {
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

/// Waits in this thread.
fn wait_here(guard: Guard<'_>, mut awaited: Vec<Awaited>) -> Ordered<'_> {
    let life = guard.arena.life();
    let (mut guard, result) = guard.waiting(|order| {
        each(&mut awaited, |awaited| {
            order.wait_for(awaited.event)?;
            awaited.is_over = true;
            Ok(())
        })
    });
    if guard.arena.life() != life {
        return Ok((guard.check_entry()?, Ok(())));
    }
    for Awaited { work, event, is_over } in awaited {
        guard.events.release(work, event);
        if is_over {
            guard.events.drop_done(work.queue, work.point);
            guard.arena.streams_mut().queue_done(work.queue, work.point);
        }
    }
    guard.notify();
    Ok((guard.check_entry()?, result))
}
