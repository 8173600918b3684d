//! Stream capture and graphs. A captured item is a node with its predecessors; a launch queues the nodes on one
//! stream in the order in which they were captured, which is an order that the graph allows.
//!
//! Rules: cuStreamBeginCapture, cuThreadExchangeStreamCaptureMode, cuStreamEndCapture and cuStreamIsCapturing in
//! cuda.h; CUDA C++ Programming Guide, Creating a Graph Using Stream Capture: Cross-stream Dependencies and
//! Events, Prohibited and Unhandled Operations, Invalidation.

use cuda_sys::{
    CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_ERROR_CAPTURED_EVENT,
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_MERGE, CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUresult,
};

use crate::abi::Answer;
use crate::handles::{self, Kind};
use crate::rules::streams::Point;
use crate::rules::work::Work;
use crate::sim::Sim;
use crate::system;

/// A capture that has begun and not ended.
pub(crate) struct Capture {
    origin: u64,
    mode: u32,
    thread: u64,
    pub(crate) is_invalid: bool,
    pub(crate) graph: Graph,
    /// The handle that the graph will have.
    pub(crate) handle: u64,
    /// Whether it is that of a graph which is captured again.
    recaptures: bool,
}

/// What was captured.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
}

impl Graph {
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
}

/// A graph that can be launched.
pub(crate) struct Executable {
    pub(crate) graph: Graph,
    /// The handle of the graph that it was made of.
    pub(crate) of: u64,
    /// CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.
    pub(crate) auto_free: bool,
    /// Where its last launch ends.
    pub(crate) last: Option<Point>,
}

/// A captured item.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) work: Work,
    pub(crate) after: Vec<usize>,
    pub(crate) handle: u64,
}

impl Sim {
    /// Begins to capture a stream that is not captured yet, anew or into a graph that there is.
    pub(crate) fn begin_capture(&mut self, stream: u64, mode: u32, graph: Option<u64>) -> u64 {
        let number = self.number();
        let capture = Capture {
            origin: stream,
            mode,
            thread: system::thread(),
            is_invalid: false,
            graph: Graph::default(),
            handle: graph.unwrap_or_else(|| handles::make(Kind::Graph, number)),
            recaptures: graph.is_some(),
        };
        self.captures.insert(number, capture);
        self.join(stream, number, &[]);
        number
    }

    fn join(&mut self, stream: u64, capture: u64, frontier: &[usize]) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        stream.capture = Some(capture);
        for node in frontier {
            if !stream.frontier.contains(node) {
                stream.frontier.push(*node);
            }
        }
    }

    /// Ends a capture and gives the graph, which is none if it was invalidated.
    pub(crate) fn end_capture(&mut self, stream: u64) -> Answer<u64> {
        let number = self.streams.get(&stream).and_then(|stream| stream.capture);
        let number = number.ok_or(cuda_sys::CUDA_ERROR_ILLEGAL_STATE)?;
        let Some(capture) = self.captures.get(&number) else {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        };
        if capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture.thread != system::thread() {
            return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        if capture.origin != stream {
            self.invalidate(number);
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let is_joined = self.is_joined(number);
        let Some(capture) = self.take_capture(number) else {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        };
        let nodes = capture.graph.nodes.len();
        let lacks_nodes =
            capture.recaptures && self.graphs.get(&capture.handle).is_none_or(|old| old.nodes.len() != nodes);
        if capture.is_invalid || lacks_nodes {
            // "If the recapture fails for any reason, the graph will be in an undefined state and should be destroyed."
            if capture.recaptures
                && let Some(graph) = self.graphs.get_mut(&capture.handle)
            {
                *graph = Graph::default();
            }
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if !is_joined {
            self.settle_graph_memory();
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        }
        self.graphs.insert(capture.handle, capture.graph);
        Ok(capture.handle)
    }

    /// Ends a capture: its streams are streams again.
    fn take_capture(&mut self, number: u64) -> Option<Capture> {
        for stream in self.streams.values_mut().filter(|stream| stream.capture == Some(number)) {
            stream.capture = None;
            stream.frontier.clear();
        }
        let capture = self.captures.remove(&number);
        if capture.as_ref().is_some_and(|capture| capture.is_invalid) {
            self.settle_graph_memory();
        }
        capture
    }

    /// A stream is destroyed: a capture that began there is over, another one is spoilt. The manual does not say.
    pub(crate) fn leave_capture(&mut self, stream: u64) {
        let Some(number) = self.streams.get(&stream).and_then(|stream| stream.capture) else { return };
        match self.captures.get(&number) {
            Some(capture) if capture.origin == stream => {
                self.take_capture(number);
                self.settle_graph_memory();
            }
            _ => self.invalidate(number),
        }
    }

    /// Whether every node leads to the origin's last ones.
    fn is_joined(&self, number: u64) -> bool {
        let Some(capture) = self.captures.get(&number) else { return true };
        let mut seen = vec![false; capture.graph.nodes.len()];
        let mut left = self.streams.get(&capture.origin).map_or(Vec::new(), |stream| stream.frontier.clone());
        while let Some(node) = left.pop() {
            if !std::mem::replace(&mut seen[node], true) {
                left.extend(&capture.graph.nodes[node].after);
            }
        }
        seen.iter().all(|seen| *seen)
    }

    /// The capture is spoilt: its graph will be none.
    pub(crate) fn invalidate(&mut self, number: u64) {
        if let Some(capture) = self.captures.get_mut(&number) {
            capture.is_invalid = true;
        }
    }

    /// Whether a capture of a stream is sound; true also for a stream without.
    fn is_sound(&self, number: u64) -> bool {
        self.captures.get(&number).is_none_or(|capture| !capture.is_invalid)
    }

    /// Notes work on a captured stream as a node.
    pub(crate) fn note(&mut self, number: u64, stream: u64, work: Work) -> Answer {
        if !self.is_sound(number) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let unique = self.number();
        let after = self.streams.get_mut(&stream).map(|stream| std::mem::take(&mut stream.frontier));
        let Some(capture) = self.captures.get_mut(&number) else { return Ok(()) };
        let index = capture.graph.nodes.len();
        if capture.recaptures {
            // Another kind of work, or other predecessors, are another topology.
            let old = self.graphs.get(&capture.handle).and_then(|graph| graph.nodes.get(index));
            let is_same = old.is_some_and(|old| {
                std::mem::discriminant(&old.work) == std::mem::discriminant(&work)
                    && after.as_ref().is_some_and(|after| *after == old.after)
            });
            if !is_same {
                capture.is_invalid = true;
                return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
            }
        }
        let handle = handles::make(Kind::Node, unique);
        capture.graph.nodes.push(Node { work, after: after.unwrap_or_default(), handle });
        self.join(stream, number, &[index]);
        Ok(())
    }

    /// Records an event on a captured stream: it stands for the nodes so far.
    pub(crate) fn note_record(&mut self, number: u64, stream: u64, event: u64) -> Answer {
        if !self.is_sound(number) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let frontier = self.streams.get(&stream).map_or(Vec::new(), |stream| stream.frontier.clone());
        let event = self.event(event)?;
        event.captured = Some((number, frontier));
        Ok(())
    }

    /// A wait where the stream or the event belongs to a capture; false if neither does.
    pub(crate) fn note_wait(&mut self, stream: u64, event: u64) -> Answer<bool> {
        let capturing = self.streams.get(&stream).and_then(|stream| stream.capture);
        let there = self.event(event)?;
        let captured = there.captured.clone();
        if captured.as_ref().is_some_and(|(number, _)| !self.captures.contains_key(number)) {
            return Err(CUDA_ERROR_CAPTURED_EVENT);
        }
        match (capturing, captured) {
            (None, None) => Ok(false),
            // "It is invalid to wait on a non-captured event from a stream which is being captured" (Programming Guide,
            // Prohibited and Unhandled Operations), also on one that was never recorded.
            (Some(number), None) => {
                self.invalidate(number);
                Err(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
            }
            (Some(mine), Some((other, _))) if mine != other => {
                self.invalidate(mine);
                self.invalidate(other);
                Err(CUDA_ERROR_STREAM_CAPTURE_MERGE)
            }
            (_, Some((number, frontier))) => {
                if !self.is_sound(number) {
                    return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
                }
                self.forbid_implicit(stream, true)?;
                self.join(stream, number, &frontier);
                Ok(true)
            }
        }
    }

    /// "The next node to be captured in the stream will depend on this set of nodes", in an array that "is valid until the next
    /// API call which operates on the stream" (cuStreamGetCaptureInfo).
    pub(crate) fn dependencies(&mut self, stream: u64) -> &[u64] {
        let Some(there) = self.streams.get_mut(&stream) else { return &[] };
        let graph =
            there.capture.and_then(|capture| self.captures.get(&capture)).map(|capture| &capture.graph);
        let handles = there.frontier.iter().filter_map(|node| Some(graph?.nodes.get(*node)?.handle));
        there.dependencies = handles.collect();
        &there.dependencies
    }

    /// A call that capture cannot see, such as cuMemAlloc or cuEventQuery: forbidden as the thread's mode says,
    /// and then it spoils the captures that forbid it.
    pub(crate) fn forbid_unsafe(&mut self) -> Answer {
        let thread = system::thread();
        let mode = self.threads.get(&thread).map_or(CU_STREAM_CAPTURE_MODE_GLOBAL, |own| own.capture_mode);
        if mode == CU_STREAM_CAPTURE_MODE_RELAXED {
            return Ok(());
        }
        let forbids = |capture: &Capture| {
            let own = capture.thread == thread && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
            let global =
                mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
            own || global
        };
        let mut is_forbidden = false;
        for capture in self.captures.values_mut().filter(|capture| forbids(capture)) {
            capture.is_invalid = true;
            is_forbidden = true;
        }
        if is_forbidden { Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// A call that conflicts with the capture of a stream whatever the mode, such as waiting for it.
    pub(crate) fn forbid_captured(&mut self, stream: u64) -> Answer {
        match self.streams.get(&stream).and_then(|stream| stream.capture) {
            None => Ok(()),
            Some(number) => {
                self.invalidate(number);
                Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// An event that was last recorded in a capture stands for no work: it may be neither queried nor waited for by the
    /// host, whatever the mode (cuThreadExchangeStreamCaptureMode).
    pub(crate) fn forbid_captured_event(&mut self, event: u64) -> Answer {
        let capture = self.event(event)?.captured.as_ref().map(|(capture, _)| *capture);
        let Some(capture) = capture else { return Ok(()) };
        self.invalidate(capture);
        Err(CUDA_ERROR_CAPTURED_EVENT)
    }

    /// Why an external record or wait fails on a stream: it is invalid where nothing is captured, and else not simulated.
    pub(crate) fn external(&self, stream: u64) -> CUresult {
        match self.streams.get(&stream).and_then(|stream| stream.capture) {
            None => CUDA_ERROR_INVALID_VALUE,
            Some(_) => CUDA_ERROR_NOT_SUPPORTED,
        }
    }

    /// The same as `forbid_captured` for a whole context. "It is also invalid to query the execution status of or synchronize
    /// a broader handle which encompasses an active stream capture, such as a device or context handle".
    pub(crate) fn forbid_captured_in(&mut self, context: u64) -> Answer {
        let captured = self.streams.values().filter(|stream| stream.context == context);
        let captured: Vec<u64> = captured.filter_map(|stream| stream.capture).collect();
        for number in &captured {
            self.invalidate(*number);
        }
        if captured.is_empty() { Ok(()) } else { Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) }
    }
}
