//! libbfc: TensorFlow's best-fit-with-coalescing (BFC) allocator as a library.
//!
//! A GPU's own malloc is slow and synchronizes, so runtimes allocate device memory in large regions and hand out
//! pieces. This library does that for any runtime, behind a C ABI (`include/bfc.h`, module [`capi`]) and for Rust
//! ([`Device`]): exact best fit, splitting on allocation, coalescing on free, regions that grow by doubling, and
//! detailed reports about the use of memory.
//!
//! ```
//! use bfc::{Device, HOST_DEVICE, Options};
//!
//! # fn main() -> Result<(), bfc::Error> {
//! let host = Device::new(HOST_DEVICE)?;
//! host.create(Some(&Options { memory_limit: 64 << 20, ..Options::recommended() }))?;
//! let address = host.alloc(1000)?;
//! assert_eq!(host.allocated_size(address)?, 1024);
//! host.free(address)?;
//! host.destroy()?;
//! # Ok(())
//! # }
//! ```
//!
//! Modules depend only on those before them: `sys`, `error`, `log`, `history`, `publish`, `backend`, `options`, `report`,
//! `pool`, `scope`, `device`, `capi`. See ARCHITECTURE.md.

mod backend;
pub mod capi;
mod device;
mod error;
mod history;
mod log;
mod options;
mod pool;
mod publish;
mod report;
pub mod scope;
mod sys;

pub use backend::{AllocCallback, FreeCallback};
pub use bfc_core::stats::Stats;
pub use device::history::{
    mark as mark_history, save as save_history, start as start_history, stop as stop_history,
};
pub use device::{AddressRange, Device, MAX_DEVICES};
pub use error::Error;
pub use options::{
    ALLOW_GROWTH, BackendKind, GARBAGE_COLLECTION, GrowthPolicy, HOST_DEVICE, Options, PINNED_DEVICE,
    QUARANTINE, SPLIT_ALWAYS, SubAllocator, TIMESTAMPS, TWO_ENDS,
};

/// Returns the message of this thread's last failure. A success does not change it.
pub fn last_error() -> String {
    error::with_last_error(str::to_owned)
}
