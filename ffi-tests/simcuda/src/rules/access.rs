//! Whose work may touch which memory. Each kind of memory has a rule of its own:
//!
//! - Plain memory: "all memory allocated in the peer context using cuMemAlloc() and cuMemAllocPitch() will immediately be
//!   accessible by the current context" once that has called cuCtxEnablePeerAccess (Unified Addressing in cuda.h). The
//!   contexts of one device share their memory, which is believed.
//! - Virtual memory: cuMemSetAccess, for each device. "cudaEnablePeerAccess forces all prior and future allocations made with
//!   cudaMalloc to be mapped to the target peer device", and no others (guide, Virtual Memory Management, Access Rights).
//! - Pools: "Like allocation accessibility controlled through the virtual memory management APIs, memory pool allocation
//!   accessibility does not follow cudaDeviceEnablePeerAccess or cuCtxEnablePeerAccess. For memory pools, the API
//!   cudaMemPoolSetAccess modifies what devices can access allocations from a pool. By default, allocations are accessible
//!   only from the device where the allocations are located" (guide, Device Accessibility for Multi-GPU Support).
//! - Graphs: "the allocation node records the peer accessibility of the allocating pool at the time of the capture" (guide,
//!   Peer Access with Stream Capture).
//! - Host memory and managed memory: every device.
//! - Memory of another process: the device that has opened it. cuIpcOpenMemHandle says no more, so this is ours.

use std::collections::BTreeSet;

use cuda_sys::CUdevice;

use crate::options::Choice;
use crate::sim::Sim;
use crate::state::context::Agent;
use crate::state::graph_memory::GraphMemory;
use crate::state::memory::{Allocation, Origin};
use crate::state::pool::Pool;
use crate::system::Access;

/// Values of `Choice::Peers`: no device can access another's memory, all can, 0 and 1 each other's, 2 and 3, and so on,
/// or those of lower ordinals.
const NONE: i64 = 0;
const NEIGHBOURS: i64 = 2;
const LOWER_ORDINALS: i64 = 3;

impl Sim {
    /// Whether a device is able to access another's memory (cuDeviceCanAccessPeer).
    pub(crate) fn can_access_peer(&self, device: CUdevice, peer: CUdevice) -> bool {
        let is_possible = match self.options.get(Choice::Peers) {
            NONE => false,
            NEIGHBOURS => device / 2 == peer / 2,
            LOWER_ORDINALS => peer < device,
            _ => true,
        };
        device != peer && is_possible
    }

    /// The live context of that handle as one whose work touches memory.
    pub(crate) fn agent(&self, context: u64) -> Agent {
        Agent { context, device: self.contexts[&context].device() }
    }

    /// What a context's work may do at an address, whether or not the turn of that memory's allocation has come.
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

    /// Whether a device may touch memory of a pool, or of a graph if that is 0, of another device.
    fn is_granted(&self, device: CUdevice, owner: CUdevice, pool: u64, start: u64) -> bool {
        let of_pool = self.pools.get(&pool).map(Pool::granted);
        let granted = of_pool.or_else(|| self.graph_memory.get(&start).map(GraphMemory::granted));
        device == owner || granted.is_some_and(|granted: &BTreeSet<CUdevice>| granted.contains(&device))
    }

    /// The allocation around an address, as device work finds it whose turn it is: start, bytes, and whether that work may
    /// touch it. What is allocated in the order of streams lives from the turn of its allocation to that of its free.
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

    /// Whether a context's work may touch a range; if not, why. An address that is no device's is the host's,
    /// and taken on trust where `host` says that the host's memory will do.
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

    /// The same for a copy, which reaches the plain memory of every device: where peer access is not enabled it is staged
    /// through the host (guide, Peer-to-Peer Memory Copy). Other memory is touched by the device that copies, or by that of
    /// the context that cuMemcpyPeer names.
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

    /// Whether a copy is refused at the call. Of memory that is no plain memory the current context's device must have
    /// access, whatever the stream's is: cudaMemcpy and cudaMemcpyAsync of memory of cudaMallocAsync or cuMemMap fail with the
    /// device of another current, and "only cudaMemcpyPeerAsync correctly handles memory not allocated via cudaMalloc"
    /// (PyTorch, CUDACachingAllocator.cpp; also NVIDIA bug 3446335, and UCX 10671). NVIDIA's documentation does not say so.
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

    /// Whether cuMemcpyPeer is refused: "dstDevice is the base device pointer of the destination memory and dstContext is the
    /// destination context", so the memory must be the context's, or accessible to it.
    pub(crate) fn is_named_wrongly(&self, named: Agent, at: u64) -> bool {
        self.is_device_address(at) && self.access(named, at) == Access::None
    }
}
