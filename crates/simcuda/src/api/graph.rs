//! Graphs that are made node by node. A node comes after existing nodes. Edges are not added later.

use std::collections::BTreeSet;
use std::ffi::c_uint;

use cuda_sys::*;

use super::module::Launch;
use super::rectangle;
use crate::abi::{Answer, get, get_all, put};
use crate::handles::{self, Kind};
use crate::sim::{self, Sim};
use crate::state::graph::{Graph, Node};
use crate::state::work::{Source, Work};

pub(crate) fn cuGraphCreate(graph: *mut CUgraph, flags: c_uint) -> Answer {
    if flags != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let mut sim = sim::lock();
    let handle = sim.handle(Kind::Graph);
    put(graph, handle as CUgraph)?;
    sim.graphs.insert(handle, Graph::default());
    Ok(())
}

/// Where a node is added.
struct Place {
    node: *mut CUgraphNode,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    count: usize,
}

impl Place {
    /// Adds a node for work. "dependencies may not have any duplicate entries."
    fn add(&self, work: impl FnOnce(&mut Sim, u64) -> Answer<Work>) -> Answer {
        let mut sim = sim::lock();
        let handle = self.graph.addr() as u64;
        let Some(graph) = sim.graphs.get(&handle) else {
            sim.stale(Kind::Graph, handle);
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        let dependencies = get_all(self.dependencies, self.count)?;
        let index = |node: &CUgraphNode| graph.index_of(node.addr() as u64).ok_or(CUDA_ERROR_INVALID_VALUE);
        let after = dependencies.iter().map(index).collect::<Answer<Vec<usize>>>()?;
        let distinct: BTreeSet<&usize> = after.iter().collect();
        if distinct.len() != after.len() || self.node.is_null() {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let work = work(&mut sim, handle)?;
        let node = handles::make(Kind::Node, sim.number());
        let graph = sim.graphs.get_mut(&handle).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        graph.add(Node::new(work, after, node));
        put(self.node, node as CUgraphNode)
    }
}

macro_rules! nodes {
    ($($symbol:ident($($argument:ident: $type:ty),*) adds $work:expr;)*) => {
        $(pub(crate) fn $symbol(
            node: *mut CUgraphNode,
            graph: CUgraph,
            dependencies: *const CUgraphNode,
            count: usize,
            $($argument: $type),*
        ) -> Answer {
            let place = Place { node, graph, dependencies, count };
            let work: fn(&mut Sim, u64, ($($type,)*)) -> Answer<Work> = $work;
            place.add(|sim, graph| work(sim, graph, ($($argument,)*)))
        })*
    };
}

nodes! {
    cuGraphAddEmptyNode() adds |_, _, ()| Ok(Work::Nothing);
    cuGraphAddKernelNode_v2(parameters: *const CUDA_KERNEL_NODE_PARAMS) adds |sim, _, (parameters,)| {
        let given = get(parameters)?;
        let launch = Launch {
            function: given.func,
            grid: [given.gridDimX, given.gridDimY, given.gridDimZ],
            block: [given.blockDimX, given.blockDimY, given.blockDimZ],
            parameters: given.kernelParams,
            extra: given.extra,
        };
        sim.kernel(&launch).map(|(_, work)| work)
    };
    cuGraphAddMemsetNode(parameters: *const CUDA_MEMSET_NODE_PARAMS, context: CUcontext) adds
        |sim, _, (parameters, context)| {
            sim.context(context)?;
            fill(&get(parameters)?)
        };
    cuGraphAddMemcpyNode(parameters: *const CUDA_MEMCPY3D, context: CUcontext) adds
        |sim, _, (parameters, context)| {
            sim.context(context)?;
            let (rows, bytes) = rectangle::rows(&get(parameters)?)?;
            let copy = |(to, from)| Work::Copy {
                to, from: Source::Address(from), bytes: bytes as u64, named: None
            };
            Ok(Work::of_all(rows.into_iter().map(copy).collect()))
        };
    cuGraphAddHostNode(parameters: *const CUDA_HOST_NODE_PARAMS) adds |_, _, (parameters,)| {
        let CUDA_HOST_NODE_PARAMS { fn_, userData } = get(parameters)?;
        let function = fn_.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        Ok(Work::HostFunction { function, argument: userData.addr() as u64 })
    };
    cuGraphAddMemAllocNode(parameters: *mut CUDA_MEM_ALLOC_NODE_PARAMS) adds allocate;
    cuGraphAddMemFreeNode(address: CUdeviceptr) adds |sim, graph, (address,)| sim.free_of_graph(graph, address);
    cuGraphAddEventRecordNode(event: CUevent) adds |sim, _, (event,)| {
        let event = event.addr() as u64;
        sim.event(event).map(|_| Work::RecordNode { event })
    };
    cuGraphAddEventWaitNode(event: CUevent) adds |sim, _, (event,)| {
        let event = event.addr() as u64;
        sim.event(event).map(|_| Work::WaitNode { event })
    };
}

/// "elementSize: Size of each element in bytes. Must be 1, 2, or 4."
fn fill(given: &CUDA_MEMSET_NODE_PARAMS) -> Answer<Work> {
    let width = u64::from(given.elementSize);
    let is_narrow = given.height > 1 && (given.pitch as u64) < given.width as u64 * width;
    if !matches!(width, 1 | 2 | 4) || is_narrow || given.width == 0 || given.height == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let row = |row: usize| Work::Set {
        at: given.dst + (row * given.pitch) as u64,
        count: given.width as u64,
        width,
        value: given.value,
    };
    Ok(Work::of_all((0..given.height).map(row).collect()))
}

/// "When cuGraphAddMemAllocNode creates an allocation node, it returns the address of the allocation in nodeParams.dptr."
fn allocate(sim: &mut Sim, graph: u64, (parameters,): (*mut CUDA_MEM_ALLOC_NODE_PARAMS,)) -> Answer<Work> {
    let mut given = get(parameters.cast_const())?;
    let location = given.poolProps.location;
    if given.bytesize == 0 || given.poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    if location.type_ != CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(CUDA_ERROR_NOT_SUPPORTED);
    }
    sim.device(location.id)?;
    let granted = get_all(given.accessDescs, given.accessDescCount)?;
    let granted = granted.iter().map(|one| one.location.id).collect();
    let (at, work) = sim.allocation_of_graph(graph, location.id, granted, given.bytesize as u64)?;
    given.dptr = at;
    put(parameters, given)?;
    Ok(work)
}
