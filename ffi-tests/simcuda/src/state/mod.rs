//! The parts of the driver's state as plain data: each file has types with their own methods, and knows nothing of [`Sim`].
//!
//! [`Sim`]: crate::sim::Sim

pub(crate) mod arena;
pub(crate) mod faults;
pub(crate) mod module;
pub(crate) mod record;
