//! Zeroed memory, for the adapters of host frameworks.

use super::slot::Slot;
use crate::backend::AnyBackend;
use crate::core::units::Span;
use crate::error::Error;

/// From this size on new pages are obtained instead of writing to the old ones: a huge page.
const LEAST_DISCARDED: u64 = 2 << 20;

/// Zeroes an allocation.
///
/// # Safety
/// The caller has just allocated these bytes and nothing else uses them. They are accessible from the host.
pub(crate) unsafe fn zero(slot: &Slot, addr: u64, bytes: u64) -> Result<(), Error> {
    let backend: AnyBackend = *slot.enter()?.backend;
    let page = 4096;
    let (begin, end) = (addr.next_multiple_of(page), (addr + bytes) / page * page);
    let mut written = [(addr, bytes), (0, 0)];
    if bytes >= LEAST_DISCARDED {
        let span = Span { base: begin, bytes: end - begin };
        // SAFETY: the span lies within the caller's allocation.
        if unsafe { backend.get().discard(span) } == span.bytes {
            written = [(addr, begin - addr), (end, addr + bytes - end)];
        }
    }
    for (addr, bytes) in written {
        // SAFETY: within the caller's allocation.
        unsafe { (addr as *mut u8).write_bytes(0, bytes as usize) };
    }
    Ok(())
}
