//! Frees, and recorded uses of chunks on other streams.

use super::guarded;
use super::slot::{Slot, Unready};
use super::take_back::{free_now, free_now_on};
use crate::core::stream_id::Stream;
use crate::error::{Error, fail};

/// Frees a chunk.
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

/// Frees a chunk in the order of a stream.
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
        guard.require_no_timestamps()?;
        return guarded::free(guard, addr, stream);
    }
    free_now_on(guard, addr, stream)
}

/// Records that a live chunk is also used on a stream.
pub(crate) fn record_use(slot: &Slot, addr: u64, stream: Stream) -> Result<(), Error> {
    let mut guard = slot.enter()?;
    guard.require_no_timestamps()?;
    match guard.arena.streams_mut().record_use(addr, stream)? {
        Ok(()) => Ok(()),
        Err(_) => Err(fail!(Error::InvalidPointer, "{addr:#x} is not the start of a live allocation")),
    }
}
