//! The debug mode `BFC_DEBUG=guard`: writes behind or in front of an allocation are found when it is freed.
//!
//! A chunk is at least [`ROOM`] bytes longer than what was asked for. All that lies behind the end of that is guard,
//! and so are the last [`ROOM`] bytes of what lies in front of a chunk in use: the end of the neighbour's guard, or a
//! part of free memory.
//!
//! ```text
//!   poison .......... guard | what was asked for  guard | what was asked for     guard | poison
//!   free                    | in use                    | in use                       | free
//! ```
//!
//! Guards are written and checked with the lock open and the device idle, by one thread at a time: while one does
//! ([`turn`]) no chunk is handed out or freed, so nothing changes about the chunks that it has looked up. Nothing
//! else needs a turn but to take memory away that is free, with its neighbours in use: a plan of remapping begins when
//! no thread does, and its chunks are out of reach until it is done. With the memory a guard may go that lies
//! at its end: it is [exempt](Pool::leave_behind), and so is one in front of which an unmapped chunk lies.
//!
//! The mode changes no answer: where guards cannot be written, a call goes on without, and [`exempt::Exempt`]
//! remembers which are not to be believed.

mod check;
mod check_on_free;
mod damage_report;
mod exempt;
mod work;

pub(crate) use self::check::check;
pub(super) use self::check_on_free::free;

use self::damage_report::Messages;
use self::exempt::{BEHIND, Exempt, FRONT};
use self::work::{Fill, Range};
use super::Pool;
use super::slot::Guard;
use crate::core::arena::Plan;
use crate::core::heap::State;
use crate::core::ids::{ChunkId, NIL};
use crate::core::stream_id::Stream;
use crate::core::units::round_up;
use crate::error::Error;
use crate::report::Guarding;
use crate::sys::HostMemoryExhausted;

/// How many bytes of guard there are at least.
pub(super) const ROOM: u64 = 64;
/// What guards are made of.
const GUARD: u8 = 0xFD;
/// What is handed out: NaN in every format of floating point.
const FRESH: u8 = 0xFF;
/// What was freed.
const POISON: u8 = 0xDB;

/// The debug mode of one allocator.
pub(crate) struct Guards {
    exempt: Exempt,
    /// Where memory is read to; the thread that has the turn uses it.
    buffer: Vec<u8>,
    /// Where the thread that has the turn writes: the chunk, and the one behind it.
    at_work: Option<(u64, Option<u64>)>,
    violations: u64,
    unchecked: u64,
    /// The last violation in words.
    last: String,
    /// A failure of the driver was said aloud; it goes on failing mostly.
    warned: bool,
}

impl Guards {
    pub(super) fn new() -> Result<Self, HostMemoryExhausted> {
        Ok(Guards {
            exempt: Exempt::default(),
            buffer: work::buffer()?,
            at_work: None,
            violations: 0,
            unchecked: 0,
            last: String::new(),
            warned: false,
        })
    }

    pub(super) fn summary(&self) -> Guarding<'_> {
        Guarding { violations: self.violations, unchecked: self.unchecked, last: &self.last }
    }

    /// All memory is gone, and its guards.
    pub(super) fn forget_all(&mut self) {
        self.exempt.clear();
    }

    /// In a forked child: the thread that had the turn is not here, and what it has written is unknown.
    pub(super) fn abandon(&mut self) {
        if let Some((addr, next)) = self.at_work.take() {
            self.exempt.set(addr, FRONT | BEHIND, true);
            next.into_iter().for_each(|next| self.exempt.set(next, FRONT, true));
        }
    }
}

/// How large a chunk is for so many bytes; `None` where none can be.
pub(super) fn chunk_size(bytes: u64) -> Option<u64> {
    if bytes == 0 { Some(0) } else { round_up(bytes.checked_add(ROOM)?) }
}

/// Waits until no other thread writes or checks guards. A thread that then does so before it opens the lock has the turn.
pub(super) fn turn(mut guard: Guard<'_>) -> Result<Guard<'_>, Error> {
    let mut gave_way = false;
    loop {
        if guard.is_guarding() {
            guard = guard.wait_for_call()?;
        } else if !gave_way && guard.is_awaited() {
            gave_way = true;
            guard = guard.give_way().check_entry()?;
        } else {
            return Ok(guard);
        }
    }
}

impl Pool {
    /// Of a pool that has them.
    #[allow(clippy::expect_used)]
    fn guards(&mut self) -> &mut Guards {
        self.guards.as_deref_mut().expect("only with the debug mode on")
    }

    fn is_exempt(&self, addr: u64, which: u64) -> bool {
        self.guards.as_ref().is_none_or(|guards| guards.exempt.has(addr, which))
    }

    /// Whether a chunk's memory is the library's to write, once the device is idle: a captured graph may use a private
    /// pool's at any time, and without a device it is not known when a stream's work is done.
    fn may_touch(&self, id: ChunkId) -> bool {
        let knows_the_end =
            self.backend.get().order().is_some() || !self.arena.streams().is_in_stream_order(id);
        knows_the_end && !self.arena.streams().is_private(id)
    }

    /// What lies in front of a chunk.
    fn in_front(&self, id: ChunkId) -> Neighbour {
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

    /// The chunk in use behind another.
    fn behind(&self, id: ChunkId) -> Option<u64> {
        let (chunks, next) = (self.arena.chunks(), self.arena.chunks().next(id));
        (next != NIL && chunks.in_use(next)).then(|| chunks.addr(next))
    }

    fn guard_behind(&self, id: ChunkId) -> Range {
        let chunks = self.arena.chunks();
        let requested = chunks.cold(id).requested;
        Range { at: chunks.addr(id) + requested, bytes: chunks.size(id) - requested }
    }

    /// A plan takes free memory away, or moves it: what was in it is there no more, also if others' memory comes there.
    pub(super) fn leave_behind(&mut self, plan: &Plan) {
        if !self.is_guarded() {
            return;
        }
        for piece in &plan.sources {
            let id = self.arena.chunk_at(piece.span.base);
            if let Some(next) = id.and_then(|id| self.behind(id)) {
                self.guards().exempt.set(next, FRONT, true);
            }
        }
    }
}

/// What lies in front of a chunk, and whether it is there to be looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Neighbour {
    None,
    InUse(u64),
    Free,
    OutOfReach,
}

fn in_front_of(addr: u64) -> Range {
    Range { at: addr - ROOM, bytes: ROOM }
}

/// Before a request takes a chunk: room to remember that it has no guards, one for each live allocation, so that no
/// free needs any.
pub(super) fn make_room(guard: &mut Guard<'_>) -> Result<(), HostMemoryExhausted> {
    let live = guard.arena.counters().live();
    guard.guards().exempt.reserve(live + 1)
}

/// Writes the guards of a chunk that was taken just now, and what shows that it was not written to yet. Gives the
/// pool back if all of it, and the chunk too, was gone by then.
#[inline(never)]
pub(super) fn hand_out(mut guard: Guard<'_>, addr: u64, stream: Stream) -> Result<Option<Guard<'_>>, Error> {
    let Some(id) = guard.arena.chunk_in_use(addr) else { return Ok(None) };
    // Until they are written.
    guard.guards().exempt.set(addr, FRONT | BEHIND, true);
    if !guard.may_touch(id) {
        return Ok(None);
    }
    let (behind, front) = (guard.guard_behind(id), guard.in_front(id));
    let fills = [
        Fill { range: Range { at: addr, bytes: behind.at - addr }, with: FRESH },
        Fill { range: behind, with: GUARD },
        Fill { range: in_front_of(addr), with: GUARD },
    ];
    let count = if front == Neighbour::Free { 3 } else { 2 };
    let streams = guard.streams_to_wait_beside(stream);
    guard.guards().at_work = Some((addr, None));
    let life = guard.arena.life();
    let (mut guard, hindrance) = guard
        .guarding(|backend| work::when_idle(backend, streams, |memory| work::fill(memory, &fills[..count])));
    guard.guards().at_work = None;
    if guard.arena.life() != life {
        return guard.check_entry().map(Some);
    }
    let mut messages = Messages::default();
    match hindrance {
        None => {
            guard.guards().exempt.set(addr, BEHIND, false);
            // Of a neighbour in use it is the neighbour's; when that is freed it is seen to.
            guard.guards().exempt.set(addr, FRONT, front == Neighbour::OutOfReach);
        }
        Some(hindrance) => messages.add_hindrance(&mut guard, &hindrance, "were not written"),
    }
    let guard = guard.check_entry();
    let answer = guard.map(|_| None);
    messages.emit();
    answer
}
