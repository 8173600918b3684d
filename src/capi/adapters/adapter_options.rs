//! The options that an adapter creates an allocator with, if the program has set any.

use super::cuda_device::device_of;
use crate::capi::create::given;
use crate::capi::ffi_result::status;
use crate::capi::types::{bfc_options_t, bfc_status_t};
use crate::device::Device;
use crate::error::ErrorKind;
use crate::options::{LAST_CUDA_DEVICE, Options};
use bfc_hostmem::{HostMemoryExhausted, try_box};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// The slot for all devices without options of their own.
const OF_ALL: usize = LAST_CUDA_DEVICE as usize + 1;

/// The options set for each device. They are never freed, because another thread may be reading them.
static OPTIONS: [AtomicPtr<Options<'static>>; OF_ALL + 1] =
    [const { AtomicPtr::new(null_mut()) }; OF_ALL + 1];

/// Returns the options set for a device.
pub(super) fn options_for(device: Device) -> Option<&'static Options<'static>> {
    // SAFETY: NULL or set below, and never freed.
    let of = |place: usize| unsafe { OPTIONS[place].load(Acquire).as_ref() };
    of(device.ordinal() as usize).or_else(|| of(OF_ALL))
}

/// Sets the options with which the first request of a framework creates a device's allocator, instead of the
/// environment alone. They also apply to the first request after a bfc_destroy. Nothing is created now, and an existing
/// allocator does not change. Call this at the start of the program: each call keeps a copy of the options until the
/// end of the process.
///
/// Without options the flags are BFC_ALLOW_GROWTH, BFC_GARBAGE_COLLECTION and BFC_SPLIT_ALWAYS, unless environment
/// variables override them, and growth is by need. The backend is BFC_BACKEND_PREFER_CUDA_VMM for bfc_torch_* and
/// bfc_ort_*, and BFC_BACKEND_AUTO for the other functions, because their frameworks' memory is often passed to MPI and
/// UCX, which share and register it.
///
/// @param device   0 to 255. -1: default for devices without options of their own.
/// @param options  As for bfc_create, copied with the name and the path of the plan. NULL removes the options.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT, also for options that bfc_create would always refuse;
///         BFC_ERROR_OUT_OF_MEMORY (host memory). Options that only the device refuses fail its first request.
///
/// # Safety
/// `options` is NULL or points to a struct of `struct_size` bytes, whose pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_adapter_options(device: i32, options: *const bfc_options_t) -> bfc_status_t {
    status(|| {
        let place = if device == -1 { OF_ALL } else { device_of(device)?.ordinal() as usize };
        // SAFETY: by this function's contract.
        let options = unsafe { given(options)? };
        set(place, options)
    })
}

fn set(place: usize, options: Option<Options<'_>>) -> Result<(), ErrorKind> {
    let kept = match options {
        Some(options) => {
            options.check()?;
            let name = options.name.map(copied).transpose()?;
            let plan = options.plan.map(copied_path).transpose()?;
            Box::into_raw(try_box(options.with_texts(name, plan))?)
        }
        None => null_mut(),
    };
    OPTIONS[place].store(kept, Release);
    Ok(())
}

fn copied(text: &str) -> Result<&'static str, HostMemoryExhausted> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len())?;
    copy.push_str(text);
    Ok(copy.leak())
}

fn copied_path(path: &Path) -> Result<&'static Path, HostMemoryExhausted> {
    let bytes = path.as_os_str().as_bytes();
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(Path::new(OsStr::from_bytes(copy.leak())))
}
