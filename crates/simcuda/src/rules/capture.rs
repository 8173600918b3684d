//! Stream capture and graphs. A captured item is a node with its predecessors. A launch queues the nodes on one stream
//! in the order of the capture, which the graph allows.
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
use crate::sim::Sim;
use crate::state::context::Thread;
use crate::state::graph::{Capture, Graph, Node};
use crate::state::stream::Stream;
use crate::state::work::Work;
use crate::system;

impl Sim {
    /// Begins to capture a stream that is not captured yet, into a new or an existing graph.
    pub(crate) fn begin_capture(&mut self, stream: u64, mode: u32, graph: Option<u64>) -> u64 {
        let number = self.number();
        let handle = graph.unwrap_or_else(|| handles::make(Kind::Graph, number));
        let capture = Capture::new(stream, mode, system::thread(), handle, graph.is_some());
        self.captures.insert(number, capture);
        self.join(stream, number, &[]);
        number
    }

    fn join(&mut self, stream: u64, capture: u64, frontier: &[usize]) {
        let Some(stream) = self.streams.get_mut(&stream) else { return };
        stream.join(capture, frontier);
    }

    /// Ends a capture and returns the graph, or no graph if it was invalidated.
    pub(crate) fn end_capture(&mut self, stream: u64) -> Answer<u64> {
        let number = self.streams.get(&stream).and_then(Stream::capture);
        let number = number.ok_or(cuda_sys::CUDA_ERROR_ILLEGAL_STATE)?;
        let Some(capture) = self.captures.get(&number) else {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        };
        if !capture.may_be_ended_by(system::thread()) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        if capture.origin() != stream {
            self.invalidate(number);
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let is_joined = self.is_joined(number);
        let Some(capture) = self.take_capture(number) else {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        };
        let nodes = capture.graph().nodes().len();
        let lacks_nodes = capture.recaptures()
            && self.graphs.get(&capture.handle()).is_none_or(|old| old.nodes().len() != nodes);
        if capture.is_invalid() || lacks_nodes {
            // "If the recapture fails for any reason, the graph will be in an undefined state and should be destroyed."
            if capture.recaptures()
                && let Some(graph) = self.graphs.get_mut(&capture.handle())
            {
                *graph = Graph::default();
            }
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        if !is_joined {
            self.settle_graph_memory();
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
        }
        let handle = capture.handle();
        self.graphs.insert(handle, capture.into_graph());
        Ok(handle)
    }

    /// Ends a capture. Its streams are no longer captured.
    fn take_capture(&mut self, number: u64) -> Option<Capture> {
        for stream in self.streams.values_mut().filter(|stream| stream.capture() == Some(number)) {
            stream.leave_capture();
        }
        let capture = self.captures.remove(&number);
        if capture.as_ref().is_some_and(Capture::is_invalid) {
            self.settle_graph_memory();
        }
        capture
    }

    /// Handles a destroyed stream: a capture that began there ends, and another one is invalidated. The manual does not
    /// specify this.
    pub(crate) fn leave_capture(&mut self, stream: u64) {
        let Some(number) = self.streams.get(&stream).and_then(Stream::capture) else { return };
        match self.captures.get(&number) {
            Some(capture) if capture.origin() == stream => {
                self.take_capture(number);
                self.settle_graph_memory();
            }
            _ => self.invalidate(number),
        }
    }

    /// Returns whether every node leads to the origin's last ones.
    fn is_joined(&self, number: u64) -> bool {
        let Some(capture) = self.captures.get(&number) else { return true };
        let ends = self.streams.get(&capture.origin()).map(Stream::frontier);
        capture.graph().leads_to(ends.unwrap_or_default())
    }

    /// Invalidates the capture, so that there will be no graph.
    pub(crate) fn invalidate(&mut self, number: u64) {
        if let Some(capture) = self.captures.get_mut(&number) {
            capture.invalidate();
        }
    }

    /// Returns whether a capture of a stream is valid. Also true without a capture.
    fn is_sound(&self, number: u64) -> bool {
        self.captures.get(&number).is_none_or(|capture| !capture.is_invalid())
    }

    /// Records work on a captured stream as a node.
    pub(crate) fn note(&mut self, number: u64, stream: u64, work: Work) -> Answer {
        if !self.is_sound(number) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let unique = self.number();
        let after = self.streams.get_mut(&stream).map(Stream::take_frontier);
        let Some(capture) = self.captures.get_mut(&number) else { return Ok(()) };
        if capture.recaptures() {
            // Another kind of work, or other predecessors, are a different topology.
            let index = capture.graph().nodes().len();
            let old = self.graphs.get(&capture.handle()).and_then(|graph| graph.nodes().get(index));
            let is_same =
                old.is_some_and(|old| after.as_ref().is_some_and(|after| old.is_like(&work, after)));
            if !is_same {
                capture.invalidate();
                return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
            }
        }
        let handle = handles::make(Kind::Node, unique);
        let index = capture.add(Node::new(work, after.unwrap_or_default(), handle));
        self.join(stream, number, &[index]);
        Ok(())
    }

    /// Records an event on a captured stream, after the nodes so far.
    pub(crate) fn note_record(&mut self, number: u64, stream: u64, event: u64) -> Answer {
        if !self.is_sound(number) {
            return Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        }
        let frontier = self.streams.get(&stream).map_or(Vec::new(), |stream| stream.frontier().to_vec());
        let event = self.event(event)?;
        event.record_captured(number, frontier);
        Ok(())
    }

    /// Handles a wait if the stream or the event belongs to a capture. Returns false if neither does.
    pub(crate) fn note_wait(&mut self, stream: u64, event: u64) -> Answer<bool> {
        let capturing = self.streams.get(&stream).and_then(Stream::capture);
        let there = self.event(event)?;
        let captured = there.captured().cloned();
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
        let graph = there.capture().and_then(|capture| self.captures.get(&capture)).map(Capture::graph);
        there.keep_dependencies(|node| Some(graph?.nodes().get(node)?.handle()))
    }

    /// Checks a potentially unsafe call, such as cuMemAlloc or cuEventQuery. It may be forbidden according to the
    /// thread's mode, and then invalidates the captures that forbid it.
    pub(crate) fn forbid_unsafe(&mut self) -> Answer {
        let thread = system::thread();
        let mode = self.threads.get(&thread).map_or(CU_STREAM_CAPTURE_MODE_GLOBAL, Thread::capture_mode);
        if mode == CU_STREAM_CAPTURE_MODE_RELAXED {
            return Ok(());
        }
        let mut is_forbidden = false;
        for capture in self.captures.values_mut().filter(|capture| capture.forbids(thread, mode)) {
            capture.invalidate();
            is_forbidden = true;
        }
        if is_forbidden { Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Checks a call that conflicts with the capture of a stream in any mode, such as waiting for it.
    pub(crate) fn forbid_captured(&mut self, stream: u64) -> Answer {
        match self.streams.get(&stream).and_then(Stream::capture) {
            None => Ok(()),
            Some(number) => {
                self.invalidate(number);
                Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
            }
        }
    }

    /// Checks an event that was last recorded in a capture. It represents no work, so the host may neither query nor
    /// wait for it, in any mode (cuThreadExchangeStreamCaptureMode).
    pub(crate) fn forbid_captured_event(&mut self, event: u64) -> Answer {
        let capture = self.event(event)?.captured().map(|(capture, _)| *capture);
        let Some(capture) = capture else { return Ok(()) };
        self.invalidate(capture);
        Err(CUDA_ERROR_CAPTURED_EVENT)
    }

    /// Returns the error of an external record or wait on a stream: it is invalid without a capture, and otherwise not
    /// simulated.
    pub(crate) fn external(&self, stream: u64) -> CUresult {
        match self.streams.get(&stream).and_then(Stream::capture) {
            None => CUDA_ERROR_INVALID_VALUE,
            Some(_) => CUDA_ERROR_NOT_SUPPORTED,
        }
    }

    /// Checks a whole context like `forbid_captured`. "It is also invalid to query the execution status of or
    /// synchronize a broader handle which encompasses an active stream capture, such as a device or context handle".
    pub(crate) fn forbid_captured_in(&mut self, context: u64) -> Answer {
        let captured = self.streams.values().filter(|stream| self.covers(context, stream.context()));
        let captured: Vec<u64> = captured.filter_map(Stream::capture).collect();
        for number in &captured {
            self.invalidate(*number);
        }
        if captured.is_empty() { Ok(()) } else { Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) }
    }
}
