//! Frees chunks in the arena, and records events for frees in the order of a stream.

use super::order;
use super::slot::Guard;
use crate::error::{ErrorKind, fail};
use crate::report::Counted;
use bfc_core::heap::Refused;
use bfc_core::stream_id::Stream;
use bfc_core::streams::Freed;

/// Frees a chunk in the order of a stream, or of the one that it was allocated on. `is_current` says that the device's
/// context was found current in this call.
pub(super) fn take_back(
    mut guard: Guard<'_>,
    addr: u64,
    stream: Stream,
    is_current: bool,
) -> Result<(), ErrorKind> {
    let before = guard.arena.counters().bytes_in_use;
    let freed = match stream {
        // Needs no memory.
        Stream::NONE => guard.arena.free(addr),
        stream => guard.arena.free_on(addr, stream)?,
    };
    if let Freed::Refused(refused) = freed {
        return Err(refuse_free(&guard, addr, refused));
    }
    guard.note_freed(addr, stream, before);
    guard.notify();
    match freed {
        Freed::InQueue => order::record_free(guard, is_current),
        _ => guard.leave(),
    }
    Ok(())
}

#[cold]
fn refuse_free(guard: &Guard<'_>, addr: u64, refused: Refused) -> ErrorKind {
    let name = &guard.name;
    let around = match refused {
        Refused::AlreadyFree(id) => Some(id),
        Refused::NotAChunk(around) => around,
    };
    match refused {
        _ if around.is_some_and(|id| guard.arena.is_unmapped(id)) => {
            fail!(
                ErrorKind::InvalidPointer,
                "{name}: {addr:#x} is in a granule that is not mapped; was it freed already?"
            )
        }
        Refused::AlreadyFree(_) => {
            fail!(ErrorKind::DoubleFree, "{name}: {addr:#x} is the start of a chunk that is free already")
        }
        Refused::NotAChunk(_) => match around {
            Some(id) => {
                let chunks = guard.arena.chunks();
                let (start, in_use) = (chunks.addr(id), chunks.in_use(id));
                let (offset, which) =
                    (Counted(addr - start, "byte"), if in_use { "chunk" } else { "free chunk" });
                let guess = if in_use { "" } else { "; was it freed already?" };
                fail!(
                    ErrorKind::InvalidPointer,
                    "{name}: {addr:#x} lies {offset} inside the {which} at {start:#x}{guess}"
                )
            }
            None => fail!(ErrorKind::InvalidPointer, "{name}: {addr:#x} is in no region of this allocator"),
        },
    }
}
