//! PyTorch's private pools, used by captured graphs and by `torch.cuda.use_mem_pool`.

use super::captures::{self, EndedRoute};
use super::filter::Filter;
use crate::capi::adapters::cuda_device::device_of;
use crate::capi::adapters::first_use::{MAPPED, served};
use crate::capi::ffi_result::or_log;
use crate::device::Device;
use crate::error::ErrorKind;
use std::ffi::{c_int, c_void};

/// For set_begin_allocate_to_pool. Routes subsequent requests that a filter accepts to a private pool, like
/// bfc_pool_begin, until bfc_torch_end_allocate_to_pool. If several pools accept a request, the one begun last serves
/// it. The pool keeps its memory until bfc_torch_release_pool was called as often as this function.
///
/// PyTorch calls this before a capture begins and names no stream. The first request that the filter accepts reveals
/// the stream. Until then, no call of any thread waits for the device or releases memory. From then on, until
/// bfc_torch_end_allocate_to_pool, the streams of accepted requests are queried first, and neither is done while one of
/// them is captured, whatever became of its memory. They must exist until then, or until bfc_forget_stream. This call
/// itself waits for no device work.
///
/// @param id_first, id_second  PyTorch's MempoolId_t, a pair of numbers, which C++ passes as two arguments.
/// @param filter               Points to a std::function<bool(cudaStream_t)> of libstdc++, which is copied. C++ passes
///                             one by value in this way. bfc_torch_alloc calls the filter without a lock held. Its
///                             exceptions propagate to the caller of bfc_torch_alloc. NULL accepts every request.
///
/// # Safety
/// `filter` is NULL or points to such a function.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bfc_torch_begin_allocate_to_pool(
    device: c_int,
    id_first: u64,
    id_second: u64,
    filter: *mut c_void,
) {
    // Called outside of the code that catches panics, because the copy may throw.
    // SAFETY: by this function's contract.
    let filter = unsafe { Filter::copy_of(filter) };
    or_log("bfc_torch_begin_allocate_to_pool", (), || {
        let device = device_of(device)?;
        // The pool begins even if this fails, because a graph's memory must come from its pool.
        let announced = served(device, MAPPED, || device.announce_capture());
        let begun = captures::begin(device, (id_first, id_second), filter, announced.is_ok());
        if begun.is_err() && announced.is_ok() {
            device.withdraw_capture()?;
        }
        begun.and(announced)
    });
}

/// For set_end_allocate_to_pool_fn. Ends the last bfc_torch_begin_allocate_to_pool with that pool. The pool keeps its
/// memory.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_end_allocate_to_pool(device: c_int, id_first: u64, id_second: u64) {
    or_log("bfc_torch_end_allocate_to_pool", (), || {
        let device = device_of(device)?;
        let EndedRoute { name, announced } = captures::end(device, (id_first, id_second))?;
        // The allocator may have been destroyed meanwhile, and with it what it knew of streams.
        match name.map_or(Ok(()), |name| device.end_routes(name)) {
            Ok(()) | Err(ErrorKind::NoAllocator) => {}
            Err(error) => return Err(error),
        }
        if announced { device.withdraw_capture() } else { Ok(()) }
    });
}

/// For set_release_pool. Declares that one graph, or one block of use_mem_pool, no longer uses the pool. The last such
/// call makes the pool's memory common memory, like bfc_pool_release.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_release_pool(device: c_int, id_first: u64, id_second: u64) {
    or_log("bfc_torch_release_pool", (), || {
        let device = device_of(device)?;
        captures::leave(device, (id_first, id_second))?;
        release_unused(device)
    });
}

/// Releases the memory of pools without users to common memory. A failure for lack of host memory is tried again with
/// the next release, or with `bfc_torch_reset`.
pub(super) fn release_unused(device: Device) -> Result<(), ErrorKind> {
    let (mut last, mut answer) = (0, Ok(()));
    while let Some(name) = captures::unused(device, last) {
        last = name;
        // SAFETY: PyTorch has freed the graphs that used it.
        match unsafe { device.pool_release(name) } {
            // In the other cases nothing was allocated in the pool, or all memory is gone.
            Ok(()) | Err(ErrorKind::InvalidArgument | ErrorKind::NoAllocator) => {
                captures::forget_unused(name)
            }
            Err(error) => answer = Err(error),
        }
    }
    answer
}
