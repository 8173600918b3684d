//! The parts of the driver's state as plain data. No file here depends on `Sim`. Each type keeps its own fields
//! consistent, and the rules that combine several parts are in `rules`. Types without a rule between their fields, such
//! as `Point` and `Allocation`, have open fields.

pub(crate) mod arena;
pub(crate) mod array;
pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod faults;
pub(crate) mod function;
pub(crate) mod graph;
pub(crate) mod graph_memory;
pub(crate) mod green;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod physical;
pub(crate) mod pool;
pub(crate) mod races;
pub(crate) mod record;
pub(crate) mod stream;
pub(crate) mod touched;
pub(crate) mod work;
