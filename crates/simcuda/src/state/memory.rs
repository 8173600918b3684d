//! Memory other than virtual memory: allocated memory, memory that is live in the order of device work, and memory that
//! is freed but still live.

use cuda_sys::CUdevice;

/// The origin of memory.
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
    /// Memory of another process, with the number of times it was opened.
    Imported {
        opened: u64,
        key: [u64; 3],
    },
}

impl Origin {
    /// Returns whether the memory is a device's, and not the host's or managed.
    pub(crate) fn is_of_device(&self) -> bool {
        !matches!(self, Origin::Managed | Origin::Host(_) | Origin::Registered(_))
    }
}

/// A live allocation.
pub(crate) struct Allocation {
    pub(crate) bytes: u64,
    pub(crate) origin: Origin,
    pub(crate) device: CUdevice,
    /// The context that the allocation ends with. 0 for memory that belongs to none.
    pub(crate) context: u64,
    /// The pages of the allocation.
    pub(crate) span: (u64, u64),
    /// Unique in this process (CU_POINTER_ATTRIBUTE_BUFFER_ID).
    pub(crate) unique: u64,
    /// Whether cuMemFreeAsync was called for memory from cuMemAlloc, and the free is not done yet.
    pub(crate) is_ending: bool,
    pub(crate) sync_memops: bool,
}

/// Memory that is live in the order of device work, by its start.
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
