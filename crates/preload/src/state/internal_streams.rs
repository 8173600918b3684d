//! One stream for each device on which nothing is ever queued. Memory allocated on it may be used by any work at once,
//! like that of cudaMalloc, and memory freed on it may be reused at once.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use cuda_sys::*;

use super::contexts::DEVICES;
use crate::driver;

static STREAMS: [AtomicPtr<CUstream_st>; DEVICES] = [const { AtomicPtr::new(ptr::null_mut()) }; DEVICES];

/// Returns the stream of the current device, which the first call creates. Returns `None` on failure.
pub(crate) fn get_or_create(device: usize) -> Option<CUstream> {
    let place = STREAMS.get(device)?;
    if let Some(known) = get(device) {
        return Some(known);
    }
    let driver = driver::load()?;
    let create = driver.cuStreamCreate().ok()?;
    let mut stream = ptr::null_mut();
    // SAFETY: the pointer is valid for writing.
    if unsafe { create(&mut stream, CU_STREAM_NON_BLOCKING) } != CUDA_SUCCESS {
        return None;
    }
    match place.compare_exchange(ptr::null_mut(), stream, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(stream),
        Err(another) => {
            if let Ok(destroy) = driver.cuStreamDestroy_v2() {
                // SAFETY: created above, and not known elsewhere.
                unsafe { destroy(stream) };
            }
            Some(another)
        }
    }
}

/// Returns the stream of a device, if it was created.
#[inline]
pub(crate) fn get(device: usize) -> Option<CUstream> {
    let known = STREAMS.get(device)?.load(Ordering::Acquire);
    (!known.is_null()).then_some(known)
}

/// Returns whether a stream is an internal one, of any device.
pub(crate) fn is_internal(stream: CUstream) -> bool {
    !stream.is_null() && STREAMS.iter().any(|place| place.load(Ordering::Relaxed) == stream)
}

/// Forgets the stream of a device, which has ended with its context.
pub(crate) fn forget_device(device: usize) {
    if let Some(place) = STREAMS.get(device) {
        place.store(ptr::null_mut(), Ordering::Release);
    }
}
