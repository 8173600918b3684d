//! What is known of the program's contexts, captures and streams, and of the work that may touch pooled memory. The hooks
//! note it, and the pools act on it.

pub(crate) mod captures;
pub(crate) mod contexts;
pub(crate) mod internal_streams;
pub(crate) mod relations;
pub(crate) mod user_contexts;
