pub(crate) mod bounds;
pub(crate) mod cliffs;
pub(crate) mod model;
pub(crate) mod queues;
pub(crate) mod remap;
pub(crate) mod stamp_bounds;
