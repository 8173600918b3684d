//! What random programs do. Most of it concerns one of the drivers only.

use crate::common::preload::Interposer;
use crate::common::{GIB, MIB};

/// The operations of a program, and its settings.
#[derive(Clone, Copy)]
pub struct Kind {
    /// Settings of the interposer and of libbfc.
    pub variables: &'static [(&'static str, &'static str)],
    pub devices: usize,
    /// The devices' kernels touch each other's memory.
    pub peers: bool,
    /// Bytes of each device.
    pub memory: u64,
    /// The sizes of requests.
    pub sizes: [u64; 3],
    /// Streams are the default streams of threads, except for one.
    pub threads: bool,
    /// Some streams are of a context that the program has created on the first device.
    pub foreign: bool,
    /// Copies between contexts or devices.
    pub copies: bool,
    /// Captures into graphs, which are launched repeatedly.
    pub graphs: bool,
    /// Captures are of all three modes, and with the library some are not announced by `bfc_pool_begin`.
    pub modes: bool,
    /// Receives are posted, whose sends are queued later on other streams.
    pub receives: bool,

    /// With the library: chunks are used on streams other than their own.
    pub records: bool,
    /// Streams are forgotten and destroyed.
    pub ends: bool,
    /// `bfc_alloc` and `bfc_free` without a stream.
    pub plain: bool,
    /// Events always report completion to a request, which simulates a library that does not check.
    pub lies: bool,
    /// Calls of the driver fail now and then.
    pub fails: bool,
    /// The memory is mapped and remapped in granules.
    pub granules: bool,
    /// Some streams are the default streams of their contexts, which may be the only streams.
    pub defaults: bool,
    /// Streams are destroyed without `bfc_forget_stream`, once all memory that was allocated there or recorded is
    /// freed.
    pub unforgotten: bool,
    /// A receive's stream frees after it, before the memory to send from is requested.
    pub frees_behind: bool,

    /// With the interposer: the one that is preloaded. Those with a defect must be detected.
    pub interposer: Interposer,
    /// The second device is used through a context that the program has created.
    pub own_context: bool,
    /// All memory is allocated and freed on the legacy stream, which alone orders the other streams' work.
    pub legacy: bool,
    /// Memory that is not pooled is allocated too.
    pub others: bool,
    /// cudaMallocAsync and cudaFreeAsync too.
    pub is_async: bool,
    /// The memory is pinned host memory, which belongs to every device.
    pub pinned: bool,
    /// Each cudaFree must wait for the device.
    pub is_sync: bool,
}

/// Only allocation, use and free.
pub const SIMPLE: Kind = Kind {
    variables: &[],
    devices: 1,
    peers: false,
    memory: GIB,
    sizes: [512, 2048, 8192],
    threads: false,
    foreign: false,
    copies: false,
    graphs: false,
    modes: false,
    receives: false,
    records: false,
    ends: false,
    plain: false,
    lies: false,
    fails: false,
    granules: false,
    defaults: false,
    unforgotten: false,
    frees_behind: false,
    interposer: Interposer::Shipped,
    own_context: false,
    legacy: false,
    others: false,
    is_async: false,
    pinned: false,
    is_sync: false,
};

/// Sizes of requests with granules of 2 MiB.
pub const GRANULES: [u64; 3] = [100_000, MIB, 3 * MIB];

/// Sizes of requests without a limit.
pub const UNLIMITED: [u64; 3] = [4096, 65536, 500_000];

impl Kind {
    /// The share of programs of this kind. Granules are large, and so is the work on them. Programs with several
    /// contexts, receives or all modes of captures, or that are repeatedly run to their end, take longer.
    pub fn share(self) -> u64 {
        match self {
            Kind { sizes: [.., most], .. } if most > MIB => 8,
            Kind { foreign: true, .. } | Kind { unforgotten: true, .. } => 4,
            Kind { receives: true, .. } | Kind { modes: true, .. } => 4,
            _ => 1,
        }
    }

    /// Returns whether the interposer has a defect.
    pub fn is_mutated(self) -> bool {
        self.interposer != Interposer::Shipped
    }
}
