//! Writes the guards of a new allocation. One thread at a time writes or checks guards.

use super::damage_report::Messages;
use super::layout::{FRESH, GUARD, Neighbour, Range, in_front_of};
use super::work::{self, Fill};
use crate::error::ErrorKind;
use crate::pool::guard_state::{BEHIND, FRONT};
use crate::pool::slot::{CallKind, Guard, Outside};
use bfc_core::stream_id::Stream;
use bfc_hostmem::HostMemoryExhausted;

/// Waits until no other thread writes or checks guards. The caller may then begin to do so before it opens the lock.
pub(in crate::pool) fn await_turn(guard: &mut Guard<'_>) -> Result<(), ErrorKind> {
    let mut gave_way = false;
    loop {
        if guard.is_guarding() {
            guard.wait_for_call()?;
        } else if !gave_way && guard.is_awaited() {
            gave_way = true;
            guard.give_way()?;
        } else {
            return Ok(());
        }
    }
}

/// Reserves an exemption for each live allocation and one more, before a request takes a chunk. So neither this request
/// nor a later free needs memory to exempt a guard.
pub(in crate::pool) fn make_room(guard: &mut Guard<'_>) -> Result<(), HostMemoryExhausted> {
    let live = guard.arena.counters().live();
    guard.guards().exempt.reserve(live + 1)
}

/// Writes the guards of a newly allocated chunk, and fills the chunk so that reads of unwritten memory show. If the context
/// ends meanwhile, the chunk is lost. Returns the messages to log once the lock is open.
#[inline(never)]
pub(in crate::pool) fn hand_out(guard: &mut Guard<'_>, addr: u64, stream: Stream) -> Outside<Messages> {
    let mut messages = Messages::default();
    let Some(id) = guard.arena.chunk_in_use(addr) else { return Ok(messages) };
    // The guards are exempt until they are written.
    guard.guards().exempt.set(addr, FRONT | BEHIND, true);
    if !guard.may_touch(id) {
        return Ok(messages);
    }
    let (behind, front) = (guard.guard_behind(id), guard.in_front(id));
    let fills = [
        Fill { range: Range { at: addr, bytes: behind.at - addr }, with: FRESH },
        Fill { range: behind, with: GUARD },
        Fill { range: in_front_of(addr), with: GUARD },
    ];
    let count = if front == Neighbour::Free { 3 } else { 2 };
    let streams = guard.streams_to_query_before_wait(stream);
    guard.guards().at_work = Some((addr, None));
    let life = guard.arena.life();
    let hindrance = guard.ask(CallKind::Guards, |backend| {
        work::run_when_idle(backend, streams, |memory| work::fill(memory, &fills[..count]))
    });
    guard.guards().at_work = None;
    guard.check(life)?;
    match hindrance {
        None => {
            guard.guards().exempt.set(addr, BEHIND, false);
            // If the neighbour is in use, the bytes in front are its guard. When it is freed, the exemption is updated.
            guard.guards().exempt.set(addr, FRONT, front == Neighbour::OutOfReach);
        }
        Some(hindrance) => messages.add_hindrance(guard, &hindrance, "were not written"),
    }
    Ok(messages)
}
