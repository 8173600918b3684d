//! What the driver does with its state: `impl Sim`, one file a subject.

pub(crate) mod access;
pub(crate) mod blocking;
pub(crate) mod capture;
pub(crate) mod contexts;
pub(crate) mod ending;
pub(crate) mod graph_memory;
pub(crate) mod memory;
pub(crate) mod pools;
pub(crate) mod streams;
pub(crate) mod virtual_memory;
pub(crate) mod work;
