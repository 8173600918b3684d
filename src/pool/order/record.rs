//! Recording: which work gets an event, and when.
//!
//! Behind each free that other streams could profit from, in the order of a stream, while the pool tells several apart;
//! for a chunk with recorded uses on those streams too. The event is recorded before the call returns, so that it stands
//! for nothing that the caller queues later. A stream that is alone has nothing recorded.
//!
//! The driver is given a created stream's handle where the caller names it, or frees memory that was used on it: a
//! stream of which nothing is left may have been destroyed. Work without an event is waited for together with its whole
//! context, at last ([`super::synchronize`]).

use super::driver_stream::{Ordered, each, handle, is_reachable};
use crate::backend::order::{self as driver, Capture, Context, Event, Order};
use crate::core::arena::Arena;
use crate::core::stream_id::Stream;
use crate::core::streams::Work;
use crate::error::{Error, keeping_last_error};
use crate::pool::events::{Events, Kind};
use crate::pool::mutation;
use crate::pool::pool::Pool;
use crate::pool::slot::Guard;
use crate::sys::HostMemoryExhausted;

/// An event that is to be recorded for some work, with the lock open.
pub(super) struct Recording {
    pub(super) work: Work,
    stream: driver::Stream,
    /// A thread's own default stream, which no other thread begins to capture.
    is_own: bool,
    pub(super) event: Option<Event>,
    /// One that was taken for it, and is of another context.
    spare: Option<Event>,
    kind: Kind,
    /// That of the stream, if it is known to be the device's own.
    context: Option<Context>,
    /// The stream is about to end, perhaps with its context.
    is_last: bool,
    is_captured: bool,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    NotRecorded,
    Recorded,
    /// A capture that was not announced began at that moment, and the event stands for nothing.
    Captured,
    /// It was recorded, and is done.
    Done,
}

impl Recording {
    /// For work of a stream that lives, within the reach of the calling thread.
    pub(super) fn new(events: &mut Events, arena: &Arena, work: Work, kind: Kind) -> Self {
        let progress = arena.streams().progress_of(work.queue);
        let stream = progress.stream;
        // The handle of one in another context is asked about each time: the context may come to an end.
        let context = events.context_of(work.queue, progress).filter(|&context| context == Context::OWN);
        // Mostly it is the device's own.
        let event = events.take_spare(Context::OWN);
        let is_own = stream.handle() == Stream::OF_THIS_THREAD;
        let (stream, outcome) = (handle(stream), Outcome::NotRecorded);
        Recording {
            work,
            stream,
            is_own,
            event,
            spare: None,
            kind,
            context,
            is_last: false,
            is_captured: false,
            outcome,
        }
    }

    /// The same for a stream that is about to end: of it and its context nothing is kept.
    pub(super) fn last(events: &mut Events, arena: &Arena, work: Work) -> Self {
        Recording { is_last: true, ..Self::new(events, arena, work, Kind::Last) }
    }

    /// Records the event, unless the stream is captured.
    pub(super) fn carry_out(&mut self, order: &dyn Order) -> Result<(), Error> {
        if self.outcome != Outcome::NotRecorded {
            return Ok(());
        }
        let capture = order.capture_of(self.stream)?;
        self.is_captured = capture == Capture::Active;
        if capture != Capture::None {
            return Ok(());
        }
        let context = match self.context {
            Some(context) => context,
            None if mutation::is("own-context") => Context::OWN,
            None => *self.context.insert(order.context_of(self.stream)?),
        };
        let of = if self.is_last { Context::OWN } else { context };
        if let Some(spare) = self.event.take_if(|event| event.context != of) {
            self.spare = Some(spare);
        }
        let event = match self.event {
            Some(event) => event,
            None => *self.event.insert(order.create_event(of)?),
        };
        let recorded = match of == context {
            true => order.record(event, self.stream),
            false => order.record_across(event, self.stream),
        };
        if recorded.is_err() {
            // The handle may be that of a stream of another context by now. What is no stream any more was of this one.
            self.context = order.context_of(self.stream).ok().or(self.context);
        }
        recorded?;
        // Another thread may have begun to capture the stream. Nothing is lost yet, but asking after the event would break
        // the capture.
        self.outcome = Outcome::Captured;
        if self.is_own || order.capture_of(self.stream)? == Capture::None {
            self.outcome = Outcome::Recorded;
        }
        Ok(())
    }

    /// The event's stream may be idle.
    pub(super) fn look(&mut self, order: &dyn Order) -> Result<(), Error> {
        let Some(event) = self.event.filter(|_| self.outcome == Outcome::Recorded) else { return Ok(()) };
        match order.state(event)? {
            driver::State::Done => self.outcome = Outcome::Done,
            driver::State::Pending => {}
            driver::State::Captured | driver::State::Lost => self.outcome = Outcome::Captured,
        }
        Ok(())
    }

    /// Notes what came of it, in the pool that it was for. Returns whether work is done by it.
    pub(super) fn note(self, pool: &mut Pool) -> bool {
        let Recording { work, event, spare, kind, context, is_captured, outcome, .. } = self;
        let Pool { arena, events, .. } = pool;
        if let Some(queue) = events.queue(work.queue, arena.streams().progress_of(work.queue)) {
            queue.context = context;
            queue.was_captured = is_captured || outcome == Outcome::Captured;
        }
        spare.into_iter().for_each(|event| events.recycle(event));
        match (event, outcome) {
            (Some(event), Outcome::Recorded) => events.insert(arena, work, event, kind),
            (Some(event), _) => events.recycle(event),
            (None, _) => {}
        }
        outcome == Outcome::Done && arena.streams_mut().queue_done(work.queue, work.point)
    }
}

/// Behind a free in the order of a queue. The chunk is free, whatever the driver says and also without host memory for
/// what is to be said to it: without an event it waits for a later one, or for a synchronization.
pub(in crate::pool) fn record_free(mut guard: Guard<'_>) {
    if guard.backend.get().order().is_none() || mutation::is("late-event") {
        return;
    }
    let Ok(recordings) = plan(&mut guard) else { return };
    if recordings.is_empty() {
        return guard.leave();
    }
    // The allocator may have come to its end meanwhile.
    let _ = keeping_last_error(|| carry_out(guard, recordings));
}

/// Gives some work of a live stream an event, as a free does.
pub(super) fn record_work(mut guard: Guard<'_>, work: Work) -> Result<Guard<'_>, Error> {
    let Pool { arena, events, .. } = &mut *guard;
    let mut recordings = Vec::new();
    if recordings.try_reserve(1).is_ok() {
        recordings.push(Recording::new(events, arena, work, Kind::Exact));
    }
    // Without an event the work waits for a later one.
    Ok(keeping_last_error(|| carry_out(guard, recordings))?.0)
}

fn plan(guard: &mut Guard<'_>) -> Result<Vec<Recording>, HostMemoryExhausted> {
    let Pool { arena, events, .. } = &mut **guard;
    let mut recordings = Vec::new();
    for freed in arena.streams().work_behind_last_free() {
        if is_reachable(freed.stream) && !arena.streams().is_at_risk(freed.stream) {
            let kind = if freed.waits_for_others { Kind::Kept } else { Kind::Exact };
            recordings.try_reserve(1)?;
            recordings.push(Recording::new(events, arena, freed.work, kind));
        }
    }
    Ok(recordings)
}

fn carry_out(guard: Guard<'_>, mut recordings: Vec<Recording>) -> Ordered<'_> {
    let life = guard.arena.life();
    let (mut guard, result) =
        guard.ordering(|order| each(&mut recordings, |recording| recording.carry_out(order)));
    if guard.arena.life() == life {
        recordings.into_iter().for_each(|recording| _ = recording.note(&mut guard));
    }
    Ok((guard.check_entry()?, result))
}
