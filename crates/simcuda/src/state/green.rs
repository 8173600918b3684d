//! Green contexts, and the multiprocessors that they are made of.

use cuda_sys::CUdevice;

/// How many multiprocessors a device has.
pub(crate) const MULTIPROCESSORS: u32 = 16;

/// Multiprocessors of a device.
#[derive(Clone, Copy)]
pub(crate) struct Multiprocessors {
    pub(crate) device: CUdevice,
    pub(crate) count: u32,
    /// The number of the split that they are a result of, or 0.
    pub(crate) split: u64,
}

/// A green context, by its own handle. As a context it has another one.
pub(crate) struct Green {
    pub(crate) context: u64,
    pub(crate) unique: u64,
    pub(crate) resource: Multiprocessors,
}
