//! Forgets everything when the device's context has ended, and with it all memory and all events.

use super::guard::Guard;
use crate::error::keeping_last_error;
use crate::log::{self, Level};
use crate::pool::listener::RegionEvent;

/// Behind a call of the backend: forgets everything if it is gone. Who waits for memory looks again.
#[inline]
pub(in crate::pool) fn forget_if_over(guard: Guard<'_>) -> Guard<'_> {
    let over = guard.has_pool() && !guard.is_lost() && !guard.forgotten && guard.is_over();
    if over { forget(guard) } else { guard }
}

/// Out of line, because its frame is large and every call of the backend would have it.
#[cold]
#[inline(never)]
fn forget(mut guard: Guard<'_>) -> Guard<'_> {
    guard.forgotten = true;
    let (device, live) = (guard.device, guard.arena.counters().live());
    let gone = guard.arena.forget_all();
    // The driver has destroyed them with the context.
    guard.events = Default::default();
    if let Some(guards) = &mut guard.guards {
        guards.forget_all();
    }
    guard.notify();
    let listener = guard.listener;
    guard.notifying(|| {
        gone.spans().for_each(|span| listener.tell(RegionEvent::Returning, span.base, span.bytes));
        keeping_last_error(|| {
            log::emit(
                Level::Error,
                format_args!(
                    "device {device}: its context was reset or destroyed: all memory is gone, and with it {live} \
                     allocations that were live"
                ),
            );
        });
    })
}
