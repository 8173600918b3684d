//! Which stream a caller's handle stands for, and uses that callers record on streams.
//!
//! The handle of a created stream is the stream. A default stream is that of the context which is current at the call,
//! so the driver is asked for it (cuCtxGetCurrent, which reads a variable of the thread). That is one call for each
//! default stream that a caller names, and none for other streams, for calls without a stream, and for backends without
//! contexts. The answer cannot be remembered: programs change the current context without the library, and serving a
//! request from free memory makes no other call that would show it.

use crate::backend::current_context;
use crate::backend::order::Current;
use crate::error::{ErrorKind, fail};
use crate::pool::mutation;
use crate::pool::slot::{CallKind, Slot};
use crate::sys::thread;
use bfc_core::stream_id::Stream;
use bfc_hostmem::HostMemoryExhausted;

/// Returns the stream of a request. With a context of another device current, that is the default stream of the pool's
/// own context.
#[inline]
pub(crate) fn stream_of(slot: &Slot, handle: u64) -> Result<Stream, ErrorKind> {
    if handle > Stream::OF_THIS_THREAD {
        return Ok(Stream::of_handle(handle));
    }
    let (stream, current) = default_stream(slot, handle)?;
    Ok(if let Current::Beside(context) = current { stream.in_context(context) } else { stream })
}

/// Returns the stream of a use of an allocation that is recorded or ends. If the current context is one of another
/// device, its default stream may be meant, or that of the pool's own context. Then the former is recorded here, and the
/// latter is returned. Also returns whether the pool's own context was found current, so that a free need not ask again.
#[inline]
pub(crate) fn stream_of_use(slot: &Slot, addr: u64, handle: u64) -> Result<(Stream, bool), ErrorKind> {
    if handle > Stream::OF_THIS_THREAD {
        return Ok((Stream::of_handle(handle), false));
    }
    let (stream, current) = default_stream(slot, handle)?;
    match current {
        Current::Beside(context) => Ok((stream.in_context(context), false)),
        Current::Elsewhere(context) => match record_use(slot, addr, stream.in_context(context)) {
            // The call itself reports what is wrong with the address.
            Ok(()) | Err(ErrorKind::InvalidPointer) => Ok((stream, false)),
            Err(error) => Err(error),
        },
        Current::Own | Current::Nothing => Ok((stream, current == Current::Own)),
    }
}

/// Returns the stream that a caller has synchronized, is about to destroy, or queues work on: with a context of another
/// device current, that context's.
pub(crate) fn stream_in_current_context(slot: &Slot, handle: u64) -> Result<Stream, ErrorKind> {
    if handle > Stream::OF_THIS_THREAD {
        return Ok(Stream::of_handle(handle));
    }
    let (stream, current) = default_stream(slot, handle)?;
    Ok(match current {
        Current::Beside(context) | Current::Elsewhere(context) => stream.in_context(context),
        Current::Own | Current::Nothing => stream,
    })
}

/// Records that a live chunk is also used on a stream.
pub(crate) fn record_use(slot: &Slot, addr: u64, stream: Stream) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    guard.require_no_timestamps()?;
    match guard.arena.streams_mut().record_use(addr, stream)? {
        Ok(()) => Ok(()),
        Err(_) => Err(fail!(ErrorKind::InvalidPointer, "{addr:#x} is not the start of a live allocation")),
    }
}

/// Returns the default stream of the pool's own context, and which context is current.
#[inline(never)]
fn default_stream(slot: &Slot, handle: u64) -> Result<(Stream, Current), ErrorKind> {
    let stream = match thread::number() {
        _ if handle != Stream::OF_THIS_THREAD => Stream::DEFAULT,
        Some(number) => Stream::of_thread(number),
        None => return Err(HostMemoryExhausted.into()),
    };
    let own = slot.context();
    if own == 0 || mutation::is("default-context") {
        return Ok((stream, Current::Nothing));
    }
    match current_context() {
        0 => Ok((stream, Current::Nothing)),
        current if current == own => Ok((stream, Current::Own)),
        _ => Ok((stream, query_current_context(slot)?)),
    }
}

/// Asks which context is current, with the lock open.
#[cold]
fn query_current_context(slot: &Slot) -> Result<Current, ErrorKind> {
    slot.enter()?.ask(CallKind::Orders, |backend| {
        backend.order().map_or(Ok(Current::Own), |streams| streams.current())
    })
}
