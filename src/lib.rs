#![doc = include_str!("rust/README.md")]

mod backend;
#[cfg(not(feature = "capi"))]
mod capi;
#[cfg(feature = "capi")]
#[doc(hidden)]
pub mod capi;
mod device;
mod error;
mod global;
mod history;
mod log;
mod options;
mod pool;
mod publish;
pub mod raw;
mod report;
mod rust;
mod scope;
mod sys;

pub use bfc_core::stats::{FailureCause, Stats};
pub use device::Request;
pub use error::{ErrorKind, OutOfMemory};
pub use options::{BackendKind, Flags, GrowthPolicy, HOST_DEVICE};
pub use report::layout::{Chunk, ChunkState, Region};
pub use rust::*;
