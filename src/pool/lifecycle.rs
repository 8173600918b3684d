//! Creation and destruction.

use super::captures::{self, Permission, refuse_for_a_capture};
use super::guard_state::Guards;
use super::idle::callback;
use super::idle_time::IdleTime;
use super::limit_share::LimitShare;
use super::listener::{Listener, RegionCallback, RegionEvent};
use super::pool::Pool;
use super::region_io::{give_back, log_release};
use super::slot::waiting::busy;
use super::slot::{CallKind, Guard, Phase, Slot, deferred, or_reborn, waiting};
use super::{order, remap};
use crate::error::{DeferredError, ErrorKind, fail, keeping_last_error};
use crate::log::{self, Level};
use crate::options::Resolved;
use crate::report::live::LargestHolders;
use crate::report::{Counted, Limit, to_string};
use crate::sys::lock::HeldByThisThread;
use crate::sys::thread;
use bfc_core::arena::{Arena, Detached, Parts};
use bfc_core::stream_id::Stream;
use bfc_hostmem::{try_box, try_box_with};
use std::ffi::c_void;

/// Returns an error if the slot holds an allocator already.
pub(crate) fn require_vacant(slot: &Slot, device: i32) -> Result<(), ErrorKind> {
    if !slot.is_taken()? {
        return Ok(());
    }
    Err(fail!(
        ErrorKind::AlreadyExists,
        "device {device} has an allocator already: share it, or destroy it first"
    ))
}

/// Puts an allocator into an empty slot. No region is obtained before the first allocation.
#[inline(never)]
pub(crate) fn create(slot: &Slot, device: i32, resolved: Resolved) -> Result<(), ErrorKind> {
    let (limit, backend) = (resolved.settings.limit, *resolved.backend);
    let plan = resolved.placement.plan().map(|plan| (plan.len(), plan.bytes()));
    install_pool(slot, device, new_pool(device, resolved)?)?;
    log::emit(
        Level::Info,
        format_args!(
            "device {device}: created an allocator: {} backend, limit {}",
            backend.get().name(),
            Limit(limit)
        ),
    );
    if let Some((requests, bytes)) = plan {
        log::emit(
            Level::Info,
            format_args!("device {device}: follows a plan of {requests} requests in {bytes} bytes"),
        );
    }
    Ok(())
}

/// Creates a pool. Out of line, because the compiler may build the pool on the stack before it moves it into its box.
#[inline(never)]
fn new_pool(device: i32, resolved: Resolved) -> Result<Box<Pool>, ErrorKind> {
    let parts = Parts::new(resolved.settings.seed)?;
    let guards = if resolved.guard { Some(try_box(Guards::new()?)?) } else { None };
    let mut pool = try_box_with(|| Pool {
        arena: Arena::with(resolved.settings, parts),
        backend: resolved.backend,
        events: Default::default(),
        captures_noticed: 0,
        forgotten: false,
        given_back: 0,
        idle: IdleTime::new(resolved.trim_after),
        limit_share: LimitShare::new(resolved.limit_share),
        listener: Listener::new(device),
        device,
        name: resolved.name,
        retry: resolved.retry,
        report_failures: resolved.report_failures,
        guards,
        history: None,
    })?;
    pool.arena.spare_large_chunks();
    if let Some(granules) = pool.backend.get().granules() {
        pool.arena.set_range(granules.range());
    }
    pool.arena.set_placement(resolved.placement);
    Ok(pool)
}

#[inline(never)]
fn install_pool(slot: &Slot, device: i32, mut pool: Box<Pool>) -> Result<(), ErrorKind> {
    let mut guard = slot.lock().map_err(busy)?;
    while guard.inner().phase != Phase::Empty {
        drop(guard);
        require_vacant(slot, device)?;
        guard = slot.lock().map_err(busy)?;
    }
    // With the lock held, so that a recording that starts or stops now finds the pool.
    pool.begin_history();
    let inner = guard.inner_mut();
    (inner.phase, inner.pool) = (Phase::of(&pool), Some(pool));
    guard.publish_context();
    Ok(())
}

/// Begins to record a pool's events in the history, if the slot has a pool.
pub(crate) fn begin_history(slot: &Slot) -> Result<(), ErrorKind> {
    let mut guard = slot.lock().map_err(busy)?;
    if guard.inner().phase.is_live() {
        guard.begin_history();
        guard.inner_mut().phase = Phase::of(&guard);
    }
    Ok(())
}

/// Stops recording a pool's events. A call under way may still have its recorder, which is of a recording that is over.
pub(crate) fn end_history(slot: &Slot) -> Result<(), ErrorKind> {
    let mut guard = slot.lock().map_err(busy)?;
    if guard.has_pool() {
        guard.end_history();
    }
    if guard.inner().phase.is_live() {
        guard.inner_mut().phase = Phase::of(&guard);
    }
    Ok(())
}

/// Destroys an allocator and gives its regions back. Wakes waiting threads, and waits for calls under way.
pub(crate) fn destroy(slot: &Slot, forced: bool) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    require_unused(&guard, forced)?;
    callback::refuse_inside(&guard)?;
    if guard.backend.get().order().is_some() && guard.arena.streams().redirects_others(Stream::NONE) {
        return Err(refuse_for_a_capture());
    }
    if guard.arena.growth().pool_bytes() != 0 {
        let captured =
            or_reborn(deferred(order::is_any_captured(&mut guard, Stream::NONE)), &guard, Ok(false))?;
        let backend = guard.backend.get();
        // Without a device a private pool is no sign of a capture.
        let may_be_captured = backend.order().is_some() || captures::concern(backend);
        let is_announced = may_be_captured && guard.is_capture_announced(Stream::NONE);
        if matches!(captured, Ok(true)) || is_announced {
            return Err(refuse_for_a_capture());
        }
        // With the lock open another thread may have allocated.
        require_unused(&guard, forced)?;
    }
    if guard.sleeps_here() {
        return Err(busy(HeldByThisThread));
    }
    let (device, live) = (guard.device, guard.arena.counters().live());
    let live = live_text(&guard, live);
    let followed = guard.arena.plan().map(|plan| (plan.followed(), guard.arena.counters().allocations()));
    waiting::while_registered(slot, || {
        let inner = guard.inner_mut();
        (inner.phase, inner.destroying) = (Phase::Destroying, Some(thread::current()));
        guard.notify();
        while !guard.has_no_threads() {
            guard.wait(None);
        }
    })?;
    let (is_allowed, waited) = wait_for_all_work(&mut guard);
    if !is_allowed && guard.arena.growth().pool_bytes() != 0 {
        let listener = guard.listener;
        return Err(resume_service(guard, listener));
    }
    let listener = report_all_returning(&mut guard);
    if guard.is_of_parent() {
        return Err(guard.check_entry().err().unwrap_or(ErrorKind::ShuttingDown));
    }
    // Until the end no announcement of a capture completes. One that came before ends the attempt with nothing lost.
    let permission = Permission::of(guard.backend.get());
    if permission.is_none() && guard.arena.growth().pool_bytes() != 0 {
        return Err(cancel_destruction(guard, listener));
    }
    order::end(&mut guard);
    give_back_regions(&mut guard, listener, waited, permission.as_ref());
    if guard.is_of_parent() {
        return Err(guard.check_entry().err().unwrap_or(ErrorKind::ShuttingDown));
    }
    if let Some(history) = &guard.history {
        history.ended();
    }
    let inner = guard.inner_mut();
    let pool = inner.pool.take();
    (inner.phase, inner.destroying) = (Phase::Empty, None);
    guard.publish_context();
    drop(guard);
    // The metadata may be large, so it is freed with the lock open. This also closes the backend.
    drop(pool);
    drop(permission);
    log::emit(
        Level::Info,
        format_args!("device {device}: destroyed the allocator; allocations that were live: {live}"),
    );
    if let Some((followed, allocations)) = followed {
        log::emit(
            Level::Info,
            format_args!("device {device}: {followed} of {allocations} allocations followed the plan"),
        );
    }
    Ok(())
}

/// Waits for the work that may use the memory of an allocator that ends. Returns whether the allocator may end, which an
/// announced capture forbids, and how the wait ended.
#[inline(never)]
fn wait_for_all_work(guard: &mut Guard<'_>) -> (bool, Result<(), DeferredError>) {
    let is_allowed = order::wait_for_the_end(guard);
    let mut waited = Ok(());
    if is_allowed && guard.arena.growth().pool_bytes() != 0 {
        waited = guard.let_work_end(Stream::NONE, None, None);
    }
    (is_allowed, waited)
}

/// Reports all memory as returning. Returns the listener, which the pool does not have any more: if the context ends
/// meanwhile, nothing is reported twice.
#[inline(never)]
fn report_all_returning(guard: &mut Guard<'_>) -> Listener {
    let listener = guard.listener;
    report_all(guard, RegionEvent::Returning);
    guard.listener = listener.silenced();
    listener
}

#[inline(never)]
fn report_all(guard: &mut Guard<'_>, event: RegionEvent) {
    if !guard.listener.is_set() {
        return;
    }
    if guard.arena.range().is_some() {
        return remap::report_all(guard, event);
    }
    let mut from = 0;
    loop {
        // The lock was open, but all other threads are gone. Regions are in the order of their addresses.
        let next = guard.arena.regions().iter().find(|(_, region)| region.base >= from);
        let Some(region) = next.map(|(_, region)| region.span()) else { return };
        guard.report_region(event, region);
        from = region.base + 1;
    }
}

/// Ends a destruction before anything was taken apart, because a capture is announced. The allocator stays as it was.
#[cold]
#[inline(never)]
fn cancel_destruction(mut guard: Guard<'_>, listener: Listener) -> ErrorKind {
    guard.listener = listener;
    report_all(&mut guard, RegionEvent::Obtained);
    resume_service(guard, listener)
}

/// Makes an allocator usable again that was to be destroyed.
fn resume_service(mut guard: Guard<'_>, listener: Listener) -> ErrorKind {
    if !guard.is_of_parent() {
        // The recording may have ended meanwhile.
        let recorder = guard.history.as_ref().and(listener.recorder);
        guard.listener = Listener { recorder, ..listener };
        // Or another one may have begun.
        guard.begin_history();
        let phase = Phase::of(&guard);
        let inner = guard.inner_mut();
        (inner.phase, inner.destroying) = (phase, None);
        guard.notify();
    }
    refuse_for_a_capture()
}

/// Gives all memory back, of which no work is left. What the backend does not take back is lost.
#[inline(never)]
fn give_back_regions(
    guard: &mut Guard<'_>,
    listener: Listener,
    mut waited: Result<(), DeferredError>,
    permission: Option<&Permission>,
) {
    if waited.is_err() && guard.arena.growth().pool_bytes() != 0 {
        // A failure may be transient, or a capture that is over by now forbade it.
        waited = guard.let_work_end(Stream::NONE, None, permission);
    }
    // A backend of granules waits itself.
    let waited = if guard.arena.range().is_some() { Ok(()) } else { waited.map_err(DeferredError::say) };
    let mut released: Vec<Detached> = Vec::new();
    while let Some(region) = guard.arena.detach_any() {
        let mut given = waited;
        // This is the last chance to give the region back, and a failure may be transient.
        for _ in 0..if waited.is_ok() { 2 } else { 0 } {
            let call = guard.next_call();
            given = keeping_last_error(|| give_back(guard, &region, call, permission));
            if given.is_ok() {
                break;
            }
        }
        if given.is_ok() {
            if released.try_reserve(1).is_ok() {
                released.push(region);
            }
        } else if guard.arena.range().is_none() {
            let call = guard.next_call();
            guard.outside(CallKind::GivesBack(call), || {
                listener.notify(RegionEvent::Obtained, region.span());
            });
        }
    }
    // Only now: an announcement does not wait for a function that takes messages.
    log_release(guard, &released);
}

fn require_unused(guard: &Guard<'_>, forced: bool) -> Result<(), ErrorKind> {
    let live = guard.arena.counters().live();
    if live == 0 || forced {
        return Ok(());
    }
    let (name, are) = (&guard.name, if live == 1 { "is" } else { "are" });
    let live = Counted(live, "allocation");
    let holders = LargestHolders(guard.arena.view());
    Err(fail!(
        ErrorKind::Busy,
        "{name}: {live} {are} live{holders}; free what is live, or destroy the allocator by force"
    ))
}

/// Returns the number of live allocations and the operations that hold most of them, as text. Empty without host memory.
#[inline(never)]
fn live_text(guard: &Guard<'_>, live: u64) -> String {
    let holders = LargestHolders(guard.arena.view());
    to_string(|out| write!(out, "{live}{holders}")).unwrap_or_default()
}

/// Sets or removes the callback. It can be set only before the allocator holds memory. It can be removed at any time,
/// and is not called any more when this returns.
pub(crate) fn set_region_callback(
    slot: &Slot,
    callback: Option<RegionCallback>,
    user_data: *mut c_void,
) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    if callback.is_some() && (guard.arena.growth().pool_bytes() != 0 || guard.is_bringing(u64::MAX)) {
        return Err(fail!(
            ErrorKind::Busy,
            "the allocator holds memory already: set the callback before the first allocation, or after a bfc_trim \
             that gave everything back"
        ));
    }
    let last_call = guard.last_call();
    (guard.listener.callback, guard.listener.user_data) = (callback, user_data);
    while guard.is_bringing(last_call) {
        guard.wait_for_call()?;
    }
    Ok(())
}
