//! The layout of guards, and which of them can be accessed.

use crate::pool::guard_state::{FRONT, Guards};
use crate::pool::pool::Pool;
use bfc_core::arena::Plan;
use bfc_core::heap::State;
use bfc_core::ids::{ChunkId, NIL};
use bfc_core::units::round_up;

/// The least number of bytes in a guard.
pub(super) const ROOM: u64 = 64;
/// The value of guard bytes.
pub(super) const GUARD: u8 = 0xFD;
/// The value of new memory: NaN in every floating-point format.
pub(super) const FRESH: u8 = 0xFF;
/// The value of freed memory.
pub(super) const POISON: u8 = 0xDB;

#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// One of the two guards of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Behind,
    Front,
}

/// Returns the size of a guarded chunk for a request of `bytes` bytes, or `None` if that is too large.
pub(in crate::pool) fn chunk_size(bytes: u64) -> Option<u64> {
    if bytes == 0 { Some(0) } else { round_up(bytes.checked_add(ROOM)?) }
}

impl Pool {
    /// Returns the guards' state. The debug mode must be on.
    #[allow(clippy::expect_used)]
    pub(super) fn guards(&mut self) -> &mut Guards {
        self.guards.as_deref_mut().expect("only with the debug mode on")
    }

    pub(super) fn is_exempt(&self, addr: u64, which: u64) -> bool {
        self.guards.as_ref().is_none_or(|guards| guards.exempt.has(addr, which))
    }

    /// Returns whether the library may access a chunk's memory while the device is idle. A captured graph may use
    /// memory of a private pool at any time. Without a device it is not known when a stream's work is done.
    pub(super) fn may_touch(&self, id: ChunkId) -> bool {
        let knows_the_end =
            self.backend.get().order().is_some() || !self.arena.streams().is_in_stream_order(id);
        knows_the_end && !self.arena.streams().is_private(id)
    }

    /// Returns what lies in front of a chunk.
    pub(super) fn in_front(&self, id: ChunkId) -> Neighbour {
        let prev = self.arena.chunks().prev(id);
        if prev == NIL {
            return Neighbour::None;
        }
        match self.arena.chunks().state(prev) {
            State::InUse => Neighbour::InUse(self.arena.chunks().addr(prev)),
            State::Free | State::Held if self.may_touch(prev) => Neighbour::Free,
            _ => Neighbour::OutOfReach,
        }
    }

    /// Returns the address of the chunk after another one, if it is in use.
    pub(super) fn behind(&self, id: ChunkId) -> Option<u64> {
        let (chunks, next) = (self.arena.chunks(), self.arena.chunks().next(id));
        (next != NIL && chunks.in_use(next)).then(|| chunks.addr(next))
    }

    pub(super) fn guard_behind(&self, id: ChunkId) -> Range {
        let chunks = self.arena.chunks();
        let requested = chunks.cold(id).requested;
        Range { at: chunks.addr(id) + requested, bytes: chunks.size(id) - requested }
    }

    /// Exempts the front guards behind the sources of a plan. The plan removes or moves that memory, and the guards in
    /// it are lost even if other memory is mapped there later.
    pub(in crate::pool) fn exempt_guards_behind(&mut self, plan: &Plan) {
        if !self.is_guarded() {
            return;
        }
        for piece in &plan.sources {
            if let Some(next) = self.behind(piece.id()) {
                self.guards().exempt.set(next, FRONT, true);
            }
        }
    }
}

/// What lies in front of a chunk, and whether it can be accessed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Neighbour {
    None,
    InUse(u64),
    Free,
    OutOfReach,
}

pub(super) fn in_front_of(addr: u64) -> Range {
    Range { at: addr - ROOM, bytes: ROOM }
}
