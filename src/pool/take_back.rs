//! Frees chunks in the arena, and records events for frees in the order of a stream.

use super::order;
use super::slot::Guard;
use crate::core::heap::Refused;
use crate::core::stream_id::Stream;
use crate::core::streams::Freed;
use crate::error::{Error, fail};
use crate::report::Counted;

/// Frees a chunk in its own stream's order. The simple free has a path of its own. Sharing one with frees that record
/// events costs five instructions more (`cargo xtask bench --only instructions`).
#[inline]
pub(super) fn free_now(mut guard: Guard<'_>, addr: u64) -> Result<(), Error> {
    if !guard.arena.frees_fast() {
        return free_specially(guard, addr);
    }
    let before = guard.arena.counters().bytes_in_use;
    match guard.arena.free_fast(addr) {
        Ok(()) => {
            guard.note_freed(addr, Stream::NONE, before);
            guard.notify();
            guard.leave();
            Ok(())
        }
        Err(refused) => Err(refuse_free(guard, addr, refused)),
    }
}

#[inline(never)]
fn free_specially(mut guard: Guard<'_>, addr: u64) -> Result<(), Error> {
    let before = guard.arena.counters().bytes_in_use;
    let freed = guard.arena.free(addr);
    note_free(&guard, addr, Stream::NONE, before, freed);
    finish_free(guard, addr, freed, false)
}

#[inline]
fn note_free(guard: &Guard<'_>, addr: u64, stream: Stream, before: u64, freed: Freed) {
    if !matches!(freed, Freed::Refused(_)) {
        guard.note_freed(addr, stream, before);
    }
}

#[inline(always)]
fn finish_free(guard: Guard<'_>, addr: u64, freed: Freed, is_current: bool) -> Result<(), Error> {
    match freed {
        Freed::Done => {
            guard.notify();
            guard.leave();
            Ok(())
        }
        Freed::InQueue => {
            guard.notify();
            order::record_free(guard, is_current);
            Ok(())
        }
        Freed::Refused(refused) => Err(refuse_free(guard, addr, refused)),
    }
}

/// Frees a chunk in the order of a stream. `is_current` says that the device's context was found current in this call.
#[inline]
pub(super) fn free_now_on(
    mut guard: Guard<'_>,
    addr: u64,
    stream: Stream,
    is_current: bool,
) -> Result<(), Error> {
    guard.require_no_timestamps()?;
    let before = guard.arena.counters().bytes_in_use;
    let freed = guard.arena.free_on(addr, stream)?;
    note_free(&guard, addr, stream, before, freed);
    finish_free(guard, addr, freed, is_current)
}

#[cold]
fn refuse_free(guard: Guard<'_>, addr: u64, refused: Refused) -> Error {
    let name = &guard.name;
    let around = match refused {
        Refused::AlreadyFree(id) => Some(id),
        Refused::NotAChunk(around) => around,
    };
    match refused {
        _ if around.is_some_and(|id| guard.arena.is_unmapped(id)) => {
            fail!(
                Error::InvalidPointer,
                "{name}: {addr:#x} is in a granule that is not mapped; was it freed already?"
            )
        }
        Refused::AlreadyFree(_) => {
            fail!(Error::DoubleFree, "{name}: {addr:#x} is the start of a chunk that is free already")
        }
        Refused::NotAChunk(_) => match around {
            Some(id) => {
                let chunks = guard.arena.chunks();
                let (start, in_use) = (chunks.addr(id), chunks.in_use(id));
                let (offset, which) =
                    (Counted(addr - start, "byte"), if in_use { "chunk" } else { "free chunk" });
                let guess = if in_use { "" } else { "; was it freed already?" };
                fail!(
                    Error::InvalidPointer,
                    "{name}: {addr:#x} lies {offset} inside the {which} at {start:#x}{guess}"
                )
            }
            None => fail!(Error::InvalidPointer, "{name}: {addr:#x} is in no region of this allocator"),
        },
    }
}
