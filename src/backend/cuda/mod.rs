//! Device memory from `cuMemAlloc`, in the device's primary context, which the CUDA runtime and all frameworks use.
//!
//! Every call pushes the library's context and pops it afterwards, so that the caller's context stays current
//! ([`context`]). The program may end the context ([`life`]). The order of device work is in [`events`], the driver's
//! functions are in [`calls`], and memory in one virtual range is in [`vmm`].

mod calls;
mod context;
mod current;
mod events;
mod life;
mod memory;
mod other_contexts;
mod vmm;

use self::calls::Failure;
use self::context::{inside, within};
pub(crate) use self::current::{current_context, current_device};
pub(crate) use self::vmm::CudaVmm;
use super::life::Life;
use super::memory::Memory;
use super::order::Streams;
use super::{AnyBackend, Backend, Granted};
use crate::error::{ErrorKind, LastError, fail, keeping_last_error};
use crate::log::{self, Level};
use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, CUcontext, CUdevice, Driver, Missing};
use std::ffi::c_int;

/// Advice for programs that do not need a device.
const WITHOUT_A_DEVICE: &str =
    "; name BFC_BACKEND_HOST or BFC_BACKEND_CUSTOM (or set BFC_BACKEND=host) to run without a device";

/// A device with its primary context, which is retained until `close`.
#[derive(Clone, Copy)]
pub(crate) struct Cuda {
    driver: Driver,
    device: CUdevice,
    context: CUcontext,
    ordinal: u8,
    /// The number of lives of the context that were known to be over when this one began.
    life: u64,
    /// The context's number, which distinguishes its lives, if the driver provides one.
    id: Option<u64>,
    total: u64,
    /// The bytes that were free at creation.
    free: u64,
}

// SAFETY: a context is a handle that may be made current on any thread, and on several at once.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Opens the device with a CUDA ordinal.
    pub(crate) fn open(ordinal: i32) -> Result<Self, ErrorKind> {
        let driver = Driver::load()
            .map_err(|missing| fail!(ErrorKind::BackendUnavailable, "{missing}{WITHOUT_A_DEVICE}"))?;
        let absent = |failure: Failure| failure.explain_absence(driver);
        calls::init(driver).map_err(absent)?;
        let count = calls::device_count(driver).map_err(absent)?;
        if ordinal >= count {
            return Err(no_such_device(ordinal, count));
        }
        require_all(driver).map_err(|missing| absent(missing.into()))?;
        let device = calls::device(driver, ordinal).map_err(absent)?;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // devices are 0 to 255
        let ordinal = ordinal as u8;
        let context = calls::retain_primary(driver, device).map_err(absent)?;
        let mut cuda = Cuda { driver, device, context, ordinal, life: 0, id: None, total: 0, free: 0 };
        cuda.life = cuda.present_life();
        match within(&cuda, |driver| Ok((calls::current_id(driver)?, calls::memory_info(driver)?))) {
            Ok((id, (free, total))) => (cuda.id, cuda.free, cuda.total) = (id, free, total),
            Err(failure) => {
                // The failure's message must be the last one set.
                cuda.close();
                return Err(failure.explain(driver));
            }
        }
        Ok(cuda)
    }
}

/// Opens a device for memory that is mapped in pieces, if the device supports it and no program loses by it, and
/// otherwise for memory from `cuMemAlloc`. The log gives the reason. `limit` is called once the device is open.
pub(crate) fn open_preferring_vmm(
    ordinal: i32,
    limit: impl FnOnce(&Cuda) -> Result<u64, ErrorKind>,
) -> Result<AnyBackend, ErrorKind> {
    let cuda = Cuda::open(ordinal)?;
    match limit(&cuda).and_then(|limit| CudaVmm::on_all_peers(cuda, limit)) {
        Ok(vmm) => Ok(AnyBackend::CudaVmm(vmm)),
        Err(ErrorKind::BackendUnavailable) => {
            log::emit(
                Level::Info,
                format_args!("device {ordinal}: cuda is used instead of cuda_vmm: {LastError}"),
            );
            Ok(AnyBackend::Cuda(cuda))
        }
        Err(error) => {
            keeping_last_error(|| cuda.close());
            Err(error)
        }
    }
}

#[cold]
fn no_such_device(ordinal: c_int, count: c_int) -> ErrorKind {
    if count == 0 {
        return fail!(
            ErrorKind::BackendUnavailable,
            "the NVIDIA driver shows no device: look at nvidia-smi and at CUDA_VISIBLE_DEVICES{WITHOUT_A_DEVICE}"
        );
    }
    fail!(
        ErrorKind::BackendUnavailable,
        "there is no CUDA device {ordinal}: the NVIDIA driver shows {count}, counted from 0; look at nvidia-smi and \
         at CUDA_VISIBLE_DEVICES{WITHOUT_A_DEVICE}"
    )
}

/// Checks for all functions that the backend depends on, so that a missing one fails creation rather than a later call.
fn require_all(driver: Driver) -> Result<(), Missing> {
    driver.cuDevicePrimaryCtxRelease_v2().or_else(|_| driver.cuDevicePrimaryCtxRelease())?;
    driver.cuDevicePrimaryCtxRetain()?;
    driver.cuCtxPushCurrent_v2()?;
    driver.cuCtxPopCurrent_v2()?;
    driver.cuCtxSynchronize()?;
    driver.cuMemGetInfo_v2()?;
    driver.cuMemAlloc_v2()?;
    driver.cuMemFree_v2()?;
    driver.cuEventCreate()?;
    driver.cuEventDestroy_v2()?;
    driver.cuEventRecord()?;
    driver.cuEventQuery()?;
    driver.cuEventSynchronize()?;
    driver.cuStreamWaitEvent()?;
    Ok(())
}

impl Backend for Cuda {
    fn alloc(&self, _alignment: u64, bytes: u64) -> Result<Option<Granted>, ErrorKind> {
        let given = inside(self, |driver| {
            let base = calls::alloc(driver, bytes)?;
            match self.require_same(driver) {
                Ok(()) => Ok(base),
                // The memory was lost with the context, which ended meanwhile.
                Err(Failure::Gone) => Err(Failure::Gone),
                Err(failure) => {
                    // SAFETY: nothing refers to the memory yet.
                    let _ = unsafe { calls::free(driver, base) };
                    Err(failure)
                }
            }
        });
        match given {
            Ok(base) => Ok(Some(Granted { base, bytes })),
            Err(failure) if failure.is(CUDA_ERROR_OUT_OF_MEMORY) => Ok(None),
            Err(failure) => Err(failure.explain(self.driver)),
        }
    }

    fn free(&self, granted: Granted) -> Result<(), ErrorKind> {
        // SAFETY: the pool frees what `alloc` returned, once. No chunk of it is in use, and no work is under way.
        let freed = inside(self, |driver| unsafe { calls::free(driver, granted.base) });
        match freed {
            // At the end of the driver or of the context all memory is freed anyway.
            Err(failure) if failure.is_the_end() || failure == Failure::Gone => Ok(()),
            freed => freed.map_err(|failure| failure.explain(self.driver)),
        }
    }

    fn close(&self) {
        self.release();
    }

    fn total_memory(&self) -> Option<u64> {
        Some(self.total)
    }

    fn default_limit(&self) -> Option<u64> {
        Some(less_reserve(self.free))
    }

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn order(&self) -> Option<&dyn Streams> {
        Some(self)
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(self)
    }

    fn life(&self) -> Option<&dyn Life> {
        Some(self)
    }
}

/// Leaves memory for other uses of the device by the process: kernels, library workspaces, other contexts.
fn less_reserve(free: u64) -> u64 {
    const LEAST_RESERVE: u64 = 300 << 20;
    free.saturating_sub(LEAST_RESERVE.max(free / 20))
}

#[cfg(test)]
mod tests;
