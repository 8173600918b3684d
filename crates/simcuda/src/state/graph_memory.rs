//! Memory allocated by a graph.

use std::collections::BTreeSet;

use cuda_sys::CUdevice;

/// An allocation of a graph. Its address is fixed at the capture.
pub(crate) struct GraphMemory {
    bytes: u64,
    device: CUdevice,
    span: (u64, u64),
    unique: u64,
    /// Other devices that may access it: those of the pool at the time of the capture.
    granted: BTreeSet<CUdevice>,
    /// The handle of the graph with the allocation node.
    owner: u64,
    /// Whether it has memory.
    is_charged: bool,
    /// Whether a node of its own graph frees it.
    is_freed_inside: bool,
    /// Whether it was launched and not freed since, by the order of calls.
    is_out: bool,
}

impl GraphMemory {
    /// Creates addresses without memory, for a graph that was not launched.
    pub(crate) fn new(
        bytes: u64,
        device: CUdevice,
        span: (u64, u64),
        unique: u64,
        granted: BTreeSet<CUdevice>,
        owner: u64,
    ) -> Self {
        let (is_charged, is_freed_inside, is_out) = (false, false, false);
        Self { bytes, device, span, unique, granted, owner, is_charged, is_freed_inside, is_out }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn device(&self) -> CUdevice {
        self.device
    }

    pub(crate) fn span(&self) -> (u64, u64) {
        self.span
    }

    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    /// Returns the other devices that may access it.
    pub(crate) fn granted(&self) -> &BTreeSet<CUdevice> {
        &self.granted
    }

    /// Returns the handle of the graph with the allocation node.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    /// Returns whether it has memory.
    pub(crate) fn is_charged(&self) -> bool {
        self.is_charged
    }

    pub(crate) fn set_charged(&mut self, is_charged: bool) {
        self.is_charged = is_charged;
    }

    /// Returns whether a node of its own graph frees it.
    pub(crate) fn is_freed_inside(&self) -> bool {
        self.is_freed_inside
    }

    /// Records that a node of this graph frees it.
    pub(crate) fn note_free(&mut self, graph: u64) {
        self.is_freed_inside = self.owner == graph;
    }

    /// Returns whether it was launched and not freed since, by the order of calls.
    pub(crate) fn is_out(&self) -> bool {
        self.is_out
    }

    pub(crate) fn set_out(&mut self, is_out: bool) {
        self.is_out = is_out;
    }
}
