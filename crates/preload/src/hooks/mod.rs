//! The hooks, by kind: functions that replace the driver's. They share `fallback`, which calls the driver, and
//! `refusals`, which reports requests that fail. A new hook is an entry in `hook_list` and a function here.

pub(crate) mod async_alloc;
pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod cross_device;
pub(crate) mod device;
pub(crate) mod fallback;
pub(crate) mod memory_pools;
pub(crate) mod pinned;
pub(crate) mod pointers;
pub(crate) mod refusals;
pub(crate) mod retried;
pub(crate) mod unanalyzed;
