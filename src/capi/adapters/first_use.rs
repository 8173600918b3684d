//! The creation of an adapter's allocator on first use.

use super::adapter_options::options_for;
use crate::capi::panic_hook;
use crate::device::Device;
use crate::error::Error;

/// Runs `work` on a device's allocator, which is created if there is none, with the options that the program has set or
/// else from the environment. Concurrent threads share one allocator.
pub(super) fn served<T>(device: Device, work: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    if !device.was_created() {
        create(device)?;
    }
    match work() {
        // Another thread is creating the allocator, or the program has destroyed it.
        Err(Error::NoAllocator) => {
            create(device)?;
            work()
        }
        done => done,
    }
}

fn create(device: Device) -> Result<(), Error> {
    panic_hook::silence_own_panics();
    match device.create_for_framework(options_for(device)) {
        Err(Error::AlreadyExists) => Ok(()),
        done => done,
    }
}
