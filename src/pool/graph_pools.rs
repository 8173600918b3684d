//! Private pools, for memory that a captured graph uses.

use super::order;
use super::slot::{Guard, Slot, deferred, or_reborn};
use crate::error::{ErrorKind, fail};
use bfc_core::stream_id::Stream;
use bfc_core::streams::NotPrivate;

/// Routes a stream's requests to a private pool from now on, whose capture is about to begin.
pub(crate) fn begin(slot: &Slot, stream: Stream, pool: u64) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    guard.require_no_timestamps()?;
    guard.arena.streams_mut().begin_private(stream, pool)?.map_err(|refused| refuse(refused, pool))?;
    prepare_for_capture(guard, stream)
}

/// Routes a stream's requests to common memory again.
pub(crate) fn end(slot: &Slot, stream: Stream, pool: u64) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    guard.arena.streams_mut().end_private(stream, pool).map_err(|refused| refuse(refused, pool))
}

/// Releases a private pool. Chunks in use become common memory, and free ones do so once the device was idle.
pub(crate) fn release(slot: &Slot, pool: u64) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    guard.arena.streams_mut().release_private(pool)?.map_err(|refused| refuse(refused, pool))?;
    guard.notify();
    Ok(())
}

/// Announces the capture of a stream that is not known yet.
pub(crate) fn announce(slot: &Slot) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    guard.require_no_timestamps()?;
    guard.arena.streams_mut().announce()?;
    prepare_for_capture(guard, Stream::ANNOUNCED)
}

/// Prepares for the capture of a stream that was just announced. Makes common memory whose work is done reusable by every
/// stream, because nothing is queried during a capture. Does not wait for device work, because work queued after a free may
/// itself wait for what the caller does next.
fn prepare_for_capture(mut guard: Guard<'_>, stream: Stream) -> Result<(), ErrorKind> {
    guard.captures_noticed += 1;
    let _polled = or_reborn(deferred(order::poll(&mut guard, stream)), &guard, Ok(()))?;
    order::await_disturbing_calls(&mut guard)
}

/// Withdraws one announcement.
pub(crate) fn withdraw_announcement(slot: &Slot) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    guard.arena.streams_mut().withdraw_announcement();
    guard.notify();
    Ok(())
}

/// Returns the order of a single request on a stream that is for a private pool. Until [`end_routes`] the stream is
/// queried before anything waits for the device, whatever becomes of the memory.
pub(crate) fn order_of(slot: &Slot, stream: Stream, pool: u64) -> Result<Stream, ErrorKind> {
    let mut guard = slot.enter()?;
    guard.require_no_timestamps()?;
    Ok(guard.arena.streams_mut().route(stream, pool)?)
}

/// Ends the requests of [`order_of`] for a private pool.
pub(crate) fn end_routes(slot: &Slot, pool: u64) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    guard.arena.streams_mut().end_routes(pool);
    Ok(())
}

/// Returns the order of a request that names no stream. During a capture that the library can see, the memory may
/// become part of that graph, so the request is for a private pool. `also` is a further stream to query. If the query
/// fails, the request is treated as if no stream were captured.
pub(crate) fn order_of_any(slot: &Slot, also: Stream, pool: u64) -> Result<Stream, ErrorKind> {
    let mut guard = slot.enter()?;
    if guard.arena.settings().reuse.has_stamps() || guard.backend.get().order().is_none() {
        return Ok(Stream::ANY);
    }
    match or_reborn(deferred(order::is_any_captured(&mut guard, also)), &guard, Ok(false))? {
        Ok(true) => Ok(guard.arena.streams_mut().in_private(Stream::ANY, pool)?),
        _ => Ok(Stream::ANY),
    }
}

fn refuse(refused: NotPrivate, pool: u64) -> ErrorKind {
    match refused {
        NotPrivate::Begun => fail!(
            ErrorKind::InvalidArgument,
            "the stream's requests are for a private pool already: call bfc_pool_end for that first"
        ),
        NotPrivate::NotBegun => {
            fail!(
                ErrorKind::InvalidArgument,
                "bfc_pool_begin was not called for pool {pool} with this stream"
            )
        }
        NotPrivate::Unknown => fail!(ErrorKind::InvalidArgument, "there is no private pool {pool}"),
        NotPrivate::InUse => {
            fail!(ErrorKind::Busy, "requests of a stream are still for pool {pool}: call bfc_pool_end first")
        }
    }
}
