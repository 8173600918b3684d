//! The creation of an adapter's allocator on first use.

use super::adapter_options::options_for;
use crate::capi::panic_hook;
use crate::device::Device;
use crate::error::ErrorKind;
use crate::options::BackendKind;

/// The backend for frameworks whose users pass memory neither to code that needs legacy IPC handles nor to code that
/// keeps registrations by address: virtual memory holds the least.
pub(super) const MAPPED: BackendKind = BackendKind::PreferCudaVmm;

/// The backend for frameworks whose arrays are also given to MPI, UCX and other libraries that register or share memory.
pub(super) const SHAREABLE: BackendKind = BackendKind::Auto;

/// Runs `work` on a device's allocator, which is created if there is none, with the options that the program has set or
/// else from the environment and with the given backend. Concurrent threads share one allocator.
pub(super) fn served<T>(
    device: Device,
    backend: BackendKind,
    work: impl Fn() -> Result<T, ErrorKind>,
) -> Result<T, ErrorKind> {
    if !device.was_created() {
        create(device, backend)?;
    }
    match work() {
        // Another thread is creating the allocator, or the program has destroyed it.
        Err(ErrorKind::NoAllocator) => {
            create(device, backend)?;
            work()
        }
        done => done,
    }
}

fn create(device: Device, backend: BackendKind) -> Result<(), ErrorKind> {
    panic_hook::silence_own_panics();
    match device.create_for_framework(options_for(device), backend) {
        Err(ErrorKind::AlreadyExists) => Ok(()),
        done => done,
    }
}
