//! Rust's global allocator over a pool.

use crate::{device, global};
use bfc_core::stats::Stats;
use std::alloc::{GlobalAlloc, Layout};

/// A pool of host memory as the program's global allocator.
///
/// Requests of 256 bytes and more come from one region, which is reserved at the first request and resident only where it
/// was touched. Smaller ones are left to the system, because a chunk has at least 256 bytes. If the region is full, requests
/// fail: [`Vec::try_reserve`] returns an error, and what cannot fail aborts.
///
/// ```
/// use bfc::GlobalPool;
///
/// #[global_allocator]
/// static GLOBAL: GlobalPool = GlobalPool::with_limit(1 << 30);
///
/// fn main() {
///     let numbers = vec![1u64; 1000];
///     let stats = GLOBAL.stats().unwrap();
///     assert!(stats.bytes_in_use >= 8000);
///     assert!(Vec::<u8>::new().try_reserve(2 << 30).is_err());
/// #   drop(numbers);
/// }
/// ```
///
/// All objects of this type are one pool, with the limit of the first that is used. It is not one of the allocators of the
/// table: it has no ordinal, streams, reports and history. That is what makes it sound. Nothing but its lock and its
/// tables is needed for a request. The tables' memory is the system's: the thread that holds the lock gets that instead
/// of waiting for itself. So does a signal handler that interrupts a request; what such a handler frees of the pool stays
/// allocated. No thread-local storage is used, so threads may allocate until they end. A forked child has its own copy of
/// the pool: a fork waits until no thread is changing it.
#[derive(Debug)]
pub struct GlobalPool {
    limit: usize,
}

impl GlobalPool {
    /// A pool of at most this many bytes, rounded up to whole pages.
    pub const fn with_limit(bytes: usize) -> Self {
        GlobalPool { limit: bytes }
    }

    /// The current statistics. None before the first request, in a signal handler that interrupted one, and if the region
    /// could not be reserved: then all requests go to the system.
    pub fn stats(&self) -> Option<Stats> {
        global::stats()
    }
}

// SAFETY: memory of the pool has the layout's size and alignment, is handed out once, and is freed to where it came from.
unsafe impl GlobalAlloc for GlobalPool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by this function's contract.
        unsafe { global::alloc(self.limit, layout, device::survive_forks) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: by this function's contract.
        unsafe { global::dealloc(pointer, layout) }
    }
}
