//! Queries events to find out which pending work is done. Any event may be queried. The driver is called with the lock
//! open, and the events are held meanwhile.

use super::capture_state::note_capture_of;
use super::driver_stream::{each, handle, is_captured, is_reachable, try_vec};
use super::record::Recording;
use crate::backend::order::{Capture, Event, Order, State};
use crate::error::ErrorKind;
use crate::pool::events::{Kind, Marker};
use crate::pool::mutation;
use crate::pool::pool::Pool;
use crate::pool::slot::{Guard, Interrupted, Outside, deferred, is_reborn};
use bfc_core::stream_id::Stream;
use bfc_core::streams::{QueueId, Work};
use bfc_hostmem::HostMemoryExhausted;

/// A query about one queue: a sample of its events, the oldest first.
struct Question {
    queue_id: QueueId,
    /// The sample is taken between these points, both exclusive.
    range: (u64, u64),
    events: Vec<Marker>,
    /// Whether the range holds events that are not in the sample.
    is_sample: bool,
    /// The number of events that are known to be done, counted from the first.
    done: usize,
    /// An event that covers no work, and whether it may be recorded again.
    useless: Option<(Event, bool)>,
}

impl Question {
    /// Queries the events by bisection, because work is done in order.
    fn query_events(&mut self, order: &dyn Order) -> Result<(), ErrorKind> {
        let (mut least, mut most) = (0, self.events.len());
        // Usually either nothing is done or everything is.
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

    /// Returns the range that is left to query, if the sample left something out.
    fn rest(&self) -> Option<Range> {
        let after = self.done.checked_sub(1).map_or(self.range.0, |last| self.events[last].point);
        let before = self.events.get(self.done).map_or(self.range.1, |marker| marker.point);
        (self.is_sample && self.useless.is_none()).then_some((self.queue_id, (after, before)))
    }
}

/// Queries which work of other streams is done by now.
#[inline(never)]
pub(in crate::pool) fn poll(guard: &mut Guard<'_>, stream: Stream) -> Outside {
    if guard.backend.get().order().is_none() {
        return Ok(());
    }
    let learnt = deferred(learn_sole_and_named(guard, stream))?;
    let mut ranges = ranges(guard)?;
    if ranges.is_empty() && learnt.is_ok() {
        return note_capture_of(guard, stream);
    }
    while !ranges.is_empty() {
        query_queues(guard, stream, &mut ranges)?;
    }
    learnt.map_err(Interrupted::Driver)
}

/// Queries the contexts that have to be known. Out of line, so that what it holds is not on the stack during [`query_queues`].
#[inline(never)]
fn learn_sole_and_named(guard: &mut Guard<'_>, stream: Stream) -> Outside {
    let sole = deferred(learn_sole(guard, stream))?;
    let named = deferred(learn_named(guard, stream))?;
    sole.and(named).map_err(Interrupted::Driver)
}

/// Queries the context of the stream that is the only one so far. Work of another context is not covered by a
/// synchronization of the device's own. Then the stream gets a queue, so that its memory is neither reused by other
/// streams nor given back before an event reports its work as done.
#[inline(never)]
fn learn_sole(guard: &mut Guard<'_>, named: Stream) -> Outside {
    let is_unknown = |&sole: &Stream| sole == named && !guard.events.knows_sole(sole);
    let sole = guard.arena.streams().sole_stream().filter(is_unknown);
    let Some(sole) = sole else { return Ok(()) };
    let mut context = None;
    let result = guard.order(|order| {
        // The context of a captured stream is not queried, because that may invalidate the capture.
        if order.capture_of(handle(sole))? == Capture::None {
            context = Some(order.context_of(handle(sole))?);
        }
        Ok(())
    });
    if is_reborn(&result) {
        return result;
    }
    if let Some(context) = context {
        guard.events.learn_sole(sole, context);
    }
    // A stream that is not known to be of this context is treated as one of another.
    if guard.events.is_of_other_context(sole) && guard.arena.streams().sole_stream() == Some(sole) {
        guard.arena.streams_mut().require_queues().map_err(ErrorKind::from)?;
    }
    result
}

/// Queries the context of the stream that the caller names, if it has a queue whose context is not known yet. Otherwise
/// no synchronization would cover the memory freed there meanwhile.
#[inline(never)]
fn learn_named(guard: &mut Guard<'_>, named: Stream) -> Outside {
    let queue_id = guard.arena.streams().queue_of(named);
    let is_unknown = |queue_id: &QueueId| {
        guard.events.context_of(*queue_id, guard.arena.streams().progress_of(*queue_id)).is_none()
    };
    let Some(queue_id) = queue_id.filter(|_| named.exists() && is_reachable(named)).filter(is_unknown) else {
        return Ok(());
    };
    let mut context = None;
    let result = guard.order(|order| {
        if order.capture_of(handle(named))? == Capture::None {
            context = Some(order.context_of(handle(named))?);
        }
        Ok(())
    });
    if let Some(context) = context.filter(|_| !is_reborn(&result)) {
        let Pool { arena, events, .. } = &mut **guard;
        events.learn(arena, queue_id, named, context);
    }
    result
}

/// A queue, and the points to query: those after the first one and before the second one.
type Range = (QueueId, (u64, u64));

/// Returns the queues whose work free memory waits for, each with all of its points that are not done.
#[inline(never)]
fn ranges(guard: &Guard<'_>) -> Result<Vec<Range>, HostMemoryExhausted> {
    let mut ranges = try_vec(guard.arena.streams().queue_count())?;
    ranges.extend(guard.arena.streams().unfinished(|_| true).map(|unfinished| {
        let queue_id = unfinished.work.queue;
        (queue_id, (guard.arena.streams().progress_of(queue_id).done, u64::MAX))
    }));
    Ok(ranges)
}

/// Queries some queues once, and replaces `ranges` by those that are left to query.
#[inline(never)]
fn query_queues(guard: &mut Guard<'_>, named: Stream, ranges: &mut Vec<Range>) -> Outside {
    let is_first = ranges.iter().any(|&(_, (_, before))| before == u64::MAX);
    let (mut questions, mut recordings) = plan(guard, named, ranges, is_first)?;
    ranges.clear();
    if questions.is_empty() && recordings.is_empty() {
        return if is_first { note_capture_of(guard, named) } else { Ok(()) };
    }
    let noticed = guard.captures_noticed;
    let mut is_named_captured = None;
    let result = guard.order(|order| {
        if *is_named_captured.insert(is_captured(order, named)?) {
            return Ok(());
        }
        let recorded = each(&mut recordings, |recording| {
            recording.carry_out(order)?;
            recording.query_event(order)
        });
        each(&mut questions, |question| question.query_events(order)).and(recorded)
    });
    if is_reborn(&result) {
        // The events were destroyed with the context, and no work is left to wait for.
        return result;
    }
    if let Some(is_captured) = is_named_captured {
        guard.note_capture(named, is_captured, noticed);
    }
    if apply_answers(guard, questions, recordings, noticed, ranges) {
        guard.notify();
    }
    result
}

/// Applies what was learnt, and replaces `ranges` by those that are left to query. Returns whether waiting threads should
/// search again. Out of line, because the frame of [`query_queues`] is on the stack while the driver is called.
#[inline(never)]
fn apply_answers(
    guard: &mut Guard<'_>,
    questions: Vec<Question>,
    recordings: Vec<Recording>,
    noticed: u64,
    ranges: &mut Vec<Range>,
) -> bool {
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
        // The list has room for as many ranges as it had.
        ranges.extend(question.rest());
    }
    for recording in recordings {
        news |= recording.note(guard, noticed);
    }
    news
}

/// Returns the events to query, which are held from here on. In the first round it also returns late events to record
/// for work without events, on streams that certainly exist: the default ones, and the one that the caller names.
#[inline(never)]
fn plan(
    guard: &mut Guard<'_>,
    named: Stream,
    ranges: &[Range],
    is_first: bool,
) -> Result<(Vec<Question>, Vec<Recording>), HostMemoryExhausted> {
    let Pool { arena, events, .. } = &mut **guard;
    // Bisection queries only a few events of each queue, but all of them are held meanwhile.
    const EVENTS: usize = 256;
    let most = (EVENTS / ranges.len().max(1)).clamp(4, 32);
    let (mut questions, mut recordings) = (try_vec(ranges.len())?, try_vec(ranges.len())?);
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
