//! Obtains regions from the backend and gives them back. The backend is called with the lock open, and its results are
//! checked.

use super::captures::{Permission, call_with_permission, refuse_for_a_capture};
use super::listener::RegionEvent;
use super::populating;
use super::slot::{CallKind, Guard, Interrupted, Outside, unsaid_outside, waiting};
use crate::backend::{Backend, Granted};
use crate::error::{DeferredError, ErrorKind, LastError, fail, keeping_last_error};
use crate::log::{self, Level};
use bfc_core::arena::Detached;
use bfc_core::arena::usable;
use bfc_core::heap::Extension;
use bfc_core::request::Request;
use bfc_core::stream_id::Stream;
use bfc_core::units::{Span, UNIT};

/// The smallest size that the backend refused. It is valid until memory was given back to the backend.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    bytes: u64,
    /// Whether the refusal comes from allocators that take their regions from each other.
    pub(super) is_circular: bool,
    /// The value of `Arena::life` before the backend was called.
    life: u64,
    /// How often memory had been given back before the backend was called.
    given_back: u64,
}

impl Refusal {
    /// Creates a refusal for a call of the backend that is about to be made.
    pub(super) fn of(guard: &Guard<'_>, bytes: u64) -> Self {
        Refusal { bytes, is_circular: false, life: guard.arena.life(), given_back: guard.given_back }
    }

    /// Returns the size from which on a request would be refused again, or `u64::MAX` if no refusal is valid.
    pub(super) fn limit(refusal: Option<Self>, guard: &Guard<'_>) -> u64 {
        let now = Refusal::of(guard, u64::MAX);
        let stands = |refusal: &Refusal| (refusal.life, refusal.given_back) == (now.life, now.given_back);
        refusal.filter(stands).map_or(u64::MAX, |refusal| refusal.bytes)
    }
}

/// What was given back to the backend.
#[derive(Default)]
pub(super) struct Released {
    pub(super) regions: u64,
    pub(super) bytes: u64,
    /// Why some regions were not given back, if any. Its message is stored, and those regions are free memory as
    /// before.
    pub(super) failure: Option<ErrorKind>,
}

/// Gives detached regions back to the backend on behalf of a request of a stream, or of none. Stops when a capture is
/// announced or noticed that this might break, and keeps the remaining regions. With `is_settled` no work can use them any
/// more, and the device is not waited for.
#[inline(never)]
pub(super) fn release(
    guard: &mut Guard<'_>,
    mut regions: Vec<Detached>,
    stream: Stream,
    is_settled: bool,
) -> Released {
    let mut released = Released::default();
    if regions.is_empty() {
        return released;
    }
    let (mut at, life, noticed) = (0, guard.arena.life(), guard.captures_noticed);
    let call = guard.next_call();
    // The callback and the wait may take longer than an announcement waits, so nothing goes back before both have ended.
    report(guard, call, RegionEvent::Returning, &regions);
    let must_wait = !is_settled && !guard.is_of_parent() && guard.arena.life() == life;
    let waited = if must_wait { guard.let_work_end(stream, Some(call), None) } else { Ok(()) };
    let waited = waited.map_err(DeferredError::say);
    while let Some(region) = regions.get(at) {
        if guard.arena.life() != life {
            // The region was lost with all other memory.
            guard.arena.forget_detached();
            regions.remove(at);
            continue;
        }
        let given = if guard.is_capture_announced(stream) || guard.captures_noticed != noticed {
            Err(refuse_for_a_capture())
        } else if waited.is_err() {
            log_failure(guard, region);
            waited
        } else {
            give_back(guard, region, call, None)
        };
        match given {
            Ok(()) if guard.arena.life() != life => drop(regions.remove(at)),
            Ok(()) => {
                released.regions += 1;
                released.bytes += region.given;
                at += 1;
            }
            Err(error) => {
                released.failure = Some(error);
                let region = regions.remove(at);
                report(guard, call, RegionEvent::Obtained, std::slice::from_ref(&region));
                if guard.arena.life() == life { keep(guard, &region) } else { forget(guard, &region) }
            }
        }
    }
    // All regions are logged after the last one, so that other threads need not wait longer.
    log_release(guard, &regions);
    released
}

/// Reports regions that go back, or stay after all, in a call of that number. A forked child reports none of its parent's.
fn report(guard: &mut Guard<'_>, call: u64, event: RegionEvent, regions: &[Detached]) {
    if !guard.is_of_parent() {
        guard.report_regions(call, event, regions.iter().map(Detached::span));
    }
}

/// Gives one region back in a call of that number. It was reported, and no work uses it. After a failure it is still
/// detached, and counted as held. A caller without a permission that it holds fails if a capture is announced.
#[inline(never)]
pub(super) fn give_back(
    guard: &mut Guard<'_>,
    region: &Detached,
    call: u64,
    held: Option<&Permission>,
) -> Result<(), ErrorKind> {
    if guard.is_of_parent() {
        // A callback has forked, and in the child the memory belongs to the parent.
        return Ok(());
    }
    let granted = Granted { base: region.base, bytes: region.given };
    let life = guard.arena.life();
    let given = guard.ask(CallKind::GivesBack(call), |backend| {
        call_with_permission(backend, held, || backend.free(granted))
    });
    if guard.arena.life() != life {
        guard.arena.forget_detached();
        return Ok(());
    }
    if given.is_ok() {
        guard.given_back += 1;
        guard.arena.region_released(granted.bytes);
    } else {
        log_failure(guard, region);
    }
    given
}

/// Forgets a region that was detached before all memory was lost, and reports it as returning.
fn forget(guard: &mut Guard<'_>, region: &Detached) {
    guard.arena.forget_detached();
    guard.report_region(RegionEvent::Returning, region.span());
}

/// Puts a region back into the arena that the backend did not take back.
fn keep(guard: &mut Guard<'_>, region: &Detached) {
    if guard.arena.restore(region).is_err() {
        let (device, bytes) = (guard.device, region.given);
        guard.arena.region_released(bytes);
        guard.outside(CallKind::Talks, || {
            log::emit(
                Level::Error,
                format_args!(
                    "device {device}: {bytes} bytes are lost: out of host memory (allocator metadata)"
                ),
            );
        });
    }
}

fn log_failure(guard: &mut Guard<'_>, region: &Detached) {
    if !log::is_wanted(Level::Error) || guard.is_of_parent() {
        return;
    }
    let (device, Detached { base, given, .. }) = (guard.device, region);
    guard.outside(CallKind::Talks, || {
        log::emit(
            Level::Error,
            format_args!(
                "device {device}: a region of {given} bytes at {base:#x} was not taken back: {LastError}"
            ),
        );
    });
}

pub(super) fn log_release(guard: &mut Guard<'_>, regions: &[Detached]) {
    if !log::is_wanted(Level::Info) || guard.is_of_parent() {
        return;
    }
    let device = guard.device;
    guard.outside(CallKind::Talks, || {
        for Detached { base, given, .. } in regions {
            log::emit(
                Level::Info,
                format_args!("device {device}: gave a region of {given} bytes at {base:#x} back"),
            );
        }
    });
}

/// The result of asking the backend for a region.
#[derive(Clone, Copy)]
enum Obtained {
    /// All sizes were refused.
    Nothing,
    Region(Granted),
    /// The backend failed, or violated its contract. A region that it returned was given back if possible.
    Failed(ErrorKind),
}

/// The outcome of an extension.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extended {
    Grown,
    /// The backend gave nothing, or was not called because it would refuse. The lock may have been open.
    Refused,
    /// The limit leaves no room, and the backend was not called.
    NoRoom,
}

/// Obtains a region of at least `least` bytes, of a size that was not refused before.
#[inline(never)]
pub(super) fn extend(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    least: u64,
    refused: &mut Option<Refusal>,
) -> Outside<Extended> {
    let Some(mut plan) = guard.arena.plan_extension(least) else { return Ok(Extended::NoRoom) };
    if !plan.shrink_below(Refusal::limit(*refused, guard)) {
        guard.arena.cancel_extension(&plan);
        return Ok(Extended::Refused);
    }
    extend_by_plan(guard, request, plan, refused)
}

/// Obtains a region of exactly `least` bytes. The caller has checked that only larger sizes were refused before.
pub(super) fn extend_by_least(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    least: u64,
    refused: &mut Option<Refusal>,
) -> Outside<Extended> {
    match guard.arena.plan_exact_extension(least) {
        Some(plan) => extend_by_plan(guard, request, plan, refused),
        None => Ok(Extended::NoRoom),
    }
}

/// Obtains a region of exactly `bytes` bytes for a request that can do without it. A failure of the backend counts as a
/// refusal.
pub(super) fn attempt_extension(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    bytes: u64,
    refused: &mut Option<Refusal>,
) -> Outside<Extended> {
    if Refusal::limit(*refused, guard) <= bytes {
        return Ok(Extended::Refused);
    }
    let Some(plan) = guard.arena.plan_exact_extension(bytes) else { return Ok(Extended::NoRoom) };
    let extended = unsaid_outside(guard, |guard| obtain_planned_region(guard, request, plan, refused))?;
    Ok(extended.unwrap_or(Extended::Refused))
}

fn extend_by_plan(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    plan: Extension,
    refused: &mut Option<Refusal>,
) -> Outside<Extended> {
    let extended = obtain_planned_region(guard, request, plan, refused)?;
    extended.map_err(|error| Interrupted::Ended(guard.fail(error, request)))
}

/// Asks the backend for a planned region. The inner error is one of the backend, after which the allocator goes on.
fn obtain_planned_region(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    plan: Extension,
    refused: &mut Option<Refusal>,
) -> Outside<Result<Extended, ErrorKind>> {
    let listener = guard.listener;
    let mut refusal = Refusal::of(guard, u64::MAX);
    let ask = |backend: &dyn Backend| {
        let obtained = obtain(backend, &plan, request.alignment.max(UNIT), &mut refusal.bytes);
        refusal.is_circular = waiting::is_in_circle();
        if let Obtained::Region(Granted { base, bytes }) = obtained {
            listener.notify(RegionEvent::Obtained, Span { base, bytes });
        }
        obtained
    };
    let life = guard.arena.life();
    let mut obtained = guard.ask(CallKind::Obtains(plan.reserved()), ask);
    if refusal.bytes != u64::MAX {
        *refused = Some(refusal);
    }
    let extended = match obtained {
        _ if guard.arena.life() != life => {
            guard.arena.cancel_extension(&plan);
            if let Obtained::Region(Granted { base, bytes }) = obtained {
                // The region was lost with its context before it was added.
                guard.report_region(RegionEvent::Returning, Span { base, bytes });
            }
            return Err(Interrupted::Reborn);
        }
        Obtained::Nothing => {
            guard.arena.cancel_extension(&plan);
            Ok(Extended::Refused)
        }
        Obtained::Failed(error) => {
            guard.arena.cancel_extension(&plan);
            Err(error)
        }
        Obtained::Region(granted) => {
            let added = add(guard, &plan, granted);
            if let Err(error) = added {
                obtained = Obtained::Failed(error);
            }
            added.map(|()| Extended::Grown)
        }
    };
    log_extension(guard, &plan, &obtained);
    // The allocator may have been destroyed meanwhile.
    guard.check(life)?;
    Ok(extended)
}

/// Asks the backend for smaller and smaller regions. `refused` becomes the smallest size that was refused, if any was.
#[inline(never)]
fn obtain(backend: &dyn Backend, plan: &Extension, alignment: u64, refused: &mut u64) -> Obtained {
    let mut plan = *plan;
    loop {
        match backend.alloc(alignment, plan.bytes) {
            Ok(Some(granted)) => return examine(granted, &plan, backend),
            Ok(None) => *refused = plan.bytes,
            Err(error) => return Obtained::Failed(error),
        }
        if !plan.shrink() {
            return Obtained::Nothing;
        }
    }
}

#[inline(never)]
fn log_extension(guard: &mut Guard<'_>, plan: &Extension, obtained: &Obtained) {
    let level = match obtained {
        Obtained::Region(_) => Level::Info,
        Obtained::Nothing => Level::Debug,
        Obtained::Failed(_) => Level::Error,
    };
    if !log::is_wanted(level) {
        return;
    }
    let (device, Extension { bytes, least, .. }) = (guard.device, *plan);
    guard.outside(CallKind::Talks, || match obtained {
        Obtained::Region(Granted { base, bytes }) => {
            log::emit(
                level,
                format_args!("device {device}: obtained a region of {bytes} bytes at {base:#x}"),
            );
        }
        Obtained::Nothing => log::emit(
            level,
            format_args!("device {device}: the backend refused regions of {bytes} down to {least} bytes"),
        ),
        Obtained::Failed(_) => {
            log::emit(level, format_args!("device {device}: {LastError}"));
        }
    });
}

/// Checks a region that the backend returned.
fn examine(granted: Granted, plan: &Extension, backend: &dyn Backend) -> Obtained {
    let Granted { base, bytes } = granted;
    let error = if bytes > u64::MAX - base {
        // Such a region cannot exist, so it is not given back either.
        return Obtained::Failed(fail!(
            ErrorKind::BackendFailed,
            "the backend gave {bytes} bytes at {base:#x}, which ends beyond the address space"
        ));
    } else if !base.is_multiple_of(UNIT) {
        fail!(
            ErrorKind::BackendFailed,
            "the backend gave a region at {base:#x}, which is not a multiple of 256"
        )
    } else if usable(bytes) < plan.least {
        let least = plan.least;
        fail!(ErrorKind::BackendFailed, "the backend returned {bytes} bytes; at least {least} are required")
    } else {
        return Obtained::Region(granted);
    };
    // A failure to give the region back is less important than the violated contract.
    let _ = keeping_last_error(|| backend.free(granted));
    Obtained::Failed(error)
}

fn add(guard: &mut Guard<'_>, plan: &Extension, granted: Granted) -> Result<(), ErrorKind> {
    let Granted { base, bytes } = granted;
    if guard.arena.overlaps(base, bytes) {
        guard.arena.cancel_extension(plan);
        // Giving the region back would free memory that is in use.
        let error = fail!(
            ErrorKind::BackendFailed,
            "the backend gave {bytes} bytes at {base:#x}, which overlap a region that it gave before"
        );
        guard.report_region(RegionEvent::Returning, Span { base, bytes });
        return Err(error);
    }
    if let Err(exhausted) = guard.arena.add_region(plan, base, bytes) {
        let listener = guard.listener;
        let number = guard.next_call();
        let _ = guard.ask(CallKind::GivesBack(number), |backend| {
            listener.returning(Span { base, bytes }, || backend.free(granted))
        });
        return Err(exhausted.into());
    }
    populating::region_obtained(guard);
    Ok(())
}
