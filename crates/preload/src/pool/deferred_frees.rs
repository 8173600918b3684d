//! Frees that are deferred, in pools that reuse freed memory at once. cudaFree must wait there for all work that may use
//! the memory. A capture forbids that, and work of contexts other than the device's own may itself wait for the
//! calling thread's next action. For the program the chunk is free.

use bfc_sys::BFC_OK;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

use super::handle::{Pool, pointer};

struct DeferredFree {
    /// The number of this free, from 1. 0 if the place is free.
    number: AtomicU64,
    address: AtomicU64,
    pool: AtomicI32,
}

const MAX_DEFERRED: usize = 1024;

static DEFERRED: [DeferredFree; MAX_DEFERRED] = [const {
    DeferredFree { number: AtomicU64::new(0), address: AtomicU64::new(0), pool: AtomicI32::new(0) }
}; MAX_DEFERRED];

/// Not a number: the place is being filled.
const CHANGING: u64 = u64::MAX;

/// The number of deferred frees, so that a check costs one load if there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The number of the last free that was deferred.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns whether any free is deferred, in any pool.
#[inline]
pub(super) fn are_any() -> bool {
    COUNT.load(Ordering::Acquire) != 0
}

/// Returns the number of the last free that was deferred. Work that is queued later does not use any of that memory.
pub(super) fn last() -> u64 {
    LAST.load(Ordering::SeqCst)
}

impl DeferredFree {
    /// Makes the place free. Returns false if another thread has done so.
    fn remove(&self, number: u64) -> bool {
        let is_removed = self.number.compare_exchange(number, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        COUNT.fetch_sub(usize::from(is_removed), Ordering::AcqRel);
        is_removed
    }
}

impl Pool {
    /// Returns the deferred frees of this pool, with their numbers and addresses.
    fn deferred(self) -> impl Iterator<Item = (&'static DeferredFree, u64, u64)> {
        let is_taken = |number: u64| number != 0 && number != CHANGING;
        let places = if are_any() { DEFERRED.as_slice() } else { &[] };
        places.iter().filter_map(move |place| {
            let number = Some(place.number.load(Ordering::Acquire)).filter(|&number| is_taken(number))?;
            let is_of_this = place.pool.load(Ordering::Acquire) == self.ordinal;
            is_of_this.then(|| (place, number, place.address.load(Ordering::Acquire)))
        })
    }

    pub(super) fn has_any_deferred(self) -> bool {
        self.deferred().next().is_some()
    }

    /// Returns whether the free of that chunk was deferred.
    #[inline]
    pub(crate) fn has_deferred(self, address: u64) -> bool {
        are_any() && self.deferred().any(|(.., other)| other == address)
    }

    /// Returns the bytes of the chunks whose frees were deferred, which are in use for libbfc.
    pub(super) fn deferred_bytes(self) -> u64 {
        let bytes = self.deferred().map(|(.., address)| {
            let mut bytes = 0;
            // SAFETY: any address may be queried, and the pointer is valid for writing.
            let status = unsafe { bfc_sys::bfc_allocated_size(self.ordinal, pointer(address), &mut bytes) };
            if status == BFC_OK { bytes as u64 } else { 0 }
        });
        bytes.sum()
    }

    /// Defers the free of a live chunk. Returns false if too many are deferred.
    pub(super) fn defer_free(self, address: u64) -> bool {
        let take = |place: &&DeferredFree| {
            place.number.compare_exchange(0, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(place) = DEFERRED.iter().find(take) else { return false };
        place.pool.store(self.ordinal, Ordering::Relaxed);
        place.address.store(address, Ordering::Relaxed);
        place.number.store(LAST.fetch_add(1, Ordering::SeqCst) + 1, Ordering::Release);
        COUNT.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Frees the chunks whose frees were deferred up to the one with that number: nothing uses them.
    #[cold]
    pub(super) fn free_deferred(self, last: u64) {
        for (place, number, address) in self.deferred().filter(|&(_, number, _)| number <= last) {
            // The entry must be gone before another request can get the chunk.
            if place.remove(number) && self.return_chunk(address) == BFC_OK {
                self.state.freed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Forgets the deferred frees of this pool, whose memory is lost.
    pub(super) fn forget_deferred_frees(self) {
        for (place, number, _) in self.deferred() {
            place.remove(number);
        }
    }
}
