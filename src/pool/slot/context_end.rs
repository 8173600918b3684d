//! Forgets everything when the device's context has ended, which destroys all memory and all events.

use super::call::CallKind;
use super::guard::Guard;
use crate::error::keeping_last_error;
use crate::log::{self, Level};
use crate::pool::listener::RegionEvent;
use crate::report::Counted;

/// Forgets everything after a call of the backend if the context has ended. Wakes the threads that wait for memory.
#[inline]
pub(in crate::pool) fn forget_if_over(guard: &mut Guard<'_>) {
    if guard.has_pool() && !guard.is_of_parent() && !guard.forgotten && guard.is_over() {
        forget(guard);
    }
}

/// Forgets everything. Out of line, because otherwise its large frame would be part of every call of the backend.
#[cold]
#[inline(never)]
fn forget(guard: &mut Guard<'_>) {
    guard.forgotten = true;
    let (device, live) = (guard.device, guard.arena.counters().live());
    let (live, was) = (Counted(live, "allocation"), if live == 1 { "was" } else { "were" });
    let lost = guard.arena.forget_all();
    // The driver has destroyed the events with the context.
    guard.events = Default::default();
    if let Some(guards) = &mut guard.guards {
        guards.forget_all();
    }
    guard.notify();
    let listener = guard.listener;
    guard.outside(CallKind::GivesBack(guard.next_call()), || {
        lost.spans().for_each(|span| listener.notify(RegionEvent::Returning, span));
        keeping_last_error(|| {
            log::emit(
                Level::Error,
                format_args!(
                    "device {device}: its context was reset or destroyed: all memory is gone, and with it \
                     {live} that {was} live"
                ),
            );
        });
    });
}
