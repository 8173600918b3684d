//! Backends: the sources of regions.

mod addresses;
mod cuda;
mod custom;
mod exclusive;
pub(crate) mod granules;
mod host;
mod host_vmm;
pub(crate) mod life;
pub(crate) mod memory;
pub(crate) mod order;

pub(crate) use cuda::{Cuda, CudaVmm, current_context, current_device, open_preferring_vmm};
pub(crate) use custom::Custom;
pub use custom::{AllocCallback, FreeCallback};
pub(crate) use host::{Host, HugePages};
pub(crate) use host_vmm::HostVmm;

use std::ops::Deref;

use crate::error::{ErrorKind, keeping_last_error};
use bfc_core::units::Span;

/// Memory provided by a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) base: u64,
    pub(crate) bytes: u64,
}

/// A source of large memory regions.
///
/// The contract between backends and the pool:
/// - `alloc` provides at least `bytes` bytes, at a multiple of `alignment` if possible, or returns `None` if there is
///   no memory. It may provide more than requested and reports the size. The memory overlaps no other that was provided
///   and not freed. The pool verifies this and rejects violations.
/// - `free` gets exactly what `alloc` provided, once. If `coalesces`, it may get one range that consists of several
///   adjacent grants. If there is an `order`, no device work runs on the memory, because the pool has waited for it. After
///   a failure the pool still owns the memory and may free it again later.
/// - An error of either function is never a lack of memory, and its message is set with `fail!`.
/// - Nothing here but `discard` and `populate` is called while an allocator is locked. Calls may come from any thread,
///   several at once.
/// - No function but `discard` reads or writes the memory. Otherwise only the debug mode does, through `memory`.
pub(crate) trait Backend {
    fn alloc(&self, alignment: u64, bytes: u64) -> Result<Option<Granted>, ErrorKind>;

    fn free(&self, granted: Granted) -> Result<(), ErrorKind>;

    /// Returns whether [`Self::discard`] has an effect.
    fn discards(&self) -> bool {
        false
    }

    /// Returns the whole pages in a part of a region to the system, while the region itself stays. They read as zero
    /// afterwards. Returns the range of these pages. If the memory is free the allocator is locked, so that no request
    /// takes it meanwhile: this function neither waits nor calls other code, and the pool passes small pieces.
    ///
    /// # Safety
    /// Nothing uses the memory.
    unsafe fn discard(&self, _: Span) -> Option<Span> {
        None
    }

    /// Returns whether new regions are to be populated in the background.
    fn populates(&self) -> bool {
        false
    }

    /// Makes a part of a region resident. Its contents stay. The allocator is locked as for [`Self::discard`]. Returns
    /// false if the system does not support this.
    fn populate(&self, _: Span) -> bool {
        false
    }

    /// Returns how many bytes may be populated at this moment, so that enough is left for everything else.
    fn populates_at_most(&self) -> u64 {
        0
    }

    /// Closes the backend. The allocator has ended, or its creation failed, and nothing else is called afterwards. Not
    /// called at the end of the process, where nothing is released.
    fn close(&self) {}

    /// Returns whether adjacent regions may become one region.
    fn coalesces(&self) -> bool {
        false
    }

    /// Returns whether a call other than `alloc` may wait for a device and so invalidate a stream capture. True by
    /// default, because nothing is known about functions supplied by the caller.
    fn may_synchronize(&self) -> bool {
        true
    }

    /// Returns whether the memory exists in a forked child, as the child's own.
    fn survives_fork(&self) -> bool {
        false
    }

    /// Returns how much memory the backend can provide in total, if known.
    fn total_memory(&self) -> Option<u64>;

    /// Returns whether [`Self::total_memory`] may change.
    fn total_may_change(&self) -> bool {
        false
    }

    /// Returns the current value of [`Self::total_memory`], if it may change and can be determined at this moment.
    fn total_now(&self) -> Option<u64> {
        None
    }

    /// Returns the limit of an allocator that is created now without a limit or a fraction.
    fn default_limit(&self) -> Option<u64> {
        self.total_memory()
    }

    fn name(&self) -> &'static str;

    /// Returns access to streams and events, if there is a device.
    fn order(&self) -> Option<&dyn order::Streams> {
        None
    }

    /// Returns the interface for the loss and renewal of the memory, if code outside the library can end it.
    fn life(&self) -> Option<&dyn life::Life> {
        None
    }

    /// Returns the granules, if the backend has one reserved range instead of regions. In that case `alloc` is never
    /// called, and `free` is called once at the end, for everything that is mapped.
    fn granules(&self) -> Option<&dyn granules::Granules> {
        None
    }

    /// Returns access to the memory itself, for the debug mode. `None` if the backend does not know what its addresses
    /// are.
    fn memory(&self) -> Option<&dyn memory::Memory> {
        None
    }
}

/// The backend of one allocator. It is copied, so that it can be called without holding anything of the allocator. Its
/// referents live as long as its [`Owned`], which destruction ends only when no call is under way.
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

impl AnyBackend {
    /// Returns whether the memory is the host's, and of this library.
    pub(crate) fn is_of_host(&self) -> bool {
        matches!(self, AnyBackend::Host(_) | AnyBackend::HostVmm(_))
    }
}

/// A backend with the data that it owns on the heap.
pub(crate) struct Owned {
    current: AnyBackend,
    /// The backend of the previous life. Calls that began before the current one was known may still refer to it.
    former: Option<AnyBackend>,
}

impl Owned {
    pub(crate) fn new(backend: AnyBackend) -> Self {
        Owned { current: backend, former: None }
    }

    /// Replaces the backend by the result of [`life::Life::renew`]. Since the current one was set, there must have been
    /// a moment without a call under way.
    pub(crate) fn set_renewed(&mut self, renewed: AnyBackend) {
        let former = std::mem::replace(&mut self.current, renewed);
        if let Some(earlier) = self.former.replace(former) {
            // SAFETY: nothing refers to it, because there was such a moment since it was replaced.
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
/// `state` was leaked from a box in `open`, for a single owner, which ends. It is not used afterwards.
unsafe fn end<T>(state: &'static T) {
    // SAFETY: guaranteed by the caller.
    drop(unsafe { Box::from_raw(std::ptr::from_ref(state).cast_mut()) });
}

impl AnyBackend {
    /// Frees the backend's data on the heap.
    ///
    /// # Safety
    /// Called once, by the owner. The backend is not used afterwards.
    unsafe fn end(self) {
        match self {
            // SAFETY: guaranteed by the caller.
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
