//! PyTorch: `torch.cuda.memory.CUDAPluggableAllocator`, with all of its optional functions.

mod captures;
mod filter;
mod pools;

pub use pools::*;

use super::adapter_options::wished;
use super::first_use::{device_of, served};
use crate::capi::ffi_result::or_log;
use crate::capi::panic_hook;
use crate::capi::types::bfc_stream_t;
use crate::device::Device;
use crate::error::{Error, fail, unsaid};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// For CUDAPluggableAllocator's alloc_fn: allocates in the order of a stream, as bfc_alloc_async; while memory is for
/// a pool (bfc_torch_begin_allocate_to_pool), from that.
///
/// @param size    Bytes; 0 gives NULL, and no free follows.
/// @param device  The device's ordinal, as CUDA counts them.
/// @return The address, a multiple of 512; NULL on failure. As the allocator of everything PyTorch does not look at it:
///         the tensor gets address 0. As the source of a torch.cuda.MemPool it raises its OutOfMemoryError.
#[unsafe(no_mangle)]
pub extern "C-unwind" fn bfc_torch_alloc(size: usize, device: c_int, stream: bfc_stream_t) -> *mut c_void {
    if size == 0 {
        return null_mut();
    }
    // Outside of what catches panics: if PyTorch's filter throws, PyTorch is to catch it.
    let chosen = captures::chosen(device, stream);
    or_log("bfc_torch_alloc", null_mut(), || {
        let device = device_of(device)?;
        let (bytes, stream) = (size as u64, stream as u64);
        let Some(chosen) = chosen? else {
            return Ok(served(device, || device.alloc_for_stream(bytes, stream))? as *mut c_void);
        };
        let addr = served(device, || device.alloc_in_pool(bytes, stream, chosen.name))?;
        if captures::is_known_now(chosen) {
            // The allocation stands, whatever comes of it.
            let _ = device.withdraw_capture();
        }
        Ok(addr as *mut c_void)
    })
}

/// For free_fn: frees in the order of a stream, as bfc_free_async. PyTorch gives the stream of the allocation.
///
/// @param ptr   NULL does nothing.
/// @param size  Ignored.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_free(ptr: *mut c_void, size: usize, device: c_int, stream: bfc_stream_t) {
    let _ = size;
    or_log("bfc_torch_free", (), || match ptr.is_null() {
        true => Ok(()),
        false => device_of(device)?.free_on(ptr as u64, stream as u64),
    });
}

/// For set_init_fn: PyTorch says how many devices it sees. Nothing is taken before the first allocation.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_init(device_count: c_int) {
    let _ = device_count;
    panic_hook::silence_own_panics();
}

/// For set_reset_fn, which is torch.cuda.empty_cache(): gives what is wholly free back to the driver, on all devices,
/// as bfc_trim.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_reset() {
    for device in Device::all_of_cuda() {
        or_log("bfc_torch_reset", (), || {
            pools::release_unused(device)?;
            match device.trim(0) {
                Ok(_) | Err(Error::NoAllocator) => Ok(()),
                Err(error) => Err(error),
            }
        });
    }
}

/// For set_memory_fraction_fn, which is torch.cuda.set_per_process_memory_fraction(): sets that share of the device's
/// memory as the limit of the device's allocator. If there is none it is created, otherwise as bfc_adapter_options said;
/// if there is one its limit changes as by bfc_set_memory_limit. A limit from bfc_adapter_options stays, and
/// BFC_LOG=error says so. BFC_MEMORY_LIMIT takes precedence over the share.
///
/// @param fraction  From 0 to 1.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_memory_fraction(fraction: f64, device: c_int) {
    or_log("bfc_torch_memory_fraction", (), || {
        panic_hook::silence_own_panics();
        // 0 would be 'not given'.
        let fraction = if fraction == 0.0 { f64::MIN_POSITIVE } else { fraction };
        let device = device_of(device)?;
        let wish = wished(device);
        if wish.is_some_and(|wish| wish.memory_limit != 0 || wish.memory_fraction != 0.0) {
            return Err(fail!(
                Error::InvalidArgument,
                "device {}: its limit stays, which bfc_adapter_options has said",
                device.ordinal()
            ));
        }
        match unsaid(|| device.create_with_fraction(fraction, wish)) {
            Ok(()) => Ok(()),
            Err(failure) if failure.is(Error::AlreadyExists) => device.limit_to_fraction(fraction, wish),
            Err(failure) => Err(failure.say()),
        }
    });
}

/// For set_base_alloc_fn: the region around an address, which is what an IPC handle would name.
///
/// @param ptr   The start of a live allocation, or an address inside.
/// @param size  Gets the region's bytes; 0 on failure. NULL: not wanted.
/// @return The region's start; NULL if no live allocation is there.
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

/// For set_record_stream_fn: a live allocation is also used on a stream, as bfc_record_stream.
///
/// @param ptr  The start of a live allocation; NULL does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_torch_record_stream(ptr: *mut c_void, stream: bfc_stream_t) {
    or_log("bfc_torch_record_stream", (), || match ptr.is_null() {
        true => Ok(()),
        false => Device::owner(ptr as u64)?.record_stream(ptr as u64, stream as u64),
    });
}
