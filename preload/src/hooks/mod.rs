pub(crate) mod async_alloc;
pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod pinned;
pub(crate) mod pointers;
pub(crate) mod refusals;
pub(crate) mod unanalyzed;
