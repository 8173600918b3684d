//! The pool behind Rust's global allocator ([`crate::GlobalPool`]): one region of host memory, one arena, one lock.
//!
//! It is not one of the table's allocators. Their calls use locks and memory for messages, reports and histories, and a global
//! allocator that needs these would be called by itself. Here the arena is all there is, and its tables are the only memory
//! that it needs. The thread that holds the lock gets them from the system, so the pool never serves itself.

use crate::sys::lock::{ForkLock, InChild};
use bfc_core::arena::{Arena, Settings};
use bfc_core::request::Request;
use bfc_core::stats::Stats;
use bfc_core::stream_id::Stream;
use bfc_hostmem::{HostMemoryExhausted, try_box};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

/// Smaller requests are the system's: a chunk has at least 256 bytes.
pub(crate) const LEAST: usize = 256;
/// What the region is aligned to: a huge page.
const REGION_ALIGNMENT: usize = 2 << 20;

struct Shared {
    lock: ForkLock,
    /// With the lock held. `None` before the first request.
    arena: UnsafeCell<Option<Box<Arena>>>,
    /// The region. Set once, the length first.
    base: AtomicPtr<u8>,
    bytes: AtomicUsize,
    /// Whether there is no pool: it could not be created, it was changing when another thread forked, or an invariant broke.
    /// Requests go to the system then, and what is freed stays.
    is_broken: AtomicBool,
}

// SAFETY: the arena is accessed only with the lock held.
unsafe impl Sync for Shared {}

static POOL: Shared = Shared {
    lock: ForkLock::new(),
    arena: UnsafeCell::new(None),
    base: AtomicPtr::new(null_mut()),
    bytes: AtomicUsize::new(0),
    is_broken: AtomicBool::new(false),
};

impl Shared {
    /// Calls a function with the arena and the first byte of its region. `None` if there is no pool, or if this thread is in
    /// such a call already: it wants memory for the arena's tables, or a signal handler has interrupted it.
    fn with<T>(
        &self,
        create: impl FnOnce() -> Option<Box<Arena>>,
        work: impl FnOnce(&mut Arena, *mut u8) -> T,
    ) -> Option<T> {
        if self.is_broken.load(Relaxed) || self.lock.acquire().is_err() {
            return None;
        }
        // A panic would leave the lock taken, and must not leave a global allocator.
        let result = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the lock is held.
            let arena = unsafe { &mut *self.arena.get() };
            if arena.is_none() {
                *arena = Some(create()?);
            }
            Some(work(arena.as_deref_mut()?, self.base.load(Relaxed)))
        }));
        let result = result.unwrap_or(None);
        if result.is_none() {
            self.is_broken.store(true, Relaxed);
        }
        self.lock.release();
        result
    }

    /// Creates the pool, with the lock held.
    #[cold]
    fn create(&self, limit: usize) -> Result<Box<Arena>, HostMemoryExhausted> {
        let mapping = bfc_hostmem::Mapping::new(limit.max(1), REGION_ALIGNMENT)?;
        let (base, bytes) = (mapping.base(), mapping.bytes());
        let settings = Settings { split_always: true, events: false, ..Settings::new(bytes as u64) };
        let mut arena = try_box(Arena::new(settings)?)?;
        let region = arena.plan_extension(bytes as u64).ok_or(HostMemoryExhausted)?;
        arena.add_region(&region, base.addr() as u64, bytes as u64)?;
        mapping.into_raw();
        self.bytes.store(bytes, Relaxed);
        self.base.store(base, Release);
        Ok(arena)
    }

    fn holds(&self, pointer: *mut u8) -> bool {
        let base = self.base.load(Acquire);
        !base.is_null() && pointer.addr().wrapping_sub(base.addr()) < self.bytes.load(Relaxed)
    }
}

/// Allocates from the pool, or from the system. NULL if the pool is full. At first the pool is created with that limit, and
/// `prepare` is called, which makes sure that forks lock it.
///
/// # Safety
/// That of [`GlobalAlloc::alloc`].
pub(crate) unsafe fn alloc(limit: usize, layout: Layout, prepare: fn()) -> *mut u8 {
    if layout.size() >= LEAST {
        let request = Request {
            alignment: layout.align().max(LEAST) as u64,
            ..Request::new(layout.size() as u64, Stream::NONE)
        };
        let create = || {
            prepare();
            POOL.create(limit).ok()
        };
        let served = POOL.with(create, |arena, base| match arena.alloc(&request) {
            Ok(Some(address)) => base.with_addr(address as usize),
            Ok(None) | Err(HostMemoryExhausted) => null_mut(),
        });
        if let Some(pointer) = served {
            return pointer;
        }
    }
    // SAFETY: by this function's contract.
    unsafe { System.alloc(layout) }
}

/// Frees memory of [`alloc`].
///
/// # Safety
/// That of [`GlobalAlloc::dealloc`].
pub(crate) unsafe fn dealloc(pointer: *mut u8, layout: Layout) {
    if !POOL.holds(pointer) {
        // SAFETY: by this function's contract. It was the system's, because it is not in the region.
        return unsafe { System.dealloc(pointer, layout) };
    }
    POOL.with(|| None, |arena, _| arena.free(pointer.addr() as u64));
}

/// Returns the statistics. `None` before the first request, and without a pool.
pub(crate) fn stats() -> Option<Stats> {
    NonNull::new(POOL.base.load(Acquire))?;
    POOL.with(|| None, |arena, _| arena.stats())
}

/// Its lock, for the thread that forks.
pub(crate) fn lock() -> &'static ForkLock {
    &POOL.lock
}

/// Unlocks the pool in the child after a fork. It is the child's own, as its memory is.
pub(crate) fn recover_in_child() {
    if POOL.lock.recover_in_child() == InChild::Torn {
        POOL.is_broken.store(true, Relaxed);
    }
}
