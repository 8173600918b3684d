//! Memory that is no virtual memory: what is allocated, what lives in the order of device work, and what is freed and still
//! lives.

use cuda_sys::CUdevice;

/// How memory came about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// `cuMemAlloc`, `cuMemAllocPitch`.
    Plain,
    Managed,
    /// `cuMemAllocAsync`, from a pool.
    Pool(u64),
    /// `cuMemAllocAsync` in a capture: the memory of a graph.
    Graph,
    /// `cuMemAllocHost`, `cuMemHostAlloc`, with its flags.
    Host(u32),
    /// `cuMemHostRegister`: the program's own memory.
    Registered(u32),
    /// Another process's, opened that often.
    Imported {
        opened: u64,
        key: [u64; 3],
    },
}

/// A live allocation.
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    pub(crate) origin: Origin,
    pub(crate) device: CUdevice,
    /// The context that it ends with; 0 for memory that belongs to none.
    pub(crate) context: u64,
    /// The pages it lies in.
    pub(crate) span: (u64, u64),
    /// Unique in this process (CU_POINTER_ATTRIBUTE_BUFFER_ID).
    pub(crate) unique: u64,
    /// cuMemFreeAsync was called, of what cuMemAlloc gave, and its turn has not come.
    pub(crate) is_ending: bool,
    pub(crate) sync_memops: bool,
}

/// What lives in the order of device work, by its start.
pub(crate) struct Living {
    pub(crate) bytes: u64,
    pub(crate) unique: u64,
    pub(crate) device: CUdevice,
    /// 0 for the memory of a graph.
    pub(crate) pool: u64,
}

/// Memory whose free is queued, by its start.
pub(crate) struct Ending {
    pub(crate) bytes: u64,
    pub(crate) unique: u64,
}
