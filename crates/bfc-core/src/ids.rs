//! Chunk numbers.

/// A chunk's place in the slab, from 1 on. Numbers are recycled, so one is meaningful only while its chunk exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkId(pub(crate) u32);

/// No chunk: the end of a list, an empty tree.
pub const NIL: ChunkId = ChunkId(u32::MAX - 6);

impl ChunkId {
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}
