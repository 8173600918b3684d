//! Which work may access which memory. Each kind of memory has its own rule:
//!
//! - Plain memory: "all memory allocated in the peer context using cuMemAlloc() and cuMemAllocPitch() will immediately
//!   be accessible by the current context" once that has called cuCtxEnablePeerAccess (Unified Addressing in cuda.h).
//!   The contexts of one device are assumed to share their memory.
//! - Virtual memory: cuMemSetAccess, for each device. "cudaEnablePeerAccess forces all prior and future allocations made with
//!   cudaMalloc to be mapped to the target peer device", and no others (guide, Virtual Memory Management, Access Rights).
//! - Pools: "Like allocation accessibility controlled through the virtual memory management APIs, memory pool allocation
//!   accessibility does not follow cudaDeviceEnablePeerAccess or cuCtxEnablePeerAccess. For memory pools, the API
//!   cudaMemPoolSetAccess modifies what devices can access allocations from a pool. By default, allocations are accessible
//!   only from the device where the allocations are located" (guide, Device Accessibility for Multi-GPU Support).
//! - Graphs: "the allocation node records the peer accessibility of the allocating pool at the time of the capture"
//!   (guide, Peer Access with Stream Capture).
//! - Host memory and managed memory: every device.
//! - Memory of another process: the device that has opened it. cuIpcOpenMemHandle does not specify more, so this is our
//!   choice.

use std::collections::BTreeSet;

use cuda_sys::CUdevice;

use crate::options::Choice;
use crate::sim::Sim;
use crate::state::context::Agent;
use crate::state::graph_memory::GraphMemory;
use crate::state::memory::{Allocation, Origin};
use crate::state::pool::Pool;
use crate::system::Access;

/// Values of `Choice::Peers`: no device can access another's memory, all can, 0 and 1 each other's, 2 and 3 each
/// other's, and so on, or those of lower ordinals.
const NONE: i64 = 0;
const NEIGHBOURS: i64 = 2;
const LOWER_ORDINALS: i64 = 3;

impl Sim {
    /// Returns whether a device can access another's memory (cuDeviceCanAccessPeer).
    pub(crate) fn can_access_peer(&self, device: CUdevice, peer: CUdevice) -> bool {
        let is_possible = match self.options.get(Choice::Peers) {
            NONE => false,
            NEIGHBOURS => device / 2 == peer / 2,
            LOWER_ORDINALS => peer < device,
            _ => true,
        };
        device != peer && is_possible
    }

    /// Returns the live context with that handle as one whose work accesses memory.
    pub(crate) fn agent(&self, context: u64) -> Agent {
        Agent { context: self.root(context), device: self.contexts[&context].device() }
    }

    /// Returns the access of a context's work to an address, whether or not that memory's allocation is done.
    pub(crate) fn access(&self, agent: Agent, at: u64) -> Access {
        let Some((start, there)) = self.find(at) else {
            let mapped = self.mapping_at(at).map(|(_, mapping)| mapping.access_of(agent.device));
            return mapped.unwrap_or(Access::None);
        };
        let may = match there.origin {
            Origin::Host(_) | Origin::Registered(_) | Origin::Managed => true,
            Origin::Plain => self.is_peer(agent, there),
            Origin::Pool(pool) => self.is_granted(agent.device, there.device, pool, start),
            Origin::Graph => self.is_granted(agent.device, there.device, 0, start),
            Origin::Imported { .. } => agent.device == there.device,
        };
        if may { Access::Write } else { Access::None }
    }

    fn is_peer(&self, agent: Agent, there: &Allocation) -> bool {
        let context = self.contexts.get(&agent.context);
        agent.device == there.device || context.is_some_and(|own| own.may_touch(there.context))
    }

    /// Returns whether a device may access memory of another device, from a pool, or from a graph if `pool` is 0.
    fn is_granted(&self, device: CUdevice, owner: CUdevice, pool: u64, start: u64) -> bool {
        let of_pool = self.pools.get(&pool).map(Pool::granted);
        let granted = of_pool.or_else(|| self.graph_memory.get(&start).map(GraphMemory::granted));
        device == owner || granted.is_some_and(|granted: &BTreeSet<CUdevice>| granted.contains(&device))
    }

    /// Returns the allocation that contains an address, as seen by device work that runs now: start, bytes, and whether
    /// that work may access it. Memory allocated in the order of streams is live from its allocation to its free in
    /// that order.
    fn touchable(&self, agent: Agent, at: u64) -> Result<Option<(u64, u64, bool)>, String> {
        let living = self.living.range(..=at).next_back();
        if let Some((start, living)) = living.filter(|(start, living)| at - **start < living.bytes) {
            let may = self.is_granted(agent.device, living.device, living.pool, *start);
            return Ok(Some((*start, living.bytes, may)));
        }
        match self.find(at) {
            Some((_, Allocation { origin: Origin::Pool(_) | Origin::Graph, .. })) => Err(format!(
                "{at:#x} is not allocated in the order of the work: its turn has not come, or is over"
            )),
            Some((start, there)) => Ok(Some((start, there.bytes, self.access(agent, at) == Access::Write))),
            None => Ok(None),
        }
    }

    /// Checks whether a context's work may access a range. An error gives the reason. An address outside of all devices
    /// is the host's, and is accepted if `host` permits host memory.
    pub(crate) fn may_access(
        &self,
        agent: Agent,
        at: u64,
        bytes: u64,
        writes: bool,
        host: bool,
    ) -> Result<(), String> {
        if bytes == 0 {
            return Ok(());
        }
        let end = at.checked_add(bytes).ok_or_else(|| format!("{at:#x} and {bytes} bytes overflow"))?;
        if let Some((start, bytes_there, may)) = self.touchable(agent, at)? {
            if end - start > bytes_there {
                return Err(format!("{at:#x} and {bytes} bytes go beyond the end of {start:#x}"));
            }
            let device = agent.device;
            return if may {
                Ok(())
            } else {
                Err(format!("{at:#x} is of another device, no peer of {device}"))
            };
        }
        match self.is_mapped(agent.device, at, end, writes) {
            Ok(true) => Ok(()),
            Err(why) => Err(why),
            Ok(false) if self.is_device_address(at) || !host => Err(format!("{at:#x} is not allocated")),
            Ok(false) => Ok(()),
        }
    }

    /// Checks the same for a copy, which reaches the plain memory of every device: without peer access it is staged
    /// through the host (guide, Peer-to-Peer Memory Copy). Other memory is accessed by the copying device, or by that
    /// of the context named in cuMemcpyPeer.
    pub(crate) fn may_copy(
        &self,
        agent: Agent,
        named: Option<Agent>,
        at: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<(), String> {
        let owner = self.find(at).filter(|(_, there)| there.origin == Origin::Plain);
        let owner = owner.map(|(_, there)| Agent { context: there.context, device: there.device });
        self.may_access(owner.or(named).unwrap_or(agent), at, bytes, writes, true)
    }

    /// Returns whether a copy is refused at the call. For memory other than plain memory the current context's device
    /// must have access, whatever the stream's is: cudaMemcpy and cudaMemcpyAsync of memory from cudaMallocAsync or
    /// cuMemMap fail with another device current, and "only cudaMemcpyPeerAsync correctly handles memory not allocated
    /// via cudaMalloc" (PyTorch, CUDACachingAllocator.cpp; also NVIDIA bug 3446335, and UCX 10671). NVIDIA's
    /// documentation does not mention this.
    pub(crate) fn is_copy_refused(&self, current: Agent, at: u64, bytes: u64) -> bool {
        match self.find(at) {
            Some((_, there)) if there.origin == Origin::Plain => false,
            Some(_) => self.access(current, at) == Access::None,
            None => {
                let mappings = self.mappings.range(..at.saturating_add(bytes)).rev();
                let touched = mappings.take_while(|(start, mapping)| *start + mapping.bytes() > at);
                let none = |start: &u64| self.access(current, *start) == Access::None;
                touched.map(|(start, _)| start).any(none)
            }
        }
    }

    /// Returns whether cuMemcpyPeer is refused: "dstDevice is the base device pointer of the destination memory and
    /// dstContext is the destination context", so the memory must belong to the context or be accessible to it.
    pub(crate) fn is_named_wrongly(&self, named: Agent, at: u64) -> bool {
        self.is_device_address(at) && self.access(named, at) == Access::None
    }
}
