//! PyTorch: `torch.cuda.memory.CUDAPluggableAllocator`, with all of its optional functions.

mod captures;
mod filter;
mod pools;

pub use pools::*;

use super::adapter_options::options_for;
use super::cuda_device::device_of;
use super::first_use::{MAPPED, served};
use crate::capi::ffi_result::or_log;
use crate::capi::panic_hook;
use crate::capi::types::bfc_stream_t;
use crate::device::{ClientOrder, Device};
use crate::error::{ErrorKind, fail, unsaid};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// For CUDAPluggableAllocator's alloc_fn. Allocates memory in stream order, like bfc_alloc_async, or from a private
/// pool while the request is routed to one (bfc_torch_begin_allocate_to_pool).
///
/// @param size    The number of bytes. 0 returns NULL, and no free follows.
/// @param device  The CUDA ordinal of the device.
/// @return The address, a multiple of 512, or NULL on failure. If this is the allocator of all memory, PyTorch does not
///         check for NULL, and the tensor gets address 0. If it is the source of a torch.cuda.MemPool, PyTorch raises
///         its OutOfMemoryError.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn bfc_torch_alloc(size: usize, device: c_int, stream: bfc_stream_t) -> *mut c_void {
    if size == 0 {
        return null_mut();
    }
    // Called outside of the code that catches panics, so that an exception of PyTorch's filter reaches PyTorch.
    let chosen = captures::chosen(device, stream);
    or_log("bfc_torch_alloc", null_mut(), || {
        let device = device_of(device)?;
        let (chosen, stream) = (chosen?, stream as u64);
        let order = match chosen {
            Some(chosen) => ClientOrder::Pool { stream, pool: chosen.name },
            None => ClientOrder::Stream(stream),
        };
        let addr = served(device, MAPPED, || device.alloc_in_order(size as u64, order))?;
        if chosen.is_some_and(captures::take_announcement) {
            // The allocation is valid even if this fails.
            let _ = device.withdraw_capture();
        }
        Ok(addr as *mut c_void)
    })
}

/// For free_fn. Frees memory in the order of a stream, like bfc_free_async. PyTorch passes the stream of the
/// allocation.
///
/// @param ptr   NULL does nothing.
/// @param size  Ignored.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_free(ptr: *mut c_void, size: usize, device: c_int, stream: bfc_stream_t) {
    let _ = size;
    or_log("bfc_torch_free", (), || match ptr.is_null() {
        true => Ok(()),
        // SAFETY: the caller gives the memory up.
        false => unsafe { device_of(device)?.free_on(ptr as u64, stream as u64) },
    });
}

/// For set_init_fn, to which PyTorch passes the number of devices. No device memory is allocated before the first
/// request.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_init(device_count: c_int) {
    let _ = device_count;
    panic_hook::silence_own_panics();
}

/// For set_reset_fn, which is torch.cuda.empty_cache(). Releases wholly free memory to the driver, on all devices, like
/// bfc_trim.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_reset() {
    for device in Device::all_of_cuda() {
        or_log("bfc_torch_reset", (), || {
            pools::release_unused(device)?;
            match device.trim(0) {
                Ok(_) | Err(ErrorKind::NoAllocator) => Ok(()),
                Err(error) => Err(error),
            }
        });
    }
}

/// For set_memory_fraction_fn, which is torch.cuda.set_per_process_memory_fraction(). Sets the limit of the device's
/// allocator to that fraction of the device's memory. If there is no allocator it is created, with the other options
/// from bfc_adapter_options. If there is one its limit changes as by bfc_set_memory_limit. A limit from
/// bfc_adapter_options is kept, which BFC_LOG=error reports. BFC_MEMORY_LIMIT takes precedence over the fraction.
///
/// @param fraction  From 0 to 1.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_memory_fraction(fraction: f64, device: c_int) {
    or_log("bfc_torch_memory_fraction", (), || {
        panic_hook::silence_own_panics();
        // 0 would mean that no fraction is given.
        let fraction = if fraction == 0.0 { f64::MIN_POSITIVE } else { fraction };
        let device = device_of(device)?;
        let options = options_for(device);
        if options.is_some_and(|options| options.memory_limit != 0 || options.memory_fraction != 0.0) {
            return Err(fail!(
                ErrorKind::InvalidArgument,
                "device {}: the limit that bfc_adapter_options has set takes precedence over the fraction {fraction}",
                device.ordinal()
            ));
        }
        match unsaid(|| device.create_with_fraction(fraction, options, MAPPED)) {
            Ok(()) => Ok(()),
            Err(failure) if failure.is(ErrorKind::AlreadyExists) => {
                device.limit_to_fraction(fraction, options)
            }
            Err(failure) => Err(failure.say()),
        }
    });
}

/// For set_base_alloc_fn. Returns the region that contains an address, which an IPC handle refers to.
///
/// @param ptr   The start of a live allocation, or an interior address.
/// @param size  Receives the region's bytes, or 0 on failure. May be NULL.
/// @return The region's start, or NULL if there is no live allocation.
///
/// # Safety
/// `size` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_torch_base_alloc(ptr: *mut c_void, size: *mut usize) -> *mut c_void {
    let (base, bytes) = or_log("bfc_torch_base_alloc", (0, 0), || {
        Ok(Device::owner(ptr as u64)?.address_range(ptr as u64)?.region)
    });
    if !size.is_null() {
        // SAFETY: not NULL, so valid by this function's contract.
        unsafe { size.write(bytes as usize) };
    }
    base as *mut c_void
}

/// For set_record_stream_fn. Declares that a live allocation is also used on a stream, like bfc_record_stream.
///
/// @param ptr  The start of a live allocation. NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_record_stream(ptr: *mut c_void, stream: bfc_stream_t) {
    or_log("bfc_torch_record_stream", (), || match ptr.is_null() {
        true => Ok(()),
        // SAFETY: the caller names a stream that exists.
        false => unsafe { Device::owner(ptr as u64)?.record_stream(ptr as u64, stream as u64) },
    });
}
