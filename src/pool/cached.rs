//! Requests and frees for adapters of the host's memory: small blocks go through magazines.

use super::alloc::alloc_plain;
use super::free::free;
use super::slot::{FreedTwice, Put, Slot, SmallSize, Taken};
use crate::core::stream_id::Stream;
use crate::error::{Error, fail};

/// Serves a request without special parameters. Returns address 0 for 0 bytes.
#[inline(always)]
pub(crate) fn alloc_cached(slot: &Slot, bytes: u64) -> Result<u64, Error> {
    let Some(size) = SmallSize::of(bytes) else {
        let addr = alloc_plain(slot, bytes, Stream::NONE)?;
        slot.magazines().note_other(addr);
        return Ok(addr);
    };
    match slot.magazines().take(size) {
        Taken::Block(addr) => Ok(addr),
        missed => alloc_small(slot, bytes, size, missed),
    }
}

/// Serves a small request from the allocator. Rounded up to a multiple of 256, the block is large enough for each request of
/// its size.
#[inline(never)]
fn alloc_small(slot: &Slot, bytes: u64, size: SmallSize, missed: Taken) -> Result<u64, Error> {
    let addr = alloc_plain(slot, bytes, Stream::NONE)?;
    if missed == Taken::MayOpen
        && let Ok(guard) = slot.enter_plainly()
    {
        guard.open_magazine();
        guard.leave();
    }
    if missed == Taken::Closed {
        slot.magazines().note_other(addr)
    } else {
        slot.magazines().note(addr, size)
    }
    Ok(addr)
}

/// Frees what [`alloc_cached`] has returned.
#[inline(always)]
pub(crate) fn free_cached(slot: &Slot, addr: u64) -> Result<(), Error> {
    match slot.magazines().put(addr) {
        Ok(Put::Done) => Ok(()),
        Ok(Put::Refused) => free(slot, addr),
        Err(FreedTwice) => Err(freed_twice(addr)),
    }
}

#[cold]
fn freed_twice(addr: u64) -> Error {
    fail!(Error::DoubleFree, "{addr:#x} is the start of a block that is free already")
}
