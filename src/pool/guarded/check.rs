//! `bfc_check` in the debug mode, which checks the guards of all live allocations.

use super::damage_report::{Messages, Violation};
use super::hand_out::await_turn;
use super::layout::{Neighbour, Side, in_front_of};
use super::work::{self, Inspection};
use crate::error::ErrorKind;
use crate::pool::guard_state::{BEHIND, FRONT};
use crate::pool::pool::Pool;
use crate::pool::slot::{CallKind, Guard};
use bfc_core::stream_id::Stream;
use bfc_hostmem::HostMemoryExhausted;

/// Checks the guards of all chunks in use. Damaged guards are reported in the log and restored.
pub(crate) fn check(mut guard: Guard<'_>) -> Result<(), ErrorKind> {
    await_turn(&mut guard)?;
    let mut inspections = plan_check(&guard)?;
    let streams = guard.streams_to_query_before_wait(Stream::NONE);
    let mut buffer = std::mem::take(&mut guard.guards().buffer);
    let hindrance = guard.ask(CallKind::Guards, |backend| {
        work::run_when_idle(backend, streams, |memory| {
            work::refill(&mut buffer)?;
            inspections.iter_mut().try_for_each(|inspection| inspection.carry_out(memory, &mut buffer))
        })
    });
    guard.guards().buffer = buffer;
    let mut messages = Messages::default();
    if let Some(hindrance) = &hindrance {
        messages.add_hindrance(&mut guard, hindrance, "were not checked");
    }
    for Inspection { addr, side, damage, .. } in inspections {
        if let Some(damage) = damage {
            messages.add_violation(&mut guard, &Violation { addr, side, damage, seen: "seen by bfc_check" });
        }
    }
    let checked = guard.check_entry();
    drop(guard);
    messages.emit();
    checked
}

fn plan_check(pool: &Pool) -> Result<Vec<Inspection>, HostMemoryExhausted> {
    let chunks = pool.arena.chunks();
    let live = || chunks.ids().filter(|&id| chunks.in_use(id) && !pool.is_exempt(chunks.addr(id), BEHIND));
    let mut inspections = Vec::new();
    inspections.try_reserve_exact(2 * live().count())?;
    for id in live() {
        let addr = chunks.addr(id);
        let inspection = |side, range| Inspection { addr, side, range, damage: None };
        inspections.push(inspection(Side::Behind, pool.guard_behind(id)));
        // The guard of a neighbour in use is inspected with that neighbour.
        if pool.in_front(id) == Neighbour::Free && !pool.is_exempt(addr, FRONT) {
            inspections.push(inspection(Side::Front, in_front_of(addr)));
        }
    }
    Ok(inspections)
}
