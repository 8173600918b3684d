//! Records events: which work gets one, and when.
//!
//! With several streams, an event is recorded after each free in the order of a stream, and also on the streams of the
//! chunk's recorded uses. It is recorded before the call returns, so that it covers nothing that the caller queues
//! later. Nothing is recorded while a pool has a single stream.
//!
//! A created stream's handle is passed to the driver only if the caller names the stream, or frees memory that was used
//! on it. A stream without memory may have been destroyed. As a last resort, work without an event is waited for
//! together with its whole context ([`super::synchronize`]).

use super::driver_stream::{each, handle, is_reachable};
use crate::backend::order::{self as driver, Capture, Context, Event, Order};
use crate::error::{ErrorKind, keeping_last_error};
use crate::pool::captures::Permission;
use crate::pool::events::{Events, Kind};
use crate::pool::mutation;
use crate::pool::pool::Pool;
use crate::pool::slot::{Guard, Outside, deferred, is_reborn, unsaid_outside};
use bfc_core::arena::Arena;
use bfc_core::streams::Work;
use bfc_hostmem::HostMemoryExhausted;

/// An event to record for some work, with the lock open.
pub(super) struct Recording {
    pub(super) work: Work,
    stream: driver::Stream,
    /// Whether the stream is the thread's own default stream, which no other thread can begin to capture.
    is_own: bool,
    /// Whether the stream is a legacy default stream, of whichever context. An event there is an operation of all blocking
    /// streams of the context, and so breaks their captures.
    is_legacy: bool,
    pub(super) event: Option<Event>,
    /// A spare event that was taken for the recording but is of the wrong context.
    spare: Option<Event>,
    kind: Kind,
    /// The context of the stream, if it is known to be the device's own or was queried by this recording.
    context: Option<Context>,
    /// Whether the stream is about to end, perhaps with its context.
    is_last: bool,
    /// Whether the stream is captured, once the driver has said so.
    is_captured: Option<bool>,
    /// Nothing is recorded: the stream is only queried, because its capture may not be known otherwise.
    is_query: bool,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    NotRecorded,
    Recorded,
    /// A capture that was not announced began meanwhile, so the event covers no work.
    Captured,
    /// The event was recorded and is done.
    Done,
}

impl Recording {
    /// Prepares a recording for work of a live stream that the calling thread may record on.
    pub(super) fn new(events: &mut Events, arena: &Arena, work: Work, kind: Kind) -> Self {
        let progress = arena.streams().progress_of(work.queue);
        let stream = progress.stream;
        // The context of a stream of another context is queried each time, because that context may end.
        let context = events.context_of(work.queue, progress).filter(|&context| context == Context::OWN);
        // The context usually is the device's own.
        let event = events.take_spare(Context::OWN);
        let is_own = stream.thread() != 0;
        let is_legacy = stream.is_legacy();
        let (stream, outcome) = (handle(stream), Outcome::NotRecorded);
        Recording {
            work,
            stream,
            is_own,
            is_legacy,
            event,
            spare: None,
            kind,
            context,
            is_last: false,
            is_captured: None,
            is_query: false,
            outcome,
        }
    }

    /// Prepares the last recording of a stream that is about to end. The event is of the device's own context, so that
    /// nothing of the stream's context is kept.
    pub(super) fn last(events: &mut Events, arena: &Arena, work: Work) -> Self {
        let new = Self::new(events, arena, work, Kind::Last);
        // Another context is about to end, with its captures, and nothing can be recorded there later.
        let is_legacy = new.is_legacy && new.stream.context == 0;
        Recording { is_last: true, is_legacy, ..new }
    }

    /// Prepares to query whether a stream is captured, and to record nothing: memory freed in a private pool needs no
    /// event.
    pub(super) fn capture_query(arena: &Arena, work: Work) -> Self {
        Recording { is_query: true, ..Self::new(&mut Events::default(), arena, work, Kind::Exact) }
    }

    /// Records the event, unless the stream is captured.
    pub(super) fn carry_out(&mut self, order: &dyn Order) -> Result<(), ErrorKind> {
        if self.outcome != Outcome::NotRecorded {
            return Ok(());
        }
        let permission = self.is_legacy.then(Permission::on_a_device);
        if matches!(permission, Some(None)) {
            // What is recorded there later covers this work too.
            return Ok(());
        }
        let capture = order.capture_of(self.stream)?;
        self.is_captured = Some(capture == Capture::Active);
        if capture != Capture::None || self.is_query {
            return Ok(());
        }
        let context = match self.context {
            Some(context) => context,
            None if mutation::is("own-context") => Context::OWN,
            None => *self.context.insert(order.context_of(self.stream)?),
        };
        // The context of a default stream may end unnoticed, so nothing of it is kept.
        let of = if self.is_last || self.stream.context != 0 { Context::OWN } else { context };
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
            // The handle may be that of a stream of another context by now. If it is no stream any more, the known
            // context stays.
            self.context = order.context_of(self.stream).ok().or(self.context);
        }
        recorded?;
        // Another thread may have begun to capture the stream. No harm is done yet, but querying the event would break
        // the capture.
        self.outcome = Outcome::Captured;
        if self.is_own || order.capture_of(self.stream)? == Capture::None {
            self.outcome = Outcome::Recorded;
        }
        Ok(())
    }

    /// Queries the recorded event at once, because its stream may be idle.
    pub(super) fn query_event(&mut self, order: &dyn Order) -> Result<(), ErrorKind> {
        let Some(event) = self.event.filter(|_| self.outcome == Outcome::Recorded) else { return Ok(()) };
        match order.state(event)? {
            driver::State::Done => self.outcome = Outcome::Done,
            driver::State::Pending => {}
            driver::State::Captured | driver::State::Lost => self.outcome = Outcome::Captured,
        }
        Ok(())
    }

    /// Enters the outcome into the pool. Returns whether more work is known to be done by it. A recording that was not
    /// attempted tells nothing of the stream: what was known of it stays.
    pub(super) fn note(self, pool: &mut Pool, noticed: u64) -> bool {
        let Recording { work, stream, event, spare, kind, context, is_query, outcome, .. } = self;
        let named = pool.arena.streams().progress_of(work.queue).stream;
        // The stream may have become idle meanwhile, and its place another's.
        let is_captured = self.is_captured.filter(|_| handle(named) == stream);
        if let Some(is_captured) = is_captured {
            pool.note_capture(named, is_captured || outcome == Outcome::Captured, noticed);
        }
        let Pool { arena, events, .. } = pool;
        if is_captured.is_some()
            && !is_query
            && let Some(queue) = events.queue(work.queue, arena.streams().progress_of(work.queue))
        {
            queue.context = context;
        }
        spare.into_iter().for_each(|event| events.recycle(event));
        match (event, outcome) {
            (Some(event), Outcome::Recorded) => {
                if event.context != Context::OWN {
                    arena.streams_mut().keep_idle();
                }
                events.insert(arena, work, event, kind)
            }
            (Some(event), _) => events.recycle(event),
            (None, _) => {}
        }
        outcome == Outcome::Done && arena.streams_mut().queue_done(work.queue, work.point)
    }
}

/// Records events after a free in the order of a stream. The chunk is free even if the driver fails or there is no host
/// memory. Without an event it waits for a later event or for a synchronization. `is_current` says that the device's
/// context was found current in this call.
pub(in crate::pool) fn record_free(mut guard: Guard<'_>, is_current: bool) {
    if guard.backend.get().order().is_none() || mutation::is("late-event") {
        return;
    }
    let Ok(recordings) = plan(&mut guard) else { return };
    if recordings.is_empty() {
        return guard.leave();
    }
    // The allocator may have been destroyed meanwhile.
    let _ = keeping_last_error(|| carry_out_recordings(&mut guard, is_current, recordings));
}

/// Records an event for some work of a live stream, as a free does.
pub(super) fn record_work(guard: &mut Guard<'_>, work: Work) -> Outside {
    let Pool { arena, events, .. } = &mut **guard;
    let mut recordings = Vec::new();
    if recordings.try_reserve(1).is_ok() {
        recordings.push(Recording::new(events, arena, work, Kind::Exact));
    }
    // Without an event the work waits for a later one.
    let _recorded = deferred(unsaid_outside(guard, |guard| carry_out_recordings(guard, false, recordings)))?;
    Ok(())
}

fn plan(guard: &mut Guard<'_>) -> Result<Vec<Recording>, HostMemoryExhausted> {
    let Pool { arena, events, .. } = &mut **guard;
    let mut recordings = Vec::new();
    for freed in arena.streams().work_behind_last_free() {
        let (stream, streams) = (freed.stream, arena.streams());
        let is_known = stream.is_private() && streams.is_watched(stream);
        if !is_reachable(stream) || streams.is_at_risk(stream) || is_known {
            continue;
        }
        recordings.try_reserve(1)?;
        recordings.push(match (stream.is_private(), freed.waits_for_others) {
            (true, _) => Recording::capture_query(arena, freed.work),
            (false, true) => Recording::new(events, arena, freed.work, Kind::Kept),
            (false, false) => Recording::new(events, arena, freed.work, Kind::Exact),
        });
    }
    Ok(recordings)
}

fn carry_out_recordings(guard: &mut Guard<'_>, is_current: bool, mut recordings: Vec<Recording>) -> Outside {
    let noticed = guard.captures_noticed;
    let result =
        guard.order_in(is_current, |order| each(&mut recordings, |recording| recording.carry_out(order)));
    if !is_reborn(&result) {
        recordings.into_iter().for_each(|recording| _ = recording.note(guard, noticed));
    }
    result
}
