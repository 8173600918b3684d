//! Safe wrappers of the driver's functions, with results instead of codes.

use super::WITHOUT_A_DEVICE;
use crate::error::{ErrorKind, fail};
use cuda_sys::*;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

/// Why a driver call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// This driver has no such function.
    Missing(Missing),
    /// The driver returned an error.
    Refused { call: &'static str, code: CUresult },
    /// The context that was opened is gone, with everything in it. Another one may have the same handle.
    Gone,
}

type Answer<T> = Result<T, Failure>;

impl From<Missing> for Failure {
    fn from(missing: Missing) -> Self {
        Failure::Missing(missing)
    }
}

impl Failure {
    pub(super) fn is(self, wanted: CUresult) -> bool {
        matches!(self, Failure::Refused { code, .. } if code == wanted)
    }

    /// Returns whether the driver has shut down. The process is about to end, and all memory is gone.
    pub(super) fn is_the_end(self) -> bool {
        self.is(CUDA_ERROR_DEINITIALIZED)
    }

    /// Sets the message for a failed call of an open pool, and returns the error.
    pub(super) fn explain(self, driver: Driver) -> ErrorKind {
        let error = if self.is_the_end() { ErrorKind::ShuttingDown } else { ErrorKind::BackendFailed };
        self.say(driver, error, "")
    }

    /// Sets the message for a context that could not be retained again, and returns the error.
    pub(super) fn explain_renewal(self, driver: Driver) -> ErrorKind {
        let error = match self {
            _ if self.is_the_end() => ErrorKind::ShuttingDown,
            _ if self.is(CUDA_ERROR_OUT_OF_MEMORY) => ErrorKind::OutOfMemory,
            _ => ErrorKind::BackendFailed,
        };
        self.say(driver, error, "; the device's primary context was reset or destroyed before")
    }

    /// Sets the message for a pool that could not be created, and returns the error.
    pub(super) fn explain_absence(self, driver: Driver) -> ErrorKind {
        if self.is(CUDA_ERROR_OUT_OF_MEMORY) {
            return self.say(driver, ErrorKind::OutOfMemory, "");
        }
        self.say(driver, ErrorKind::BackendUnavailable, WITHOUT_A_DEVICE)
    }

    fn say(self, driver: Driver, error: ErrorKind, advice: &str) -> ErrorKind {
        match self {
            Failure::Missing(missing) => fail!(error, "{missing}{advice}"),
            Failure::Gone => fail!(
                error,
                "the device's primary context was reset or destroyed, and all memory in it is gone{advice}"
            ),
            Failure::Refused { call, code } => {
                let (name, text) = (error_name(driver, code), error_text(driver, code));
                let hint = hint(code);
                fail!(error, "{call} failed with {name} ({code}): {text}{hint}{advice}")
            }
        }
    }
}

/// Returns advice that the driver's error text does not include.
fn hint(code: CUresult) -> &'static str {
    match code {
        CUDA_ERROR_NOT_INITIALIZED => {
            " (a forked process cannot use CUDA if its parent has: start it by exec, or fork before)"
        }
        CUDA_ERROR_STUB_LIBRARY => " (the toolkit's stub was loaded and not the driver's libcuda.so.1)",
        _ => "",
    }
}

fn check(call: &'static str, code: CUresult) -> Answer<()> {
    match code {
        CUDA_SUCCESS => Ok(()),
        code => Err(Failure::Refused { call, code }),
    }
}

/// Returns a text of the driver, which is never freed.
fn static_text(
    get: Result<unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult, Missing>,
    code: CUresult,
) -> Option<&'static str> {
    let mut text = ptr::null();
    // SAFETY: the pointer is valid, and the function takes any code.
    let result = unsafe { get.ok()?(code, &mut text) };
    if result != CUDA_SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: not NULL, so a NUL-terminated text in the driver, which is never unloaded.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

fn error_name(driver: Driver, code: CUresult) -> &'static str {
    static_text(driver.cuGetErrorName(), code).unwrap_or("an unknown code")
}

fn error_text(driver: Driver, code: CUresult) -> &'static str {
    static_text(driver.cuGetErrorString(), code).unwrap_or("the driver does not describe it")
}

pub(super) fn init(driver: Driver) -> Answer<()> {
    let call = driver.cuInit()?;
    // SAFETY: 0 is the only valid value of the flags.
    check("cuInit", unsafe { call(0) })
}

pub(super) fn device_count(driver: Driver) -> Answer<c_int> {
    let call = driver.cuDeviceGetCount()?;
    let mut count = 0;
    // SAFETY: the pointer is valid.
    check("cuDeviceGetCount", unsafe { call(&mut count) })?;
    Ok(count)
}

pub(super) fn device(driver: Driver, ordinal: c_int) -> Answer<CUdevice> {
    let call = driver.cuDeviceGet()?;
    let mut device = 0;
    // SAFETY: the pointer is valid.
    check("cuDeviceGet", unsafe { call(&mut device, ordinal) })?;
    Ok(device)
}

pub(super) fn retain_primary(driver: Driver, device: CUdevice) -> Answer<CUcontext> {
    let call = driver.cuDevicePrimaryCtxRetain()?;
    let mut context = ptr::null_mut();
    // SAFETY: the pointer is valid, and the driver refuses a wrong device.
    check("cuDevicePrimaryCtxRetain", unsafe { call(&mut context, device) })?;
    Ok(context)
}

pub(super) fn release_primary(driver: Driver, device: CUdevice) -> Answer<()> {
    let call = driver.cuDevicePrimaryCtxRelease_v2().or_else(|_| driver.cuDevicePrimaryCtxRelease())?;
    // SAFETY: the driver refuses a wrong device.
    check("cuDevicePrimaryCtxRelease", unsafe { call(device) })
}

/// Returns whether the primary context is active.
pub(super) fn is_active(driver: Driver, device: CUdevice) -> Answer<bool> {
    let call = driver.cuDevicePrimaryCtxGetState()?;
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the pointers are valid, and the driver refuses a wrong device.
    check("cuDevicePrimaryCtxGetState", unsafe { call(device, &mut flags, &mut active) })?;
    Ok(active != 0)
}

/// Returns the number of the current context, which is unique in the process. Drivers before CUDA 12.0 have none.
pub(super) fn current_id(driver: Driver) -> Answer<Option<u64>> {
    let Ok(call) = driver.cuCtxGetId() else { return Ok(None) };
    let mut id = 0;
    // SAFETY: the pointer is valid, and NULL is the current context.
    check("cuCtxGetId", unsafe { call(ptr::null_mut(), &mut id) })?;
    Ok(Some(id))
}

/// Returns the number of a context, like [`current_id`].
///
/// # Safety
/// The context exists.
pub(super) unsafe fn id_of(driver: Driver, context: CUcontext) -> Answer<Option<u64>> {
    let Ok(call) = driver.cuCtxGetId() else { return Ok(None) };
    let mut id = 0;
    // SAFETY: the pointer is valid, and the caller guarantees that the context exists.
    check("cuCtxGetId", unsafe { call(context, &mut id) })?;
    Ok(Some(id))
}

/// Returns the number of the current green context, which is unique among them. `None` if the current context is none, or
/// on drivers before CUDA 12.9.
pub(super) fn current_green_id(driver: Driver) -> Option<u64> {
    let call = driver.cuGreenCtxGetId().ok()?;
    let mut id = 0;
    // SAFETY: the pointer is valid, and NULL is the current green context.
    check("cuGreenCtxGetId", unsafe { call(ptr::null_mut(), &mut id) }).ok().map(|()| id)
}

/// Returns start and bytes of the allocation around an address of the current context.
pub(super) fn allocation(driver: Driver, address: CUdeviceptr) -> Answer<(u64, u64)> {
    let call = driver.cuMemGetAddressRange_v2()?;
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: the pointers are valid, and the driver refuses an unknown address.
    check("cuMemGetAddressRange", unsafe { call(&mut base, &mut bytes, address) })?;
    Ok((base, bytes as u64))
}

pub(super) fn push(driver: Driver, context: CUcontext) -> Answer<()> {
    let call = driver.cuCtxPushCurrent_v2()?;
    // SAFETY: the context is a primary one that this backend has retained.
    check("cuCtxPushCurrent", unsafe { call(context) })
}

/// Makes a context current that does not belong to this backend.
///
/// # Safety
/// The context exists.
pub(super) unsafe fn push_other(driver: Driver, context: CUcontext) -> Answer<()> {
    let call = driver.cuCtxPushCurrent_v2()?;
    // SAFETY: guaranteed by the caller.
    check("cuCtxPushCurrent", unsafe { call(context) })
}

pub(super) fn pop(driver: Driver) -> Answer<()> {
    let call = driver.cuCtxPopCurrent_v2()?;
    let mut context = ptr::null_mut();
    // SAFETY: the pointer is valid.
    check("cuCtxPopCurrent", unsafe { call(&mut context) })
}

/// Returns the thread's current context. NULL is none.
pub(super) fn current(driver: Driver) -> Answer<CUcontext> {
    let call = driver.cuCtxGetCurrent()?;
    let mut context = ptr::null_mut();
    // SAFETY: the pointer is valid.
    check("cuCtxGetCurrent", unsafe { call(&mut context) })?;
    Ok(context)
}

/// Returns the device of the thread's current context.
pub(super) fn current_device(driver: Driver) -> Answer<CUdevice> {
    let call = driver.cuCtxGetDevice()?;
    let mut device = 0;
    // SAFETY: the pointer is valid.
    check("cuCtxGetDevice", unsafe { call(&mut device) })?;
    Ok(device)
}

/// Sets the calling thread's capture mode and returns the previous one. Drivers before CUDA 10.1 have no modes.
pub(super) fn exchange_capture_mode(
    driver: Driver,
    mode: CUstreamCaptureMode,
) -> Answer<Option<CUstreamCaptureMode>> {
    let Ok(call) = driver.cuThreadExchangeStreamCaptureMode() else { return Ok(None) };
    let mut mode = mode;
    // SAFETY: the pointer is valid.
    check("cuThreadExchangeStreamCaptureMode", unsafe { call(&mut mode) })?;
    Ok(Some(mode))
}

pub(super) fn synchronize(driver: Driver) -> Answer<()> {
    let call = driver.cuCtxSynchronize()?;
    // SAFETY: it has no arguments, and fails without a context.
    check("cuCtxSynchronize", unsafe { call() })
}

/// Returns the free and total bytes of the current context's device.
pub(super) fn memory_info(driver: Driver) -> Answer<(u64, u64)> {
    let call = driver.cuMemGetInfo_v2()?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: the pointers are valid.
    check("cuMemGetInfo", unsafe { call(&mut free, &mut total) })?;
    Ok((free as u64, total as u64))
}

pub(super) fn alloc(driver: Driver, bytes: u64) -> Answer<CUdeviceptr> {
    let call = driver.cuMemAlloc_v2()?;
    let mut address = 0;
    // SAFETY: the pointer is valid. This is a 64-bit library: the size fits.
    check("cuMemAlloc", unsafe { call(&mut address, bytes as usize) })?;
    Ok(address)
}

/// # Safety
/// The memory is not in use.
pub(super) unsafe fn free(driver: Driver, address: CUdeviceptr) -> Answer<()> {
    let call = driver.cuMemFree_v2()?;
    // SAFETY: guaranteed by the caller.
    check("cuMemFree", unsafe { call(address) })
}

/// # Safety
/// The range is memory of the current context's device that nothing else accesses.
pub(super) unsafe fn fill(driver: Driver, at: CUdeviceptr, bytes: u64, with: u8) -> Answer<()> {
    let call = driver.cuMemsetD8_v2()?;
    // SAFETY: guaranteed by the caller. This is a 64-bit library: the size fits.
    check("cuMemsetD8", unsafe { call(at, with, bytes as usize) })
}

/// # Safety
/// `at` is memory of the current context's device with at least as many bytes as `into`.
pub(super) unsafe fn read(driver: Driver, at: CUdeviceptr, into: &mut [u8]) -> Answer<()> {
    let call = driver.cuMemcpyDtoH_v2()?;
    // SAFETY: the buffer has that many bytes, and the caller guarantees the rest.
    check("cuMemcpyDtoH", unsafe { call(into.as_mut_ptr().cast(), at, into.len()) })
}

pub(super) fn wait_for_default_stream(driver: Driver) -> Answer<()> {
    let call = driver.cuStreamSynchronize()?;
    // SAFETY: the legacy stream always exists.
    check("cuStreamSynchronize", unsafe { call(CU_STREAM_LEGACY) })
}

pub(super) fn create_event(driver: Driver, flags: CUevent_flags) -> Answer<CUevent> {
    let call = driver.cuEventCreate()?;
    let mut event = ptr::null_mut();
    // SAFETY: the pointer is valid, and unknown flags are refused.
    check("cuEventCreate", unsafe { call(&mut event, flags) })?;
    Ok(event)
}

/// # Safety
/// The event was returned by `create_event` and is not used afterwards.
pub(super) unsafe fn destroy_event(driver: Driver, event: CUevent) -> Answer<()> {
    let call = driver.cuEventDestroy_v2()?;
    // SAFETY: guaranteed by the caller.
    check("cuEventDestroy", unsafe { call(event) })
}

/// # Safety
/// The event was returned by `create_event`, and the stream exists.
pub(super) unsafe fn record(driver: Driver, event: CUevent, stream: CUstream) -> Answer<()> {
    let call = driver.cuEventRecord()?;
    // SAFETY: guaranteed by the caller.
    check("cuEventRecord", unsafe { call(event, stream) })
}

/// Records an event that completes when all work of a context has (cuCtxRecordEvent, CUDA 12.5).
///
/// # Safety
/// The event was returned by `create_event` in that context.
pub(super) unsafe fn record_all(driver: Driver, context: CUcontext, event: CUevent) -> Answer<()> {
    let call = driver.cuCtxRecordEvent()?;
    // SAFETY: guaranteed by the caller.
    check("cuCtxRecordEvent", unsafe { call(context, event) })
}

/// # Safety
/// The event was returned by `create_event`.
pub(super) unsafe fn is_done(driver: Driver, event: CUevent) -> Answer<bool> {
    let call = driver.cuEventQuery()?;
    // SAFETY: guaranteed by the caller.
    match unsafe { call(event) } {
        CUDA_ERROR_NOT_READY => Ok(false),
        code => check("cuEventQuery", code).map(|()| true),
    }
}

/// # Safety
/// The event was returned by `create_event`.
pub(super) unsafe fn wait_for(driver: Driver, event: CUevent) -> Answer<()> {
    let call = driver.cuEventSynchronize()?;
    // SAFETY: guaranteed by the caller.
    check("cuEventSynchronize", unsafe { call(event) })
}

/// # Safety
/// The event was returned by `create_event`, and the stream exists.
pub(super) unsafe fn make_wait(driver: Driver, stream: CUstream, event: CUevent) -> Answer<()> {
    let call = driver.cuStreamWaitEvent()?;
    // SAFETY: guaranteed by the caller.
    check("cuStreamWaitEvent", unsafe { call(stream, event, CU_EVENT_WAIT_DEFAULT) })
}

/// Returns the context of a stream. Drivers before CUDA 9.2 do not report it. For a stream of a green context, drivers
/// before CUDA 13 return the primary context.
///
/// # Safety
/// The stream exists.
pub(super) unsafe fn context_of(driver: Driver, stream: CUstream) -> Answer<CUcontext> {
    let call = driver.cuStreamGetCtx()?;
    let mut context = ptr::null_mut();
    // SAFETY: the pointer is valid, and the caller guarantees that the stream exists.
    let mut code = unsafe { call(stream, &mut context) };
    if code == CUDA_ERROR_NOT_SUPPORTED {
        // "This version will return CUDA_ERROR_NOT_SUPPORTED for streams created via the API cuGreenCtxStreamCreate"
        // (cuStreamGetCtx of CUDA 12.9).
        let call = driver.cuStreamGetCtx_v2()?;
        let mut green = ptr::null_mut();
        // SAFETY: as above.
        code = unsafe { call(stream, &mut context, &mut green) };
    }
    check("cuStreamGetCtx", code)?;
    Ok(context)
}

/// Creates a stream that does not wait for the legacy default stream.
pub(super) fn create_stream(driver: Driver) -> Answer<CUstream> {
    let call = driver.cuStreamCreate()?;
    let mut stream = ptr::null_mut();
    // SAFETY: the pointer is valid.
    check("cuStreamCreate", unsafe { call(&mut stream, CU_STREAM_NON_BLOCKING) })?;
    Ok(stream)
}

/// # Safety
/// The stream was returned by `create_stream` and is not used afterwards.
pub(super) unsafe fn destroy_stream(driver: Driver, stream: CUstream) -> Answer<()> {
    let call = driver.cuStreamDestroy_v2()?;
    // SAFETY: guaranteed by the caller.
    check("cuStreamDestroy", unsafe { call(stream) })
}

/// Returns whether the stream is captured. For the legacy stream, returns whether a stream that it waits for is
/// captured. Drivers before CUDA 10 have no capture.
///
/// # Safety
/// The stream exists.
pub(super) unsafe fn is_capturing(driver: Driver, stream: CUstream) -> Answer<bool> {
    let Ok(call) = driver.cuStreamIsCapturing() else { return Ok(false) };
    let mut status = CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the pointer is valid, and the caller guarantees that the stream exists.
    match unsafe { call(stream, &mut status) } {
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT => Ok(true),
        code => check("cuStreamIsCapturing", code).map(|()| status != CU_STREAM_CAPTURE_STATUS_NONE),
    }
}

/// Returns whether the device can map physical memory at addresses of the program's choice.
pub(super) fn has_virtual_memory(driver: Driver, device: CUdevice) -> Answer<bool> {
    let call = driver.cuDeviceGetAttribute()?;
    let mut value = 0;
    let wanted = CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    // SAFETY: the pointer is valid, and old drivers refuse unknown attributes.
    match unsafe { call(&mut value, wanted, device) } {
        CUDA_ERROR_INVALID_VALUE => Ok(false),
        code => check("cuDeviceGetAttribute", code).map(|()| value != 0),
    }
}

/// Returns whether `cuMemCreate` accepts the flag for GPUDirect RDMA ("Device supports specifying the GPUDirect RDMA
/// flag with cuMemCreate"). Drivers before CUDA 11.0 do not know the attribute.
pub(super) fn takes_rdma_flag(driver: Driver, device: CUdevice) -> Answer<bool> {
    let call = driver.cuDeviceGetAttribute()?;
    let mut value = 0;
    let wanted = CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    // SAFETY: the pointer is valid, and old drivers refuse unknown attributes.
    match unsafe { call(&mut value, wanted, device) } {
        CUDA_ERROR_INVALID_VALUE => Ok(false),
        code => check("cuDeviceGetAttribute", code).map(|()| value != 0),
    }
}

/// Returns whether work on a device can access another device's memory.
pub(super) fn can_access_peer(driver: Driver, device: CUdevice, peer: CUdevice) -> Answer<bool> {
    let call = driver.cuDeviceCanAccessPeer()?;
    let mut can = 0;
    // SAFETY: the pointer is valid, and the driver refuses a wrong device.
    check("cuDeviceCanAccessPeer", unsafe { call(&mut can, device, peer) })?;
    Ok(can != 0)
}

/// Describes a device by its ordinal: "Location is a device location, thus id is a device ordinal"
/// (`CUmemLocationType`).
fn location(ordinal: c_int) -> CUmemLocation {
    CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: ordinal }
}

/// Describes pinned memory on a device, with or without the flag for GPUDirect RDMA.
fn pinned_on(ordinal: c_int, for_rdma: bool) -> CUmemAllocationProp {
    let flags = CUmemAllocationPropFlags { gpuDirectRDMACapable: for_rdma.into(), ..Default::default() };
    CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(ordinal),
        allocFlags: flags,
        ..Default::default()
    }
}

pub(super) fn granularity(driver: Driver, ordinal: c_int, for_rdma: bool) -> Answer<u64> {
    let call = driver.cuMemGetAllocationGranularity()?;
    let (wanted, mut bytes) = (pinned_on(ordinal, for_rdma), 0);
    // SAFETY: the pointers are valid.
    let code = unsafe { call(&mut bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM) };
    check("cuMemGetAllocationGranularity", code)?;
    Ok(bytes as u64)
}

pub(super) fn reserve(driver: Driver, bytes: u64, alignment: u64) -> Answer<CUdeviceptr> {
    let call = driver.cuMemAddressReserve()?;
    let mut base = 0;
    // SAFETY: the pointer is valid, and the driver chooses the address.
    let code = unsafe { call(&mut base, bytes as usize, alignment as usize, 0, 0) };
    check("cuMemAddressReserve", code)?;
    Ok(base)
}

/// # Safety
/// `reserve` returned the range, and nothing is mapped in it.
pub(super) unsafe fn free_range(driver: Driver, base: CUdeviceptr, bytes: u64) -> Answer<()> {
    let call = driver.cuMemAddressFree()?;
    // SAFETY: guaranteed by the caller.
    check("cuMemAddressFree", unsafe { call(base, bytes as usize) })
}

pub(super) fn create(
    driver: Driver,
    bytes: u64,
    ordinal: c_int,
    for_rdma: bool,
) -> Answer<CUmemGenericAllocationHandle> {
    let call = driver.cuMemCreate()?;
    let (wanted, mut handle) = (pinned_on(ordinal, for_rdma), 0);
    // SAFETY: the pointers are valid.
    check("cuMemCreate", unsafe { call(&mut handle, bytes as usize, &wanted, 0) })?;
    Ok(handle)
}

/// # Safety
/// `create` returned the handle, and it is not used afterwards.
pub(super) unsafe fn release(driver: Driver, handle: CUmemGenericAllocationHandle) -> Answer<()> {
    let call = driver.cuMemRelease()?;
    // SAFETY: guaranteed by the caller.
    check("cuMemRelease", unsafe { call(handle) })
}

/// Returns the handle of the mapping around an address, and adds a reference to it. Fails with CUDA_ERROR_INVALID_VALUE
/// if nothing is mapped there.
pub(super) fn retain_handle_at(driver: Driver, address: CUdeviceptr) -> Answer<CUmemGenericAllocationHandle> {
    let call = driver.cuMemRetainAllocationHandle()?;
    let mut handle = 0;
    // SAFETY: the pointer is valid, and the address is only looked up.
    check("cuMemRetainAllocationHandle", unsafe { call(&mut handle, address as *mut _) })?;
    Ok(handle)
}

/// # Safety
/// `create` returned the handle, for `bytes` bytes. The addresses are reserved, and nothing is mapped there.
pub(super) unsafe fn map(
    driver: Driver,
    base: CUdeviceptr,
    bytes: u64,
    handle: CUmemGenericAllocationHandle,
) -> Answer<()> {
    let call = driver.cuMemMap()?;
    // SAFETY: guaranteed by the caller.
    check("cuMemMap", unsafe { call(base, bytes as usize, 0, handle, 0) })
}

/// # Safety
/// The range was mapped by one call and is not in use.
pub(super) unsafe fn unmap(driver: Driver, base: CUdeviceptr, bytes: u64) -> Answer<()> {
    let call = driver.cuMemUnmap()?;
    // SAFETY: guaranteed by the caller.
    check("cuMemUnmap", unsafe { call(base, bytes as usize) })
}

/// Describes read and write access for a device.
pub(super) fn read_write(ordinal: c_int) -> CUmemAccessDesc {
    CUmemAccessDesc { location: location(ordinal), flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE }
}

/// # Safety
/// The addresses are those of whole mappings.
pub(super) unsafe fn set_access(
    driver: Driver,
    base: CUdeviceptr,
    bytes: u64,
    devices: &[CUmemAccessDesc],
) -> Answer<()> {
    let call = driver.cuMemSetAccess()?;
    // SAFETY: the pointer is valid for that many entries, and the caller guarantees the addresses.
    check("cuMemSetAccess", unsafe { call(base, bytes as usize, devices.as_ptr(), devices.len()) })
}
