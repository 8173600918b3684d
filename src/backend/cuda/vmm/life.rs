//! The end of a range's memory with the primary context, and its next life.
//!
//! The driver's manual (CUDA Driver API, of 12.9 and 13):
//! - `cuCtxDestroy` "will not destroy memory allocations by cuMemCreate() [...] These memory allocations are not
//!   associated with any CUDA context and need to be destroyed explicitly".
//! - `cuDevicePrimaryCtxReset` "explicitly destroys and cleans up all resources associated with the current device in
//!   the current process". Whether this includes physical memory and its mappings is not documented. Both are possible.
//! - `cuMemAddressReserve` takes no device and no context. The library assumes that a range stays reserved.
//! - `cuMemRelease`: "If handle is not a valid handle the behavior is undefined". So a handle is used only if it is
//!   known to be valid.
//! - `cuMemRetainAllocationHandle`: "The handle is guaranteed to be the same handle value used to map the memory. If
//!   the address requested is not mapped, the function will fail". So it tells whether a handle is still valid.
//! - None of the functions used here is documented to return CUDA_ERROR_INVALID_CONTEXT. The library assumes that they
//!   need no context.
//!
//! So memory that is still mapped as before is unmapped and released. Everything else is left alone: it no longer
//! exists, or it is lost until the process ends. None of this was observed on a real driver.

use super::handles::{Handles, release};
use super::notices::Notices;
use super::{CudaVmm, free_range, reserve};
use crate::backend::cuda::calls::{self, Failure};
use crate::backend::cuda::context::outside;
use crate::backend::life::Life;
use crate::backend::{AnyBackend, Granted};
use crate::error::ErrorKind;
use bfc_core::vmm::Range;
use cuda_sys::{CUDA_ERROR_INVALID_VALUE, CUmemGenericAllocationHandle as Handle, Driver};

/// The state of a granule that was mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MappingState {
    /// It was still mapped, and is unmapped now.
    Unmapped,
    /// Nothing is mapped there.
    Nothing,
    /// Something is mapped there, or may be, that must not be changed.
    Something,
}

impl CudaVmm {
    /// Releases what still exists of a life that is over. No work uses it, because the work ended with the context.
    pub(super) fn bury(&self) {
        self.mapped.with(|mapped| self.bury_all(&mut mapped.handles));
    }

    fn bury_all(&self, handles: &mut Handles) {
        let mut left = handles.mapped();
        let (mut unmapped, mut gone) = (false, false);
        let buried = outside(self.cuda.driver, |driver| {
            for number in 0..handles.places.entries() {
                if left == 0 {
                    break;
                }
                let Some(place) = handles.places.get(number).checked_sub(1) else { continue };
                left -= 1;
                match self.unmap_granule(driver, number, handles.at(place)) {
                    MappingState::Unmapped => {
                        let _ = release(driver, handles, place);
                        unmapped = true;
                    }
                    MappingState::Nothing => gone = true,
                    MappingState::Something => handles.is_range_lost = true,
                }
            }
            // If the mapped handles still exist, then so do those that were not mapped.
            let next = |handles: &mut Handles| handles.kept.pop().or_else(|| handles.unwanted.pop());
            while let Some(place) = next(handles).filter(|_| unmapped && !gone) {
                let _ = release(driver, handles, place);
            }
            Ok(())
        });
        // If the driver could not be asked, nothing is known about the range.
        handles.is_range_lost |= buried.is_err();
        handles.clear();
    }

    fn unmap_granule(&self, driver: Driver, number: usize, handle: Handle) -> MappingState {
        let address = self.range.address(number);
        match calls::retain_handle_at(driver, address) {
            Ok(found) => {
                // SAFETY: it was retained just now.
                let _ = unsafe { calls::release(driver, found) };
                if found != handle {
                    return MappingState::Something;
                }
                // SAFETY: the granule has its old mapping, made by one call, and nothing uses it.
                match unsafe { calls::unmap(driver, address, self.range.granule) } {
                    Ok(()) => MappingState::Unmapped,
                    Err(_) => MappingState::Something,
                }
            }
            Err(failure) if failure.is(CUDA_ERROR_INVALID_VALUE) => MappingState::Nothing,
            Err(_) => MappingState::Something,
        }
    }

    /// Frees the addresses, unless they may belong to another owner. `next` was reserved meanwhile.
    pub(super) fn leave_range(&self, next: Option<Range>) {
        let is_next = next.is_some_and(|next| next.base < self.range.end() && self.range.base < next.end());
        self.mapped.with(|mapped| {
            mapped.reserved = None;
            let is_lost = std::mem::replace(&mut mapped.handles.is_range_lost, true);
            // If the driver has reserved the addresses again, this range's reservation had ended already.
            if !is_lost && !is_next {
                let _ = outside(self.cuda.driver, |driver| free_range(driver, self.range));
            }
        });
    }

    fn begin_new_life(&self) -> Result<Result<&'static Self, ErrorKind>, Failure> {
        let cuda = self.cuda.renew_context()?;
        self.bury();
        // The new range is reserved before the old one is freed, so that it differs, and pointers of the old life are
        // not valid in the new one.
        let range = reserve(&cuda, self.range.granule, self.range.bytes)?;
        self.leave_range(Some(range));
        // The peers are queried again, because they too may have been reset, or may have become reachable.
        let for_rdma = self.mapped.with(|mapped| mapped.handles.for_rdma);
        Ok(Self::in_range(cuda, range, for_rdma, Notices::default()))
    }
}

impl Life for CudaVmm {
    fn is_over(&self) -> bool {
        self.cuda.is_over()
    }

    /// The mapping proves nothing, because it may outlive the context. If the driver does not number contexts, the
    /// program's report decides.
    fn probe(&self, _region: Option<Granted>, declared: bool) -> bool {
        self.cuda.probe(None, declared)
    }

    fn end(&self) {
        self.cuda.end();
    }

    fn renew(&self) -> Result<AnyBackend, ErrorKind> {
        let began = self.begin_new_life().map_err(|failure| failure.explain_renewal(self.cuda.driver))?;
        began.map(AnyBackend::CudaVmm)
    }
}
