//! The end of a stream, with its last event, and of the allocator, with all events.

use super::record::{Outcome, Recording};
use crate::backend::order as driver;
use crate::error::{ErrorKind, keeping_last_error};
use crate::pool::pool::Pool;
use crate::pool::slot::{Guard, is_reborn, or_reborn};
use bfc_core::stream_id::Stream;

/// Forgets a stream that is about to end. Records the last event on it, which covers all memory freed there before and
/// later.
#[inline(never)]
pub(crate) fn forget(guard: &mut Guard<'_>, stream: Stream) -> Result<(), ErrorKind> {
    let queue_id = guard.arena.streams().queue_of(stream);
    let work = guard.arena.streams_mut().forget_stream(stream)?;
    let (life, noticed) = (guard.arena.life(), guard.captures_noticed);
    // Only threads that are recording on the stream or querying it still use it. One of them may note that it is captured:
    // then others, which began meanwhile, query it too.
    loop {
        guard.events.note_no_capture(stream, u64::MAX);
        let last_call = guard.last_call();
        while guard.is_ordering(last_call) {
            guard.wait_for_call()?;
        }
        if !guard.events.is_noted_captured(stream) {
            break;
        }
    }
    // Meanwhile all memory may have been lost, including the queue. Or all of that work is done, and the queue is
    // reused.
    let is_of_use = guard.backend.get().order().is_some() && guard.arena.life() == life;
    // A queue that nothing waits for may have events too. A sole stream got its queue only when it was forgotten.
    let queue_id = work.map(|work| work.queue).or(queue_id);
    let Some(work) = work.filter(|&work| is_of_use && !guard.arena.streams().is_done(work)) else {
        guard.forget_events(stream);
        if is_of_use {
            let mut foreign = guard.events.take_foreign_spare();
            // All work of the queue is done, if the queue is not another stream's by now.
            if let Some(queue_id) =
                queue_id.filter(|&queue_id| guard.arena.streams().progress_of(queue_id).stream == stream)
            {
                guard.events.take_foreign(queue_id, &mut foreign);
            }
            destroy_all(guard, &mut foreign);
        }
        return guard.check_entry();
    };
    let Pool { arena, events, .. } = &mut **guard;
    // Memory that is freed there later gets this point too.
    let mut recording = Recording::last(events, arena, work);
    // A failure may be transient, and the stream cannot be queried later, so a failed recording is tried once more.
    let recorded = guard.order(|order| recording.carry_out(order).or_else(|_| recording.carry_out(order)));
    if !is_reborn(&recorded) {
        if recording.outcome == Outcome::Captured {
            recording.outcome = Outcome::NotRecorded;
        }
        let is_covered = recording.outcome == Outcome::Recorded;
        recording.note(guard, noticed);
        guard.forget_events(stream);
        let mut foreign = guard.events.take_foreign_spare();
        if is_covered {
            guard.events.take_foreign(work.queue, &mut foreign);
        }
        destroy_all(guard, &mut foreign);
    }
    or_reborn(recorded, guard, ())
}

/// Destroys events. Those whose context cannot be entered stay in the list.
fn destroy_all(guard: &mut Guard<'_>, events: &mut Vec<driver::Event>) {
    if !events.is_empty() {
        let _ = keeping_last_error(|| {
            guard.order(|order| {
                events.drain(..).for_each(|event| order.destroy_event(event));
                Ok(())
            })
        });
    }
}

/// Destroys all events at the end of the allocator. Failures are ignored, because the driver may have shut down
/// already.
pub(in crate::pool) fn end(guard: &mut Guard<'_>) {
    const TRIES: u32 = 2;
    let mut events = guard.events.take_all();
    for _ in 0..TRIES {
        // A failure to enter the device's context may be transient.
        destroy_all(guard, &mut events);
    }
}
