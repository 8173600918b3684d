//! The driver's memory pools that programs make current for cudaMallocAsync. The settings of such a pool
//! (access, attributes) apply to memory of the driver only, so requests for one are left to the driver.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_sys::*;

use super::contexts::DEVICES;
use crate::driver;

/// The devices whose pool a program has set. Others have their default pool.
static SET: [AtomicBool; DEVICES] = [const { AtomicBool::new(false) }; DEVICES];

/// Records that a program has set a device's pool.
pub(crate) fn note_set(device: CUdevice) {
    if let Some(set) = usize::try_from(device).ok().and_then(|device| SET.get(device)) {
        set.store(true, Ordering::Relaxed);
    }
}

/// Returns whether the pool of a device is one of the program's own. If a program has set one, the driver is queried,
/// because the default pool is current again once that pool is destroyed.
#[inline]
pub(crate) fn is_own(device: usize) -> bool {
    SET.get(device).is_some_and(|set| set.load(Ordering::Relaxed)) && differs_from_default(device)
}

#[cold]
#[inline(never)]
fn differs_from_default(device: usize) -> bool {
    let (Some(driver), Ok(device)) = (driver::load(), CUdevice::try_from(device)) else { return true };
    let (Ok(current), Ok(default)) = (driver.cuDeviceGetMemPool(), driver.cuDeviceGetDefaultMemPool()) else {
        return true;
    };
    let [mut own, mut first] = [ptr::null_mut(); 2];
    // SAFETY: the pointer is valid for writing.
    let code = unsafe { current(&mut own, device) };
    // SAFETY: as above.
    code != CUDA_SUCCESS || unsafe { default(&mut first, device) } != CUDA_SUCCESS || own != first
}
