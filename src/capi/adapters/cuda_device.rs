//! Devices by CUDA's ordinals.

use crate::device::Device;
use crate::error::{ErrorKind, fail};
use crate::options::LAST_CUDA_DEVICE;
use std::ffi::c_int;

/// Returns the device with a CUDA ordinal.
pub(super) fn device_of(ordinal: c_int) -> Result<Device, ErrorKind> {
    if (0..=LAST_CUDA_DEVICE).contains(&ordinal) {
        return Device::new(ordinal);
    }
    Err(fail!(ErrorKind::InvalidArgument, "device {ordinal}: CUDA's devices are 0 to {LAST_CUDA_DEVICE}"))
}
