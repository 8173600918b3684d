//! Memory nodes: `cuMemAllocAsync` and `cuMemFreeAsync` in a capture. The allocation belongs to the graph. Its address
//! is fixed at the capture, and its memory counts since the first launch. It is live from its node to the free by a
//! node of that graph or another, or by the program.
//!
//! Rules: cuGraphAddMemAllocNode, cuGraphAddMemFreeNode, cuGraphInstantiate, cuGraphLaunch and cuDeviceGraphMemTrim in
//! cuda.h; CUDA Programming Guide, Graph Memory Nodes. Our choices: no two nodes share an address or memory, and memory
//! of a destroyed graph is released at once.

use std::collections::BTreeSet;

use cuda_sys::{
    CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, CUdevice,
};

use crate::abi::Answer;
use crate::sim::Sim;
use crate::state::arena::ALIGNMENT;
use crate::state::graph::Graph;
use crate::state::graph_memory::GraphMemory;
use crate::state::memory::Origin;
use crate::state::stream::Stream;
use crate::state::work::Work;
use crate::system::round_up;

impl Sim {
    /// Records an allocation node. Returns the address.
    pub(crate) fn note_allocation(
        &mut self,
        capture: u64,
        stream: u64,
        device: CUdevice,
        granted: BTreeSet<CUdevice>,
        bytes: u64,
    ) -> Answer<u64> {
        let there = self.captures.get(&capture).filter(|capture| !capture.is_invalid());
        let owner = there.ok_or(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)?.handle();
        let (at, work) = self.allocation_of_graph(owner, device, granted, bytes)?;
        self.note(capture, stream, work)?;
        Ok(at)
    }

    /// Makes an allocation of a graph. Returns its address, and the work of its node.
    pub(crate) fn allocation_of_graph(
        &mut self,
        owner: u64,
        device: CUdevice,
        granted: BTreeSet<CUdevice>,
        bytes: u64,
    ) -> Answer<(u64, Work)> {
        let (at, span) = self.take_addresses(device, bytes)?;
        let unique = self.add_allocation(at, device, 0, bytes, Origin::Graph, span);
        let memory = GraphMemory::new(round_up(bytes, ALIGNMENT), device, span, unique, granted, owner);
        self.graph_memory.insert(at, memory);
        Ok((at, Work::Alloc { at, bytes, unique, device, pool: 0 }))
    }

    /// Frees an allocation of a graph by a node of graph `owner`. Returns the work of the node.
    pub(crate) fn free_of_graph(&mut self, owner: u64, at: u64) -> Answer<Work> {
        let memory = self.graph_memory.get_mut(&at).filter(|memory| !memory.is_freed_inside());
        let memory = memory.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        memory.note_free(owner);
        Ok(Work::Free { at, unique: memory.unique() })
    }

    /// Records a free node. "During stream capture, this function [...] must therefore be passed the address of a graph
    /// allocation". An address that the graph frees already is INVALID_VALUE. An invalid call invalidates the capture
    /// (guide, Invalidation).
    pub(crate) fn note_free(&mut self, capture: u64, stream: u64, at: u64) -> Answer {
        let there = self.captures.get(&capture).filter(|capture| !capture.is_invalid());
        let there = there.ok_or(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)?;
        let is_freed_here = there.graph().memory_nodes().any(|node| node == (at, false));
        let owner = there.handle();
        let work = if is_freed_here { Err(CUDA_ERROR_INVALID_VALUE) } else { self.free_of_graph(owner, at) };
        match work {
            Ok(work) => self.note(capture, stream, work),
            Err(code) => {
                self.invalidate(capture);
                Err(code)
            }
        }
    }

    /// Frees an allocation of a graph for the program. The graph must have been launched and must not free the
    /// allocation itself. Returns the allocation's number.
    pub(crate) fn take_back_from_graph(&mut self, at: u64) -> Answer<u64> {
        let memory =
            self.graph_memory.get_mut(&at).filter(|memory| memory.is_out() && !memory.is_freed_inside());
        let memory = memory.ok_or(CUDA_ERROR_INVALID_VALUE)?;
        memory.set_out(false);
        Ok(memory.unique())
    }

    /// Frees an allocation of a graph immediately (cuMemFree).
    pub(crate) fn free_graph_memory(&mut self, at: u64) -> Answer {
        let unique = self.take_back_from_graph(at)?;
        self.stop_living(at, unique);
        self.settle_graph_memory();
        Ok(())
    }

    /// Prepares the memory of a graph for a launch, before its nodes are queued: frees the allocations of the previous
    /// launch, if the graph is instantiated so, and obtains memory for all allocations. On failure nothing changed.
    pub(crate) fn launch_memory(
        &mut self,
        graph: &Graph,
        auto_free: bool,
        is_captured: bool,
    ) -> Answer<Vec<Work>> {
        if is_captured && graph.has_memory() {
            // Such a graph cannot be cloned, and can be part of another only if it is moved there.
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        let own = graph.allocated();
        let left: Vec<u64> = own.iter().copied().filter(|at| self.is_out(*at)).collect();
        if !left.is_empty() && !auto_free {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut charged = Vec::new();
        for at in &own {
            let Some(memory) = self.graph_memory.get(at).filter(|memory| !memory.is_charged()) else {
                continue;
            };
            let (device, bytes) = (memory.device(), memory.bytes());
            if let Err(code) = self.charge(device, bytes) {
                charged.into_iter().for_each(|at| self.uncharge(at));
                return Err(code);
            }
            charged.push(*at);
            self.graph_memory.entry(*at).and_modify(|memory| memory.set_charged(true));
        }
        for (at, is_allocation) in graph.memory_nodes() {
            self.graph_memory.entry(at).and_modify(|memory| memory.set_out(is_allocation));
        }
        let free =
            |at: u64| self.graph_memory.get(&at).map(|memory| Work::Free { at, unique: memory.unique() });
        Ok(left.into_iter().filter_map(free).collect())
    }

    fn is_out(&self, at: u64) -> bool {
        self.graph_memory.get(&at).is_some_and(GraphMemory::is_out)
    }

    fn uncharge(&mut self, at: u64) {
        let Some(memory) = self.graph_memory.get_mut(&at).filter(|memory| memory.is_charged()) else {
            return;
        };
        memory.set_charged(false);
        let (device, bytes) = (memory.device(), memory.bytes());
        if let Ok(device) = self.device(device) {
            device.uncharge(bytes);
        }
    }

    /// Returns allocations that are not in use: they are not live, and no queued work makes them live.
    fn idle_graph_memory(&self, is: impl Fn(&GraphMemory) -> bool) -> Vec<u64> {
        let queued = |unique: u64| {
            let mut works = self.streams.values().flat_map(Stream::items).map(|item| &item.work);
            works.any(|work| matches!(work, Work::Alloc { unique: it, .. } | Work::Free { unique: it, .. } if *it == unique))
        };
        let idle = |(at, memory): &(&u64, &GraphMemory)| {
            let lives = self.living.get(at).is_some_and(|living| living.unique == memory.unique());
            is(memory) && !memory.is_out() && !lives && !queued(memory.unique())
        };
        self.graph_memory.iter().filter(idle).map(|(at, _)| *at).collect()
    }

    /// Ends the allocations of destroyed graphs. "Graph destruction does not automatically free any live
    /// graph-allocated memory, even though it ends the lifetime of the allocation node" (guide).
    pub(crate) fn settle_graph_memory(&mut self) {
        if self.graph_memory.is_empty() {
            return;
        }
        let is_gone = |memory: &GraphMemory| {
            !self.graphs.contains_key(&memory.owner())
                && !self.executables.values().any(|executable| executable.of() == memory.owner())
                && !self.captures.values().any(|capture| capture.handle() == memory.owner())
        };
        for at in self.idle_graph_memory(is_gone) {
            self.end_graph_memory(at);
        }
    }

    fn end_graph_memory(&mut self, at: u64) {
        self.uncharge(at);
        if let Some(memory) = self.graph_memory.remove(&at) {
            self.allocations.remove(&at);
            self.give_addresses_back(memory.device(), memory.span());
        }
    }

    /// "Blocks which are not in use by a graph that is either currently executing or scheduled to execute are freed
    /// back to the operating system."
    pub(crate) fn trim_graph_memory(&mut self, device: CUdevice) {
        for at in self.idle_graph_memory(|memory| memory.device() == device) {
            self.uncharge(at);
        }
    }

    pub(crate) fn drop_graph_memory(&mut self) {
        for at in self.graph_memory.keys().copied().collect::<Vec<_>>() {
            self.end_graph_memory(at);
        }
    }
}
