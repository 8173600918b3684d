//! The end of a range's memory with the primary context, and its next life.
//!
//! What the driver's manual says (CUDA Driver API, of 12.9 and 13):
//! - `cuCtxDestroy` "will not destroy memory allocations by cuMemCreate() [...] These memory allocations are not
//!   associated with any CUDA context and need to be destroyed explicitly".
//! - `cuDevicePrimaryCtxReset` "explicitly destroys and cleans up all resources associated with the current device in the
//!   current process". Whether physical memory and its mappings are among them is not said; both can be believed.
//! - `cuMemAddressReserve` names no device and no context. That a range stays reserved is believed.
//! - `cuMemRelease`: "If handle is not a valid handle the behavior is undefined". So a handle is used only if it is known
//!   to be one.
//! - `cuMemRetainAllocationHandle`: "The handle is guaranteed to be the same handle value used to map the memory. If the
//!   address requested is not mapped, the function will fail". So it tells whether a handle is one still.
//! - None of the functions used here can answer CUDA_ERROR_INVALID_CONTEXT: that they need no context is believed.
//!
//! So what is found to be mapped as it was is unmapped and released, and what is not is left alone: either it is gone, or
//! it is lost until the process ends. None of this was seen on a real driver.

use super::handles::{Handles, release};
use super::notices::Notices;
use super::{CudaVmm, free_range, reserve};
use crate::backend::cuda::calls::{self, Failure};
use crate::backend::cuda::context::outside;
use crate::backend::life::Life;
use crate::backend::{AnyBackend, Granted};
use crate::core::vmm::Range;
use crate::error::Error;
use cuda_sys::{CUDA_ERROR_INVALID_VALUE, CUmemGenericAllocationHandle as Handle, Driver};

/// What has become of a granule that was mapped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It was there, and is mapped no more.
    Unmapped,
    /// Nothing is mapped there.
    Nothing,
    /// Something is, or may be, that is not to be touched.
    Something,
}

impl CudaVmm {
    /// Gives back what is found to be there still of a life that is over. No work uses it: that ended with the context.
    pub(super) fn bury(&self) {
        let mut mapped = self.mapped.lock();
        let handles = &mut mapped.handles;
        let mut left = handles.mapped();
        let (mut unmapped, mut gone) = (false, false);
        let buried = outside(self.cuda.driver, |driver| {
            for number in 0..handles.places.entries() {
                if left == 0 {
                    break;
                }
                let Some(place) = handles.places.get(number).checked_sub(1) else { continue };
                left -= 1;
                match self.unmap_if_there(driver, number, handles.at(place)) {
                    Found::Unmapped => {
                        let _ = release(driver, handles, place);
                        unmapped = true;
                    }
                    Found::Nothing => gone = true,
                    Found::Something => handles.is_range_lost = true,
                }
            }
            // Where those that were mapped are there, so are those that were on their way.
            let next = |handles: &mut Handles| handles.kept.pop().or_else(|| handles.unwanted.pop());
            while let Some(place) = next(handles).filter(|_| unmapped && !gone) {
                let _ = release(driver, handles, place);
            }
            Ok(())
        });
        // Where nothing could be asked nothing is known.
        handles.is_range_lost |= buried.is_err();
        handles.clear();
    }

    fn unmap_if_there(&self, driver: Driver, number: usize, handle: Handle) -> Found {
        let address = self.range.address(number);
        match calls::retain_handle_at(driver, address) {
            Ok(found) => {
                // SAFETY: it was retained just now.
                let _ = unsafe { calls::release(driver, found) };
                if found != handle {
                    return Found::Something;
                }
                // SAFETY: it is what was mapped there, by one call, and nobody uses it any more.
                match unsafe { calls::unmap(driver, address, self.range.granule) } {
                    Ok(()) => Found::Unmapped,
                    Err(_) => Found::Something,
                }
            }
            Err(failure) if failure.is(CUDA_ERROR_INVALID_VALUE) => Found::Nothing,
            Err(_) => Found::Something,
        }
    }

    /// Gives the addresses back, unless that might be somebody else's loss; `next` was reserved meanwhile.
    pub(super) fn leave_range(&self, next: Option<Range>) {
        let mut mapped = self.mapped.lock();
        let is_lost = &mut mapped.handles.is_range_lost;
        let is_next = next.is_some_and(|next| next.base < self.range.end() && self.range.base < next.end());
        // What is reserved again was not reserved any more.
        if !*is_lost && !is_next {
            let _ = outside(self.cuda.driver, |driver| free_range(driver, self.range));
        }
        *is_lost = true;
    }

    fn begin_anew(&self) -> Result<Result<&'static Self, Error>, Failure> {
        let cuda = self.cuda.retain_again()?;
        self.bury();
        // Before the old one goes, so that it is another: pointers from before are none of the new life.
        let range = reserve(&cuda, self.range.granule, self.range.bytes)?;
        self.leave_range(Some(range));
        // The peers are asked about again: they too may have been reset, or have come to be reachable.
        let for_rdma = self.mapped.lock().handles.for_rdma;
        Ok(Self::in_range(cuda, range, for_rdma, Notices::default()))
    }
}

impl Life for CudaVmm {
    fn is_over(&self) -> bool {
        self.cuda.is_over()
    }

    /// What is mapped tells nothing: it may outlive the context. Where the driver numbers no contexts the program is
    /// believed.
    fn look(&self, _region: Option<Granted>, told: bool) -> bool {
        self.cuda.look(None, told)
    }

    fn end(&self) {
        self.cuda.end();
    }

    fn renew(&self) -> Result<AnyBackend, Error> {
        let began = self.begin_anew().map_err(|failure| failure.explain_renewal(self.cuda.driver))?;
        began.map(AnyBackend::CudaVmm)
    }
}
