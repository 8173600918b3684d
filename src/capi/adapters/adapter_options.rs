//! How the first request of a framework creates an allocator, where the program has said so.

use super::first_use::device_of;
use crate::capi::create::given;
use crate::capi::ffi_result::status;
use crate::capi::types::{bfc_options_t, bfc_status_t};
use crate::device::Device;
use crate::error::Error;
use crate::options::{LAST_CUDA_DEVICE, Options};
use crate::sys::{HostMemoryExhausted, try_box};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// The place for all devices that have none of their own.
const OF_ALL: usize = LAST_CUDA_DEVICE as usize + 1;

/// What was said is never freed: another thread may be reading it.
static WISHES: [AtomicPtr<Options<'static>>; OF_ALL + 1] = [const { AtomicPtr::new(null_mut()) }; OF_ALL + 1];

/// What the program has said of a device.
pub(super) fn wished(device: Device) -> Option<&'static Options<'static>> {
    // SAFETY: NULL, or from `say`, and never freed.
    let of = |place: usize| unsafe { WISHES[place].load(Acquire).as_ref() };
    of(device.ordinal() as usize).or_else(|| of(OF_ALL))
}

/// Says how the first request of a framework creates a device's allocator, in place of the environment alone; also the
/// first one after a bfc_destroy. Nothing is created now, and an allocator that exists stays as it is.
///
/// Each call keeps a copy of what it was given to the end of the process: it is for the beginning of a program.
///
/// @param device   0 to 255; -1: each of them of which nothing was said by itself.
/// @param options  As for bfc_create, copied with the name. NULL: nothing is said any more.
/// @return BFC_OK; BFC_ERROR_INVALID_ARGUMENT, also for options that bfc_create would refuse by themselves;
///         BFC_ERROR_OUT_OF_MEMORY (of the host). What only a device can refuse its first request says.
///
/// # Safety
/// `options` is NULL or points to a struct of `struct_size` bytes, whose pointers are valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bfc_adapter_options(device: i32, options: *const bfc_options_t) -> bfc_status_t {
    status(|| {
        let place = if device == -1 { OF_ALL } else { device_of(device)?.ordinal() as usize };
        // SAFETY: by this function's contract.
        let options = unsafe { given(options)? };
        say(place, options)
    })
}

fn say(place: usize, options: Option<Options<'_>>) -> Result<(), Error> {
    let kept = match options {
        Some(options) => {
            options.check()?;
            let name = options.name.map(copied).transpose()?;
            Box::into_raw(try_box(options.named(name))?)
        }
        None => null_mut(),
    };
    WISHES[place].store(kept, Release);
    Ok(())
}

fn copied(text: &str) -> Result<&'static str, HostMemoryExhausted> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len())?;
    copy.push_str(text);
    Ok(copy.leak())
}
