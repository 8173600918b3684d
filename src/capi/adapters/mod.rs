//! Functions that frameworks call instead of their own allocators. Each has the framework's exact signature and its
//! contract for streams, NULL and size 0. They are declared in a header of their own, `bfc_adapters.h`, whose head (in
//! `adapters.h`) documents what holds for all of them.
//!
//! `bfc_cupy_*` and `bfc_ort_*` are for clients whose frees do not name the streams that may still use the memory (ONNX
//! Runtime, Numba, CuPy with `streams=False`). Such a free is in the order of `Stream::UNKNOWN`: the memory is not
//! reusable until the context was synchronized. Their requests are in the order of `Stream::ANY`, which has no memory
//! of its own, so they get memory that every stream may use. While a capture is visible to the library, such requests
//! are served from a private pool (`BFC_POOL_OF_CAPTURES`), because their memory may become part of the graph.
//!
//! PyTorch begins a private pool before the capture without naming a stream, but passes a filter that recognizes the
//! capturing stream later (`torch/captures.rs`). Until a request was accepted, a capture of an unknown stream is
//! announced (`StreamHeap::announce`), and no call waits for the context. Each accepted request is routed to the pool
//! individually (`StreamHeap::in_private`). No stream is redirected, because the filter may depend on the thread.

mod adapter_options;
mod cached;
mod cuda_device;
mod cupy;
mod failed;
mod first_use;
mod handler;
mod numpy;
mod ort;
mod torch;

pub use adapter_options::bfc_adapter_options;
pub use cached::*;
pub use cupy::*;
pub use failed::bfc_adapter_status;
pub use handler::*;
pub use numpy::*;
pub use ort::*;
pub use torch::*;
