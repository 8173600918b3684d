//! An adapter's device, whose allocator it creates if nobody has.

use super::adapter_options::wished;
use crate::capi::panic_hook;
use crate::device::Device;
use crate::error::{Error, fail};
use crate::options::LAST_CUDA_DEVICE;
use std::ffi::c_int;

/// The device that a framework counts so.
pub(super) fn device_of(ordinal: c_int) -> Result<Device, Error> {
    if (0..=LAST_CUDA_DEVICE).contains(&ordinal) {
        return Device::new(ordinal);
    }
    Err(fail!(Error::InvalidArgument, "device {ordinal}: CUDA's devices are 0 to {LAST_CUDA_DEVICE}"))
}

/// Does something with a device's allocator, which is created if there is none: as the program has said, else from the
/// environment. Threads that come at once share one.
pub(super) fn served<T>(device: Device, work: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    if !device.was_created() {
        create(device)?;
    }
    match work() {
        // Another thread is about to create it, or the program has ended it.
        Err(Error::NoAllocator) => {
            create(device)?;
            work()
        }
        done => done,
    }
}

fn create(device: Device) -> Result<(), Error> {
    panic_hook::silence_own_panics();
    match device.create(wished(device)) {
        Err(Error::AlreadyExists) => Ok(()),
        done => done,
    }
}
