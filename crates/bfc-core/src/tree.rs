//! An ordered set with its links inside the nodes, so that no change needs memory: a treap (Seidel and Aragon, 1996).
//!
//! Priorities are a hash of the node's key and a seed, and are stored nowhere.

use crate::ids::{ChunkId, NIL};
use crate::seed::Seed;
use crate::steps;
use core::marker::PhantomData;

/// The order that a node has links for if it is in one tree only.
pub(crate) enum BySize {}

/// A node that a tree can be linked through, identified by its chunk number.
pub(crate) trait Node<Order = BySize> {
    /// Returns the key: size and address in the order of sizes.
    fn key(&self) -> (u64, u64);
    fn left(&self) -> ChunkId;
    fn right(&self) -> ChunkId;
    fn left_mut(&mut self) -> &mut ChunkId;
    fn right_mut(&mut self) -> &mut ChunkId;
}

/// The tree of one set. Its nodes are in a slice that is passed to every call, and have links and a key for `Order`.
#[derive(Clone, Copy)]
pub(crate) struct Tree<Order = BySize> {
    root: ChunkId,
    order: PhantomData<Order>,
}

/// The link that leads to a node.
#[derive(Clone, Copy)]
enum Link {
    Root,
    Left(ChunkId),
    Right(ChunkId),
}

impl<Order> Tree<Order> {
    pub(crate) const EMPTY: Self = Tree { root: NIL, order: PhantomData };

    /// Returns the tree with a root.
    #[inline]
    pub(crate) fn of(root: ChunkId) -> Self {
        Tree { root, order: PhantomData }
    }

    /// Returns the root, or [`NIL`].
    #[inline]
    pub(crate) fn root(&self) -> ChunkId {
        self.root
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.root == NIL
    }

    /// Returns the first node that is not below `key`, or [`NIL`].
    #[inline]
    pub(crate) fn first_from<N: Node<Order>>(&self, nodes: &[N], key: (u64, u64)) -> ChunkId {
        let (mut node, mut best) = (self.root, NIL);
        while node != NIL {
            steps::count();
            let here = &nodes[node.index()];
            if here.key() >= key {
                (best, node) = (node, here.left());
            } else {
                node = here.right();
            }
        }
        best
    }

    /// Returns the last node that is not above `key`, or [`NIL`].
    #[inline]
    pub(crate) fn last_to<N: Node<Order>>(&self, nodes: &[N], key: (u64, u64)) -> ChunkId {
        let (mut node, mut best) = (self.root, NIL);
        while node != NIL {
            steps::count();
            let here = &nodes[node.index()];
            if here.key() <= key {
                (best, node) = (node, here.right());
            } else {
                node = here.left();
            }
        }
        best
    }

    /// Returns the node with a key, or [`NIL`].
    #[inline]
    pub(crate) fn find<N: Node<Order>>(&self, nodes: &[N], key: (u64, u64)) -> ChunkId {
        let mut node = self.root;
        while node != NIL && nodes[node.index()].key() != key {
            steps::count();
            let here = &nodes[node.index()];
            node = if key < here.key() { here.left() } else { here.right() };
        }
        node
    }

    /// Returns the last node, or [`NIL`].
    pub(crate) fn last<N: Node<Order>>(&self, nodes: &[N]) -> ChunkId {
        let (mut node, mut last) = (self.root, NIL);
        while node != NIL {
            (last, node) = (node, nodes[node.index()].right());
        }
        last
    }

    /// Adds a node that is in no tree.
    #[inline]
    pub(crate) fn insert<N: Node<Order>>(&mut self, nodes: &mut [N], seed: Seed, id: ChunkId) {
        let key = nodes[id.index()].key();
        let (mut node, mut link) = (self.root, Link::Root);
        if node != NIL {
            let priority = priority(seed, key);
            while node != NIL && self::priority(seed, nodes[node.index()].key()) >= priority {
                steps::count();
                (node, link) = below(nodes, node, key);
            }
        }
        self.set(nodes, link, id);
        self.split(nodes, node, key, id);
    }

    /// Removes a node of the tree.
    #[inline]
    pub(crate) fn remove<N: Node<Order>>(&mut self, nodes: &mut [N], seed: Seed, id: ChunkId) {
        let key = nodes[id.index()].key();
        let (mut node, mut link) = (self.root, Link::Root);
        while node != id {
            steps::count();
            (node, link) = below(nodes, node, key);
        }
        let (mut low, mut high) = (nodes[id.index()].left(), nodes[id.index()].right());
        while low != NIL && high != NIL {
            steps::count();
            let key_of = |node: ChunkId| nodes[node.index()].key();
            if priority(seed, key_of(low)) >= priority(seed, key_of(high)) {
                self.set(nodes, link, low);
                (link, low) = (Link::Right(low), nodes[low.index()].right());
            } else {
                self.set(nodes, link, high);
                (link, high) = (Link::Left(high), nodes[high.index()].left());
            }
        }
        self.set(nodes, link, if low == NIL { high } else { low });
    }

    /// Splits the tree at `node` by `key` and makes the halves the children of `id`.
    #[inline]
    fn split<N: Node<Order>>(&mut self, nodes: &mut [N], mut node: ChunkId, key: (u64, u64), id: ChunkId) {
        let (mut low, mut high) = (Link::Left(id), Link::Right(id));
        while node != NIL {
            steps::count();
            if nodes[node.index()].key() < key {
                self.set(nodes, low, node);
                (low, node) = (Link::Right(node), nodes[node.index()].right());
            } else {
                self.set(nodes, high, node);
                (high, node) = (Link::Left(node), nodes[node.index()].left());
            }
        }
        self.set(nodes, low, NIL);
        self.set(nodes, high, NIL);
    }

    #[inline]
    fn set<N: Node<Order>>(&mut self, nodes: &mut [N], link: Link, to: ChunkId) {
        match link {
            Link::Root => self.root = to,
            Link::Left(node) => *nodes[node.index()].left_mut() = to,
            Link::Right(node) => *nodes[node.index()].right_mut() = to,
        }
    }
}

/// Returns the child of a node that a key leads to, and the link to it.
#[inline]
fn below<Order, N: Node<Order>>(nodes: &[N], node: ChunkId, key: (u64, u64)) -> (ChunkId, Link) {
    let here = &nodes[node.index()];
    if key < here.key() { (here.left(), Link::Left(node)) } else { (here.right(), Link::Right(node)) }
}

/// Returns the priority of a key. Priorities of ordered keys are in random order.
#[inline]
pub(crate) fn priority(seed: Seed, key: (u64, u64)) -> u64 {
    seed.hash(key.0.rotate_left(32) ^ key.1)
}
