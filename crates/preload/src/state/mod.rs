//! The program's contexts, captures and streams, and the work that may use pooled memory. The hooks record this, and
//! the pools act on it.

pub(crate) mod captures;
pub(crate) mod contexts;
pub(crate) mod green_contexts;
pub(crate) mod internal_streams;
pub(crate) mod memory_pools;
pub(crate) mod relations;
pub(crate) mod streams;
pub(crate) mod user_contexts;
