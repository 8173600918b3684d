//! Loss of the device's context, and of all memory and all events with it. The pool forgets them and begins anew.
//!
//! The driver does not report the loss. A pool that serves requests from its own memory makes no driver calls. It
//! notices the loss when the program declares it, or when a call of its own fails for that reason. After every call of
//! the backend the slot checks whether the memory is lost ([`forget_if_over`]). So a thread that returns from such a
//! call may find a pool that has forgotten everything. A changed [`Arena::life`](bfc_core::arena::Arena::life) tells
//! it that its results are outdated.

use super::slot::{CallKind, Guard, Outside, Slot, forget_if_over};
use crate::backend::{AnyBackend, Granted};
use crate::error::{ErrorKind, fail};
use bfc_core::request::Request;

/// Declares that the device's context was reset or destroyed.
pub(crate) fn declare_lost(slot: &Slot) -> Result<(), ErrorKind> {
    let mut guard = slot.enter()?;
    if guard.backend.get().life().is_none() {
        let backend = guard.backend.get().name();
        return Err(fail!(
            ErrorKind::Unsupported,
            "bfc_device_lost: the memory of the {backend} backend belongs to no device's context"
        ));
    }
    probe_memory(&mut guard, true);
    guard.check_entry()
}

/// Checks whether the memory still exists, if it can be lost, and forgets everything if not. `declared` says that the
/// program has declared the loss. Called before a request fails too, because a full pool that makes no driver calls
/// does not notice a loss.
#[inline(never)]
pub(super) fn probe_memory(guard: &mut Guard<'_>, declared: bool) {
    // Other threads may give back the region in question in each round.
    const ROUNDS: u32 = 16;
    for _ in 0..ROUNDS {
        let first = |guard: &Guard<'_>| {
            let region = guard.arena.regions().iter().next();
            region.map(|(_, region)| Granted { base: region.base, bytes: region.given })
        };
        let (region, before) = (first(guard), guard.arena.progress().regions);
        let is_missing = guard
            .ask(CallKind::Orders, |backend| backend.life().is_some_and(|life| life.probe(region, declared)));
        if !is_missing {
            break;
        }
        if first(guard) == region && guard.arena.progress().regions == before {
            guard.end_of_life();
            forget_if_over(guard);
            break;
        }
    }
}

/// Renews the backend for a request, if its memory is lost. Waits first until no earlier call of
/// the backend is under way.
#[inline(never)]
pub(super) fn renew_backend(guard: &mut Guard<'_>, request: &Request<'_>) -> Outside {
    while guard.is_over() {
        if guard.is_calling() {
            guard.wait_for_call()?;
            continue;
        }
        let old: AnyBackend = *guard.backend;
        let renewed = guard.outside(CallKind::Obtains(0), || match old.get().life() {
            Some(life) => life.renew(),
            None => Ok(old),
        });
        match renewed {
            Ok(backend) => {
                guard.backend.set_renewed(backend);
                guard.forgotten = false;
                guard.publish_context();
                if let Some(granules) = backend.get().granules() {
                    guard.arena.set_range(granules.range());
                }
                guard.notify();
                guard.check_entry()?;
            }
            Err(error) => {
                guard.check_entry()?;
                return Err(guard.fail(error, request).into());
            }
        }
    }
    Ok(())
}
