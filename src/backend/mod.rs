//! Where regions come from.

mod custom;
mod host;
pub(crate) mod order;

pub(crate) use custom::Custom;
pub use custom::{AllocCallback, FreeCallback};
pub(crate) use host::Host;

/// Memory that a backend gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

/// A source of large regions of memory.
///
/// The contract, which every backend fulfils and the pool relies on:
/// - `alloc` gives at least `bytes` bytes, at a multiple of `alignment` where it can, or says that there
///   is no memory. It may give more and says how much. What it gives overlaps nothing it gave before and
///   did not get back. The pool does not believe this: it refuses what breaks it.
/// - `free` gets back exactly what `alloc` gave, once; or, where `coalesces`, one range that several
///   adjacent grants make up. It cannot fail.
/// - Neither is called while an allocator is locked, both from any thread, several at once.
/// - Neither reads or writes the memory.
pub(crate) trait Backend {
    fn alloc(&self, alignment: u64, bytes: u64) -> Option<Granted>;

    fn free(&self, granted: Granted);

    /// Whether regions that touch may be one region.
    fn coalesces(&self) -> bool {
        false
    }

    /// Whether its memory is there in a forked child, as the child's own.
    fn survives_fork(&self) -> bool {
        false
    }

    /// How much memory it can give at all, if it knows.
    fn total_memory(&self) -> Option<u64>;

    fn name(&self) -> &'static str;

    /// Its streams and events, if there is a device.
    fn order(&self) -> Option<&dyn order::Order> {
        None
    }
}

/// The backend of one allocator. Copied, so that it is called without holding anything of the allocator.
#[derive(Clone, Copy)]
pub(crate) enum AnyBackend {
    Host(Host),
    Custom(Custom),
    /// A simulation, for tests of the pool.
    #[cfg(test)]
    Simulated(&'static (dyn Backend + Sync)),
}

impl AnyBackend {
    pub(crate) fn get(&self) -> &dyn Backend {
        match self {
            AnyBackend::Host(host) => host,
            AnyBackend::Custom(custom) => custom,
            #[cfg(test)]
            AnyBackend::Simulated(device) => *device,
        }
    }
}
