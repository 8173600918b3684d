//! Taking memory back, and noting on which streams it is used.

use super::alloc::require_no_timestamps;
use super::slot::{Guard, Slot, Unready};
use super::{guarded, order};
use crate::core::heap::Refused;
use crate::core::stream_id::Stream;
use crate::core::streams::Freed;
use crate::error::{Error, fail};

/// Takes a chunk back.
#[inline]
pub(crate) fn free(slot: &Slot, addr: u64) -> Result<(), Error> {
    match slot.enter_plainly() {
        Ok(guard) => free_now(guard, addr),
        Err(guard) => free_oddly(guard, addr),
    }
}

#[cold]
fn free_oddly(guard: Unready<'_>, addr: u64) -> Result<(), Error> {
    let guard = guard.check_entry()?;
    if guard.is_guarded() { guarded::free(guard, addr, Stream::NONE) } else { free_now(guard, addr) }
}

/// The simple free has a path of its own: on one that it shares with frees which have an event to record it takes five
/// instructions more (`cargo xtask bench --only instructions`).
#[inline]
pub(super) fn free_now(mut guard: Guard<'_>, addr: u64) -> Result<(), Error> {
    if !guard.arena.frees_fast() {
        return free_specially(guard, addr);
    }
    match guard.arena.free_fast(addr) {
        Ok(()) => {
            guard.notify();
            guard.leave();
            Ok(())
        }
        Err(refused) => Err(refuse_free(guard, addr, refused)),
    }
}

#[inline(never)]
fn free_specially(mut guard: Guard<'_>, addr: u64) -> Result<(), Error> {
    let freed = guard.arena.free(addr);
    finish_free(guard, addr, freed)
}

#[inline(always)]
fn finish_free(guard: Guard<'_>, addr: u64, freed: Freed) -> Result<(), Error> {
    match freed {
        Freed::Done => {
            guard.notify();
            guard.leave();
            Ok(())
        }
        Freed::InQueue => {
            guard.notify();
            order::record_free(guard);
            Ok(())
        }
        Freed::Refused(refused) => Err(refuse_free(guard, addr, refused)),
    }
}

/// Takes a chunk back in the order of a stream.
#[inline]
pub(crate) fn free_on(slot: &Slot, addr: u64, stream: Stream) -> Result<(), Error> {
    match slot.enter_plainly() {
        Ok(guard) => free_now_on(guard, addr, stream),
        Err(guard) => free_oddly_on(guard, addr, stream),
    }
}

#[cold]
fn free_oddly_on(guard: Unready<'_>, addr: u64, stream: Stream) -> Result<(), Error> {
    let guard = guard.check_entry()?;
    if guard.is_guarded() {
        require_no_timestamps(&guard)?;
        return guarded::free(guard, addr, stream);
    }
    free_now_on(guard, addr, stream)
}

#[inline]
pub(super) fn free_now_on(mut guard: Guard<'_>, addr: u64, stream: Stream) -> Result<(), Error> {
    require_no_timestamps(&guard)?;
    let freed = guard.arena.free_on(addr, stream)?;
    finish_free(guard, addr, freed)
}

/// Writes down that a live chunk is also used on a stream.
pub(crate) fn record_use(slot: &Slot, addr: u64, stream: Stream) -> Result<(), Error> {
    let mut guard = slot.enter()?;
    require_no_timestamps(&guard)?;
    match guard.arena.streams_mut().record_use(addr, stream)? {
        Ok(()) => Ok(()),
        Err(_) => Err(fail!(Error::InvalidPointer, "{addr:#x} is not the start of a live allocation")),
    }
}

#[cold]
fn refuse_free(guard: Guard<'_>, addr: u64, refused: Refused) -> Error {
    let name = &guard.name;
    let around = guard.arena.chunk_around(addr);
    match refused {
        _ if around.is_some_and(|id| guard.arena.is_unmapped(id)) => {
            fail!(
                Error::InvalidPointer,
                "{name}: {addr:#x} is in a granule that is not mapped; was it freed already?"
            )
        }
        Refused::AlreadyFree => {
            fail!(Error::DoubleFree, "{name}: {addr:#x} is the start of a chunk that is free already")
        }
        Refused::NotAChunk => match around {
            Some(id) => {
                let chunks = guard.arena.chunks();
                let (start, in_use) = (chunks.addr(id), chunks.in_use(id));
                let (offset, which) = (addr - start, if in_use { "chunk" } else { "free chunk" });
                let guess = if in_use { "" } else { "; was it freed already?" };
                fail!(
                    Error::InvalidPointer,
                    "{name}: {addr:#x} lies {offset} bytes inside the {which} at {start:#x}{guess}"
                )
            }
            None => fail!(Error::InvalidPointer, "{name}: {addr:#x} is in no region of this allocator"),
        },
    }
}
