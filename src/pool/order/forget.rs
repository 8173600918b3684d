//! The end of a stream, and of the allocator: the last events on them.

use super::record::{Outcome, Recording};
use crate::backend::order as driver;
use crate::core::stream_id::Stream;
use crate::error::{DeferredError, Error};
use crate::pool::pool::Pool;
use crate::pool::slot::Guard;

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

/// The end of the allocator; at the end of the process the driver may be down already, which is no matter.
pub(in crate::pool) fn end(mut guard: Guard<'_>) -> Guard<'_> {
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
