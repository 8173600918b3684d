//! Checks the guards of an allocation when it is freed, and poisons it.

use super::damage_report::{Messages, Violation};
use super::hand_out::await_turn;
use super::layout::{GUARD, Neighbour, POISON, ROOM, Range, Side, in_front_of};
use super::work::{self, Fill, Findings, Hindrance};
use crate::backend::memory::Memory;
use crate::error::ErrorKind;
use crate::pool::guard_state::{BEHIND, FRONT};
use crate::pool::pool::Pool;
use crate::pool::slot::{CallKind, Guard};
use crate::pool::take_back::take_back;
use bfc_core::ids::ChunkId;
use bfc_core::stream_id::Stream;

/// The checks and writes for a chunk before it is freed.
struct FreeCheck {
    addr: u64,
    behind: Option<Range>,
    front: Option<Range>,
    neighbour: Neighbour,
    next: Option<u64>,
    /// The whole chunk, if it is to be poisoned.
    poison: Option<Range>,
}

impl FreeCheck {
    fn new(pool: &Pool, id: ChunkId, stream: Stream) -> Self {
        let chunks = pool.arena.chunks();
        let (addr, size) = (chunks.addr(id), chunks.size(id));
        let believed = !pool.is_exempt(addr, BEHIND);
        let neighbour = pool.in_front(id);
        let has_front = match neighbour {
            Neighbour::InUse(prev) => !pool.is_exempt(prev, BEHIND),
            Neighbour::Free => !pool.is_exempt(addr, FRONT),
            Neighbour::None | Neighbour::OutOfReach => false,
        };
        // Work queued on a stream before the free may still read the chunk, and only a device reports when it is done.
        let over = stream == Stream::NONE || pool.backend.get().order().is_some();
        FreeCheck {
            addr,
            behind: believed.then(|| pool.guard_behind(id)),
            // If the guard behind the chunk can be checked, the memory in front is accessible too.
            front: (believed && has_front).then(|| in_front_of(addr)),
            neighbour,
            next: pool.behind(id),
            poison: (over && pool.may_touch(id)).then_some(Range { at: addr, bytes: size }),
        }
    }

    fn is_nothing(&self) -> bool {
        self.behind.is_none() && self.poison.is_none()
    }

    /// Checks and writes the guards, with the device idle and the lock open.
    fn carry_out(
        &self,
        memory: &dyn Memory,
        findings: &mut Findings,
        buffer: &mut [u8],
    ) -> Result<(), ErrorKind> {
        if let Some(behind) = self.behind {
            findings.behind = work::inspect(memory, behind, buffer)?;
        }
        if let Some(front) = self.front {
            findings.front = work::inspect(memory, front, buffer)?;
        }
        findings.checked = self.behind.is_some();
        // Damaged guards are restored, so that the damage is reported only once.
        match (self.front, self.neighbour) {
            (Some(front), Neighbour::InUse(_)) if findings.front.is_some() => {
                work::fill(memory, &[Fill { range: front, with: GUARD }])?;
            }
            (Some(front), Neighbour::Free) => work::fill(memory, &[Fill { range: front, with: POISON }])?,
            _ => {}
        }
        let kept = if self.next.is_some() { ROOM } else { 0 };
        if let Some(Range { at, bytes }) = self.poison {
            let (poison, guard) =
                (Range { at, bytes: bytes - kept }, Range { at: at + bytes - kept, bytes: kept });
            work::fill(memory, &[Fill { range: poison, with: POISON }])?;
            work::fill(memory, &[Fill { range: guard, with: GUARD }])?;
        } else if let Some(behind) = self.behind.filter(|_| findings.behind.is_some()) {
            work::fill(memory, &[Fill { range: behind, with: GUARD }])?;
        }
        findings.written = true;
        Ok(())
    }
}

/// Checks the guards of a chunk, poisons it, and frees it.
pub(in crate::pool) fn free(mut guard: Guard<'_>, addr: u64, stream: Stream) -> Result<(), ErrorKind> {
    await_turn(&mut guard)?;
    let Some(id) = guard.arena.chunk_in_use(addr) else { return take_back(guard, addr, stream, false) };
    let (free_check, life) = (FreeCheck::new(&guard, id, stream), guard.arena.life());
    let mut findings = Findings::default();
    let mut hindrance = None;
    if !free_check.is_nothing() {
        let streams = guard.streams_to_query_before_wait(stream);
        let mut buffer = std::mem::take(&mut guard.guards().buffer);
        guard.guards().at_work = Some((addr, free_check.next));
        hindrance = guard.ask(CallKind::Guards, |backend| {
            let work = |memory: &dyn Memory| {
                work::refill(&mut buffer)?;
                free_check.carry_out(memory, &mut findings, &mut buffer)
            };
            work::run_when_idle(backend, streams, work)
        });
        guard.guards().at_work = None;
        guard.guards().buffer = buffer;
    }
    let mut messages = Messages::default();
    if let Some(hindrance) = &hindrance {
        messages.add_hindrance(&mut guard, hindrance, "were not checked");
    }
    guard.guards().unchecked += u64::from(!findings.checked);
    for (side, damage) in [(Side::Behind, findings.behind), (Side::Front, findings.front)] {
        if let Some(damage) = damage {
            messages
                .add_violation(&mut guard, &Violation { addr, side, damage, seen: "seen when it was freed" });
        }
    }
    if guard.arena.life() == life {
        update_next_guard(&mut guard, &free_check, &findings, hindrance.as_ref());
    }
    let freed = guard.check_entry().and_then(|()| {
        // A poisoned chunk must be freed. If there is no memory for the stream's order, it is freed without one, which
        // is correct because the device was idle.
        let ordered =
            free_check.poison.is_none() || guard.arena.streams_mut().make_room_to_free_on(addr, stream);
        take_back(guard, addr, if ordered { stream } else { Stream::NONE }, false)
    });
    messages.emit();
    freed
}

/// Updates the exemptions after a free. The end of the freed chunk is now the front guard of the next one. That guard
/// is exempt unless it is known to be whole.
fn update_next_guard(
    guard: &mut Guard<'_>,
    free_check: &FreeCheck,
    findings: &Findings,
    hindrance: Option<&Hindrance>,
) {
    let addr = free_check.addr;
    let rewritten = findings.written && free_check.poison.is_some();
    // Nothing was written if the device was not idle.
    let untouched =
        hindrance.is_none_or(|hindrance| hindrance.error.is_none()) && free_check.behind.is_some();
    let guards = guard.guards();
    guards.exempt.forget(addr);
    if let Some(next) = free_check.next {
        guards.exempt.set(next, FRONT, !(rewritten || untouched));
    }
}
