//! Where regions come from.

mod cuda;
mod custom;
pub(crate) mod granules;
mod host;
mod host_vmm;
pub(crate) mod life;
pub(crate) mod memory;
pub(crate) mod order;

pub(crate) use cuda::{Cuda, CudaVmm, current_device};
pub(crate) use custom::Custom;
pub use custom::{AllocCallback, FreeCallback};
pub(crate) use host::Host;
pub(crate) use host_vmm::HostVmm;

use std::ops::Deref;

use crate::error::{Error, keeping_last_error};

/// Memory that a backend gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

/// A source of large regions of memory.
///
/// The contract, which every backend fulfils and the pool relies on:
/// - `alloc` gives at least `bytes` bytes, at a multiple of `alignment` where it can, or says by `None` that
///   there is no memory. It may give more and says how much. What it gives overlaps nothing it gave before and
///   did not get back. The pool does not believe this: it refuses what breaks it.
/// - `free` gets back exactly what `alloc` gave, once; or, where `coalesces`, one range that several
///   adjacent grants make up. Work of a device may still run on it. Where it fails the memory is still the
///   pool's, which may give it back again later.
/// - An error of either is anything but a lack of memory, and its words are in `fail!`.
/// - Nothing here is called while an allocator is locked, everything from any thread, several at once.
/// - Nothing here reads or writes the memory; only the debug mode does, through `memory`.
pub(crate) trait Backend {
    fn alloc(&self, alignment: u64, bytes: u64) -> Result<Option<Granted>, Error>;

    fn free(&self, granted: Granted) -> Result<(), Error>;

    /// The allocator has ended, or never began, and nothing is called any more. Not at the end of the process:
    /// there nothing is given back.
    fn close(&self) {}

    /// Whether regions that touch may be one region.
    fn coalesces(&self) -> bool {
        false
    }

    /// Whether a call, apart from `alloc`, may wait for a device and so invalidate a stream capture. Of functions that the
    /// caller supplies nothing is known.
    fn may_synchronize(&self) -> bool {
        true
    }

    /// Whether its memory is there in a forked child, as the child's own.
    fn survives_fork(&self) -> bool {
        false
    }

    /// How much memory it can give at all, if it knows.
    fn total_memory(&self) -> Option<u64>;

    /// How much an allocator should hold at most that is created now without a limit or a fraction.
    fn default_limit(&self) -> Option<u64> {
        self.total_memory()
    }

    fn name(&self) -> &'static str;

    /// Its streams and events, if there is a device.
    fn order(&self) -> Option<&dyn order::Streams> {
        None
    }

    /// How its memory ends and begins anew, if somebody else can end it.
    fn life(&self) -> Option<&dyn life::Life> {
        None
    }

    /// Its granules, if it has one reserved range instead of regions: then `alloc` is never called, and `free` once
    /// at the end, for whatever is mapped.
    fn granules(&self) -> Option<&dyn granules::Granules> {
        None
    }

    /// Access to the memory itself, for the debug mode; none where nothing is known of what its addresses are.
    fn memory(&self) -> Option<&dyn memory::Memory> {
        None
    }
}

/// The backend of one allocator. Copied, so that it is called without holding anything of the allocator; what it
/// refers to lives as long as its [`Owned`], which destruction ends only when no call is under way.
#[derive(Clone, Copy)]
pub(crate) enum AnyBackend {
    Host(Host),
    Custom(Custom),
    Cuda(Cuda),
    CudaVmm(&'static CudaVmm),
    HostVmm(&'static HostVmm),
    #[cfg(test)]
    Test(&'static (dyn Backend + Sync)),
}

/// A backend with what it has of its own on the heap.
pub(crate) struct Owned {
    current: AnyBackend,
    /// That of the life before, which calls may still refer to that began before the current one was known.
    former: Option<AnyBackend>,
}

impl Owned {
    pub(crate) fn new(backend: AnyBackend) -> Self {
        Owned { current: backend, former: None }
    }

    /// Goes on with what [`life::Life::renew`] gave, for which a moment had come without a call under way.
    pub(crate) fn go_on_with(&mut self, renewed: AnyBackend) {
        let former = std::mem::replace(&mut self.current, renewed);
        if let Some(earlier) = self.former.replace(former) {
            // SAFETY: it is referred to by nobody: there was that moment since it was the current one.
            unsafe { earlier.end() };
        }
    }
}

impl Deref for Owned {
    type Target = AnyBackend;

    fn deref(&self) -> &AnyBackend {
        &self.current
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        keeping_last_error(|| self.current.get().close());
        for backend in [Some(self.current), self.former].into_iter().flatten() {
            // SAFETY: its owner ends, and no call is under way.
            unsafe { backend.end() };
        }
    }
}

/// # Safety
/// It was leaked from a box in `open`, for one owner only, which ends, and nobody calls it any more.
unsafe fn end<T>(state: &'static T) {
    // SAFETY: the caller vouches for it.
    drop(unsafe { Box::from_raw(std::ptr::from_ref(state).cast_mut()) });
}

impl AnyBackend {
    /// Ends what it has on the heap.
    ///
    /// # Safety
    /// Its owner ends it, once, and nobody calls it any more.
    unsafe fn end(self) {
        match self {
            // SAFETY: the caller vouches for it.
            AnyBackend::HostVmm(state) => unsafe { end(state) },
            // SAFETY: as above.
            AnyBackend::CudaVmm(state) => unsafe { end(state) },
            _ => {}
        }
    }

    pub(crate) fn get(&self) -> &dyn Backend {
        match self {
            AnyBackend::Host(host) => host,
            AnyBackend::Custom(custom) => custom,
            AnyBackend::Cuda(cuda) => cuda,
            AnyBackend::CudaVmm(cuda_vmm) => *cuda_vmm,
            AnyBackend::HostVmm(host_vmm) => *host_vmm,
            #[cfg(test)]
            AnyBackend::Test(backend) => *backend,
        }
    }
}
