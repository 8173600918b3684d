//! Requests and frees of callers that know the size of what they free: small blocks go through magazines.

use super::alloc::alloc_plain;
use super::free::free;
use super::slot::{Put, Slot, SmallSize};
use crate::core::stream_id::Stream;
use crate::error::{Error, fail};

/// Serves a request without special parameters. Returns address 0 for 0 bytes.
#[inline(always)]
pub(crate) fn alloc_cached(slot: &Slot, bytes: u64) -> Result<u64, Error> {
    let Some(size) = SmallSize::of(bytes) else { return alloc_plain(slot, bytes, Stream::NONE) };
    match slot.magazines().take(size) {
        Some(addr) => Ok(addr),
        // Rounded up to a multiple of 256 it is large enough for each request of its size.
        None => alloc_plain(slot, bytes, Stream::NONE),
    }
}

/// Frees what [`alloc_cached`] has returned for `bytes`.
#[inline(always)]
pub(crate) fn free_cached(slot: &Slot, addr: u64, bytes: u64) -> Result<(), Error> {
    match SmallSize::of(bytes).map(|size| slot.magazines().put(size, addr)) {
        Some(Put::Done) => Ok(()),
        Some(Put::Outside) => free_and_open(slot, addr),
        Some(Put::FullOrBusy) | None => free(slot, addr),
        Some(Put::Twice) => Err(freed_twice(addr)),
    }
}

#[cold]
fn freed_twice(addr: u64) -> Error {
    fail!(Error::DoubleFree, "{addr:#x} is the start of a block that is free already")
}

/// Frees a block that is outside what this thread's magazine is open for. It takes the next ones.
#[inline(never)]
fn free_and_open(slot: &Slot, addr: u64) -> Result<(), Error> {
    free(slot, addr)?;
    if let Ok(guard) = slot.enter_plainly() {
        guard.open_magazine();
        guard.leave();
    }
    Ok(())
}
