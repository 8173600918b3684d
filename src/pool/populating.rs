//! Making new regions resident in the background (`BFC_POPULATE`).
//!
//! A thread populates what no request has got yet, a piece at a time, with the allocator locked: a request that wants the
//! piece meanwhile would have to fault it in itself.

use super::slot::{Guard, Slot};
use crate::core::units::Span;
use crate::log::{self, Level};
use crate::sys::futex;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Incremented whenever there may be something to populate.
static WORK: AtomicU32 = AtomicU32::new(0);

/// How much is populated at once: one huge page.
const PIECE: u64 = 2 << 20;

/// Wakes the thread, if a pool's new regions are to be populated.
pub(super) fn region_obtained(guard: &Guard<'_>) {
    if guard.backend.get().populates() {
        WORK.fetch_add(1, Release);
        futex::wake(&WORK, 1);
    }
}

/// Returns a value that changes with the next region.
pub(crate) fn seen() -> u32 {
    WORK.load(Acquire)
}

/// Sleeps until a region was obtained after `seen`.
pub(crate) fn wait(seen: u32) {
    futex::wait(&WORK, seen, None);
}

/// Populates the next piece of a pool's regions. Returns whether there may be more.
pub(crate) fn populate_a_piece(slot: &Slot) -> bool {
    let Ok(guard) = slot.enter_for_long() else { return false };
    // The debug mode writes to free memory.
    if !guard.backend.get().populates() || guard.is_guarded() {
        return false;
    }
    let (guard, most) = guard.asking(|backend| backend.populates_at_most());
    let Ok(mut guard) = guard.check_entry() else { return false };
    let Some((span, rest)) = guard.arena.unpopulated(PIECE) else { return false };
    if rest <= most && guard.backend.get().populate(span) {
        guard.arena.note_populated(span);
        return true;
    }
    // Requests fault in what is left.
    guard.arena.note_populated(Span { bytes: rest, ..span });
    let (device, why) =
        (guard.device, if rest <= most { "the system refuses" } else { "there is not enough memory" });
    guard.talking(|| {
        log::emit(
            Level::Warn,
            format_args!("device {device}: {rest} bytes of a region are not populated: {why}"),
        );
    });
    true
}
