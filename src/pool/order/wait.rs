//! Asking which work is done, and waiting for some of it: what a request does that finds nothing.
//!
//! Any event may be queried. Only one that was recorded at a free is waited for, because it stands for nothing later:
//! work that was queued behind the free may itself wait for what the request's stream does next, as a receive that was
//! posted does. The driver is called with the lock open, and the events are held meanwhile.

use super::events::{Kind, Marker};
use super::record::{Outcome, Recording};
use super::{Ordered, each, handle, is_captured, is_reachable, list};
use crate::backend::order::{Context, Event, Order, State};
use crate::core::arena::Want;
use crate::core::lanes::Lane;
use crate::core::waits::Work;
use crate::error::Error;
use crate::pool::Pool;
use crate::pool::slot::Guard;
use crate::sys::HostMemoryExhausted;

/// What is asked about one queue: a sample of its events, the oldest first.
struct Question {
    lane: Lane,
    /// Between these points, both left out.
    range: (u64, u64),
    events: Vec<Marker>,
    /// Whether there are more between those of the sample.
    is_sample: bool,
    /// How many of them are known to be done, from the first on.
    done: usize,
    /// Those that stand for nothing, for they were recorded in a capture.
    captured: Option<Event>,
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
                State::Captured => {
                    self.captured = Some(self.events[at].event);
                    break;
                }
            }
            self.done = least;
            at = if at == 0 { most.saturating_sub(1) } else { least + (most - least) / 2 };
        }
        Ok(())
    }

    fn held(&self) -> impl Iterator<Item = (Work, Event)> + '_ {
        let work = |marker: &Marker| (Work { lane: self.lane, point: marker.point }, marker.event);
        self.events.iter().map(work)
    }

    /// What is left to ask, if the sample left something out.
    fn rest(&self) -> Option<Range> {
        let after = self.done.checked_sub(1).map_or(self.range.0, |last| self.events[last].point);
        let before = self.events.get(self.done).map_or(self.range.1, |marker| marker.point);
        (self.is_sample && self.captured.is_none()).then_some((self.lane, (after, before)))
    }
}

/// Looks which work of other streams is done by now.
pub(in crate::pool) fn poll<'a>(mut guard: Guard<'a>, want: &Want<'_>) -> Ordered<'a> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(())));
    }
    let learnt;
    (guard, learnt) = learn_sole(guard)?;
    let mut ranges = match ranges(&guard) {
        Ok(ranges) => ranges,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    let mut result = learnt;
    while !ranges.is_empty() {
        let asked;
        (guard, asked) = ask(guard, want, &mut ranges)?;
        if asked.is_err() {
            result = asked;
            break;
        }
    }
    Ok((guard, result))
}

/// The context of the stream that is the only one so far: its work is not that of the device's own context if it is of
/// another, and then nothing of it is reused by others, or given back, before an event says that it is done.
fn learn_sole(mut guard: Guard<'_>) -> Ordered<'_> {
    let sole = guard.arena.sole_stream().filter(|&sole| !guard.events.knows_sole(sole));
    let Some(sole) = sole else { return Ok((guard, Ok(()))) };
    let life = guard.arena.life();
    let result;
    (guard, result) = guard.ordering(|order| order.context_of(handle(sole)).map(Some));
    if guard.arena.life() != life {
        return Ok((guard.check_entry()?, Ok(())));
    }
    let result = result.map(|context| {
        let Some(context) = context else { return };
        guard.events.learn_sole(sole, context);
    });
    // What is not known to be of this context is treated as of another.
    if guard.events.is_elsewhere(sole) && guard.arena.sole_stream() == Some(sole) {
        guard.arena.require_queues()?;
    }
    Ok((guard.check_entry()?, result))
}

/// A queue, and the points that are asked about: those after the first one, and before the second one.
type Range = (Lane, (u64, u64));

/// The queues whose work free memory waits for, each with all of its points that are not done.
fn ranges(guard: &Guard<'_>) -> Result<Vec<Range>, HostMemoryExhausted> {
    let mut ranges = list(guard.arena.lane_count())?;
    ranges.extend(guard.arena.unfinished(|_| true).map(|unfinished| {
        let lane = unfinished.work.lane;
        (lane, (guard.arena.progress_of(lane).done, u64::MAX))
    }));
    Ok(ranges)
}

/// Asks about some queues once, and leaves the ranges that are left to ask about.
fn ask<'a>(mut guard: Guard<'a>, want: &Want<'_>, ranges: &mut Vec<Range>) -> Ordered<'a> {
    let is_first = ranges.iter().any(|&(_, (_, before))| before == u64::MAX);
    let (mut questions, mut recordings) = match plan(&mut guard, want, ranges, is_first) {
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
        if is_captured(order, want.stream)? {
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
        let lane = question.lane;
        if let Some(event) = question.captured {
            guard.events.discard(lane, event);
        }
        if let Some(last) = question.done.checked_sub(1).map(|last| question.events[last]) {
            guard.events.drop_done(lane, last.point);
            news |= guard.arena.lane_done(lane, last.point);
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
    want: &Want<'_>,
    ranges: &[Range],
    is_first: bool,
) -> Result<(Vec<Question>, Vec<Recording>), HostMemoryExhausted> {
    let Pool { arena, events, .. } = &mut **guard;
    let (mut questions, mut recordings) = (list(ranges.len())?, list(ranges.len())?);
    for &(lane, range) in ranges {
        let mut sample = Vec::new();
        let is_sample = events.sample(lane, range, &mut sample);
        if !sample.is_empty() && events.hold(sample.iter().map(|marker| marker.event)).is_ok() {
            questions.push(Question { lane, range, events: sample, is_sample, done: 0, captured: None });
        }
        let progress = arena.progress_of(lane);
        let (stream, work) = (progress.stream, Work { lane, point: progress.newest });
        let may_be_asked = stream.is_default() || stream.exists() && stream == want.stream;
        let may_record = is_first && may_be_asked && !progress.forgotten;
        if may_record && is_reachable(stream) && !arena.is_at_risk(stream) && !events.covers(work) {
            recordings.push(Recording::new(events, arena, work, Kind::Late));
        }
    }
    Ok((questions, recordings))
}

/// Puts the request's stream behind the work of others, so that what they freed becomes its own; a request without a
/// stream waits here.
pub(in crate::pool) fn wait<'a>(mut guard: Guard<'a>, want: &Want<'_>) -> Ordered<'a> {
    if guard.backend.get().order().is_none() {
        return Ok((guard, Ok(())));
    }
    let awaited = match plan_wait(&mut guard, want) {
        Ok(awaited) if awaited.is_empty() => return Ok((guard, Ok(()))),
        Ok(awaited) => awaited,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    if want.stream.exists() { wait_on_stream(guard, want, awaited) } else { wait_here(guard, awaited) }
}

/// The work to wait for, with its events, which are held from here on.
fn plan_wait(guard: &mut Guard<'_>, want: &Want<'_>) -> Result<Vec<Awaited>, HostMemoryExhausted> {
    let Pool { arena, events, .. } = &mut **guard;
    let Some(works) = arena.waits_for(want, |work| events.to_wait_for(work).is_some())? else {
        return Ok(Vec::new());
    };
    let mut awaited = list(works.len())?;
    for work in works {
        let Some(Marker { point, event, .. }) = events.to_wait_for(work) else { return Ok(Vec::new()) };
        awaited.push(Awaited { work: Work { point, ..work }, event, is_over: false });
    }
    events.hold(awaited.iter().map(|awaited| awaited.event))?;
    Ok(awaited)
}

/// Work that something waits for.
struct Awaited {
    work: Work,
    event: Event,
    /// The stream waits for it, or it is done.
    is_over: bool,
}

fn wait_on_stream<'a>(mut guard: Guard<'a>, want: &Want<'_>, mut awaited: Vec<Awaited>) -> Ordered<'a> {
    let (life, at_risk) = (guard.arena.life(), guard.arena.is_at_risk_of_others(want.stream));
    let Pool { arena, events, .. } = &mut *guard;
    let mut recording = None;
    // What becomes the stream's own from here on is others' behind an event of its own.
    let since = arena.queue_of_request(want).map(|lane| arena.next_work(lane));
    if let Some(since) = since.filter(|_| !want.stream.is_private() && !arena.is_at_risk(want.stream)) {
        recording = Some(Recording::new(events, arena, since, Kind::Exact));
    }
    let result;
    (guard, result) = guard.ordering(|order| {
        if at_risk || is_captured(order, want.stream)? {
            return Ok(());
        }
        let waits = each(&mut awaited, |awaited| {
            order.make_wait(handle(want.stream), awaited.event)?;
            awaited.is_over = true;
            Ok(())
        });
        let recorded = recording.as_mut().map_or(Ok(()), |recording| recording.carry_out(order));
        waits.and(recorded)
    });
    if guard.arena.life() != life {
        return Ok((guard.check_entry()?, Ok(())));
    }
    let Pool { arena, events, .. } = &mut *guard;
    awaited.iter().for_each(|awaited| events.release(awaited.work, awaited.event));
    let over = awaited.iter().filter(|awaited| awaited.is_over).map(|awaited| awaited.work);
    let adopted = match (list(awaited.len()), since) {
        (Ok(mut works), Some(since)) => {
            works.extend(over);
            arena.adopt(want, &works, since)
        }
        _ => false,
    };
    if let Some(mut recording) = recording {
        if !adopted && recording.outcome == Outcome::Recorded {
            recording.outcome = Outcome::NotRecorded;
        }
        recording.note(&mut guard);
    }
    Ok((guard.check_entry()?, result))
}

/// Waits in this thread for what is left of other contexts, which no synchronization of the device's own covers.
pub(super) fn wait_elsewhere(mut guard: Guard<'_>) -> Ordered<'_> {
    let mut awaited = match list(guard.arena.lane_count()) {
        Ok(awaited) => awaited,
        Err(exhausted) => return Ok((guard, Err(exhausted.into()))),
    };
    let Pool { arena, events, .. } = &mut *guard;
    awaited.extend(arena.unfinished(|_| true).filter_map(|unfinished| {
        let lane = unfinished.work.lane;
        if !unfinished.stream.exists()
            || events.context_of(lane, arena.progress_of(lane)) == Some(Context::OWN)
        {
            return None;
        }
        let newest = events.newest(lane)?;
        Some(Awaited { work: Work { lane, point: newest.point }, event: newest.event, is_over: false })
    }));
    if awaited.is_empty() {
        return Ok((guard, Ok(())));
    }
    match events.hold(awaited.iter().map(|awaited| awaited.event)) {
        Ok(()) => wait_here(guard, awaited),
        Err(exhausted) => Ok((guard, Err(exhausted.into()))),
    }
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
            guard.events.drop_done(work.lane, work.point);
            guard.arena.lane_done(work.lane, work.point);
        }
    }
    guard.notify();
    Ok((guard.check_entry()?, result))
}
