//! The low-level interface: allocators by ordinal, addresses as numbers, and nothing that frees itself.
//!
//! The C ABI has the same functions. Use it where [`Pool`](crate::Pool) and [`Block`](crate::Block) do not fit, for example
//! to free memory by an address that a driver or another language hands back. Every function returns an [`ErrorKind`];
//! [`last_error`] has the message. All of them may be called from any thread.
//!
//! ```
//! use bfc::raw::{Device, Options};
//! use bfc::HOST_DEVICE;
//!
//! # fn main() -> Result<(), bfc::ErrorKind> {
//! let host = Device::new(HOST_DEVICE)?;
//! let mut options = Options::recommended();
//! options.memory_limit = 64 << 20;
//! host.create(Some(&options))?;
//! let address = host.alloc(1000)?;
//! assert_eq!(host.allocated_size(address)?, 1024);
//! // SAFETY: nothing uses the memory, and nothing else uses the allocator.
//! unsafe {
//!     host.free(address)?;
//!     host.destroy()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`ErrorKind`]: crate::ErrorKind

pub use crate::backend::{AllocCallback, FreeCallback};
pub use crate::device::history::{
    mark as mark_history, save as save_history, start as start_history, stop as stop_history,
};
pub use crate::device::{AddressRange, Device, MAX_DEVICES};
pub use crate::options::{Options, PINNED_DEVICE, SubAllocator};
pub use crate::pool::idle_time::IdleFunction;
pub use crate::pool::listener::{RegionCallback, RegionEvent};
pub use crate::scope::{begin as begin_scope, end as end_scope};

/// Returns the message of this thread's last failure. A success does not change it.
pub fn last_error() -> String {
    crate::error::with_last_error(str::to_owned)
}
