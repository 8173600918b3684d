//! Maps, unmaps and moves granules as `bfc_core::arena` has planned, with the lock open.
//!
//! With a backend of granules the pool is a single region over a whole reserved range. Memory that is not mapped is in
//! unmapped chunks (`bfc_core::vmm`). A change takes three steps:
//!
//! 1. With the lock held, a plan is decided (`Arena::plan_growth`, `Arena::plan_relocation`), and its chunks are
//!    withheld.
//! 2. With the lock open, this module calls the backend and notes what is mapped in the end. If granules are unmapped,
//!    it waits for the device first.
//! 3. With the lock held again, `Arena::commit` makes mapped pieces free chunks and the others unmapped ones.
//!
//! The core needs no special case for a failure, because pieces that could not be restored are committed as they are.
//! The lock stays held between a commit and the next search, so that no other thread takes the memory.
//!
//! An allocator has one plan at a time. Other threads that need one wait for its result. Frees go on meanwhile, and so
//! do requests that find free memory.

use super::captures::{self, Permission, call_with_permission, refuse_for_a_capture};
use super::listener::{RegionEvent, ReportedGranules};
use super::region_io::{Extended, Refusal};
use super::slot::{CallKind, Guard, Interrupted, Outside};
use crate::backend::Backend;
use crate::backend::granules::Granules;
use crate::error::{DeferredError, ErrorKind, LastError, keeping_last_error, unsaid};
use crate::log::{self, Level};
use bfc_core::arena::{NewMemory, Piece, Plan, bytes};
use bfc_core::request::Request;
use bfc_core::stream_id::Stream;
use bfc_core::units::Span;
use bfc_hostmem::HostMemoryExhausted;

/// Maps new memory for a request, within the limit.
#[inline(never)]
pub(super) fn grow(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    refused: &mut Option<Refusal>,
) -> Outside<Extended> {
    // If the backend does not have the ample amount, it may still have what the request needs.
    serve(guard, request, &[NewMemory::Ample, NewMemory::Needed], refused, |guard, new, below| {
        plan_growth(guard, request, new, below)
    })
}

/// Out of line, so that its frame is not on the stack while the driver is called.
#[inline(never)]
fn plan_growth(guard: &mut Guard<'_>, request: &Request<'_>, new: NewMemory, below: u64) -> Planned {
    guard.arena.plan_growth(request, new, below)
}

/// Moves idle granules to make room for a request.
#[inline(never)]
pub(super) fn relocate(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    refused: &mut Option<Refusal>,
) -> Outside<Extended> {
    // If the backend does not have all that the request needs, a smaller amount may suffice together with idle memory.
    let was_refused = Refusal::limit(*refused, guard) != u64::MAX;
    let ways: &[NewMemory] =
        if was_refused { &[NewMemory::Least] } else { &[NewMemory::Needed, NewMemory::Least] };
    serve(guard, request, ways, refused, |guard, new, below| plan_relocation(guard, request, new, below))
}

/// Moves idle granules to make room for a request, and maps no more than it needs beside them.
#[inline(never)]
pub(super) fn move_idle(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    refused: &mut Option<Refusal>,
) -> Outside<Extended> {
    serve(guard, request, &[NewMemory::Least], refused, |guard, new, below| {
        plan_relocation(guard, request, new, below)
    })
}

fn plan_relocation(guard: &mut Guard<'_>, request: &Request<'_>, new: NewMemory, below: u64) -> Planned {
    // Unmapping waits for the device, which might break a capture that is announced by now.
    if guard.is_capture_announced(request.stream) {
        return Ok(None);
    }
    guard.arena.plan_relocation(request, new, below)
}

type Planned = Result<Option<Plan>, HostMemoryExhausted>;

fn serve(
    guard: &mut Guard<'_>,
    request: &Request<'_>,
    ways: &[NewMemory],
    refused: &mut Option<Refusal>,
    plan: impl Fn(&mut Guard<'_>, NewMemory, u64) -> Planned,
) -> Outside<Extended> {
    let mut failed = false;
    for &new in ways {
        // A thread that writes guards in front of a chunk relies on the free memory there. With guards on, the caller
        // has waited for its turn before.
        while guard.is_guarding() {
            guard.wait_for_call()?;
        }
        if guard.is_over() {
            // There is nothing to move, and the renewed backend will have another range.
            return Ok(Extended::Refused);
        }
        if guard.arena.is_moving() {
            // Another thread's plan is under way, and the caller waits for it.
            return Ok(Extended::NoRoom);
        }
        let below = Refusal::limit(*refused, guard);
        let plan = match plan(guard, new, below) {
            Ok(Some(plan)) => plan,
            Ok(None) => break,
            Err(exhausted) => return Err(guard.fail(exhausted.into(), request).into()),
        };
        guard.exempt_guards_behind(&plan);
        let (life, asked) = (guard.arena.life(), plan.reserved());
        let refusal = Refusal::of(guard, asked);
        let outcome = carry_out_plan(guard, plan, request);
        // The allocator may have been destroyed meanwhile.
        guard.check(life)?;
        match outcome {
            Ok(()) => return Ok(Extended::Grown),
            Err(failure) if failure.is(ErrorKind::OutOfMemory) => {
                failed = true;
                *refused = if asked == 0 { *refused } else { Some(refusal) };
            }
            Err(failure) => return Err(guard.fail(failure.say(), request).into()),
        }
    }
    Ok(if failed { Extended::Refused } else { Extended::NoRoom })
}

#[allow(clippy::result_large_err)] // Remapping is not time-critical.
#[inline(never)]
fn carry_out_plan(guard: &mut Guard<'_>, mut plan: Plan, request: &Request<'_>) -> Result<(), DeferredError> {
    let (device, asked, listener) = (guard.device, request.requested, guard.listener);
    let life = guard.arena.life();
    let outcome = guard.ask(CallKind::Obtains(plan.reserved()), |backend| {
        let Some(granules) = backend.granules() else { return Ok(()) };
        unsaid(|| {
            // Only moves unmap memory, and therefore wait for the device.
            if !plan.sources.is_empty() && captures::concern(backend) {
                return Err(refuse_for_a_capture());
            }
            let outcome = move_pieces(backend, &ReportedGranules { granules, listener }, &mut plan);
            keeping_last_error(|| log_outcome(device, asked, &plan, outcome));
            outcome
        })
    });
    if guard.arena.life() != life {
        abandon(guard, &plan);
    } else {
        guard.arena.commit(plan);
    }
    outcome
}

/// Abandons a plan whose memory was lost with all other memory, and reports its mapped pieces as returning.
fn abandon(guard: &mut Guard<'_>, plan: &Plan) {
    guard.arena.abandon(plan);
    let call = guard.next_call();
    let pieces = plan.sources.iter().chain(&plan.fresh).chain(&plan.targets);
    guard.report_regions(call, RegionEvent::Returning, mapped(pieces));
}

fn move_pieces(backend: &dyn Backend, granules: &dyn Granules, plan: &mut Plan) -> Result<(), ErrorKind> {
    let moves = !plan.sources.is_empty();
    let mut moved = set_mapped(&mut plan.fresh, true, |piece| granules.map(piece.span));
    if moves && moved.is_ok() {
        moved = call_with_permission(backend, None, || granules.wait_until_idle());
    }
    // Only now: mapping and waiting may take longer than an announcement waits.
    let permission = Permission::of(backend);
    if moves && permission.is_none() {
        // What is mapped stays, because unmapping it might break the capture too.
        return moved.and_then(|()| Err(refuse_for_a_capture()));
    }
    if moves && moved.is_ok() {
        moved = move_idle_pieces(granules, plan);
    }
    if moved.is_err() {
        keeping_last_error(|| restore_pieces(granules, plan));
    }
    if moves {
        granules.drop_kept();
    }
    moved
}

fn move_idle_pieces(granules: &dyn Granules, plan: &mut Plan) -> Result<(), ErrorKind> {
    set_mapped(&mut plan.sources, false, |piece| granules.detach(piece.span))?;
    set_mapped(&mut plan.targets, true, |piece| granules.attach(piece.span))
}

/// Restores the pieces of a plan as far as possible. The others stay mapped at their new place, or become unmapped.
fn restore_pieces(granules: &dyn Granules, plan: &mut Plan) {
    let Plan { sources, fresh, targets, .. } = plan;
    for piece in targets.iter_mut().filter(|piece| piece.mapped) {
        piece.mapped = granules.detach(piece.span).is_err();
    }
    for piece in sources.iter_mut().filter(|piece| !piece.mapped) {
        piece.mapped = granules.attach(piece.span).is_ok();
    }
    for piece in fresh.iter_mut().filter(|piece| piece.mapped) {
        piece.mapped = granules.release(piece.span).is_err();
    }
}

/// Runs `work` on each piece up to the first failure. Sets the `mapped` state of the pieces for which it succeeded.
fn set_mapped(
    pieces: &mut [Piece],
    mapped: bool,
    mut work: impl FnMut(&Piece) -> Result<(), ErrorKind>,
) -> Result<(), ErrorKind> {
    for piece in pieces {
        work(piece)?;
        piece.mapped = mapped;
    }
    Ok(())
}

fn log_outcome(device: i32, asked: u64, plan: &Plan, outcome: Result<(), ErrorKind>) {
    let (new, moved) = (bytes(&plan.fresh), bytes(&plan.targets));
    match outcome {
        Ok(()) => log::emit(
            Level::Info,
            format_args!(
                "device {device}: mapped {new} bytes and moved {moved} bytes for a request of {asked} bytes"
            ),
        ),
        Err(error) => {
            let level = if error == ErrorKind::OutOfMemory { Level::Debug } else { Level::Error };
            log::emit(level, format_args!("device {device}: {LastError}"));
        }
    }
}

/// Unmaps free granules as long as `keep` bytes stay mapped. Returns the number of bytes given back. With `is_settled` no
/// work can use free memory any more, if the lock was not opened since.
#[inline(never)]
pub(super) fn trim(guard: &mut Guard<'_>, keep: u64, mut is_settled: bool) -> Outside<u64> {
    while guard.arena.is_moving() || guard.is_guarding() {
        is_settled = false;
        guard.wait_for_call()?;
    }
    // The lock was open, so a capture may be announced by now that waiting for the device might break.
    if guard.is_capture_announced(Stream::NONE) {
        let due = guard.arena.could_trim(keep);
        return if due { Err(Interrupted::failure(refuse_for_a_capture)) } else { Ok(0) };
    }
    let mut plan = guard.arena.plan_trim(keep).map_err(ErrorKind::from)?;
    if plan.sources.is_empty() {
        return Ok(0);
    }
    guard.exempt_guards_behind(&plan);
    let (device, life, call) = (guard.device, guard.arena.life(), guard.next_call());
    // The callback and the wait may take longer than an announcement waits, so nothing is unmapped before both have ended.
    guard.report_regions(call, RegionEvent::Returning, mapped(&plan.sources));
    // A callback may have forked: in the child the memory belongs to the parent.
    let is_gone = |guard: &Guard<'_>| guard.is_of_parent() || guard.arena.life() != life;
    let must_wait = !is_settled && !is_gone(guard);
    let mut outcome = if must_wait { guard.let_work_end(Stream::NONE, Some(call), None) } else { Ok(()) };
    let is_gone = is_gone(guard);
    if outcome.is_ok() && !is_gone && guard.is_capture_announced(Stream::NONE) {
        outcome = unsaid(|| Err(refuse_for_a_capture()));
    }
    let mut released = 0u64;
    if outcome.is_ok() && !is_gone {
        guard.ask(CallKind::GivesBack(call), |backend| {
            let Some(granules) = backend.granules() else { return };
            let unmap = || set_mapped(&mut plan.sources, false, |piece| granules.release(piece.span));
            outcome = unsaid(|| call_with_permission(backend, None, unmap));
            released = plan.sources.iter().filter(|piece| !piece.mapped).map(|piece| piece.span.bytes).sum();
            keeping_last_error(|| {
                log::emit(
                    Level::Info,
                    format_args!("device {device}: gave {released} bytes in granules back"),
                );
            });
        });
    }
    if outcome.is_err() && guard.arena.life() == life {
        guard.report_regions(call, RegionEvent::Obtained, mapped(&plan.sources));
    }
    if guard.arena.life() != life {
        guard.arena.abandon(&plan);
        guard.check_entry()?;
        return Ok(released);
    }
    guard.arena.commit(plan);
    guard.given_back += u64::from(released != 0);
    guard.check_entry()?;
    match outcome {
        // The system has no memory for that many mappings. The granules given back so far count.
        Err(failure) if !failure.is(ErrorKind::OutOfMemory) => Err(Interrupted::Driver(failure)),
        _ => Ok(released),
    }
}

/// Returns the mapped pieces of a plan.
fn mapped<'a>(pieces: impl IntoIterator<Item = &'a Piece>) -> impl Iterator<Item = Span> {
    pieces.into_iter().filter(|piece| piece.mapped).map(|piece| piece.span)
}

/// Reports each mapped piece when the allocator ends: as returning, or as obtained again. The range itself is given back as a
/// whole.
pub(super) fn report_all(guard: &mut Guard<'_>, event: RegionEvent) {
    let first = guard.arena.regions().iter().map(|(_, region)| region.first).next();
    let mut next = first.and_then(|first| guard.arena.mapped_from(first));
    while let Some((span, behind)) = next {
        guard.report_region(event, span);
        next = guard.arena.mapped_from(behind);
    }
}

#[cfg(test)]
mod tests;
