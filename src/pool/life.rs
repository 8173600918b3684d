//! Creation, trimming and destruction.

use super::slot::{Phase, Slot};
use super::traffic::{give_back, keep_all, release, tell_of_release};
use super::{Pool, order};
use crate::core::arena::Arena;
use crate::error::{Error, fail, keeping_last_error};
use crate::log::{self, Level};
use crate::options::Resolved;
use crate::sys::{HostMemoryExhausted, thread};

/// Says that there is an allocator already, if there is one.
pub(crate) fn require_vacant(slot: &Slot, device: i32) -> Result<(), Error> {
    if !slot.is_taken()? {
        return Ok(());
    }
    Err(fail!(
        Error::AlreadyExists,
        "device {device} has an allocator already: share it, or destroy it first"
    ))
}

/// Puts an allocator into an empty slot. No region is obtained before the first allocation.
pub(crate) fn create(slot: &Slot, device: i32, resolved: Resolved) -> Result<(), Error> {
    let backend = resolved.backend;
    let created = put(slot, device, resolved);
    if created.is_err() {
        keeping_last_error(|| backend.get().close());
    }
    created
}

fn put(slot: &Slot, device: i32, resolved: Resolved) -> Result<(), Error> {
    let pool = Pool {
        arena: Arena::new(resolved.settings)?,
        backend: resolved.backend,
        events: Default::default(),
        device,
        name: resolved.name,
        retry: resolved.retry,
        report_failures: resolved.report_failures,
    };
    let pool = try_box(pool)?;
    let (limit, backend) = (resolved.settings.limit, resolved.backend);
    let mut guard = slot.lock();
    while guard.inner().phase != Phase::Empty {
        drop(guard);
        require_vacant(slot, device)?;
        guard = slot.lock();
    }
    let inner = guard.inner_mut();
    (inner.pool, inner.phase) = (Some(pool), Phase::Live);
    drop(guard);
    log::emit(
        Level::Info,
        format_args!(
            "device {device}: created an allocator: {} backend, limit {limit} bytes",
            backend.get().name()
        ),
    );
    Ok(())
}

/// Ends an allocator and gives its regions back. Waits for calls in flight; wakes those who wait.
pub(crate) fn destroy(slot: &Slot, forced: bool) -> Result<(), Error> {
    let mut guard = slot.enter()?;
    let (device, live) = (guard.device, guard.arena.counters().live());
    if live != 0 && !forced {
        let name = &guard.name;
        return Err(fail!(
            Error::Busy,
            "{name}: {live} allocations are live; free them, or call bfc_destroy_forced"
        ));
    }
    let inner = guard.inner_mut();
    (inner.phase, inner.destroying) = (Phase::Destroying, Some(thread::current()));
    guard.notify();
    while !guard.is_left_alone() {
        guard = guard.wait(None);
    }
    guard = order::end(guard);
    while let Some(region) = guard.arena.detach_any() {
        let given;
        (guard, given) = give_back(guard, &region);
        if given.is_ok() {
            guard = tell_of_release(guard, &[region]);
        }
    }
    if guard.is_lost() {
        return Err(guard.check_entry().err().unwrap_or(Error::ShuttingDown));
    }
    let inner = guard.inner_mut();
    let pool = inner.pool.take();
    (inner.phase, inner.destroying) = (Phase::Empty, None);
    drop(guard);
    if let Some(pool) = &pool {
        keeping_last_error(|| pool.backend.get().close());
    }
    // The books may be large: they are given back with the lock open.
    drop(pool);
    log::emit(
        Level::Info,
        format_args!("device {device}: destroyed the allocator; allocations that were live: {live}"),
    );
    Ok(())
}

/// Gives wholly free regions back as long as `keep` bytes stay held; returns how many bytes went.
pub(crate) fn trim(slot: &Slot, keep: u64) -> Result<u64, Error> {
    let (mut guard, _) = order::synchronize(slot.enter()?)?;
    let captured;
    (guard, captured) = order::is_capturing(guard)?;
    let regions = guard.arena.detach_above(keep)?;
    if !regions.is_empty() && captured == Ok(true) {
        keep_all(guard, regions);
        return Err(fail!(
            Error::BackendFailed,
            "a stream is being captured, which giving memory back would break: \
             CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED (900)"
        ));
    }
    let released;
    (guard, released) = release(guard, regions);
    guard = guard.check_entry()?;
    guard.arena.forget_past();
    guard.notify();
    released.failure.map_or(Ok(released.bytes), Err)
}

/// A box, or an error where `Box::new` would abort.
fn try_box<T>(value: T) -> Result<Box<T>, HostMemoryExhausted> {
    let layout = std::alloc::Layout::new::<T>();
    const { assert!(size_of::<T>() != 0) };
    // SAFETY: the layout is not of size 0.
    let place = unsafe { std::alloc::alloc(layout) }.cast::<T>();
    if place.is_null() {
        return Err(HostMemoryExhausted);
    }
    // SAFETY: the place is new, aligned and large enough for a T.
    unsafe { place.write(value) };
    // SAFETY: the place came from the global allocator with the layout of a T, and holds one.
    Ok(unsafe { Box::from_raw(place) })
}
