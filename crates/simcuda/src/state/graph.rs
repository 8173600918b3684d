//! Captures and the graphs made from them. A captured item is a node with its predecessors.

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
    /// The handle of the future graph.
    handle: u64,
    /// Whether an existing graph is captured again.
    recaptures: bool,
}

impl Capture {
    /// Creates a capture that begins on a stream, by a thread.
    pub(crate) fn new(origin: u64, mode: u32, thread: u64, handle: u64, recaptures: bool) -> Self {
        Self { origin, mode, thread, is_invalid: false, graph: Graph::default(), handle, recaptures }
    }

    /// Returns the stream on which the capture began.
    pub(crate) fn origin(&self) -> u64 {
        self.origin
    }

    /// Returns the handle of the future graph.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns whether an existing graph is captured again.
    pub(crate) fn recaptures(&self) -> bool {
        self.recaptures
    }

    /// Returns whether the capture is invalidated, so that there will be no graph.
    pub(crate) fn is_invalid(&self) -> bool {
        self.is_invalid
    }

    pub(crate) fn invalidate(&mut self) {
        self.is_invalid = true;
    }

    /// Returns whether a thread may end the capture: the one that began it, or any in the relaxed mode.
    pub(crate) fn may_be_ended_by(&self, thread: u64) -> bool {
        self.mode == CU_STREAM_CAPTURE_MODE_RELAXED || self.thread == thread
    }

    /// Returns whether the capture forbids a potentially unsafe call of a thread whose mode is not relaxed.
    pub(crate) fn forbids(&self, thread: u64, mode: u32) -> bool {
        let own = self.thread == thread && self.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        let global = mode == CU_STREAM_CAPTURE_MODE_GLOBAL && self.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        own || global
    }

    /// Returns what was captured so far.
    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Adds a node and returns its index.
    pub(crate) fn add(&mut self, node: Node) -> usize {
        self.graph.add(node)
    }

    /// Returns the captured graph at the end.
    pub(crate) fn into_graph(self) -> Graph {
        self.graph
    }
}

/// A captured graph.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
}

impl Graph {
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the index of the node with a handle.
    pub(crate) fn index_of(&self, handle: u64) -> Option<usize> {
        self.nodes.iter().position(|node| node.handle == handle)
    }

    /// Adds a node, after existing nodes, and returns its index.
    pub(crate) fn add(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Returns whether every node is one of these or leads to them.
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

    /// Returns the work in an order allowed by the dependencies: that of the capture, or its reverse where two nodes
    /// are not ordered. Each has the places in that order of its predecessors.
    pub(crate) fn ordered(self, reversed: bool) -> Vec<(Work, Vec<usize>)> {
        let mut left: Vec<Option<Node>> = self.nodes.into_iter().map(Some).collect();
        let mut order = Vec::with_capacity(left.len());
        let mut places = vec![0; left.len()];
        while order.len() < left.len() {
            let is_ready = |node: &Option<Node>| {
                node.as_ref().is_some_and(|node| node.after.iter().all(|before| left[*before].is_none()))
            };
            let next =
                if reversed { left.iter().rposition(is_ready) } else { left.iter().position(is_ready) };
            // A node comes only after earlier ones, so one is always ready.
            let Some((next, node)) = next.and_then(|next| Some((next, left[next].take()?))) else { break };
            places[next] = order.len();
            order.push((node.work, node.after.iter().map(|before| places[*before]).collect()));
        }
        order
    }

    /// Returns the allocations and frees: their addresses, and whether each is an allocation.
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
    /// Creates a node for work after the nodes with these indices.
    pub(crate) fn new(work: Work, after: Vec<usize>, handle: u64) -> Self {
        Self { work, after, handle }
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns whether the node has this kind of work and these predecessors. Otherwise the topology differs.
    pub(crate) fn is_like(&self, work: &Work, after: &[usize]) -> bool {
        discriminant(&self.work) == discriminant(work) && self.after == after
    }
}

/// A graph that can be launched.
pub(crate) struct Executable {
    graph: Graph,
    /// The handle of the graph that it was instantiated from.
    of: u64,
    /// CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.
    auto_free: bool,
    /// The end of its last launch.
    last: Option<Point>,
}

impl Executable {
    /// Creates an executable graph that was never launched.
    pub(crate) fn new(graph: Graph, of: u64, auto_free: bool) -> Self {
        Self { graph, of, auto_free, last: None }
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the handle of the graph that it was instantiated from.
    pub(crate) fn of(&self) -> u64 {
        self.of
    }

    /// Returns whether a launch frees the allocations left by the previous one.
    pub(crate) fn auto_free(&self) -> bool {
        self.auto_free
    }

    /// Returns the end of the last launch.
    pub(crate) fn last(&self) -> Option<Point> {
        self.last
    }

    /// Records a launch.
    pub(crate) fn set_last(&mut self, end: Point) {
        self.last = Some(end);
    }
}
