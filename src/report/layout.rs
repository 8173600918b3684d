//! The chunks and regions of a pool as objects.

use super::Subject;
use bfc_core::arena::View;
use bfc_core::heap::State;
use bfc_core::ids::{ChunkId, NIL};
use bfc_hostmem::HostMemoryExhausted;

/// What a chunk is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum ChunkState {
    /// An allocation.
    InUse,
    /// Free: for every stream, or for the one that the chunk names.
    Free,
    /// Free, but no stream may reuse it yet: work on several streams may use it, it is quarantined, or it belongs to a
    /// private pool.
    Held,
    /// Addresses without memory.
    Unmapped,
}

impl ChunkState {
    pub(super) fn of(view: &View<'_>, id: ChunkId) -> Self {
        match view.chunks.state(id) {
            State::InUse => ChunkState::InUse,
            State::Unmapped | State::BeingMapped => ChunkState::Unmapped,
            // Memory that only its own stream may reuse is free for that stream.
            State::Held if view.is_own(id) => ChunkState::Free,
            State::Held | State::Withheld => ChunkState::Held,
            _ => ChunkState::Free,
        }
    }

    /// Returns the word for it in memory maps.
    pub fn name(self) -> &'static str {
        match self {
            ChunkState::InUse => "in_use",
            ChunkState::Free => "free",
            ChunkState::Held => "held",
            ChunkState::Unmapped => "unmapped",
        }
    }
}

/// A chunk: memory in use or free, in one piece.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Chunk {
    /// The first byte.
    pub address: u64,
    /// The bytes.
    pub size: u64,
    /// What it is.
    pub state: ChunkState,
    /// The bytes that the caller asked for, or 0 if it is not in use.
    pub requested: u64,
    /// The number of the allocation, which rises from 1, or 0 if it is not in use.
    pub allocation_id: u64,
    /// The handle of the stream that it was allocated on or may be reused on, if streams are used.
    pub stream: Option<u64>,
    /// The name of the private pool that it belongs to.
    pub private_pool: Option<u64>,
    /// The operation that it was allocated for.
    pub operation: Option<String>,
    /// The step of the operation, or 0.
    pub step: u64,
}

/// A region: memory that was obtained from the backend in one piece, or that has grown together.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Region {
    /// The first byte.
    pub address: u64,
    /// The bytes.
    pub size: u64,
    chunks: Vec<Chunk>,
}

impl Region {
    /// The chunks in the order of their addresses.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = &Chunk> + DoubleEndedIterator {
        self.chunks.iter()
    }
}

/// Returns the regions in the order of their addresses.
pub(crate) fn regions(subject: &Subject<'_>) -> Result<Vec<Region>, HostMemoryExhausted> {
    let view = &subject.view;
    let mut regions = Vec::new();
    for (_, region) in view.regions.iter() {
        let mut chunks = Vec::new();
        each_chunk(view, region.first, |id| {
            chunks.try_reserve(1)?;
            chunks.push(chunk(view, id)?);
            Ok::<_, HostMemoryExhausted>(())
        })?;
        regions.try_reserve(1)?;
        regions.push(Region { address: region.base, size: view.extent(region), chunks });
    }
    Ok(regions)
}

/// Calls a function for each chunk from the first of a region on. The end of a reserved range that was never used is left
/// out.
pub(super) fn each_chunk<E>(
    view: &View<'_>,
    first: ChunkId,
    mut work: impl FnMut(ChunkId) -> Result<(), E>,
) -> Result<(), E> {
    let mut chunk = first;
    while chunk != NIL {
        work(chunk)?;
        chunk = view.chunks.next(chunk);
        if chunk != NIL && view.is_tail(chunk) {
            break;
        }
    }
    Ok(())
}

fn chunk(view: &View<'_>, id: ChunkId) -> Result<Chunk, HostMemoryExhausted> {
    let (chunks, state) = (view.chunks, ChunkState::of(view, id));
    let order = view.order(id);
    let mut chunk = Chunk {
        address: chunks.addr(id),
        size: chunks.size(id),
        state,
        requested: 0,
        allocation_id: 0,
        stream: order.as_ref().and_then(|order| order.stream.exists().then(|| order.stream.handle())),
        private_pool: order.and_then(|order| order.pool),
        operation: None,
        step: 0,
    };
    if state == ChunkState::InUse {
        let cold = chunks.cold(id);
        (chunk.requested, chunk.allocation_id) = (cold.requested, cold.allocation_id);
        let tag = chunks.tag(id);
        if let Some(name) = view.names.name(tag.name) {
            let mut operation = String::new();
            operation.try_reserve_exact(name.len())?;
            operation.push_str(name);
            (chunk.operation, chunk.step) = (Some(operation), tag.step);
        }
    }
    Ok(chunk)
}
