//! The driver's functions, as used by the function table and by the call log.

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
    /// Creates a function that was never called, from its exported symbol, its name for `cuGetProcAddress`, and the
    /// first version of CUDA that has it.
    pub(crate) const fn new(
        symbol: &'static str,
        name: &'static str,
        since: i32,
        is_per_thread: bool,
        address: *const (),
    ) -> Self {
        Self { symbol, name, since, is_per_thread, address: Address(address), calls: AtomicU64::new(0) }
    }

    /// Returns the exported symbol.
    pub(crate) fn symbol(&self) -> &'static str {
        self.symbol
    }

    /// Returns the name for `cuGetProcAddress`.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the first version of CUDA that has the function.
    pub(crate) fn since(&self) -> i32 {
        self.since
    }

    /// Returns whether stream 0 is the calling thread's default stream.
    pub(crate) fn is_per_thread(&self) -> bool {
        self.is_per_thread
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.address.0.cast_mut().cast()
    }

    /// Returns whether a test means this function by a name: its symbol, or its name without a version, which means all
    /// versions.
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

/// The address of a function. It is only passed on.
struct Address(*const ());

// SAFETY: a constant address of code.
unsafe impl Sync for Address {}
