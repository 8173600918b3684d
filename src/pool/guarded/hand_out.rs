//! Writes the guards of a new allocation. One thread at a time writes or checks guards.

use super::damage_report::Messages;
use super::layout::{FRESH, GUARD, Neighbour, Range, in_front_of};
use super::work::{self, Fill};
use crate::core::stream_id::Stream;
use crate::error::Error;
use crate::pool::guard_state::{BEHIND, FRONT};
use crate::pool::slot::Guard;
use crate::sys::HostMemoryExhausted;

/// Waits until no other thread writes or checks guards. The caller may then begin to do so before it opens the lock.
pub(in crate::pool) fn turn(mut guard: Guard<'_>) -> Result<Guard<'_>, Error> {
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

/// Reserves an exemption for each live allocation and one more, before a request takes a chunk. So neither this request
/// nor a later free needs memory to exempt a guard.
pub(in crate::pool) fn make_room(guard: &mut Guard<'_>) -> Result<(), HostMemoryExhausted> {
    let live = guard.arena.counters().live();
    guard.guards().exempt.reserve(live + 1)
}

/// Writes the guards of a newly allocated chunk, and fills the chunk so that reads of unwritten memory show. Returns
/// the locked slot if the context ended meanwhile, so that the chunk is lost.
#[inline(never)]
pub(in crate::pool) fn hand_out(
    mut guard: Guard<'_>,
    addr: u64,
    stream: Stream,
) -> Result<Option<Guard<'_>>, Error> {
    let Some(id) = guard.arena.chunk_in_use(addr) else { return Ok(None) };
    // The guards are exempt until they are written.
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
            // If the neighbour is in use, the bytes in front are its guard. When it is freed, the exemption is updated.
            guard.guards().exempt.set(addr, FRONT, front == Neighbour::OutOfReach);
        }
        Some(hindrance) => messages.add_hindrance(&mut guard, &hindrance, "were not written"),
    }
    let guard = guard.check_entry();
    let result = guard.map(|_| None);
    messages.emit();
    result
}
