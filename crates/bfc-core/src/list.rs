//! A doubly linked list with its links inside the nodes, so that no change needs memory.

use crate::ids::{ChunkId, NIL};

/// The number of a node: its place in the slice that the nodes are in, or none.
pub(crate) trait Number: Copy + PartialEq {
    const NONE: Self;

    fn place(self) -> usize;
}

impl Number for ChunkId {
    const NONE: Self = NIL;

    #[inline(always)]
    fn place(self) -> usize {
        self.index()
    }
}

/// A node's neighbours in a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Links<I> {
    pub(crate) before: I,
    pub(crate) after: I,
}

impl<I: Number> Links<I> {
    pub(crate) const NONE: Self = Links { before: I::NONE, after: I::NONE };
}

/// A node that a list can be linked through. `L` tells the lists apart, where a node can be in several.
pub(crate) trait Linked<I, L = ()> {
    fn links(&self, list: L) -> &Links<I>;
    fn links_mut(&mut self, list: L) -> &mut Links<I>;
}

/// A list. Its nodes are in a slice that is passed to every call.
#[derive(Clone, Copy)]
pub(crate) struct List<I, L = ()> {
    first: I,
    last: I,
    list: L,
}

impl<I: Number, L: Copy> List<I, L> {
    pub(crate) const fn new(list: L) -> Self {
        List { first: I::NONE, last: I::NONE, list }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.first == I::NONE
    }

    /// Returns the first node, or none.
    #[inline(always)]
    pub(crate) fn first(&self) -> I {
        self.first
    }

    /// Returns the last node, or none.
    #[inline(always)]
    pub(crate) fn last(&self) -> I {
        self.last
    }

    /// Returns the node after another, or the first node.
    #[inline(always)]
    pub(crate) fn after<N: Linked<I, L>>(&self, nodes: &[N], node: I) -> I {
        if node == I::NONE { self.first } else { nodes[node.place()].links(self.list).after }
    }

    /// Inserts a node that is not in the list after another one, or first.
    #[inline(always)]
    pub(crate) fn insert_after<N: Linked<I, L>>(&mut self, nodes: &mut [N], node: I, before: I) {
        let after = self.after(nodes, before);
        *nodes[node.place()].links_mut(self.list) = Links { before, after };
        self.link(nodes, before, node);
        self.link(nodes, node, after);
    }

    /// Inserts a node that is not in the list at its end.
    #[inline(always)]
    pub(crate) fn push<N: Linked<I, L>>(&mut self, nodes: &mut [N], node: I) {
        self.insert_after(nodes, node, self.last);
    }

    /// Removes a node of the list. Its own links stay.
    #[inline(always)]
    pub(crate) fn remove<N: Linked<I, L>>(&mut self, nodes: &mut [N], node: I) {
        let Links { before, after } = *nodes[node.place()].links(self.list);
        self.link(nodes, before, after);
    }

    /// Puts a node that is not in the list in the place of one that is.
    #[inline(always)]
    pub(crate) fn replace<N: Linked<I, L>>(&mut self, nodes: &mut [N], node: I, by: I) {
        let links = *nodes[node.place()].links(self.list);
        *nodes[by.place()].links_mut(self.list) = links;
        self.link(nodes, links.before, by);
        self.link(nodes, by, links.after);
    }

    /// Makes two nodes neighbours. None stands for the end of the list.
    #[inline(always)]
    fn link<N: Linked<I, L>>(&mut self, nodes: &mut [N], before: I, after: I) {
        if before == I::NONE {
            self.first = after;
        } else {
            nodes[before.place()].links_mut(self.list).after = after;
        }
        if after == I::NONE {
            self.last = before;
        } else {
            nodes[after.place()].links_mut(self.list).before = before;
        }
    }

    /// Returns the nodes in order.
    pub(crate) fn iter<'a, N: Linked<I, L>>(
        &self,
        nodes: &'a [N],
    ) -> impl Iterator<Item = I> + use<'a, I, L, N> {
        let (first, list) = (self.first, self.list);
        let some = |node: I| Some(node).filter(|&node| node != I::NONE);
        core::iter::successors(some(first), move |node| some(nodes[node.place()].links(list).after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Linked<ChunkId> for Links<ChunkId> {
        fn links(&self, (): ()) -> &Links<ChunkId> {
            self
        }

        fn links_mut(&mut self, (): ()) -> &mut Links<ChunkId> {
            self
        }
    }

    /// Every change keeps the order of a vector, in both directions.
    #[test]
    fn a_list_is_a_sequence() {
        let mut nodes = [Links::NONE; 8];
        let (mut list, mut model) = (List::new(()), Vec::new());
        let mut state = 7_u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 33) as usize % below
        };
        for _ in 0..10_000 {
            let node = ChunkId(random(nodes.len()) as u32);
            match model.iter().position(|&other| other == node) {
                None if random(2) == 0 => {
                    let at = random(model.len() + 1);
                    list.insert_after(&mut nodes, node, if at == 0 { NIL } else { model[at - 1] });
                    model.insert(at, node);
                }
                None if model.is_empty() || random(2) == 0 => {
                    list.push(&mut nodes, node);
                    model.push(node);
                }
                None => {
                    let at = random(model.len());
                    list.replace(&mut nodes, model[at], node);
                    model[at] = node;
                }
                Some(at) => {
                    list.remove(&mut nodes, node);
                    model.remove(at);
                }
            }
            assert_eq!(list.iter(&nodes).collect::<Vec<_>>(), model);
            let before = |&node: &ChunkId| Some(nodes[node.index()].before).filter(|&node| node != NIL);
            let last = Some(list.last()).filter(|&node| node != NIL);
            assert!(std::iter::successors(last, before).eq(model.iter().rev().copied()));
            assert_eq!((list.is_empty(), list.first()), (model.is_empty(), *model.first().unwrap_or(&NIL)));
        }
    }
}
