//! Creation and destruction of allocators.

use super::ffi_result::status;
use super::types::{bfc_options_t, bfc_region_callback_t, bfc_status_t, bfc_suballocator_t};
use super::{panic_hook, versioned};
use crate::device::Device;
use crate::error::{ErrorKind, fail};
use crate::options::{BackendKind, Flags, GrowthPolicy, Options, SubAllocator};
use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Creates the allocator of a device. No device memory is allocated before the first allocation.
///
/// @param device   An ordinal, 0 to 1023.
/// @param options  Copied. NULL: backend AUTO, growth by need, garbage collection, and any remainder split off.
///                 Environment variables override these defaults.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT (also for a plan that cannot be read), BFC_ERROR_ALREADY_EXISTS,
///         BFC_ERROR_BACKEND_UNAVAILABLE, BFC_ERROR_BACKEND_FAILED (the driver), BFC_ERROR_OUT_OF_MEMORY (host memory;
///         on CUDA also a device without free memory), BFC_ERROR_BUSY (from a callback), BFC_ERROR_SHUTTING_DOWN,
///         BFC_ERROR_INTERNAL. After a failure nothing was created.
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

/// Reads options. NULL stands for none.
///
/// # Safety
/// `options` is NULL or points to a struct of `struct_size` bytes, whose pointers are valid as long as the result is
/// used.
pub(super) unsafe fn given<'a>(options: *const bfc_options_t) -> Result<Option<Options<'a>>, ErrorKind> {
    if options.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, so valid by this function's contract.
    let raw = unsafe { versioned::read(options)? };
    // SAFETY: as above.
    unsafe { parse(&raw) }.map(Some)
}

/// # Safety
/// The pointers in `raw` are NULL or valid. The name and the plan are valid as long as the result is used.
unsafe fn parse<'a>(raw: &bfc_options_t) -> Result<Options<'a>, ErrorKind> {
    let backend = raw.backend;
    let Some(backend) = BackendKind::from_code(backend) else {
        return Err(fail!(
            ErrorKind::InvalidArgument,
            "unknown backend {backend} in bfc_options_t: it must be one of BFC_BACKEND_..."
        ));
    };
    let growth_policy = raw.growth_policy;
    let Some(growth_policy) = GrowthPolicy::from_code(growth_policy) else {
        return Err(fail!(
            ErrorKind::InvalidArgument,
            "unknown growth_policy {growth_policy} in bfc_options_t: it must be one of BFC_GROWTH_..."
        ));
    };
    if raw.reserved != 0 || raw.reserved2 != 0 {
        return Err(fail!(
            ErrorKind::InvalidArgument,
            "the reserved fields of bfc_options_t are {} and {}: they must be 0; begin with BFC_OPTIONS_INIT",
            raw.reserved,
            raw.reserved2
        ));
    }
    let name = if raw.name.is_null() {
        None
    } else {
        // SAFETY: not NULL, so a NUL-terminated string by this function's contract.
        let name = unsafe { CStr::from_ptr(raw.name) };
        let name: Result<&'a str, _> = name.to_str();
        Some(name.map_err(|_| fail!(ErrorKind::InvalidArgument, "the name in bfc_options_t is not UTF-8"))?)
    };
    let plan = if raw.plan.is_null() {
        None
    } else {
        // SAFETY: not NULL, so a NUL-terminated string by this function's contract.
        let path: &'a CStr = unsafe { CStr::from_ptr(raw.plan) };
        Some(Path::new(OsStr::from_bytes(path.to_bytes())))
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
        // Unknown bits are kept, and refused with the others that are wrong.
        flags: Flags::from_bits_retain(raw.flags),
        memory_limit: raw.memory_limit,
        memory_fraction: raw.memory_fraction,
        fragmentation_fraction: raw.fragmentation_fraction,
        initial_region_bytes: raw.initial_region_bytes,
        retry_timeout_ms: raw.retry_timeout_ms,
        name,
        suballocator,
        growth_policy,
        plan,
    })
}

/// # Safety
/// The functions are valid, as documented for bfc_suballocator_t.
unsafe fn parse_suballocator(raw: &bfc_suballocator_t) -> Result<SubAllocator, ErrorKind> {
    let (Some(alloc), Some(free)) = (raw.alloc, raw.free) else {
        return Err(fail!(
            ErrorKind::InvalidArgument,
            "alloc or free in bfc_suballocator_t is NULL: both are required"
        ));
    };
    if raw.reserved != 0 {
        return Err(fail!(
            ErrorKind::InvalidArgument,
            "the reserved field of bfc_suballocator_t is {}: it must be 0; begin with BFC_SUBALLOCATOR_INIT",
            raw.reserved
        ));
    }
    // SAFETY: by this function's contract.
    Ok(unsafe { SubAllocator::new(raw.user_data, alloc, free, raw.supports_coalescing != 0) })
}

/// Destroys the allocator of a device and releases all regions. Wakes threads that wait for memory, whose calls then
/// return BFC_ERROR_SHUTTING_DOWN.
///
/// Waits for calls in progress in other threads, and for the work of streams of other contexts that used its memory. On
/// backends without a device, all work that uses its memory must have completed.
/// Fails while a capture is announced or visible to the library (see bfc_alloc_async).
///
/// @return BFC_OK; BFC_ERROR_BUSY while there are live allocations, and from a callback; BFC_ERROR_BACKEND_FAILED while
///         a stream is captured; BFC_ERROR_INVALID_ARGUMENT, BFC_ERROR_NO_ALLOCATOR, BFC_ERROR_SHUTTING_DOWN,
///         BFC_ERROR_INTERNAL. With live allocations or during a capture nothing has changed. The message of
///         bfc_last_error then names the operations that hold most.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_destroy(device: i32) -> bfc_status_t {
    // SAFETY: the C caller owns the allocator.
    status(|| unsafe { Device::new(device)?.destroy() })
}

/// Destroys the allocator like bfc_destroy, even with live allocations. Their pointers are BFC_ERROR_INVALID_POINTER
/// afterwards. The log (BFC_LOG=info) says how many were live, and names the operations that held most.
///
/// @return As for bfc_destroy, but live allocations are no error.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_destroy_forced(device: i32) -> bfc_status_t {
    // SAFETY: the C caller owns the allocator and all its memory.
    status(|| unsafe { Device::new(device)?.destroy_forced() })
}

/// Sets a function that is called after memory has been obtained from the backend and before it is released, for
/// example to register the memory with NCCL or RDMA. NULL removes it at any time: it is not called after this call has
/// returned.
///
/// @param callback   The function, or NULL. Set it right after bfc_create, before the allocator holds memory.
/// @param user_data  Passed to the function. It must stay valid until the allocator was destroyed, or until another
///                   call of this function has returned.
/// @return BFC_OK; BFC_ERROR_BUSY if `callback` is not NULL and the allocator already holds memory; and the errors of
///         every call.
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

/// Notifies the allocator that the device context was reset or destroyed: by cudaDeviceReset, by
/// cuDevicePrimaryCtxReset, or by more calls of cuDevicePrimaryCtxRelease than the program had retained. Call it right
/// afterwards. Without this call the allocator may return stale addresses until a driver call fails. The library then
/// notices the loss itself.
///
/// The library first checks whether the memory still exists. If it does, nothing happens. Otherwise:
///
/// - Live allocations count as freed. Every earlier pointer is BFC_ERROR_INVALID_POINTER, until the driver returns the
///   same addresses again.
/// - The allocator forgets its regions, streams and private pools without another driver call. The region callback is
///   called for the lost memory (BFC_REGION_RETURNING).
/// - The allocator itself stays. Its next allocation retains the context again. With BFC_BACKEND_CUDA_VMM another range
///   of addresses is reserved, and physical memory that the driver still has is released first.
///
/// @return BFC_OK, even if nothing was lost; BFC_ERROR_UNSUPPORTED on backends without a device; and the errors of
///         every call.
#[unsafe(no_mangle)]
pub extern "C" fn bfc_device_lost(device: i32) -> bfc_status_t {
    // SAFETY: the C caller says that the memory is gone.
    status(|| unsafe { Device::new(device)?.lost() })
}
