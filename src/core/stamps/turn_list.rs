//! The queue of a pool with quarantine: a list in the order of turns, linked through the nodes.
//!
//! There a chunk gets its stamp when it is freed and keeps it, so each chunk joins at the end, and those that have become
//! safe are at the beginning. Both take constant time. A chunk with an earlier turn would find its place too, from the
//! end on.

use crate::core::ids::{ChunkId, NIL};
use crate::core::steps;
use crate::core::tree::Node;

/// The list. A node's left link leads to the previous node, its right link to the next one.
#[derive(Clone, Copy)]
pub(super) struct TurnList {
    first: ChunkId,
    last: ChunkId,
}

impl TurnList {
    pub(super) const EMPTY: Self = TurnList { first: NIL, last: NIL };

    pub(super) fn is_empty(&self) -> bool {
        self.first == NIL
    }

    /// Returns the first node, or [`NIL`].
    pub(super) fn first(&self) -> ChunkId {
        self.first
    }

    /// Adds a node that is not in the list, behind all nodes with lower keys.
    #[inline]
    pub(super) fn insert<N: Node>(&mut self, nodes: &mut [N], id: ChunkId) {
        let key = nodes[id.index()].key();
        let (mut before, mut after) = (self.last, NIL);
        while before != NIL && nodes[before.index()].key() > key {
            steps::count();
            (before, after) = (nodes[before.index()].left(), before);
        }
        *nodes[id.index()].left_mut() = before;
        *nodes[id.index()].right_mut() = after;
        *self.link_after(nodes, before) = id;
        *self.link_before(nodes, after) = id;
    }

    /// Removes a node of the list.
    #[inline]
    pub(super) fn remove<N: Node>(&mut self, nodes: &mut [N], id: ChunkId) {
        let (before, after) = (nodes[id.index()].left(), nodes[id.index()].right());
        *self.link_after(nodes, before) = after;
        *self.link_before(nodes, after) = before;
    }

    /// Returns the link from a node to the next one. Before the first node, that is the beginning of the list.
    #[inline]
    fn link_after<'a, N: Node>(&'a mut self, nodes: &'a mut [N], id: ChunkId) -> &'a mut ChunkId {
        if id == NIL { &mut self.first } else { nodes[id.index()].right_mut() }
    }

    /// Returns the link from a node to the previous one. Behind the last node, that is the end of the list.
    #[inline]
    fn link_before<'a, N: Node>(&'a mut self, nodes: &'a mut [N], id: ChunkId) -> &'a mut ChunkId {
        if id == NIL { &mut self.last } else { nodes[id.index()].left_mut() }
    }
}
