//! Stream capture and graphs.

use std::ffi::{c_char, c_ulonglong, c_void};

use cuda_sys::*;

use crate::abi::{Answer, get, put, put_if};
use crate::handles::Kind;
use crate::options::Choice;
use crate::rules::races::Queued;
use crate::rules::streams;
use crate::sim::{self, Sim};
use crate::state::graph::{Capture, Executable};
use crate::state::stream::{Point, Role};
use crate::state::work::Work;

pub(crate) fn cuStreamBeginCapture(stream: CUstream) -> Answer {
    cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL)
}

/// "Capture may not be initiated if stream is CU_STREAM_LEGACY. [...] it may only be initiated if the stream is
/// not already in capture mode."
pub(crate) fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> Answer {
    let mut sim = sim::lock();
    begin(&mut sim, stream, mode, None)
}

/// "Begin graph capture on hStream to the existing hGraph. The node creation order while recapturing the graph must be
/// identical to the original graph. The recapture will fail immediately for: Topology mismatches [...], Parameter
/// mismatches for memory allocation or free nodes". Graphs with memory nodes are not simulated here. Parameters are not
/// compared, so the callback is never called.
pub(crate) fn cuStreamBeginRecaptureToGraph(
    stream: CUstream,
    mode: CUstreamCaptureMode,
    graph: CUgraph,
    _: CUgraphRecaptureCallback,
    _: *mut c_void,
) -> Answer {
    let mut sim = sim::lock();
    let handle = graph.addr() as u64;
    let Some(there) = sim.graphs.get(&handle) else {
        sim.stale(Kind::Graph, handle);
        return Err(CUDA_ERROR_INVALID_VALUE);
    };
    if there.has_memory() {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    begin(&mut sim, stream, mode, Some(handle))
}

fn begin(sim: &mut Sim, stream: CUstream, mode: CUstreamCaptureMode, graph: Option<u64>) -> Answer {
    let number = sim.stream(stream)?;
    if mode > CU_STREAM_CAPTURE_MODE_RELAXED {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if sim.streams[&number].role() == Role::Legacy {
        return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    if sim.streams[&number].capture().is_some() {
        return Err(CUDA_ERROR_ILLEGAL_STATE);
    }
    sim.begin_capture(number, mode, graph);
    Ok(())
}

/// "If capture was invalidated, due to a violation of the rules of stream capture, then a NULL graph will be
/// returned."
pub(crate) fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    put(graph, std::ptr::null_mut())?;
    let handle = sim.end_capture(number)?;
    put(graph, handle as CUgraph)
}

pub(crate) fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    // "The blocking stream capture is not invalidated."
    sim.forbid_implicit(number, false)?;
    put(status, state(&sim, number).0)
}

/// Returns the status and the number of the capture that a stream takes part in.
fn state(sim: &Sim, stream: u64) -> (CUstreamCaptureStatus, Option<u64>) {
    let Some(number) = sim.streams[&stream].capture() else { return (CU_STREAM_CAPTURE_STATUS_NONE, None) };
    match sim.captures.get(&number) {
        Some(capture) if !capture.is_invalid() => (CU_STREAM_CAPTURE_STATUS_ACTIVE, Some(number)),
        _ => (CU_STREAM_CAPTURE_STATUS_INVALIDATED, Some(number)),
    }
}

pub(crate) fn cuStreamGetCaptureInfo(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut cuuint64_t,
) -> Answer {
    let (graph, nodes, count) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count)
}

/// "Valid data (other than capture status) is returned only if [...] the returned capture status is
/// CU_STREAM_CAPTURE_STATUS_ACTIVE."
pub(crate) fn cuStreamGetCaptureInfo_v2(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut cuuint64_t,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    count: *mut usize,
) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    sim.forbid_implicit(number, false)?;
    let (found, capture) = state(&sim, number);
    put(status, found)?;
    if let Some(capture) = capture.filter(|_| found == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        put_if(id, capture);
        let handle = sim.captures.get(&capture).map_or(0, Capture::handle);
        put_if(graph, handle as CUgraph);
        let nodes = sim.dependencies(number);
        // Handles are pointers for the program and numbers in the simulation.
        put_if(dependencies, nodes.as_ptr().cast());
        put_if(count, nodes.len());
    }
    Ok(())
}

pub(crate) fn cuStreamGetCaptureInfo_v3(
    stream: CUstream,
    status: *mut CUstreamCaptureStatus,
    id: *mut cuuint64_t,
    graph: *mut CUgraph,
    dependencies: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    put_if(edges, std::ptr::null());
    cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count)
}

pub(crate) fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> Answer {
    let wanted = get(mode.cast_const())?;
    if wanted > CU_STREAM_CAPTURE_MODE_RELAXED {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut sim = sim::lock();
    let before = sim.this_thread().exchange_capture_mode(wanted);
    put(mode, before)
}

// Graphs.

pub(crate) fn cuGraphInstantiateWithFlags(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
) -> Answer {
    let mut sim = sim::lock();
    let of = graph.addr() as u64;
    let Some(graph) = sim.graphs.get(&of).cloned() else {
        sim.stale(Kind::Graph, of);
        return Err(CUDA_ERROR_INVALID_VALUE);
    };
    // "If hGraph contains any allocation or free nodes, there can be at most one executable graph in existence".
    if graph.has_memory() && sim.executables.values().any(|other| other.of() == of) {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let auto_free = flags & c_ulonglong::from(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
    let handle = sim.handle(Kind::Executable);
    put(executable, handle as CUgraphExec)?;
    sim.executables.insert(handle, Executable::new(graph, of, auto_free));
    Ok(())
}

pub(crate) fn cuGraphInstantiate(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    _: *mut c_char,
    _: usize,
) -> Answer {
    put_if(node, std::ptr::null_mut());
    cuGraphInstantiateWithFlags(executable, graph, 0)
}

pub(crate) fn cuGraphInstantiate_v2(
    executable: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    log: *mut c_char,
    size: usize,
) -> Answer {
    cuGraphInstantiate(executable, graph, node, log, size)
}

/// Queues the nodes one by one, with the addresses of the capture. "Each launch is ordered behind both any previous
/// work in hStream and any previous launches of hGraphExec."
pub(crate) fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    let handle = executable.addr() as u64;
    let Some(there) = sim.executables.get(&handle) else {
        sim.stale(Kind::Executable, handle);
        return Err(CUDA_ERROR_INVALID_VALUE);
    };
    let (graph, auto_free, last) = (there.graph().clone(), there.auto_free(), there.last());
    let is_captured = sim.streams[&number].capture().is_some();
    sim.forbid_implicit(number, true)?;
    let frees = sim.launch_memory(&graph, auto_free, is_captured)?;
    let mut after: Vec<Point> = last.into_iter().filter(|_| !is_captured).collect();
    let mut begin = after.clone();
    for work in frees {
        sim.queue(number, work, std::mem::take(&mut after))?;
    }
    begin.push(sim.end_of(number));
    let reversed = sim.options.is_on(Choice::GraphOrder);
    let mut launch = Vec::new();
    for (work, before) in graph.ordered(reversed) {
        let (item, event) = match work {
            Work::RecordNode { event } if !is_captured => {
                sim.record_event(event, number, std::mem::take(&mut after))?;
                (Some(sim.end_of(number)), Some(sim.end_of(number)))
            }
            Work::WaitNode { event } if !is_captured => {
                let recorded = sim.event(event)?.recorded();
                after.extend(recorded);
                (None, recorded)
            }
            work => (Some(sim.queue(number, work, std::mem::take(&mut after))?), None),
        };
        launch.push(Queued { after: before, item, event });
    }
    if !after.is_empty() {
        sim.queue(number, Work::Nothing, after)?;
    }
    let end = sim.end_of(number);
    if !is_captured {
        sim.order_branches(handle, &launch, &begin, end);
        if let Some(there) = sim.executables.get_mut(&handle) {
            there.set_last(end);
        }
    }
    drop(streams::run_ready(sim));
    Ok(())
}

pub(crate) fn cuDeviceGraphMemTrim(device: CUdevice) -> Answer {
    let mut sim = sim::lock();
    sim.device(device)?;
    sim.trim_graph_memory(device);
    Ok(())
}

/// Uploads nothing, but checks the handles, and that the stream can take work.
pub(crate) fn cuGraphUpload(executable: CUgraphExec, stream: CUstream) -> Answer {
    let mut sim = sim::lock();
    let number = sim.stream(stream)?;
    let handle = executable.addr() as u64;
    if !sim.executables.contains_key(&handle) {
        sim.stale(Kind::Executable, handle);
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    sim.forbid_implicit(number, true)?;
    sim.forbid_captured(number)
}

/// Destroys a graph or an executable one. Queued launches are still done.
fn destroy(kind: Kind, handle: u64) -> Answer {
    let mut sim = sim::lock();
    let was_there = match kind {
        Kind::Graph => sim.graphs.remove(&handle).is_some(),
        _ => sim.executables.remove(&handle).is_some(),
    };
    if !was_there {
        sim.stale(kind, handle);
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if let Some(races) = &mut sim.races {
        races.end_executable(handle);
    }
    sim.settle_graph_memory();
    Ok(())
}

pub(crate) fn cuGraphDestroy(graph: CUgraph) -> Answer {
    destroy(Kind::Graph, graph.addr() as u64)
}

pub(crate) fn cuGraphExecDestroy(executable: CUgraphExec) -> Answer {
    destroy(Kind::Executable, executable.addr() as u64)
}

pub(crate) fn cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> Answer {
    let sim = sim::lock();
    let there = sim.graphs.get(&(graph.addr() as u64)).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if !nodes.is_null() {
        let room = get(count.cast_const())?;
        for (index, node) in there.nodes().iter().take(room).enumerate() {
            put(nodes.wrapping_add(index), node.handle() as CUgraphNode)?;
        }
    }
    put(count, there.nodes().len())
}
