//! Private pools, for memory that a captured graph uses.

use super::order;
use super::slot::Slot;
use crate::core::stream_id::Stream;
use crate::core::streams::NotPrivate;
use crate::error::{Error, fail};

/// Routes a stream's requests to a private pool from now on. Before, common memory whose work is done is made reusable by
/// every stream, because nothing is asked within a capture. Nothing is waited for: work that was queued after a free may
/// itself wait for what the caller does next.
pub(crate) fn begin(slot: &Slot, stream: Stream, pool: u64) -> Result<(), Error> {
    let mut guard = slot.enter()?;
    guard.require_no_timestamps()?;
    guard.arena.streams_mut().begin_private(stream, pool)?.map_err(|refused| refuse(refused, pool))?;
    let (guard, _) = order::poll(guard, stream)?;
    order::leave_alone(guard)
}

pub(crate) fn end(slot: &Slot, stream: Stream, pool: u64) -> Result<(), Error> {
    let mut guard = slot.enter()?;
    guard.arena.streams_mut().end_private(stream, pool).map_err(|refused| refuse(refused, pool))
}

pub(crate) fn release(slot: &Slot, pool: u64) -> Result<(), Error> {
    let mut guard = slot.enter()?;
    guard.arena.streams_mut().release_private(pool)?.map_err(|refused| refuse(refused, pool))?;
    guard.notify();
    Ok(())
}

/// Some stream is about to be captured, and it is not known yet which: as [`begin`] without a name.
pub(crate) fn announce(slot: &Slot) -> Result<(), Error> {
    let mut guard = slot.enter()?;
    guard.require_no_timestamps()?;
    guard.arena.streams_mut().announce()?;
    let (guard, _) = order::poll(guard, Stream::ANNOUNCED)?;
    order::leave_alone(guard)
}

pub(crate) fn withdraw_announcement(slot: &Slot) -> Result<(), Error> {
    let mut guard = slot.enter()?;
    guard.arena.streams_mut().withdraw_announcement();
    guard.notify();
    Ok(())
}

/// The order of single requests that are for a private pool.
pub(crate) fn order_of(slot: &Slot, stream: Stream, pool: u64) -> Result<Stream, Error> {
    let mut guard = slot.enter()?;
    guard.require_no_timestamps()?;
    Ok(guard.arena.streams_mut().in_private(stream, pool)?)
}

/// The order of a request that names no stream: where a capture is under way that the library can see, its memory may
/// become a part of that graph, and it is for a private pool. `also` is a stream to ask that the pool need not know. What
/// the driver does not tell counts as no capture.
pub(crate) fn order_of_any(slot: &Slot, also: Stream, pool: u64) -> Result<Stream, Error> {
    let guard = slot.enter()?;
    if guard.arena.settings().timestamps || guard.backend.get().order().is_none() {
        return Ok(Stream::ANY);
    }
    match order::is_any_captured(guard, also)? {
        (mut guard, Ok(true)) => Ok(guard.arena.streams_mut().in_private(Stream::ANY, pool)?),
        _ => Ok(Stream::ANY),
    }
}

fn refuse(refused: NotPrivate, pool: u64) -> Error {
    match refused {
        NotPrivate::Begun => fail!(
            Error::InvalidArgument,
            "the stream's requests are for a private pool already: call bfc_pool_end for that first"
        ),
        NotPrivate::NotBegun => {
            fail!(Error::InvalidArgument, "bfc_pool_begin was not called for pool {pool} with this stream")
        }
        NotPrivate::Unknown => fail!(Error::InvalidArgument, "there is no private pool {pool}"),
        NotPrivate::InUse => {
            fail!(Error::Busy, "requests of a stream are still for pool {pool}: call bfc_pool_end first")
        }
    }
}
