//! Arrays and mipmapped arrays: memory of a device that has no address.

use cuda_sys::CUdevice;

pub(crate) struct Array {
    /// The context that it ends with.
    pub(crate) context: u64,
    pub(crate) device: CUdevice,
    pub(crate) bytes: u64,
}
