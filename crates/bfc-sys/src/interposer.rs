//! The interposer's pools and requests: `preload` makes them, `bfc run` says which variables of the environment have no
//! effect because of the flags, and `bfc report --advice` replays them.

use crate::{BFC_ALLOW_GROWTH, BFC_GARBAGE_COLLECTION, BFC_QUARANTINE, BFC_SPLIT_ALWAYS, BFC_TIMESTAMPS};
use core::ffi::CStr;

/// The name of a device's pool.
pub const DEVICE_POOL: &CStr = c"preload";
/// The name of the pool of pinned host memory.
pub const PINNED_POOL: &CStr = c"preload, pinned";

/// Drivers align small allocations to 512 bytes. The documentation guarantees 256.
pub const ALIGNMENT: usize = 512;

/// Drivers align large allocations to pages, and programs rely on it: a DMA-BUF (`cuMemGetHandleForAddressRange`),
/// through which NCCL registers memory with a network adapter, requires whole pages of the host, which have up to 64
/// KiB. An alignment of 2 MiB would need 5% more memory for the recorded programs, and 64 KiB needs 0.1%
/// (docs/interposition.md, `cargo bench --bench alignment`).
const LARGE_ALIGNMENT: usize = 64 << 10;

/// Requests of at least this many bytes are large.
const LARGE: usize = 1 << 20;

/// Pools with this many waiting frees look for reusable ones at each request.
pub const MAX_WAITING_FREES: u64 = 1024;

/// This many waiting frees justify a probe of the device's work, if much of the pool is idle.
pub const MIN_WAITING_FREES: u64 = 128;

/// An idle pool smaller than this may grow instead.
const SMALL_POOL: u64 = 256 << 20;

/// A pool in which freed memory waits, when a request finds none that does not.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The frees that wait.
    pub frees: u64,
    /// Bytes in use now.
    pub in_use: u64,
    /// The most bytes that were in use.
    pub peak_in_use: u64,
    /// Bytes held from the driver.
    pub held: u64,
    /// The most bytes that may be held.
    pub limit: u64,
}

impl Waiting {
    /// Returns whether a request should look for reusable frees instead of letting the pool grow.
    pub fn is_worth_a_probe(self, bytes: u64) -> bool {
        if self.held.saturating_add(bytes) > self.limit {
            return true;
        }
        let idle = self.held.saturating_sub(self.in_use);
        // Twice the peak is enough, and so is a small pool. Below that, a few frees do not justify a synchronization.
        idle >= bytes.max(self.peak_in_use).max(SMALL_POOL)
            || (self.frees >= MIN_WAITING_FREES && idle >= bytes.max(self.in_use).max(SMALL_POOL / 8))
    }
}

/// Returns the alignment of a request of device memory. Without a place at it, a request is made at [`ALIGNMENT`].
#[inline]
pub const fn alignment_of(bytes: usize) -> usize {
    if bytes < LARGE { ALIGNMENT } else { LARGE_ALIGNMENT }
}

/// Whether cudaMallocAsync is served: such pools reuse memory in the order of streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Stamps and the quarantine preserve the meaning of cudaFree.
    Stamps,
    /// By events on streams, which stamps exclude.
    Streams,
}

/// Returns the flags of a device's pool.
pub const fn pool_flags(order: Order) -> u32 {
    let always = BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION | BFC_SPLIT_ALWAYS;
    match order {
        Order::Stamps => always | BFC_TIMESTAMPS | BFC_QUARANTINE,
        Order::Streams => always,
    }
}
