//! The flags of the interposer's pools: `preload` creates the pools with them, and `bfc run` says which variables of the
//! environment have no effect because of them.

use crate::{BFC_ALLOW_GROWTH, BFC_GARBAGE_COLLECTION, BFC_QUARANTINE, BFC_SPLIT_ALWAYS, BFC_TIMESTAMPS};

/// Whether cudaMallocAsync is served: such pools reuse memory in the order of streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// cudaFree keeps its meaning by stamps, and the quarantine.
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
