//! The driver's rules: `impl Sim`, one file a subject. A rule combines parts of the state. A rule for a single part is
//! a method of that part in `state`.

pub(crate) mod access;
mod arrays;
pub(crate) mod blocking;
pub(crate) mod capture;
pub(crate) mod contexts;
pub(crate) mod ending;
pub(crate) mod graph_memory;
mod green;
pub(crate) mod memory;
pub(crate) mod pools;
pub(crate) mod races;
mod reset;
pub(crate) mod streams;
pub(crate) mod virtual_memory;
pub(crate) mod work;
