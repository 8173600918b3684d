//! Creation and destruction.

use super::ffi_result::status;
use super::types::{bfc_options_t, bfc_region_callback_t, bfc_status_t, bfc_suballocator_t};
use super::{panic_hook, versioned};
use crate::device::Device;
use crate::error::{Error, fail};
use crate::options::{BackendKind, Options, SubAllocator};
use std::ffi::{CStr, c_void};

/// Creates the allocator of a device. No memory is taken before the first allocation.
///
/// @param device   An ordinal, 0 to 1023.
/// @param options  Copied. NULL: backend AUTO, growth and garbage collection on, the rest from the
///                 environment and the defaults.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT, BFC_ERROR_ALREADY_EXISTS, BFC_ERROR_BACKEND_UNAVAILABLE,
///         BFC_ERROR_BACKEND_FAILED (the driver), BFC_ERROR_OUT_OF_MEMORY (host memory; on CUDA also a device
///         without free memory), BFC_ERROR_SHUTTING_DOWN, BFC_ERROR_INTERNAL.
///         After a failure nothing was created.
///
/// # Safety
/// `options` is NULL or points to a struct of `struct_size` bytes, whose pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_create(device: i32, options: *const bfc_options_t) -> bfc_status_t {
    status(|| {
        panic_hook::silence_own_panics();
        let device = Device::new(device)?;
        // SAFETY: by this function's contract.
        device.create(unsafe { given(options)? }.as_ref())
    })
}

/// NULL is none.
///
/// # Safety
/// `options` is NULL or points to a struct of `struct_size` bytes, whose pointers are valid as long as the result is used.
pub(super) unsafe fn given<'a>(options: *const bfc_options_t) -> Result<Option<Options<'a>>, Error> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, so valid by this function's contract.
    let raw = unsafe { versioned::read(options)? };
    // SAFETY: as above.
    unsafe { parse(&raw) }.map(Some)
}

/// # Safety
/// The pointers in `raw` are NULL or valid; the name lives as long as the result is used.
unsafe fn parse<'a>(raw: &bfc_options_t) -> Result<Options<'a>, Error> {
    let backend = raw.backend;
    let Some(backend) = BackendKind::from_code(backend) else {
        return Err(fail!(Error::InvalidArgument, "unknown backend {backend} in bfc_options_t"));
    };
    if raw.reserved != 0 {
        return Err(fail!(Error::InvalidArgument, "the reserved field of bfc_options_t is not 0"));
    }
    let name = if raw.name.is_null() {
        None
    } else {
        // SAFETY: not NULL, so a NUL-terminated string by this function's contract.
        let name = unsafe { CStr::from_ptr(raw.name) };
        let name: Result<&'a str, _> = name.to_str();
        Some(name.map_err(|_| fail!(Error::InvalidArgument, "the allocator's name is not UTF-8"))?)
    };
    let suballocator = if raw.suballocator.is_null() {
        None
    } else {
        // SAFETY: not NULL, so valid by this function's contract.
        let raw = unsafe { versioned::read(raw.suballocator)? };
        // SAFETY: as above.
        Some(unsafe { parse_suballocator(&raw)? })
    };
    Ok(Options {
        backend,
        flags: raw.flags,
        memory_limit: raw.memory_limit,
        memory_fraction: raw.memory_fraction,
        fragmentation_fraction: raw.fragmentation_fraction,
        initial_region_bytes: raw.initial_region_bytes,
        retry_timeout_ms: raw.retry_timeout_ms,
        name,
        suballocator,
    })
}

/// # Safety
/// The functions are valid, as bfc_suballocator_t says.
unsafe fn parse_suballocator(raw: &bfc_suballocator_t) -> Result<SubAllocator, Error> {
    let (Some(alloc), Some(free)) = (raw.alloc, raw.free) else {
        return Err(fail!(Error::InvalidArgument, "a function of bfc_suballocator_t is NULL"));
    };
    if raw.reserved != 0 {
        return Err(fail!(Error::InvalidArgument, "the reserved field of bfc_suballocator_t is not 0"));
    }
    // SAFETY: by this function's contract.
    Ok(unsafe { SubAllocator::new(raw.user_data, alloc, free, raw.supports_coalescing != 0) })
}

/// Ends the allocator of a device and gives every region back. Waits for calls in flight in other
/// threads, and wakes those who wait for memory: they return BFC_ERROR_SHUTTING_DOWN.
///
/// Waits for the work of streams of other contexts that used its memory, and fails while the library sees a capture
/// (bfc_alloc_async says of which streams) or one is announced: call it after the end of the capture.
///
/// @return BFC_OK; BFC_ERROR_BUSY while allocations live (nothing has changed then) and from a callback,
///         BFC_ERROR_BACKEND_FAILED while a stream is captured (nor then), BFC_ERROR_INVALID_ARGUMENT,
///         BFC_ERROR_NO_ALLOCATOR, BFC_ERROR_SHUTTING_DOWN, BFC_ERROR_INTERNAL.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_destroy(device: i32) -> bfc_status_t {
    status(|| Device::new(device)?.destroy())
}

/// As bfc_destroy, but also with live allocations, whose pointers are then BFC_ERROR_INVALID_POINTER.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_destroy_forced(device: i32) -> bfc_status_t {
    status(|| Device::new(device)?.destroy_forced())
}

/// Has a function called whenever memory was obtained from the backend and before it goes back: for registration with
/// NCCL or RDMA. NULL ends that, and holds when the call returns.
///
/// @param user_data  Passed on; it must stay valid until the allocator has ended, or another call has returned.
/// @return BFC_OK; BFC_ERROR_BUSY if the allocator holds memory already (set it right after bfc_create), and the
///         errors of every call.
///
/// # Safety
/// The function may be called with `user_data` from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_set_region_callback(
    device: i32,
    callback: bfc_region_callback_t,
    user_data: *mut c_void,
) -> bfc_status_t {
    status(|| {
        let device = Device::new(device)?;
        // SAFETY: by this function's contract.
        unsafe { device.set_region_callback(callback, user_data) }
    })
}

/// Says that the program has reset or destroyed the context that the device's memory belongs to (cudaDeviceReset,
/// cuDevicePrimaryCtxReset, or more cuDevicePrimaryCtxRelease than it had retained); call it right afterwards. With
/// the context went all memory and all events: the allocator forgets its regions, its streams and its private pools
/// without another call of the driver, live allocations count as freed, and every pointer from before is
/// BFC_ERROR_INVALID_POINTER, until the driver gives the same addresses again. The region callback is told of what
/// went (BFC_REGION_RETURNING). The allocator itself stays: its next allocation retains the context anew.
/// BFC_BACKEND_CUDA_VMM reserves another range of addresses then. Whether a reset takes along physical memory that is
/// mapped in a range NVIDIA's manual leaves open: what the driver still has of it is given back first.
///
/// The library looks for itself first, and where the memory is still there nothing happens. Who does not call this
/// is handed out memory that is gone, until a call of the driver's fails for it: then the library notices by itself.
///
/// @return BFC_OK, also if nothing was lost; BFC_ERROR_UNSUPPORTED on backends without a device; and the errors of
///         every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_device_lost(device: i32) -> bfc_status_t {
    status(|| Device::new(device)?.lost())
}
