//! Captures and the graphs that come of them. A captured item is a node with its predecessors.

use std::mem::discriminant;

use cuda_sys::{CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED};

use super::stream::Point;
use super::work::Work;

/// A capture that has begun and not ended.
pub(crate) struct Capture {
    origin: u64,
    mode: u32,
    thread: u64,
    is_invalid: bool,
    graph: Graph,
    /// The handle that the graph will have.
    handle: u64,
    /// Whether it is that of a graph which is captured again.
    recaptures: bool,
}

impl Capture {
    /// One that begins on a stream, by a thread.
    pub(crate) fn new(origin: u64, mode: u32, thread: u64, handle: u64, recaptures: bool) -> Self {
        Self { origin, mode, thread, is_invalid: false, graph: Graph::default(), handle, recaptures }
    }

    /// The stream on which it began.
    pub(crate) fn origin(&self) -> u64 {
        self.origin
    }

    /// The handle that the graph will have.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Whether the graph is one that is captured again.
    pub(crate) fn recaptures(&self) -> bool {
        self.recaptures
    }

    /// Whether it is spoilt: its graph will be none.
    pub(crate) fn is_invalid(&self) -> bool {
        self.is_invalid
    }

    pub(crate) fn invalidate(&mut self) {
        self.is_invalid = true;
    }

    /// Whether a thread may end it: the one that began it, or any in the relaxed mode.
    pub(crate) fn may_be_ended_by(&self, thread: u64) -> bool {
        self.mode == CU_STREAM_CAPTURE_MODE_RELAXED || self.thread == thread
    }

    /// Whether it forbids a call that it cannot see, of a thread in a mode that is not relaxed.
    pub(crate) fn forbids(&self, thread: u64, mode: u32) -> bool {
        let own = self.thread == thread && self.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        let global = mode == CU_STREAM_CAPTURE_MODE_GLOBAL && self.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        own || global
    }

    /// What was captured so far.
    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Adds a node and gives its index.
    pub(crate) fn add(&mut self, node: Node) -> usize {
        self.graph.nodes.push(node);
        self.graph.nodes.len() - 1
    }

    /// What was captured, at the end.
    pub(crate) fn into_graph(self) -> Graph {
        self.graph
    }
}

/// What was captured.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Whether every node is one of these or leads to them.
    pub(crate) fn leads_to(&self, ends: &[usize]) -> bool {
        let mut seen = vec![false; self.nodes.len()];
        let mut left = ends.to_vec();
        while let Some(node) = left.pop() {
            if !std::mem::replace(&mut seen[node], true) {
                left.extend(&self.nodes[node].after);
            }
        }
        seen.iter().all(|seen| *seen)
    }

    /// The work in an order that the dependencies allow: that of the capture, or its reverse where nothing orders two nodes.
    pub(crate) fn ordered(self, reversed: bool) -> Vec<Work> {
        let mut left: Vec<Option<Node>> = self.nodes.into_iter().map(Some).collect();
        let mut order = Vec::with_capacity(left.len());
        while order.len() < left.len() {
            let is_ready = |node: &Option<Node>| {
                node.as_ref().is_some_and(|node| node.after.iter().all(|before| left[*before].is_none()))
            };
            let next =
                if reversed { left.iter().rposition(is_ready) } else { left.iter().position(is_ready) };
            // A node comes after earlier ones only, so one is always ready.
            let Some(node) = next.and_then(|next| left[next].take()) else { break };
            order.push(node.work);
        }
        order
    }

    /// Allocations and frees: where, and whether it is an allocation.
    pub(crate) fn memory_nodes(&self) -> impl Iterator<Item = (u64, bool)> {
        self.nodes.iter().filter_map(|node| match node.work {
            Work::Alloc { at, .. } => Some((at, true)),
            Work::Free { at, .. } => Some((at, false)),
            _ => None,
        })
    }

    pub(crate) fn has_memory(&self) -> bool {
        self.memory_nodes().next().is_some()
    }

    pub(crate) fn allocated(&self) -> Vec<u64> {
        self.memory_nodes().filter(|(_, is_allocation)| *is_allocation).map(|(at, _)| at).collect()
    }
}

/// A captured item.
#[derive(Clone)]
pub(crate) struct Node {
    work: Work,
    after: Vec<usize>,
    handle: u64,
}

impl Node {
    /// Work that comes after the nodes with these indices.
    pub(crate) fn new(work: Work, after: Vec<usize>, handle: u64) -> Self {
        Self { work, after, handle }
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Whether it has that kind of work and these predecessors. Other ones are another topology.
    pub(crate) fn is_like(&self, work: &Work, after: &[usize]) -> bool {
        discriminant(&self.work) == discriminant(work) && self.after == after
    }
}

/// A graph that can be launched.
pub(crate) struct Executable {
    graph: Graph,
    /// The handle of the graph that it was made of.
    of: u64,
    /// CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.
    auto_free: bool,
    /// Where its last launch ends.
    last: Option<Point>,
}

impl Executable {
    /// One that was never launched.
    pub(crate) fn new(graph: Graph, of: u64, auto_free: bool) -> Self {
        Self { graph, of, auto_free, last: None }
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The handle of the graph that it was made of.
    pub(crate) fn of(&self) -> u64 {
        self.of
    }

    /// Whether a launch frees what the one before has left.
    pub(crate) fn auto_free(&self) -> bool {
        self.auto_free
    }

    /// Where its last launch ends.
    pub(crate) fn last(&self) -> Option<Point> {
        self.last
    }

    /// It was launched.
    pub(crate) fn set_last(&mut self, end: Point) {
        self.last = Some(end);
    }
}
