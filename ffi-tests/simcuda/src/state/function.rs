//! The driver's functions, as the table of them and the log of calls know them.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

/// A function of the driver, or its twin for the per-thread default stream.
pub(crate) struct Function {
    symbol: &'static str,
    name: &'static str,
    since: i32,
    is_per_thread: bool,
    address: Address,
    calls: AtomicU64,
}

impl Function {
    /// A function that was never called: what the library exports, what `cuGetProcAddress` takes, and the first version of
    /// CUDA that has it.
    pub(crate) const fn new(
        symbol: &'static str,
        name: &'static str,
        since: i32,
        is_per_thread: bool,
        address: *const (),
    ) -> Self {
        Self { symbol, name, since, is_per_thread, address: Address(address), calls: AtomicU64::new(0) }
    }

    /// What the library exports.
    pub(crate) fn symbol(&self) -> &'static str {
        self.symbol
    }

    /// What `cuGetProcAddress` takes.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// The first version of CUDA that has it.
    pub(crate) fn since(&self) -> i32 {
        self.since
    }

    /// Whether stream 0 is the calling thread's.
    pub(crate) fn is_per_thread(&self) -> bool {
        self.is_per_thread
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.address.0.cast_mut().cast()
    }

    /// Whether a test means this one by a name: its symbol, or without the version, which means all versions.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        name == self.symbol || name == self.name
    }

    pub(crate) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn clear_calls(&self) {
        self.calls.store(0, Ordering::Relaxed);
    }
}

/// Where a function is. It is only handed out.
struct Address(*const ());

// SAFETY: an address of code, which never changes.
unsafe impl Sync for Address {}
