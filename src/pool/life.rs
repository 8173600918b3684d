//! Creation, trimming and destruction.

use super::guarded::Guards;
use super::listener::Listener;
use super::slot::{Guard, Phase, Slot, waiting};
use super::traffic::{give_back, refuse_for_a_capture, release, tell_of_release};
use super::{Pool, captures, order, remap};
use crate::core::arena::Arena;
use crate::core::lanes::Stream;
use crate::error::{Error, fail, keeping_last_error};
use crate::log::{self, Level};
use crate::options::Resolved;
use crate::sys::{thread, try_box};

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
    let mut arena = Arena::new(resolved.settings)?;
    if let Some(granules) = resolved.backend.get().granules() {
        arena.set_range(granules.range());
    }
    let (limit, backend) = (resolved.settings.limit, *resolved.backend);
    let pool = Pool {
        arena,
        backend: resolved.backend,
        events: Default::default(),
        forgotten: false,
        given_back: 0,
        listener: Listener { callback: None, user_data: std::ptr::null_mut(), device },
        device,
        name: resolved.name,
        retry: resolved.retry,
        report_failures: resolved.report_failures,
        guards: if resolved.guard { Some(try_box(Guards::new()?)?) } else { None },
    };
    let pool = try_box(pool)?;
    let mut guard = slot.lock();
    while guard.inner().phase != Phase::Empty {
        drop(guard);
        require_vacant(slot, device)?;
        guard = slot.lock();
    }
    let inner = guard.inner_mut();
    (inner.phase, inner.pool) = (Phase::of(&pool), Some(pool));
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
    let mut guard = require_unused(slot.enter()?, forced)?;
    if guard.arena.growth().pool_bytes != 0 {
        let captured;
        (guard, captured) = order::is_any_captured(guard, Stream::NONE)?;
        if matches!(captured, Ok(true)) || captures::concern(guard.backend.get()) {
            return Err(refuse_for_a_capture());
        }
        // With the lock open somebody may have come and allocated.
        guard = require_unused(guard, forced)?;
    }
    let (device, live) = (guard.device, guard.arena.counters().live());
    guard = waiting::while_registered(slot, || {
        let inner = guard.inner_mut();
        (inner.phase, inner.destroying) = (Phase::Destroying, Some(thread::current()));
        guard.notify();
        while !guard.is_left_alone() {
            guard = guard.wait(None);
        }
        guard
    })?;
    guard = order::wait_for_the_end(guard);
    guard = order::end(guard);
    guard = remap::tell_of_the_end(guard);
    while let Some(region) = guard.arena.detach_any() {
        let mut given;
        (guard, given) = keeping_last_error(|| give_back(guard, &region));
        if given.is_err() {
            // Nobody comes back to it later, and what fails once may have passed.
            (guard, given) = keeping_last_error(|| give_back(guard, &region));
        }
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
    // The books may be large: they are given back with the lock open. The backend is closed.
    drop(pool);
    log::emit(
        Level::Info,
        format_args!("device {device}: destroyed the allocator; allocations that were live: {live}"),
    );
    Ok(())
}

fn require_unused(guard: Guard<'_>, forced: bool) -> Result<Guard<'_>, Error> {
    let live = guard.arena.counters().live();
    if live == 0 || forced {
        return Ok(guard);
    }
    let name = &guard.name;
    Err(fail!(Error::Busy, "{name}: {live} allocations are live; free them, or call bfc_destroy_forced"))
}

/// Gives wholly free regions back as long as `keep` bytes stay held; returns how many bytes went.
pub(crate) fn trim(slot: &Slot, keep: u64) -> Result<u64, Error> {
    let (mut guard, idle) = order::synchronize(slot.enter()?, Stream::NONE)?;
    if matches!(idle, Ok(false)) {
        // An error if there was something to give back.
        return if guard.arena.could_trim(keep) { Err(refuse_for_a_capture()) } else { Ok(0) };
    }
    let released;
    if guard.arena.range().is_some() {
        (guard, released) = remap::trim(guard, keep)?;
    } else {
        let regions = guard.arena.detach_above(keep)?;
        let given;
        (guard, given) = release(guard, regions, Stream::NONE);
        guard = guard.check_entry()?;
        released = given.failure.map_or(Ok(given.bytes), Err);
    }
    guard.arena.forget_past();
    guard.notify();
    released
}
