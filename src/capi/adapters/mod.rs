//! What frameworks call in place of their own allocators, each with its exact signature and its contract of streams,
//! of NULL and of size 0. A header of their own declares them, `bfc_adapters.h`, whose head (in `adapters.toml`) says
//! what holds for all.
//!
//! `bfc_cupy_*` and `bfc_ort_*` are for clients that free without saying whose work still touches the memory (ONNX Runtime,
//! Numba, CuPy with `streams=False`). Such a free is in the order of `Stream::UNKNOWN`: the memory is not reusable until the
//! context was synchronized. Their requests are in the order of `Stream::ANY`, which has no memory of its own, so they get
//! memory that every stream may use. While the library sees a capture such requests are for a private pool
//! (`BFC_POOL_OF_CAPTURES`), because their memory may become a part of the graph.
//!
//! PyTorch begins a private pool before the capture and names no stream, but has a filter that knows the capturing one later
//! (`torch/captures.rs`). Until a request was accepted a capture of an unknown stream is announced (`StreamHeap::announce`),
//! and no call waits for the context. Each accepted request is for the pool by itself (`StreamHeap::in_private`). No stream is
//! redirected, because the filter may depend on the thread.

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
