//! Frees that are put off until no stream is captured: of pools that hand out at once what is freed, so that cudaFree has
//! to wait for the device first, which a capture forbids.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use cuda_sys::*;

use super::handle::Pool;
use crate::bfc;
use crate::state::captures;

struct DeferredFree {
    /// 0 is none.
    address: AtomicU64,
    pool: AtomicI32,
    /// The synchronization that is under way began after it.
    is_covered: AtomicBool,
}

const MOST: usize = 256;

static DEFERRED: [DeferredFree; MOST] = [const {
    DeferredFree { address: AtomicU64::new(0), pool: AtomicI32::new(0), is_covered: AtomicBool::new(false) }
}; MOST];

/// No address: a place that is being filled.
const CHANGING: u64 = 1;

/// How many there are, so that none costs one look.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A thread is freeing them. Only it takes any away meanwhile.
static IS_FREEING: AtomicBool = AtomicBool::new(false);

impl Pool {
    fn deferred(self) -> impl Iterator<Item = (&'static DeferredFree, u64)> {
        let is_of_this = move |place: &&DeferredFree| place.pool.load(Ordering::Acquire) == self.ordinal;
        let all = DEFERRED.iter().map(|place| (place, place.address.load(Ordering::Acquire)));
        all.filter(move |(place, address)| *address > CHANGING && is_of_this(place))
    }

    /// Whether the free of that chunk was put off: to the program it is free.
    pub(super) fn has_deferred(self, address: u64) -> bool {
        COUNT.load(Ordering::Acquire) != 0 && self.deferred().any(|(_, other)| other == address)
    }

    /// Puts the free of a live chunk off. False if there are too many.
    pub(super) fn defer_free(self, address: u64) -> bool {
        let take = |place: &&DeferredFree| {
            place.address.compare_exchange(0, CHANGING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let Some(place) = DEFERRED.iter().find(take) else { return false };
        place.pool.store(self.ordinal, Ordering::Relaxed);
        place.is_covered.store(false, Ordering::Relaxed);
        place.address.store(address, Ordering::Release);
        COUNT.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Frees what was put off, if the device may be waited for by now.
    #[inline]
    pub(super) fn flush_deferred_frees(self) {
        if COUNT.load(Ordering::Relaxed) != 0 && !captures::any() {
            self.flush_all_deferred();
        }
    }

    #[cold]
    fn flush_all_deferred(self) {
        if self.deferred().next().is_none() || IS_FREEING.swap(true, Ordering::AcqRel) {
            return;
        }
        // What comes while this thread waits is not covered by that.
        self.deferred().for_each(|(place, _)| place.is_covered.store(true, Ordering::Relaxed));
        if self.wait() == CUDA_SUCCESS {
            for (place, address) in
                self.deferred().filter(|(place, _)| place.is_covered.load(Ordering::Relaxed))
            {
                // Not to be found any more before another request may get it.
                place.address.store(0, Ordering::Release);
                COUNT.fetch_sub(1, Ordering::AcqRel);
                if self.return_chunk(address) == bfc::OK {
                    self.state.freed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        IS_FREEING.store(false, Ordering::Release);
    }

    /// The memory is gone.
    pub(super) fn forget_deferred_frees(self) {
        for (place, address) in self.deferred() {
            if place.address.compare_exchange(address, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                COUNT.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}
