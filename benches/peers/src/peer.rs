//! What an allocator must do to be timed.

use anyhow::Result;

/// An allocator with one region.
pub trait Peer: Sized {
    /// What a caller keeps of an allocation to free it.
    type Piece;

    /// Makes an allocator of `capacity` bytes: of real memory if the caller writes to it.
    fn open(capacity: u64, touched: bool) -> Result<Self>;

    /// Returns nothing if there is no memory.
    fn alloc(&mut self, bytes: u64) -> Option<Self::Piece>;

    /// Frees what was allocated with so many bytes.
    fn free(&mut self, piece: Self::Piece, bytes: u64);

    /// Returns where a piece begins.
    fn addr(&self, piece: &Self::Piece) -> u64;
}

/// What the user reads about a peer.
pub struct About {
    /// The name on the command line, in tables and in charts.
    pub name: &'static str,
    /// How it differs from libbfc in what it does for a call.
    pub remark: &'static str,
}

/// All peers, libbfc first.
pub const ALL: [About; 16] = [
    About { name: "libbfc", remark: "exact best fit, lock, map of pointers, statistics; by its C ABI" },
    About {
        name: "smallest",
        remark: "exact best fit, split and coalesce, and nothing else: see smallest.rs",
    },
    About {
        name: "smallest+lock+map",
        remark: "the same behind a lock and a hash table from pointers: see wrapped.rs",
    },
    About { name: "tensorflow", remark: "exact best fit, lock, map of pointers, statistics" },
    About {
        name: "pytorch",
        remark: "best fit in segments of 2 MiB and more, lock, map of pointers, streams; takes its memory on demand",
    },
    About {
        name: "rmm-pool",
        remark: "best fit by a walk, lock, set of allocated blocks, streams: records an event for each free",
    },
    About {
        name: "rmm-arena",
        remark: "first fit by a walk in superblocks, an arena for each stream, locks; synchronises the stream before a free to another arena",
    },
    About {
        name: "gpu-allocator",
        remark: "best fit by a walk; no lock, no map; blocks of 256 MiB, and larger requests go to the driver",
    },
    About {
        name: "offset-allocator",
        remark: "not exact: classes of 1/8, no lock, no map; sizes in units of 256 bytes",
    },
    About {
        name: "rlsf",
        remark: "not exact: two-level classes (TLSF), no lock; headers in the memory itself",
    },
    About {
        name: "offset-allocator+lock+map",
        remark: "offset-allocator behind the same lock and hash table",
    },
    About { name: "rlsf+lock+map", remark: "rlsf behind the same lock and hash table" },
    About { name: "mimalloc", remark: "size classes, caches for each thread; real memory" },
    About { name: "jemalloc", remark: "size classes, caches for each thread; real memory" },
    About { name: "glibc", remark: "malloc of the system; real memory" },
    About {
        name: "overlapping",
        remark: "a planted fault: returns overlapping memory (--list does not show it)",
    },
];
