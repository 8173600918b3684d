pub(crate) mod merge;
pub(crate) mod queue;
pub(crate) mod stamped_index;
