//! Making new regions resident in the background (`BFC_POPULATE`).
//!
//! A thread populates what no request has got yet, a piece at a time, with the allocator locked: a request for the piece
//! would have to fault it in itself. Once free memory has gone back to the system, no more of the regions is populated.

use super::slot::{CallKind, Guard, Slot};
use crate::log::{self, Level};
use crate::sys::futex;
use std::sync::atomic::{AtomicU32, Ordering::*};

/// Incremented whenever there may be something to populate.
static WORK: AtomicU32 = AtomicU32::new(0);

/// Memory is populated up to the next multiple of this: the rest of a huge page.
const PIECE: u64 = 2 << 20;

/// The available memory is determined once for this many pieces.
const PIECES: u32 = 32;

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

/// Populates the next pieces of a pool's regions. Returns whether there may be more.
pub(crate) fn populate_some(slot: &Slot) -> bool {
    let Ok(mut guard) = slot.enter() else { return false };
    // The debug mode writes to free memory.
    if !guard.backend.get().populates() || guard.is_guarded() || guard.arena.unpopulated(PIECE).is_none() {
        return false;
    }
    let most = guard.ask(CallKind::Orders, |backend| backend.populates_at_most());
    drop(guard);
    (0..PIECES).all(|_| populate_a_piece(slot, most))
}

/// Populates the next piece, if the rest of its region has at most that many bytes. Returns whether there may be more.
fn populate_a_piece(slot: &Slot, most: u64) -> bool {
    let Ok(mut guard) = slot.enter_for_long() else { return false };
    let Some((span, rest)) = guard.arena.unpopulated(PIECE) else { return false };
    if rest <= most && guard.backend.get().populate(span) {
        guard.arena.note_populated(span);
        return true;
    }
    guard.arena.leave_unpopulated(span.base);
    let why = if rest <= most { "the system refuses" } else { "there is not enough memory" };
    let device = guard.device;
    guard.outside(CallKind::Talks, || {
        log::emit(
            Level::Warn,
            format_args!("device {device}: {rest} bytes of a region are not populated: {why}"),
        );
    });
    true
}
