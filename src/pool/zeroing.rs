//! Zeroed memory, for the adapters of host frameworks.

use super::slot::Slot;
use crate::error::ErrorKind;
use bfc_core::units::Span;

/// From this size on new pages are obtained instead of writing to the old ones: a huge page.
const LEAST_DISCARDED: u64 = 2 << 20;

/// Zeroes an allocation.
///
/// # Safety
/// The caller has just allocated these bytes and nothing else uses them. They are accessible from the host.
pub(crate) unsafe fn zero(slot: &Slot, addr: u64, bytes: u64) -> Result<(), ErrorKind> {
    let (backend, may_discard) = {
        let guard = slot.enter()?;
        (*guard.backend, guard.may_discard())
    };
    // SAFETY: guaranteed by the caller.
    let discard = || unsafe { backend.get().discard(Span { base: addr, bytes }) };
    let is_large = may_discard && bytes >= LEAST_DISCARDED;
    let new = if is_large { discard() } else { None }.unwrap_or(Span { base: addr, bytes: 0 });
    let behind = new.base + new.bytes;
    for (from, to) in [(addr, new.base), (behind, addr + bytes)] {
        // SAFETY: within the caller's allocation.
        unsafe { (from as *mut u8).write_bytes(0, (to - from) as usize) };
    }
    Ok(())
}
