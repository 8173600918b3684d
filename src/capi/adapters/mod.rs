//! What frameworks call in place of their own allocators, each with its exact signature and its contract of streams,
//! of NULL and of size 0. A header of their own declares them, `bfc_adapters.h`, whose head (in `adapters.toml`) says
//! what holds for all.

mod adapter_options;
mod cupy;
mod failed;
mod first_use;
mod handler;
mod ort;
mod torch;

pub use adapter_options::bfc_adapter_options;
pub use cupy::*;
pub use failed::bfc_adapter_status;
pub(in crate::capi) use failed::note;
pub use handler::*;
pub use ort::*;
pub use torch::*;
