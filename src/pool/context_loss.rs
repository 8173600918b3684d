//! The device's context is gone, and with it all memory and all events: the pool forgets them and begins anew.
//!
//! The library is not told: a pool that serves itself makes no call of the driver. It notices when the program says so,
//! or when a call of its own fails for that reason. After every call of the backend the slot checks whether the memory is
//! gone ([`forget_if_over`]). So a thread that returns from such a call may return to a pool that has forgotten
//! everything. What it brings is of the old life then, which [`Arena::life`](crate::core::arena::Arena::life) shows.

use super::slot::{Guard, Slot, forget_if_over};
use crate::backend::Granted;
use crate::error::{Error, fail};

/// The program says that the device's context was reset or destroyed.
pub(crate) fn declare_lost(slot: &Slot) -> Result<(), Error> {
    let guard = slot.enter()?;
    if guard.backend.get().life().is_none() {
        let backend = guard.backend.get().name();
        return Err(fail!(
            Error::Unsupported,
            "bfc_device_lost: the memory of the {backend} backend belongs to no device's context"
        ));
    }
    look(guard, true).check_entry().map(drop)
}

/// Looks whether the memory is there still, where it can be gone. Before a request fails: as long as nothing is asked
/// of the driver, a pool that is full knows nothing.
#[inline(never)]
pub(super) fn look(mut guard: Guard<'_>, told: bool) -> Guard<'_> {
    // Others may give back region after region while they are asked for.
    const ROUNDS: u32 = 16;
    for _ in 0..ROUNDS {
        let first = |guard: &Guard<'_>| {
            let region = guard.arena.regions().iter().next();
            region.map(|(_, region)| Granted { base: region.base, bytes: region.given })
        };
        let (region, before) = (first(&guard), guard.arena.progress().regions);
        let is_missing;
        (guard, is_missing) = guard.looking(|life| life.look(region, told));
        if !is_missing {
            break;
        }
        if first(&guard) == region && guard.arena.progress().regions == before {
            guard.end_of_life();
            return forget_if_over(guard);
        }
    }
    guard
}

/// Has the backend begin anew for a request of so many bytes, if its memory is gone. No call of the old life is under way then.
#[inline(never)]
pub(super) fn renewed(mut guard: Guard<'_>, requested: u64) -> Result<Guard<'_>, Error> {
    while guard.is_over() {
        if guard.is_calling() {
            guard = guard.wait_for_call()?;
            continue;
        }
        let began;
        (guard, began) = guard.renewing();
        match began {
            Ok(backend) => {
                guard.backend.go_on_with(backend);
                guard.forgotten = false;
                if let Some(granules) = backend.get().granules() {
                    guard.arena.set_range(granules.range());
                }
                guard.notify();
                guard = guard.check_entry()?;
            }
            Err(error) => return Err(guard.check_entry()?.fail(error, requested)),
        }
    }
    Ok(guard)
}
